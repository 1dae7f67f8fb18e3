"""Adopt one cell: copy the images, record where they came from, notice what changed since."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from imageevalkit.adoption.found import Found, Missing, Piece
from imageevalkit.adoption.taking import Taken, Wanted, take
from imageevalkit.cell import Cell
from imageevalkit.cell import fingerprint as fp
from imageevalkit.cell.items import Item
from imageevalkit.cell.records import FAILED, OK, OutcomeWriter, last_records
from imageevalkit.cores import available_cores
from imageevalkit.errors import CellFailure, say
from imageevalkit.generation.contract import ItemFailed
from imageevalkit.grids import Grid
from imageevalkit.images import IMAGE_FORMATS, CorruptImage, map_threads
from imageevalkit.jobs import COMPLETE, INCOMPLETE, Outcome
from imageevalkit.jsonl import Tell, tell_nobody
from imageevalkit.progress import Progress, ProgressWriter

STAGE = "adopt"
_MOST_THREADS = 8
_COMMIT_EVERY = 64  # images; what is lost of them is copied again


def settings_of(source: Path, found: Mapping[str, Found]) -> dict[str, Any]:
    """What stands in the place of a model's settings: images of two places, or cut in two ways, are never one score."""
    grids = sorted({str(one.grid) for one in found.values() if isinstance(one, Piece)})
    return {
        "images": "made elsewhere",
        "source": str(source.absolute()),
        **({"grid": "; ".join(grids)} if grids else {}),
    }


def adopt_cell(
    cell: Cell,
    items: Sequence[Item],
    source: Path,
    found: Mapping[str, Found],
    progress: ProgressWriter,
    overwrite: bool = False,
    log: Callable[[str], None] = say,
) -> Outcome:
    """Make the images of ``cell`` those of ``found`` (below ``source``, by item id).

    Files are copied byte for byte, cells of a file as PNG. What is the same as before is left alone; an item without
    an image, with a black cell, or with a file that is no whole image (which coverage counts as corrupt), is recorded
    as failed, never as blank. Images of another source are replaced only with ``overwrite``.

    Raises:
        CellFailure: nothing was found, or the cell holds images that nobody said to replace, or the disk is full.
    """
    check_found(cell, items, source, found)
    settings = settings_of(source, found)
    may_replace(cell, items, settings, overwrite, log)
    key = fp.remember(cell.fingerprints, settings, {})
    copied, uneven, missing, corrupt = 0, 0, dict[str, str](), dict[str, str]()
    writer = OutcomeWriter(cell, key)
    try:
        for n, taken in enumerate(_taken(cell, items, source, found, key), 1):
            uneven += taken.uneven
            if taken.failure:
                (corrupt if taken.corrupt else missing)[taken.item.id] = taken.failure
            if taken.changed:
                copied += _save(writer, taken)
                if n % _COMMIT_EVERY == 0:
                    writer.commit()
            failed = len(missing) + len(corrupt)
            progress.report(Progress(cell.key, STAGE, n, len(items), n - copied, failed), n == len(items))
    finally:
        writer.close()
    whole = len(items) - len(missing) - len(corrupt)
    log(f"{cell.key}: {copied} images copied from {source}, {whole - copied} were here")
    for word, reasons in (("missing", missing), ("corrupt", corrupt)):
        for item, reason in reasons.items():
            log(f"{word}: {item}: {reason}")
    doubt = f"; {uneven} are of grids that do not divide evenly: is the grid right?" if uneven else ""
    told = [
        *_told(items, missing, "images are not to be had"),
        *_told(items, corrupt, "images are corrupt and not taken"),
    ]
    if told:
        return Outcome(INCOMPLETE, "; ".join(told) + doubt)
    return Outcome(COMPLETE, f"{len(items)} images of {source}{doubt}")


def _told(items: Sequence[Item], reasons: Mapping[str, str], what: str) -> Iterator[str]:
    """Of how many of ``items`` that is said for ``reasons``, by item, and of which; nothing where there are none."""
    lacking = [item for item in items if item.id in reasons]
    if lacking:
        names = [item.id.removeprefix("images/") + item.path.suffix for item in lacking[:3]]
        named = ", ".join(names) + (", …" if len(lacking) > 3 else "")
        yield f"{len(lacking)} of {len(items)} {what}: {named} (the first: {reasons[lacking[0].id]})"


