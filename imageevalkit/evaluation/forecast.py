"""What an evaluate job would ask, without asking: read by ``--dry_run`` from jobs' cells and options on stdin."""

from __future__ import annotations

import functools
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from imageevalkit import registry
from imageevalkit.adoption.forecast import found_images
from imageevalkit.adoption.found import Found, Missing, Piece
from imageevalkit.benchmark.contract import Benchmark
from imageevalkit.benchmark.question import Picture, Question
from imageevalkit.benchmark_settings import settings_of
from imageevalkit.cell import Cell
from imageevalkit.cell import fingerprint as fp
from imageevalkit.cell.items import Item
from imageevalkit.cell.records import OK, REFUSED, last_records
from imageevalkit.errors import ExitStatus, run_main
from imageevalkit.evaluation.evaluator import Answerers
from imageevalkit.evaluation.interview import AskOptions
from imageevalkit.evaluation.judgements import Judgements
from imageevalkit.evaluation.money import effort
from imageevalkit.evaluation.survey import scorable, survey_images
from imageevalkit.forecasting import Datasets, Forecast, tell_forecasts
from imageevalkit.generation.survey import survey
from imageevalkit.images import CorruptImage, is_plain, opened, sha256_file

Pictures = Mapping[str, Picture]
"""The images that a job will find, by item id; of those that are still to come the bytes are not known."""


def forecast_of(request: Mapping[str, Any], datasets: Datasets) -> Forecast:
    """What a job would ask about a cell, in words; only reads. Its options are those of this process's environment.

    ``request["images"]`` is how the run gets the images: the ``stage`` with its options, None for those there are.
    """

    def asked(cell: Cell) -> str:
        if registry.benchmark_class(cell.benchmark) is None:
            return "a script of its own, which does not tell what it asks"
        benchmark, answerers = _made(cell.benchmark, request["judge"])
        items, pictures = _pictures(cell, benchmark, request, datasets)
        questions, waiting = questions_to_ask(
            cell, benchmark, answerers, items, pictures, AskOptions.from_environment()
        )
        said = f"{len(waiting)} of {questions} questions to ask of {answerers.evaluator.id}"
        return f"{said}, {effort(request['judge'], waiting)}" if waiting and request["is_judge"] else said

    # of images that are all to come, the same is asked whoever makes them
    untouched: dict[str, str] = {}

    def forecast(cell: Cell) -> str:
        if cell.folder.exists() or (request["images"] or {}).get("stage") == "adopt":
            return asked(cell)
        if cell.benchmark not in untouched:
            untouched[cell.benchmark] = asked(cell)
        return untouched[cell.benchmark]

    return forecast


@functools.cache  # for requests that differ in their images only
def _made(name: str, judge: str) -> tuple[Benchmark, Answerers]:
    benchmark = registry.make_benchmark(name, settings_of(name), judge)
    return benchmark, Answerers(benchmark)


def questions_to_ask(
    cell: Cell,
    benchmark: Benchmark,
    answerers: Answerers,
    items: Sequence[Item],
    pictures: Pictures,
    options: AskOptions,
) -> tuple[int, list[Question]]:
    """How many questions there are about ``pictures``, and those that a job with ``options`` would ask.

    A reply that holds no score may cost more tries, and an answer may lead to another question.
    """
    by_id = {item.id: item for item in items}
    pixels = benchmark.pixels if benchmark.backend else None
    shown = {item: picture._replace(pixels=pixels) for item, picture in pictures.items()}
    judgements = Judgements(cell, benchmark, answerers.evaluator_of, by_id, shown, options.retry_unparsed)
    return judgements.requests, judgements.open() if options.ask else []


