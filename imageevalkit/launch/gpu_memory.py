"""How much memory of each GPU is free, and how much must be, so that nobody's running work is disturbed."""

from __future__ import annotations

import contextlib
import re
import subprocess
import time
from collections.abc import Mapping
from typing import NamedTuple

from imageevalkit.errors import UserError
from imageevalkit.launch import nvidia_smi

DEFAULT = "90%"
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?) *(%|MiB|GiB)?", re.IGNORECASE)
_MIB = {"mib": 1.0, "gib": 1024.0}


class MinFreeMemory(NamedTuple):
    """What must be free of a GPU: ``share`` of its memory (0 to 1), or ``mib``; ``text`` is how the user said it."""

    text: str
    share: float = 0.0
    mib: float = 0.0

    @classmethod
    def parse(cls, text: str, where: str) -> MinFreeMemory:
        """Read ``90%`` or ``20GiB``; 0 is no demand. Raises UserError for anything else."""
        match = _AMOUNT.fullmatch(text.strip())
        number, unit = (float(match[1]), (match[2] or "").lower()) if match else (-1.0, "")
        if number == 0:
            return cls(text)
        if number > 0 and unit == "%" and number <= 100:
            return cls(text, share=number / 100)
        if number > 0 and unit in _MIB:
            return cls(text, mib=number * _MIB[unit])
        raise UserError(
            f"{where} is '{text}': use a percentage (90%) or an amount (20GiB); 0 asks for nothing"
        )

    def __bool__(self) -> bool:
        return bool(self.share or self.mib)

    def of(self, total: float) -> float:
        """MiB that must be free of ``total`` MiB."""
        return self.mib or self.share * total


class Memory(NamedTuple):
    """Memory of a GPU in MiB."""

    total: float
    free: float

    def __str__(self) -> str:
        return f"{(self.total - self.free) / 1024:.1f} of {self.total / 1024:.1f} GiB in use"


class MemoryWatch:
    """Asks nvidia-smi beside the event loop: it may take seconds, and the launcher refreshes a display meanwhile."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._began = 0.0
        self._answer: dict[str, Memory] = {}
        self._answer_began = float("-inf")
        self._stale_at = float("-inf")

    def read(self, since: float) -> Mapping[str, Memory] | None:
        """Memory by UUID, of a moment not long ago and after ``since`` (monotonic); None until that is known.

        Call it again until it is. GPUs whose memory nvidia-smi does not tell are missing (``[N/A]``, MIG devices).

        Raises:
            UserError: nvidia-smi fails or hangs.
        """
        if self._process is not None:
            self._collect(self._process)
        if self._answer_began > since and time.monotonic() < self._stale_at:
            return self._answer
        if self._process is None:
            self._ask()
        return None

    def close(self) -> None:
        """Ask no more."""
        if self._process is not None:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # it hangs in the driver, and not in our way
                self._process.wait(1)
            self._forget()

    def _ask(self) -> None:
        self._began = time.monotonic()
        words = ["--query-gpu=uuid,memory.total,memory.free", "--format=csv,noheader,nounits"]
        try:
            self._process = subprocess.Popen(
                ["nvidia-smi", *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,  # some lines: they fit into the pipe, and it ends before we read
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,  # a terminal's Ctrl-C is for the launcher, and no failure of nvidia-smi
            )
        except OSError as error:
            raise nvidia_smi.failure(str(error)) from None

    def _collect(self, process: subprocess.Popen[str]) -> None:
        now = time.monotonic()
        if process.poll() is None:
            if now - self._began > nvidia_smi.SECONDS:
                self.close()
                raise nvidia_smi.silence()
            return
        said = process.stdout.read() if process.stdout else ""
        self._forget()
        if process.returncode not in nvidia_smi.ANSWERED:
            raise nvidia_smi.failure(said)
        self._answer = {
            uuid: Memory(float(total), float(free))
            for uuid, total, free in nvidia_smi.csv_rows(said, 3)
            if total.isdecimal() and free.isdecimal()
        }
        self._answer_began = self._began
        # a slow nvidia-smi shall not run all the time while a job waits
        self._stale_at = now + min(10.0, max(2.0, 4 * (now - self._began)))

    def _forget(self) -> None:
        if self._process is not None and self._process.stdout:
            self._process.stdout.close()
        self._process = None
