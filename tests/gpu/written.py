"""The document of the examination: a section for each part, with the machine that it was measured on."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from imageevalkit.common.atomic import write_atomic
from perf.harness import Row
from tests.gpu.part import COLUMNS, GIB

_PACKAGES = ("torch", "diffusers", "transformers", "vllm")
_HEADING = "\n## "
_TITLE = "# Performance\n"
_NO_CELL = re.compile(r"[|\s]+")


def described(tiny: bool) -> str:
    """Returns the card, its driver, the versions of packages and the date.

    Raises RuntimeError: there is no GPU, and the examination is not ``tiny``.
    """
    card = "CPU, tiny models" if tiny else _card()
    versions = []
    for name in _PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            versions.append(f"{name} {version(name)}")
    return f"{card}; {', '.join(versions)}; {time.strftime('%Y-%m-%d')}"


def _card() -> str:
    import pynvml  # type: ignore[import-untyped]

    try:
        pynvml.nvmlInit()
        gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
        total = pynvml.nvmlDeviceGetMemoryInfo(gpu).total / GIB
        name, driver = pynvml.nvmlDeviceGetName(gpu), pynvml.nvmlSystemGetDriverVersion()
    except pynvml.NVMLError as error:
        import torch  # here: it takes seconds

        if not torch.cuda.is_available():
            why = f"no NVIDIA GPU answers ({error}); on the CPU: bash test.sh --gpu --tiny"
            raise RuntimeError(why) from error
        total = torch.cuda.get_device_properties(0).total_memory / GIB
        name, driver = torch.cuda.get_device_name(0), "unknown"
    return f"{name}, {total:.0f} GiB, driver {driver}"


class Document:
    """A Markdown file whose section of each part that is measured is replaced; the others stay.

    Args:
        path: the file, which need not be there.
        machine: what :func:`described` returns.
    """

    def __init__(self, path: Path, machine: str) -> None:
        self._path, self._machine = path, machine

    def write(self, part: str, rows: Sequence[Row]) -> None:
        """Put the table of ``rows`` in the section of ``part``."""
        text = self._path.read_text(encoding="utf-8") if self._path.exists() else _TITLE
        before, *sections = text.rstrip().split(_HEADING)
        own = "\n\n".join([part, self._machine, "\n".join(_table(rows))])
        names = [section.split("\n", 1)[0] for section in sections]
        if part in names:
            sections[names.index(part)] = f"{own}\n"
        else:
            sections.append(f"{own}\n")
        write_atomic(
            self._path, _HEADING.join([f"{before.rstrip()}\n", *(f"{s.rstrip()}\n" for s in sections)])
        )


def _table(rows: Sequence[Row]) -> list[str]:
    lines = [["", "ratio", "bar", "verdict", *COLUMNS], ["---"] * (4 + len(COLUMNS))]
    for row in rows:
        reasons = "; ".join([*row.problems, *filter(None, [row.skipped])])
        figures = [row.figures.get(name, "") for name in COLUMNS]
        figures[-1] = "; ".join(filter(None, [figures[-1], reasons[:300]]))
        lines.append([row.label, *row.cells, *figures])
    return [f"| {' | '.join(_NO_CELL.sub(' ', cell) for cell in line)} |" for line in lines]
