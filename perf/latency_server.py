"""An HTTP server with seeded latencies and faults, in its own process: ``python -m perf.latency_server``.

It shares the machine with the client it measures, so it spends as little CPU time as it can: bare sockets,
replies built beforehand, nothing of a request read but its prompt; the images of a judge's request are received
and forgotten. It prints its port and serves until it is
terminated. ``GET /log`` answers one JSON line per answered request:
``{"item", "attempt", "latency", "answer", "arrived"}``, ``arrived`` on the clock of ``time.monotonic``.

Every answer, a fault too, comes after the request's drawn latency: a gateway that queues a request and then
fails it. So all time that the server takes is in the yardstick, and only the client's own waiting is not. With
``--per-second R`` a request beyond R a second, or beyond R at once, is refused at once: no latency of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import re
import socket
import struct
import time
from collections import Counter
from pathlib import Path

from perf.draws import OK, RATE_LIMIT, RESET, SERVER_ERROR, answer, latency, reply_number

HEAD = 1 << 15
"""Bytes that are enough: images come after the words."""
# as TRIG's judge is asked: what follows is its image
_RATED = re.compile(rb'for generating this image: [^"\\]*(?:\\.[^"\\]*)*"')
# as WISE's judge is asked; in a JSON string its quotes are escaped
_JUDGED = re.compile(rb'PROMPT: \\"((?:[^"\\]|\\[^"]|\\"(?!\\n))*)\\"\\nEXPLANATION')


def request_item(body: bytes) -> str:
    """The prompt of an image: as it is in a request for one, or as a judge's question quotes it; of TRIG's question a
    hash of all its words."""
    if rated := _RATED.search(body):
        return hashlib.sha256(body[: rated.end()]).hexdigest()
    if judged := _JUDGED.search(body):
        prompt: str = json.loads(b'"' + judged[1] + b'"')
        return prompt
    return str(json.loads(body)["prompt"])


_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_READ = 1 << 18


class LatencyServer:
    """Answers POST requests with one of ``replies`` (JSON bodies), or with a fault when ``faults`` are on.

    ``retry_after`` is the header's value, in seconds, in a 429; ``per_second`` requests are let through
    (a token bucket of one second's tokens), 0 for all.
    """

    def __init__(
        self, replies: list[bytes], seed: int, faults: bool, retry_after: str, per_second: float = 0.0
    ) -> None:
        self._seed = seed
        self._faults = faults
        self._replies = [_response("200 OK", body) for body in replies]
        self._errors = {
            RATE_LIMIT: _response(
                "429 Too Many Requests", _error("slow down"), f"Retry-After: {retry_after}\r\n"
            ),
            SERVER_ERROR: _response("500 Internal Server Error", _error("the backend failed")),
        }
        self._per_second = self._tokens = per_second
        self._refilled = time.monotonic()
        self._attempts: Counter[str] = Counter()
        self._log: list[dict[str, object]] = []

    async def run(self) -> None:
        """Serve on a free port of 127.0.0.1, printed first, until the process is ended."""
        loop = asyncio.get_running_loop()
        listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        listener.setblocking(False)
        print(listener.getsockname()[1], flush=True)
        open_connections = set()
        while True:
            connection, _ = await loop.sock_accept(listener)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            task = asyncio.create_task(self._serve(connection))
            open_connections.add(task)
            task.add_done_callback(open_connections.discard)

    async def _serve(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        received = b""
        buffer = memoryview(bytearray(_READ))
        # a client that goes away is its own affair; what it was answered is in the log
        with connection, contextlib.suppress(ConnectionError):
            while True:
                while (end := received.find(b"\r\n\r\n")) < 0:
                    if not (chunk := await loop.sock_recv(connection, _READ)):
                        return
                    received += chunk
                head, received = received[:end], received[end + 4 :]
                length = _content_length(head)
                body, received = bytearray(received[:length]), received[length:]
                left = length - len(body)
                while left:
                    if not (count := await loop.sock_recv_into(connection, buffer[: min(left, _READ)])):
                        return
                    left -= count
                    if len(body) < HEAD:
                        body += buffer[: min(count, HEAD - len(body))]
                response = await self._respond(head, bytes(body))
                if response is None:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
                    return
                await loop.sock_sendall(connection, response)

    async def _respond(self, head: bytes, body: bytes) -> bytes | None:
        """The response to one request, after its latency; None to reset the connection.

        ``body`` is at least the first ``HEAD`` bytes of it.
        """
        if head.startswith(b"GET /log "):
            return _response("200 OK", "".join(json.dumps(line) + "\n" for line in self._log).encode())
        arrived = time.monotonic()
        item = request_item(body)
        self._attempts[item] += 1
        attempt = self._attempts[item]
        drawn = latency(self._seed, item, attempt)
        outcome = answer(self._seed, item, attempt) if self._faults else OK
        if self._is_refused(arrived):
            drawn, outcome = 0.0, RATE_LIMIT
        await asyncio.sleep(drawn)
        self._log.append(
            {"item": item, "attempt": attempt, "latency": drawn, "answer": outcome, "arrived": arrived}
        )
        if outcome == RESET:
            return None
        return self._errors.get(outcome) or self._replies[reply_number(item, len(self._replies))]

    def _is_refused(self, now: float) -> bool:
        if not self._per_second:
            return False
        self._tokens = min(self._per_second, self._tokens + (now - self._refilled) * self._per_second)
        self._refilled = now
        if self._tokens < 1:
            return True
        self._tokens -= 1
        return False


def _content_length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


def _response(status: str, body: bytes, headers: str = "") -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\n{headers}Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _error(message: str) -> bytes:
    return json.dumps({"error": {"message": message, "type": "server_error", "code": None}}).encode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replies", type=Path, required=True, help="folder of JSON bodies")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--faults", action="store_true")
    parser.add_argument("--retry-after", required=True)
    parser.add_argument("--per-second", type=float, default=0.0)
    options = parser.parse_args()
    replies = [path.read_bytes() for path in sorted(options.replies.glob("*.json"))]
    server = LatencyServer(replies, options.seed, options.faults, options.retry_after, options.per_second)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(server.run())


if __name__ == "__main__":
    main()
