"""Starting the latency server for one measurement, and reading its log."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

REPO = Path(__file__).resolve().parent.parent


class AnsweredRequest(NamedTuple):
    """One line of the server's log."""

    item: str
    attempt: int
    latency: float
    answer: str
    arrived: float


class ServerProcess:
    """A latency server in its own process, while used as a context manager."""

    def __init__(
        self, replies: Path, seed: int, faults: bool, retry_after: str, per_second: float = 0.0
    ) -> None:
        self._command = [
            *[sys.executable, "-m", "perf.latency_server", "--replies", str(replies), "--seed", str(seed)],
            *["--retry-after", retry_after, "--per-second", str(per_second)],
            *(["--faults"] if faults else []),
        ]

    def __enter__(self) -> ServerProcess:
        self._process = subprocess.Popen(self._command, cwd=REPO, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("the latency server did not start")
        self._origin = f"http://127.0.0.1:{int(line)}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def environ(self) -> dict[str, str]:
        """What names the server to a client."""
        return {"BASE_URL": f"{self._origin}/v1", "API_KEY": "EMPTY"}

    def log(self) -> list[AnsweredRequest]:
        """All requests answered so far, in the order of their answers."""
        with urllib.request.urlopen(f"{self._origin}/log") as response:
            return [AnsweredRequest(**json.loads(line)) for line in response]
