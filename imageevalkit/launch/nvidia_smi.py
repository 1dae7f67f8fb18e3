"""What nvidia-smi, which alone tells the launcher of GPUs (it has no CUDA), says: which there are, and their memory."""

from __future__ import annotations

import contextlib
import re
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from imageevalkit.errors import UserError

SECONDS = 60  # a driver that initialises many GPUs without persistence mode takes tens of seconds
# The manual page of nvidia-smi: 14 = "infoROM is corrupted", a warning beside a full answer.
ANSWERED = (0, 14)
_NONE_HERE = "No devices were found"  # a node without GPUs of ours: a job of a cluster that asked for none
_GPU_LINE = re.compile(r"GPU (\d+): .*\(UUID: (GPU-[^)\s]+)\)")
_MIG_LINE = re.compile(r"\s+MIG .*Device\s+(\d+): \(UUID: (MIG-[^)\s]+)\)")


@dataclass(frozen=True)
class Device:
    """A GPU: its index and UUID; ``migs`` are the UUIDs of its MIG devices by index, None where MIG is off."""

    index: str
    uuid: str
    migs: dict[str, str] | None = None


def devices(environ: Mapping[str, str]) -> list[Device]:
    """Every GPU of the machine; none where there is no ``nvidia-smi``.

    Raises:
        UserError: ``nvidia-smi`` is there, but fails.
    """
    rows = csv_rows(_ask(["--query-gpu=index,uuid,mig.mode.current", "--format=csv,noheader"], environ), 3)
    migs = _mig_devices(environ) if any(mode == "Enabled" for _, _, mode in rows) else {}
    return [
        Device(index, uuid, migs.get(uuid, {}) if mode == "Enabled" else None) for index, uuid, mode in rows
    ]


def csv_rows(text: str, columns: int) -> list[list[str]]:
    """The lines of ``text`` that have as many ``columns``: warnings stand between them."""
    rows = [[word.strip() for word in line.split(",")] for line in text.splitlines()]
    return [row for row in rows if len(row) == columns]


def failure(said: str) -> UserError:
    """What to tell of an ``nvidia-smi`` that ended badly and ``said`` something."""
    last = (said.strip().splitlines() or ["no message"])[-1]
    return UserError(
        f"nvidia-smi failed ({last}); mend the driver, or run without GPUs: CUDA_VISIBLE_DEVICES="
    )


def silence() -> UserError:
    """What to tell of an ``nvidia-smi`` that does not end."""
    return UserError(f"nvidia-smi did not answer within {SECONDS} s; check the GPU driver")


def _mig_devices(environ: Mapping[str, str]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    gpu = ""
    for line in _ask(["-L"], environ).splitlines():
        if match := _GPU_LINE.match(line):
            gpu = match[2]
        elif match := _MIG_LINE.match(line):
            found.setdefault(gpu, {})[match[1]] = match[2]
    return found


def _ask(words: list[str], environ: Mapping[str, str]) -> str:
    try:
        done = subprocess.run(
            ["nvidia-smi", *words],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            env=dict(environ),
            check=False,
        )
    except FileNotFoundError:
        return ""
    except subprocess.TimeoutExpired:
        raise silence() from None
    said = done.stdout + done.stderr
    if done.returncode in ANSWERED:
        return done.stdout
    if _NONE_HERE in said:
        return ""
    raise failure(said)


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
            raise failure(str(error)) from None

    def _collect(self, process: subprocess.Popen[str]) -> None:
        now = time.monotonic()
        if process.poll() is None:
            if now - self._began > SECONDS:
                self.close()
                raise silence()
            return
        said = process.stdout.read() if process.stdout else ""
        self._forget()
        if process.returncode not in ANSWERED:
            raise failure(said)
        self._answer = {
            uuid: Memory(float(total), float(free))
            for uuid, total, free in csv_rows(said, 3)
            if total.isdecimal() and free.isdecimal()
        }
        self._answer_began = self._began
        # a slow nvidia-smi shall not run all the time while a job waits
        self._stale_at = now + min(10.0, max(2.0, 4 * (now - self._began)))

    def _forget(self) -> None:
        if self._process is not None and self._process.stdout:
            self._process.stdout.close()
        self._process = None