def check_found(cell: Cell, items: Sequence[Item], source: Path, found: Mapping[str, Found]) -> None:
    """Whether ``source`` holds any image of the benchmark. Raises CellFailure: none."""
    if any(not isinstance(one, Missing) for one in found.values()):
        return
    for one in found.values():
        if isinstance(one, Missing):
            raise CellFailure(one.reason)
    if source.is_file():
        raise CellFailure(f"no prompt of {cell.benchmark} is in {source}")
    names = ", ".join(str(item.path.relative_to(cell.folder / "images")) for item in items[:3])
    raise CellFailure(
        f"no image of {cell.benchmark} is in {source}: {IMAGE_FORMATS} files are taken, named as in the official "
        f"layout; the {len(items)} items of this run begin with {names}"
    )


def may_replace(
    cell: Cell,
    items: Sequence[Item],
    settings: Mapping[str, Any],
    overwrite: bool,
    tell: Tell = tell_nobody,
) -> None:
    """Whether the images of ``cell`` may become those of ``settings``, as :func:`settings_of` gives them.

    What is no record of them is told.

    Raises:
        CellFailure: it holds images that nobody said to replace.
    """
    known, records = fp.known(cell.fingerprints, tell), last_records(cell, tell)
    for record in records.values():
        before = known.get(record.get("fingerprint", ""), {})
        if record["status"] != OK or before == settings:
            continue
        if "source" not in before:
            raise CellFailure(
                f"{cell.key} holds images that were generated here; give the images of --images a model name of "
                "their own"
            )
        if not overwrite:
            raise CellFailure(
                f"{cell.key} holds the images of {_place(before)}; --overwrite replaces them, another model name "
                "keeps both"
            )
    unrecorded = sum(item.id not in records and item.path.exists() for item in items)
    if unrecorded and not overwrite:
        raise CellFailure(
            f"{cell.key} holds {unrecorded} images that were put there by hand; --overwrite replaces them, another "
            "model name keeps both"
        )


def _place(settings: Mapping[str, Any]) -> str:
    return f"{settings['source']}" + (f" cut as grid={settings['grid']}" if "grid" in settings else "")


def _taken(
    cell: Cell, items: Sequence[Item], source: Path, found: Mapping[str, Found], key: str
) -> Iterator[Taken]:
    """What is to be kept of each item, in the order of the files: each is read once for all of its cells."""
    records = {id: record for id, record in last_records(cell).items() if record.get("fingerprint") == key}
    nothing, files = [], dict[tuple[Path, Grid | None], list[Wanted]]()
    for item in items:
        one, record = found.get(item.id), records.get(item.id)
        if isinstance(one, Piece):
            files.setdefault((one.path, one.grid), []).append(Wanted(item, one.index, record))
        elif isinstance(one, Path):
            files.setdefault((one, None), []).append(Wanted(item, None, record))
        else:
            reason = one.reason if one else f"there is no image of it in {source.absolute()}"
            # an empty place: the survey tells what is not there from what failed
            origin = {"source": ""}
            old = (
                record
                and record["status"] != OK
                and ((record.get("error") or {}).get("text"), record.get("source"))
                == (reason, origin["source"])
            )
            nothing.append(Taken(item, origin, changed=not old, failure=reason))
    threads = min(_MOST_THREADS, available_cores())
    lists = map_threads(lambda file: take(*file[0], file[1]), files.items(), threads)
    return chain(nothing, chain.from_iterable(lists))


def _save(writer: OutcomeWriter, taken: Taken) -> bool:
    """Write what was taken; whether it is an image."""
    if taken.data is None or taken.facts is None:
        error = CorruptImage(taken.failure) if taken.corrupt else ItemFailed(taken.failure)
        writer.save_failure(taken.item, error, FAILED, 0.0, None, taken.origin)
        return False
    writer.save_found(taken.item, taken.data, taken.facts, taken.origin)
    return True
