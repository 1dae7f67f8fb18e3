"""What an evaluate job would ask, without asking: read by ``--dry_run`` from a job's cell and options on stdin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from imageevalkit.benchmark_settings import settings_of
from imageevalkit.cell import Cell
from imageevalkit.errors import ExitStatus, run_main
from imageevalkit.evaluation.benchmark import Benchmark, rules_of
from imageevalkit.evaluation.judgements import Judgements
from imageevalkit.evaluation.judging import AskOptions
from imageevalkit.evaluation.money import effort
from imageevalkit.evaluation.question import Picture, Question
from imageevalkit.forecasting import tell_forecasts
from imageevalkit.generation.records import OK, last_records
from imageevalkit.images import CorruptImage, is_plain, sha256_file
from imageevalkit.items import Item, items_of
from imageevalkit.jobs import cell_of


def forecast(key: str, request: dict[str, Any]) -> str:
    """One line for the cell ``key``; only reads. The job's options are those of this process's environment."""
    from custom_datasets.load_dataset import load_dataset

    cell = cell_of(key)
    rules = rules_of(cell.benchmark, settings_of(cell.benchmark))
    if rules is None:
        return f"{key}: a script of its own, which does not tell what it asks"
    benchmark: Benchmark = rules.make(request["judge"])
    items = items_of(load_dataset(cell.benchmark), cell, request["limit"])
    questions, waiting = questions_to_ask(cell, benchmark, items, AskOptions.from_environment())
    said = f"{key}: {len(waiting)} of {questions} questions to ask of {benchmark.evaluator.id}"
    return f"{said}, {effort(request['judge'], waiting)}" if waiting and request["is_judge"] else said


def questions_to_ask(
    cell: Cell, benchmark: Benchmark, items: Sequence[Item], options: AskOptions
) -> tuple[int, list[Question]]:
    """How many questions there are about ``items``, and those that a job with ``options`` would ask.

    Questions about an image that is still to be made are among them; a reply that holds no score may cost more tries.
    """
    records = last_records(cell)
    pictures = {item.id: _picture(item, records.get(item.id)) for item in items}
    by_id = {item.id: item for item in items}
    judgements = Judgements(cell, benchmark, by_id, pictures, options.retry_unparsed)
    return len(judgements.questions), judgements.open() if options.ask else []


def _picture(item: Item, record: Mapping[str, Any] | None) -> Picture:
    if record and record.get("status") == OK:
        return Picture(
            item.path, record["image_sha256"], plain=_is_plain(item.path), flat=bool(record.get("flat"))
        )
    if record is None and item.path.is_file():  # made elsewhere
        return Picture(item.path, sha256_file(item.path), plain=_is_plain(item.path))
    # an image to come is like no other
    return Picture(item.path, f"to come: {item.id}")


def _is_plain(path: Path) -> bool:
    try:
        return is_plain(path)
    except (OSError, CorruptImage):
        return True  # nothing will be asked about it


def main() -> ExitStatus:
    """One line for each cell of the request on stdin."""
    return tell_forecasts(forecast)


if __name__ == "__main__":
    run_main(main)
