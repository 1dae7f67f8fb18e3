"""The common base of all parts of the examination: time limits, rows, and measurements.

``python -m tests.gpu.part NAME …`` is one part in a process of its own; ``python -m tests.gpu`` starts it.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from perf.harness import Bar, Row, at_least

GIB = 1 << 30
COLUMNS = ("plain", "ours", "GiB", "note")
"""The other columns of a row: two speeds, the peak of GPU memory (model and activations), a remark."""
NO_TIME = "no time left"


class PartSetting(NamedTuple):
    """``module`` of this folder examines it, within so many ``seconds`` on a GPU."""

    module: str
    seconds: float


PARTS: dict[str, PartSetting] = {
    "devices": PartSetting("devices", 120),
    "faults": PartSetting("faults", 120),
    "precision": PartSetting("precision", 120),
    "judge": PartSetting("judge", 160),
    "metrics": PartSetting("metrics", 160),
    "flux.1-dev": PartSetting("pipelines", 100),
    "sd3.5-medium": PartSetting("pipelines", 110),
    "vllm": PartSetting("served", 120),
    "qwen-image": PartSetting("pipelines", 120),
}
"""The parts in their order. The limits exceed the total: a part rarely needs its limit, and the last parts may get no
time."""
TINY_PARTS = ["judge", "metrics", "sd3.5-medium"]
"""The parts that ``--tiny`` runs: those that measure. The others examine the GPU itself, or differ in their classes."""


class Part:
    """One part of the examination: ``tiny`` models on the CPU, or models of true size on a GPU.

    Args:
        name: a name in :data:`PARTS`.
        folder: an empty folder for the part's files.
        rows: the file to which the part appends its rows, a JSON object in each line.
        seconds: the time limit.
        tiny: True on the CPU.
    """

    def __init__(self, name: str, folder: Path, rows: Path, seconds: float, tiny: bool) -> None:
        self.name, self.folder, self.tiny = name, folder, tiny
        self._rows, self._end = rows, time.monotonic() + seconds

    @property
    def device(self) -> str:
        return "cpu" if self.tiny else "cuda"

    @property
    def dtype(self) -> str:
        """The precision of models here: half on a GPU."""
        return "float32" if self.tiny else "bfloat16"

    @property
    def left(self) -> float:
        """Seconds until the part is ended."""
        return self._end - time.monotonic()

    def speed(self, label: str, ours: float, plain: float, bar: Bar | None = None, **figures: str) -> None:
        """Add a row: images or answers per second, against ``bar`` on a GPU."""
        shown = {"plain": f"{plain:.3g}/s", "ours": f"{ours:.3g}/s", **figures}
        self.add(Row(label, ours / plain, None if self.tiny else bar, shown))

    def check(self, label: str, problems: list[str], note: str = "") -> None:
        """Add a row whose ratio is 1 without ``problems``, else 0."""
        self.add(Row(label, float(not problems), at_least(1.0), {"note": note}, problems))

    def skip(self, label: str, why: str) -> None:
        """Add a row without a measurement; ``why`` is the reason."""
        self.add(Row(label, float("nan"), skipped=why))

    def add(self, row: Row) -> None:
        """Append ``row`` to the file of rows."""
        with self._rows.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row._asdict()) + "\n")

    def attempt(self, label: str, run: Callable[..., None], *given: Any, seconds: float = 0.0) -> None:
        """Call ``run``. If it fails, or fewer than ``seconds`` are left on a GPU, a row reports the reason."""
        if not self.tiny and self.left < seconds:
            self.skip(label, NO_TIME)
            return
        started = time.monotonic()
        try:
            run(*given)
        except Exception as error:
            self.add(
                Row(label, float("nan"), problems=[f"{type(error).__name__}: {str(error)[:300]}".rstrip()])
            )
        free_memory()
        print(f"{label}: {time.monotonic() - started:.0f} s", flush=True)


def read_rows(file: Path, start: int = 0) -> list[Row]:
    """Returns the rows in ``file`` after the first ``start`` rows."""
    if not file.exists():
        return []
    lines = file.read_text(encoding="utf-8").split("\n")[start:-1]
    rows = [Row(**json.loads(line)) for line in lines]
    return [row._replace(bar=Bar(*row.bar) if row.bar else None) for row in rows]


def synchronize() -> None:
    """Waits until the GPU has finished all queued work. A clock that is read before shows too little time."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def free_memory() -> None:
    """Releases the GPU memory of unreferenced tensors."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def held() -> int:
    """Returns the bytes of GPU memory that this process's tensors occupy; 0 without a GPU."""
    import torch

    return torch.cuda.memory_allocated() if torch.cuda.is_available() else 0


class Measured:
    """The ``seconds`` of a block, and its peak of GPU ``memory`` in GiB ("" without a GPU)."""

    seconds = 0.0
    memory = ""


@contextmanager
def measured(own: int = 0) -> Iterator[Measured]:
    """Measures a block, until the GPU has finished it.

    Args:
        own: bytes of the block's model that are in GPU memory before the block. Other models of this process do not
            count.
    """
    import torch

    found = Measured()
    synchronize()
    others = held() - own
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    started = time.monotonic()
    yield found
    synchronize()
    found.seconds = time.monotonic() - started
    if torch.cuda.is_available():
        found.memory = f"{(torch.cuda.max_memory_allocated() - others) / GIB:.1f}"


def main() -> None:
    """Examine one part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=PARTS)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args()
    module = importlib.import_module(f"tests.gpu.{PARTS[given.name].module}")
    module.examine(Part(**vars(given)))


if __name__ == "__main__":
    main()
