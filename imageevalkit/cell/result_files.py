"""The results of one cell by several evaluators: the latest lies in the cell's folder, the others below it.

``evaluators/<evaluator>/`` holds the files that the folder of the cell held when another evaluator took its place, and
those of one that did not take it, since it knows less. So comparing two judges costs no result, and going back to the
first asks nothing again.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from imageevalkit.atomic import write_atomic
from imageevalkit.cell import Cell, short_path
from imageevalkit.cell.results import Coverage, Result, read_result, write_result
from imageevalkit.errors import CellFailure
from imageevalkit.json_values import Shape, is_text, or_null
from imageevalkit.jsonl import read_jsonl
from imageevalkit.text_output import to_bytes

_KEPT = "evaluators"
SCORE = Shape(must={"item": is_text})
"""A line of ``scores.jsonl``, of any version."""
_BASIS = Shape(
    must={**SCORE.must, "image_sha256": or_null(is_text), "attempted": lambda v: isinstance(v, bool)}
)


def leave(cell: Cell, result: Result, scores: str, official: Mapping[str, str | bytes]) -> None:
    """Write the result of ``cell``, its ``scores`` (the text of scores.jsonl) and the ``official`` files by name.

    Raises:
        CellFailure: a file cannot be written.
    """
    try:
        _leave(cell, result, scores, official)
    except OSError as error:
        raise CellFailure(
            f"{short_path(str(error.filename2 or error.filename))} cannot be written: {error.strerror}"
        ) from None


def _leave(cell: Cell, result: Result, scores: str, official: Mapping[str, str | bytes]) -> None:
    kept = _folder(cell, result.evaluator.id)
    latest = _latest(cell)
    if latest and latest.evaluator.id != result.evaluator.id:
        if _covers_more(latest.coverage, result.coverage):
            _write(kept, cell, result, scores, official)  # a trial with another judge hides no full result
            return
        _move(cell.folder, _folder(cell, latest.evaluator.id), cell)
    _write(cell.folder, cell, result, scores, official)
    shutil.rmtree(kept, ignore_errors=True)


def _covers_more(one: Coverage, other: Coverage) -> bool:
    if one.expected == other.expected:
        # both lack the images that could not be had; what counts is who has said something of all others
        return one.judged == one.generated and other.judged < other.generated
    return one.expected > other.expected


def _write(
    folder: Path, cell: Cell, result: Result, scores: str, official: Mapping[str, str | bytes]
) -> None:
    write_atomic(folder / cell.scores.name, scores)
    there = folder / cell.official.name
    for name, content in official.items():
        write_atomic(there / name, content)
    for path in there.glob("*"):
        if path.name not in official:  # of a run that covered more, or of other rules
            path.unlink()
    write_result(folder / cell.result.name, result)


def standing(cell: Cell) -> list[Result]:
    """The results of ``cell`` that can be read, the latest evaluator's first."""
    results = []
    for path in (cell.result, *(result for result, _ in others(cell))):
        with contextlib.suppress(OSError, ValueError):
            results.append(read_result(path))
    return results


def others(cell: Cell) -> list[tuple[Path, Path]]:
    """result.json and scores.jsonl of each evaluator but the latest."""
    found = sorted((cell.folder / _KEPT).glob(f"*/{cell.result.name}"))
    return [(result, result.parent / cell.scores.name) for result in found]


class Basis(NamedTuple):
    """What a result knew of an item: the SHA-256 of its image (None: there was none), and whether one was attempted."""

    image_sha256: str | None
    attempted: bool


def bases(cell: Cell) -> dict[Path, dict[str, Basis] | None]:
    """What each result of ``cell`` rests on, by its folder and by item; None where that is not known."""
    folders = [cell.folder, *(result.parent for result, _ in others(cell))]
    return {
        folder: _basis(folder / cell.scores.name)
        for folder in folders
        if (folder / cell.result.name).exists()
    }


def _basis(scores: Path) -> dict[str, Basis] | None:
    silent: list[str] = []  # lines that are damaged, or of a version that did not say
    try:
        records = read_jsonl(scores, _BASIS, silent.append)
        basis = {r["item"]: Basis(r["image_sha256"], r["attempted"]) for r in records}
    except CellFailure:
        return None
    return None if silent else basis or None


def forget(cell: Cell, folder: Path) -> None:
    """Remove the result of ``cell`` in ``folder``: it describes images that are not there any more."""
    # the result last: who finds it without scores takes it for one that rests on everything
    for name in (cell.official.name, cell.scores.name, cell.result.name):
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    if folder != cell.folder:
        shutil.rmtree(folder, ignore_errors=True)


def _latest(cell: Cell) -> Result | None:
    """The result in the folder of ``cell``; None when there is none that can be read."""
    try:
        return read_result(cell.result)
    except (OSError, ValueError):
        return None


def _move(source: Path, target: Path, cell: Cell) -> None:
    target.mkdir(parents=True, exist_ok=True)
    # the result goes last: until then the next run sees whose files these are, and goes on here
    for name in (cell.scores.name, cell.official.name, cell.result.name):
        if (source / name).exists():
            if (target / name).is_dir():
                shutil.rmtree(target / name)
            (source / name).replace(target / name)


def _folder(cell: Cell, evaluator: str) -> Path:
    readable = re.sub(r"[^\w.-]+", "-", evaluator).strip("-.")[:80]
    return cell.folder / _KEPT / f"{readable}-{hashlib.sha256(to_bytes(evaluator)).hexdigest()[:8]}"
