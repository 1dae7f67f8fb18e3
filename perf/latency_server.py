"""An HTTP server with seeded latencies and faults, in its own process: started by :class:`ServerProcess`.

It answers image requests and judge requests alike with one of the JSON bodies in a folder. Images differ: the
server writes the item into a PNG comment. It prints its port and serves until it is terminated. ``GET /log`` returns
one JSON line for each answered request, with the fields of :class:`AnsweredRequest`.

Each answer, a fault too, follows the drawn latency of its request.
"""

from __future__ import annotations

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
import urllib.request
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import NamedTuple

from perf.harness import REPO

MEDIAN, P99 = 0.3, 3.0
"""Seconds of the lognormal distribution of latencies."""
OK, RATE_LIMIT, SERVER_ERROR, RESET = "ok", "429", "500", "reset"
FAULTS = {RATE_LIMIT: 0.05, SERVER_ERROR: 0.02, RESET: 0.01}
"""The share of requests with each fault."""

_SIGMA = math.log(P99 / MEDIAN) / NormalDist().inv_cdf(0.99)
# Prompts of images have this form, and judges' questions quote it.
_ITEM = re.compile(rb"item (\d+):")
_LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


def latency(seed: int, item: str, attempt: int) -> float:
    """Returns the latency in seconds of request number ``attempt`` (from 1) for ``item``."""
    return MEDIAN * math.exp(_SIGMA * NormalDist().inv_cdf(_uniform("latency", seed, item, attempt)))


def answer(seed: int, item: str, attempt: int) -> str:
    """Returns ``ok`` or the fault of this request if faults are on."""
    left = _uniform("answer", seed, item, attempt)
    for fault, share in FAULTS.items():
        if left < share:
            return fault
        left -= share
    return OK


def _uniform(*key: object) -> float:
    """Returns a number in (0, 1) that depends on ``key`` alone."""
    digest = hashlib.blake2b("|".join(map(str, key)).encode(), digest_size=8).digest()
    return ((int.from_bytes(digest, "big") >> 12) + 0.5) / 2**52


def comment(item: str = "") -> bytes:
    """Returns the PNG chunk with the comment of ``item``. All have one length, and base64 without padding."""
    words = b"tEXtitem\0" + item.encode().ljust(19)
    return struct.pack(">I", len(words) - 4) + words + struct.pack(">I", zlib.crc32(words))


def makespan(lengths: Iterable[float], workers: int) -> float:
    """Returns the seconds that ``workers`` need for jobs of these ``lengths``: each job to the first free worker.

    List scheduling (Graham 1966) without any time between jobs; 0 without jobs.
    """
    free, end = [0.0] * workers, 0.0
    for length in lengths:
        done = free[0] + length
        heapq.heapreplace(free, done)
        end = max(end, done)
    return end


def job_lengths(items: int, log: Sequence[AnsweredRequest]) -> list[float]:
    """Returns the server's seconds for each item: all requests up to the first good answer."""
    lengths, done = defaultdict[str, float](float), set[str]()
    for line in sorted(log, key=lambda line: line.attempt):
        if line.item not in done:
            lengths[line.item] += line.latency
        if line.answer == OK:
            done.add(line.item)
    return [lengths[str(item)] for item in range(items)]


class AnsweredRequest(NamedTuple):
    """One line of the server's log."""

    item: str
    attempt: int
    latency: float
    answer: str


class ServerProcess:
    """A latency server in its own process, as a context manager."""

    def __init__(self, replies: Path, seed: int, faults: bool = False) -> None:
        words = [str(replies), str(seed), "faults" if faults else ""]
        self._command = [sys.executable, "-m", "perf.latency_server", *words]

    def __enter__(self) -> ServerProcess:
        self._process = subprocess.Popen(self._command, cwd=REPO, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline()):
            raise SystemExit("error: the latency server did not start: see the messages above")
        self._origin, self.pid = f"http://127.0.0.1:{int(line)}", self._process.pid
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.communicate()

    @property
    def environ(self) -> dict[str, str]:
        """The environment variables that name the server to a client."""
        return {"BASE_URL": f"{self._origin}/v1", "API_KEY": "EMPTY"}

    def log(self) -> list[AnsweredRequest]:
        """Returns all answered requests in the order of their answers."""
        with urllib.request.urlopen(f"{self._origin}/log") as response:
            return [AnsweredRequest(*json.loads(line)) for line in response]


class LatencyServer:
    """Answers POST requests with one of ``replies`` (JSON bodies), or with a fault if ``faults`` is true."""

    def __init__(self, replies: list[bytes], seed: int, faults: bool) -> None:
        self._seed, self._faults = seed, faults
        place = base64.b64encode(comment())
        self._replies = [_response("200 OK", body).partition(place)[::2] for body in replies]
        self._errors = {
            # The header's unit is a whole second.
            RATE_LIMIT: _response("429 Too Many Requests", b'{"error": "slow down"}', "Retry-After: 1\r\n"),
            SERVER_ERROR: _response("500 Internal Server Error", b'{"error": "the backend failed"}'),
        }
        self._attempts: Counter[str] = Counter()
        self._log: list[AnsweredRequest] = []

    async def run(self) -> None:
        """Prints a free port of 127.0.0.1 and serves there until the process is terminated."""
        # Otherwise the buffer of a judge's request, which has an image, would fill up many times.
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 22, backlog=1024)
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A client may go away: its answered requests are in the log.
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                found = _LENGTH.search(head)
                body = await reader.readexactly(int(found[1]) if found else 0)
                parts = await self._respond(head, body)
                if not parts:
                    connection = writer.get_extra_info("socket")
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
                    break
                writer.writelines(parts)
                await writer.drain()
        writer.close()

    async def _respond(self, head: bytes, body: bytes) -> list[bytes]:
        """Returns the parts of the response to one request after its latency; none: reset the connection."""
        if head.startswith(b"GET /log "):
            return [_response("200 OK", "".join(json.dumps(line) + "\n" for line in self._log).encode())]
        if not (found := _ITEM.search(body)):
            raise ValueError(f"the request names no item: {body[:200]!r}")
        item = found[1].decode()
        self._attempts[item] += 1
        attempt = self._attempts[item]
        drawn = latency(self._seed, item, attempt)
        outcome = answer(self._seed, item, attempt) if self._faults else OK
        await asyncio.sleep(drawn)
        self._log.append(AnsweredRequest(item, attempt, drawn, outcome))
        if outcome == RESET:
            return []
        if outcome in self._errors:
            return [self._errors[outcome]]
        before, after = self._replies[int(item) % len(self._replies)]
        return [before, base64.b64encode(comment(item)) if after else b"", after]


def _response(status: str, body: bytes, headers: str = "") -> bytes:
    kind = f"Content-Type: application/json\r\n{headers}Content-Length: {len(body)}"
    return f"HTTP/1.1 {status}\r\n{kind}\r\n\r\n".encode() + body


if __name__ == "__main__":
    folder, seed, faults = sys.argv[1:]
    bodies = [path.read_bytes() for path in sorted(Path(folder).glob("*.json"))]
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(LatencyServer(bodies, int(seed), faults == "faults").run())
