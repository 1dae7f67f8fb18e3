"""The option ``--votes``."""

from __future__ import annotations

from pathlib import Path

from imageevalkit.plan.config import Option, absolute
from imageevalkit.store.cell import split_names


def _files(text: str, where: str) -> list[str]:
    return split_names(text)


def _absolute(text: str, here: Path) -> str:
    return ";".join(absolute(name, here) for name in split_names(text))


OPTIONS = {
    "votes": Option(
        '"a.json;b.json"',
        "add votes, saved by the report's voting page, to this and all later reports",
        _files,
        prefetch="",
        default=[],
        absolute=_absolute,
        command="vote",
        listed_with=("report",),
        group="results",
    )
}