def _pictures(
    cell: Cell, benchmark: Benchmark, request: Mapping[str, Any], datasets: Datasets
) -> tuple[Sequence[Item], Pictures]:
    images = request["images"]
    if images and images["stage"] == "adopt":
        items, _, found = found_images(cell, images, datasets)
        return items, pictures_elsewhere(cell, items, found)
    items = datasets.items(cell, request["limit"])
    if images:
        anew = _made_anew(cell, items, images, datasets) if "settings" in images else set()
        return items, pictures_made(cell, items, images["retry_refused"], anew)
    states = survey_images(cell, items)
    official = os.environ.get("IMAGEEVALKIT_MISSING_ITEMS") == "official"
    return items, {
        item: Picture(state.path, state.sha256, plain=state.plain, flat=state.flat)
        for item, state in scorable(states, official and benchmark.scores_blank).items()
    }


def _made_anew(cell: Cell, items: Sequence[Item], options: Mapping[str, Any], datasets: Datasets) -> set[str]:
    """The items whose outcome on record gives way to another: failed, damaged, or of other settings, if so wished."""
    task = datasets[cell.benchmark].dataset_task
    found = survey(cell, items, fp.settings_of(task, options["settings"][task]), repair=False)
    stale = [item for item, _ in found.stale] if options["overwrite"] else []
    return {item.id for item in (*found.make, *found.repair, *stale)}


def pictures_made(
    cell: Cell, items: Sequence[Item], retry_refused: bool, anew: Collection[str] = ()
) -> Pictures:
    """Those that there are after ``items`` are made, some ``anew``; a refused one has none unless it is sent again."""
    records = last_records(cell)
    made = {}
    for item in items:
        record = records.get(item.id)
        if item.id in anew:
            made[item.id] = _to_come(item)
        elif record and record.get("status") == REFUSED and not retry_refused:
            continue
        elif record and record.get("status") == OK:
            made[item.id] = _recorded(item, record)
        elif record is None and cell.folder.exists() and item.path.is_file():  # made elsewhere
            made[item.id] = Picture(item.path, sha256_file(item.path), plain=_is_plain(item.path))
        else:
            made[item.id] = _to_come(item)
    return made


def pictures_elsewhere(cell: Cell, items: Sequence[Item], found: Mapping[str, Found]) -> Pictures:
    """Those that there are after ``found`` was taken, with the black cells of a new grid, which hold no image.

    Of a new file only the header is read: one that ends early counts.
    """
    records = last_records(cell)
    sha256_of = functools.cache(sha256_file)
    taken = {}
    for item in items:
        one, record = found.get(item.id), records.get(item.id)
        if one is None or isinstance(one, Missing):
            continue
        path, n = (one.path, one.index) if isinstance(one, Piece) else (one, None)
        if not record or not _is_of(record, path, n) or sha256_of(path) not in _hashes(record):
            if n is not None or _is_image(path):
                taken[item.id] = _to_come(item)
        elif record["status"] == OK and record.get("size") is not None:
            taken[item.id] = _recorded(item, record)
    return taken


def _is_of(record: Mapping[str, Any], path: Path, n: int | None) -> bool:
    return bool(record.get("source") == str(path.absolute()) and record.get("cell") == n)


def _is_image(path: Path) -> bool:
    try:
        opened(path).close()
    except (OSError, CorruptImage):
        return False
    return True


def _hashes(record: Mapping[str, Any]) -> tuple[str | None, str | None]:
    return record.get("source_sha256"), record.get("image_sha256")


def _recorded(item: Item, record: Mapping[str, Any]) -> Picture:
    sha256, flat = record.get("image_sha256") or "", bool(record.get("flat"))
    return Picture(item.path, sha256, plain=_is_plain(item.path), flat=flat)


def _to_come(item: Item) -> Picture:
    return Picture(item.path, f"to come: {item.id}")  # like no other


def _is_plain(path: Path) -> bool:
    try:
        return is_plain(path)
    except (OSError, CorruptImage):
        return True  # nothing will be asked about it


def main() -> ExitStatus:
    """A line for each cell of the requests on stdin."""
    return tell_forecasts(forecast_of)


if __name__ == "__main__":
    run_main(main)
