"""An HTTP server with seeded latencies and faults, in its own process: ``python -m perf.latency_server REPLIES SEED``.

It shares the machine with the client it measures, so it spends as little CPU time as it can: bare sockets,
replies built beforehand, nothing of a request read but its prompt; the images of a judge's request are received
and forgotten. (The servers of ``tests/support`` read and check all that they get, each connection in a thread.) Every
image that it sends is another file: a comment in it says of which item it is. It prints its port and serves until it is
terminated. ``GET /log`` answers one JSON line per answered request, the fields of :class:`AnsweredRequest`.

Every answer, a fault too, comes after the request's drawn latency: a gateway that queues a request and then
fails it. So all time that the server takes is in the yardstick, and only the client's own waiting is not. With
``--per-second R`` a request beyond R a second, or beyond R at once, is refused at once: no latency of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import hashlib
import heapq
import json
import math
import re
import socket
import struct
import subprocess
import sys
import time
import urllib.request
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import NamedTuple

from perf.harness import REPO

MEDIAN = 0.3
P99 = 3.0
"""Seconds; both are of the lognormal distribution of latencies."""

OK, RATE_LIMIT, SERVER_ERROR, RESET = "ok", "429", "500", "reset"
FAULTS = {RATE_LIMIT: 0.05, SERVER_ERROR: 0.02, RESET: 0.01}
"""The share of requests that each fault takes when faults are on."""

_NORMAL = NormalDist()
_SIGMA = math.log(P99 / MEDIAN) / _NORMAL.inv_cdf(0.99)


def latency(seed: int, item: str, attempt: int) -> float:
    """Seconds until the answer to request number ``attempt`` (from 1) for ``item``."""
    return MEDIAN * math.exp(_SIGMA * _NORMAL.inv_cdf(_uniform("latency", seed, item, attempt)))


def answer(seed: int, item: str, attempt: int) -> str:
    """``ok`` or the fault that this request meets when faults are on."""
    left = _uniform("answer", seed, item, attempt)
    for fault, share in FAULTS.items():
        if left < share:
            return fault
        left -= share
    return OK


def reply_number(item: str, replies: int) -> int:
    """Which of ``replies`` bodies an ``ok`` answer for ``item`` carries."""
    return int(_uniform("reply", item) * replies)


def comment(item: str = "") -> bytes:
    """The comment of the PNG of ``item``: a chunk whose base64 has the same length for all, and no padding."""
    words = b"tEXtitem\0" + hashlib.blake2b(item.encode(), digest_size=19).hexdigest()[:19].encode()
    return struct.pack(">I", len(words) - 4) + words + struct.pack(">I", zlib.crc32(words))


def _uniform(*key: object) -> float:
    """A number in (0, 1) that depends on ``key`` alone."""
    digest = hashlib.blake2b("|".join(map(str, key)).encode(), digest_size=8).digest()
    return ((int.from_bytes(digest, "big") >> 12) + 0.5) / 2**52


def makespan(lengths: Iterable[float], workers: int) -> float:
    """Seconds that ``workers`` need for jobs of these ``lengths``: each job in turn to the first free worker.

    List scheduling (Graham 1966) without any time between jobs; 0 when there are none.
    """
    free = [0.0] * workers
    end = 0.0
    for length in lengths:
        done = free[0] + length
        heapq.heapreplace(free, done)
        end = max(end, done)
    return end


def job_lengths(items: Sequence[str], log: Sequence[AnsweredRequest]) -> list[float]:
    """The seconds that each of ``items`` took the server, all requests up to its first good answer."""
    lengths: dict[str, float] = defaultdict(float)
    done = set()
    for line in sorted(log, key=lambda line: line.attempt):
        if line.item not in done:
            lengths[line.item] += line.latency
        if line.answer == OK:
            done.add(line.item)
    return [lengths[item] for item in items]


class TokenBucket:
    """Lets ``per_second`` requests through, ``burst`` at once at most."""

    def __init__(self, per_second: float, burst: float, now: float) -> None:
        self._per_second, self._burst = per_second, burst
        self._tokens, self._at = burst, now

    def takes(self, now: float) -> bool:
        """Whether a request at the time ``now`` is let through."""
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._per_second)
        self._at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class AnsweredRequest(NamedTuple):
    """One line of the server's log."""

    item: str
    attempt: int
    latency: float
    answer: str
    arrived: float


