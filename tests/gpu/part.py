"""What all parts of the examination share: where and how they run, and how they hand over their rows.

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
"""What a row may tell besides: speeds, the most GPU memory that torch held, and a remark."""


class PartSetting(NamedTuple):
    """``module`` of this folder examines it, within so many ``seconds`` on a GPU."""

    module: str
    seconds: float


PARTS: dict[str, PartSetting] = {
    "devices": PartSetting("devices", 70),
    "faults": PartSetting("faults", 90),
    "precision": PartSetting("precision", 60),
    "flux.1-dev": PartSetting("pipelines", 170),
    "sd3.5-medium": PartSetting("pipelines", 130),
    "judge": PartSetting("judge", 110),
    "metrics": PartSetting("metrics", 130),
    "qwen-image": PartSetting("pipelines", 110),
    "vllm": PartSetting("served", 120),
}
"""The parts in their order: what a short time has room for comes first."""
TINY_PARTS = [name for name in PARTS if name not in ("flux.1-dev", "qwen-image")]
"""Those on the CPU: tiny pipelines differ in their classes only, which the precision part has too."""


class Part:
    """One part that runs: ``tiny`` models on the CPU, or models of true size on a GPU.

    Args:
        name: one of :data:`PARTS`.
        folder: an empty folder for its files.
        rows: the file that gets its rows, a JSON object in each line.
        seconds: how long it may take.
        tiny: whether it runs on the CPU.
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
        """Add a row that is 1 where there are no ``problems``."""
        self.add(Row(label, float(not problems), at_least(1.0), {"note": note}, problems))

    def skip(self, label: str, why: str) -> None:
        """Add a row that says why nothing was measured."""
        self.add(Row(label, float("nan"), skipped=why))

    def add(self, row: Row) -> None:
        """Hand over ``row``."""
        with self._rows.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row._asdict()) + "\n")

    def attempt(self, label: str, run: Callable[..., None], *given: Any) -> None:
        """Call ``run``; if it fails, a row says why, and the part goes on."""
        try:
            run(*given)
        except Exception as error:
            self.add(
                Row(label, float("nan"), problems=[f"{type(error).__name__}: {str(error)[:300]}".rstrip()])
            )
        free_memory()


def read_rows(file: Path, start: int = 0) -> list[Row]:
    """Returns the rows that a part has handed over, those after the first ``start``."""
    if not file.exists():
        return []
    lines = file.read_text(encoding="utf-8").split("\n")[start:-1]
    rows = [Row(**json.loads(line)) for line in lines]
    return [row._replace(bar=Bar(*row.bar) if row.bar else None) for row in rows]


def synchronize() -> None:
    """Wait until the GPU has done what it was given: a clock that is read before counts too little."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def free_memory() -> None:
    """Give back the GPU memory that nothing refers to any more."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


class Measured:
    """The ``seconds`` that a block took, and the most GPU memory in it, in GiB ("" without a GPU)."""

    seconds = 0.0
    memory = ""


@contextmanager
def measured() -> Iterator[Measured]:
    """Measure a block; the GPU has done all of it at the end."""
    import torch

    found = Measured()
    synchronize()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    started = time.monotonic()
    yield found
    synchronize()
    found.seconds = time.monotonic() - started
    if torch.cuda.is_available():
        found.memory = f"{torch.cuda.max_memory_allocated() / GIB:.1f}"


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
