"""The results of one cell by several evaluators: the latest lies in the cell's folder, the others below it.

``evaluators/<evaluator>/`` holds the files that the folder of the cell held when another evaluator took its place, and
those of one that did not take it, since it knows less. So comparing two judges costs no result, and going back to the
first asks nothing again.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import reprlib
import shutil
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from imageevalkit.atomic import write_atomic
from imageevalkit.cell import Cell, short_path
from imageevalkit.cell.results import Coverage, Result, read_result, write_result
from imageevalkit.cell.scores import Score
from imageevalkit.errors import CellFailure
from imageevalkit.json_values import Check, Shape, is_object, is_text, one_of, or_null
from imageevalkit.jsonl import read_jsonl
from imageevalkit.text_output import to_bytes

_KEPT = "evaluators"
SCORE = Shape(must={"item": is_text})
"""A line of ``scores.jsonl``, of any version."""
_BASIS = Shape(
    must={**SCORE.must, "image_sha256": or_null(is_text), "attempted": lambda v: isinstance(v, bool)}
)

_VALUES: dict[str, Check] = {"values": is_object, "keys": is_object}
_JUDGED = Shape(
    must={**SCORE.must, **_VALUES, "status": one_of("judged"), "detail": is_object},
    may={"points": lambda v: isinstance(v, list) and not any(map(Shape(_VALUES).problem, v))},
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
    write_files(folder / cell.official.name, official)
    write_result(folder / cell.result.name, result)


def check_files(files: Mapping[str, Any], where: str) -> None:
    """Whether all are files for one folder itself, with a text or bytes.

    Raises:
        CellFailure: one is not; ``where`` begins the message.
    """
    for name, content in files.items():
        if name in ("", "..") or PurePath(name).name != name:
            raise CellFailure(f"{where} has '{name}': give a file name without a folder")
        if not isinstance(content, str | bytes):
            raise CellFailure(
                f"{where} has '{name}', which is {reprlib.repr(content)}: give its text or bytes"
            )


def write_files(folder: Path, files: Mapping[str, str | bytes]) -> None:
    """Let ``folder`` hold these ``files``, each whole, and no other: those are of a run that covered more, or else."""
    for name, content in files.items():
        write_atomic(folder / name, content)
    for path in folder.glob("*"):
        if path.name not in files:
            path.unlink()


def read_scores(path: Path) -> list[Score]:
    """The scores in a file scores.jsonl, those of the items that were judged. Raises CellFailure: it cannot be read."""
    return [
        Score(
            record["values"],
            record["keys"],
            record["detail"],
            [
                Score(point["values"], point["keys"], item=record["item"])
                for point in record.get("points", [])
            ],
            record["item"],
        )
        for record in read_jsonl(path, _JUDGED)
    ]


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
    return cell.folder / _KEPT / folder_name(evaluator)


def folder_name(text: str) -> str:
    """A name for a folder that no other ``text`` has."""
    readable = re.sub(r"[^\w.-]+", "-", text).strip("-.")[:80]
    return f"{readable}-{hashlib.sha256(to_bytes(text)).hexdigest()[:8]}"