class ServerProcess:
    """A latency server in its own process, while used as a context manager."""

    def __init__(self, replies: Path, seed: int, faults: bool = False, per_second: float = 0.0) -> None:
        self._command = [sys.executable, "-m", "perf.latency_server", str(replies), str(seed)]
        self._command += ["--per-second", str(per_second), *["--faults"] * faults]

    def __enter__(self) -> ServerProcess:
        self._process = subprocess.Popen(self._command, cwd=REPO, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline()):
            raise SystemExit("the latency server did not start")
        self._origin, self.pid = f"http://127.0.0.1:{int(line)}", self._process.pid
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.communicate()

    @property
    def environ(self) -> dict[str, str]:
        """What names the server to a client."""
        return {"BASE_URL": f"{self._origin}/v1", "API_KEY": "EMPTY"}

    def log(self) -> list[AnsweredRequest]:
        """All requests answered so far, in the order of their answers."""
        with urllib.request.urlopen(f"{self._origin}/log") as response:
            return [AnsweredRequest(*json.loads(line)) for line in response]


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


_LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_READ = 1 << 18


class LatencyServer:
    """Answers POST requests with one of ``replies`` (JSON bodies), or with a fault when ``faults`` are on.

    ``per_second`` requests are let through (a token bucket of one second's tokens), 0 for all.
    """

    def __init__(self, replies: list[bytes], seed: int, faults: bool, per_second: float = 0.0) -> None:
        self._seed = seed
        self._faults = faults
        # what goes before and after the comment of an image
        place = base64.b64encode(comment())
        self._replies = [_response("200 OK", body).partition(place)[::2] for body in replies]
        self._errors = {
            # the shortest wait that the header's unit, whole seconds, can ask for
            RATE_LIMIT: _response("429 Too Many Requests", _error("slow down"), "Retry-After: 1\r\n"),
            SERVER_ERROR: _response("500 Internal Server Error", _error("the backend failed")),
        }
        self._bucket = TokenBucket(per_second, per_second, time.monotonic()) if per_second else None
        self._attempts: Counter[str] = Counter()
        self._log: list[AnsweredRequest] = []

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
                found = _LENGTH.search(head)
                length = int(found[1]) if found else 0
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
                await _send(connection, *response)

    async def _respond(self, head: bytes, body: bytes) -> tuple[bytes, bytes] | None:
        """The response to one request in two parts, after its latency; None to reset the connection.

        ``body`` is at least the first ``HEAD`` bytes of it.
        """
        if head.startswith(b"GET /log "):
            return _response("200 OK", "".join(json.dumps(line) + "\n" for line in self._log).encode()), b""
        arrived = time.monotonic()
        item = request_item(body)
        self._attempts[item] += 1
        attempt = self._attempts[item]
        drawn = latency(self._seed, item, attempt)
        outcome = answer(self._seed, item, attempt) if self._faults else OK
        if self._bucket and not self._bucket.takes(arrived):
            drawn, outcome = 0.0, RATE_LIMIT
        await asyncio.sleep(drawn)
        self._log.append(AnsweredRequest(item, attempt, drawn, outcome, arrived))
        if outcome == RESET:
            return None
        if outcome in self._errors:
            return self._errors[outcome], b""
        before, after = self._replies[reply_number(item, len(self._replies))]
        return before + base64.b64encode(comment(item)) * bool(after), after


async def _send(connection: socket.socket, first: bytes, second: bytes) -> None:
    """Send both, with one system call where the socket takes so much; neither is copied."""
    try:
        sent = connection.sendmsg([first, second])
    except BlockingIOError:
        sent = 0
    loop = asyncio.get_running_loop()
    for part, start in ((first, sent), (second, max(0, sent - len(first)))):
        if start < len(part):
            await loop.sock_sendall(connection, memoryview(part)[start:])


def _response(status: str, body: bytes, headers: str = "") -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\n{headers}Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _error(message: str) -> bytes:
    return json.dumps({"error": {"message": message, "type": "server_error", "code": None}}).encode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("replies", type=Path, help="folder of JSON bodies")
    parser.add_argument("seed", type=int)
    parser.add_argument("--faults", action="store_true")
    parser.add_argument("--per-second", type=float, default=0.0)
    options = parser.parse_args()
    replies = [path.read_bytes() for path in sorted(options.replies.glob("*.json"))]
    server = LatencyServer(replies, options.seed, options.faults, options.per_second)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(server.run())


if __name__ == "__main__":
    main()
