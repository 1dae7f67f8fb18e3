"""What the job of ``--images`` would take: read by ``--dry_run`` from jobs' cells and options on stdin."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from imageevalkit.adoption.copies import check_cell, is_of
from imageevalkit.adoption.places import Places, places_of_job
from imageevalkit.cell import Cell
from imageevalkit.cell.items import Item
from imageevalkit.cell.records import GENERATED, OK
from imageevalkit.cell.states import ImageState, survey, to_come
from imageevalkit.errors import ExitStatus, run_main
from imageevalkit.forecast import Datasets, Forecast, tell_forecasts
from imageevalkit.images import CorruptImage, opened, sha256_file


def forecast_of(options: Mapping[str, Any], datasets: Datasets) -> Forecast:
    """What a job with ``options`` would take for a cell, in words; only reads, and raises what the job would."""

    def forecast(cell: Cell) -> str:
        items, source, places = places_of_job(cell, options, datasets)
        check_cell(cell, items, source, places, options["overwrite"])
        count = sum(place.path is not None for place in places.values())
        grids = {place.path for place in places.values() if place.grid}
        split = f", in {len(grids)} grids (their black cells, if any, are not images)" if grids else ""
        return f"{count} of {len(items)} images are in {source}{split}"

    return forecast


def images_to_come(cell: Cell, items: Sequence[Item], places: Places) -> dict[str, ImageState]:
    """The images that there will be, by item id; new ones of files that end early, and black cells, count too."""
    sha256_of = functools.cache(sha256_file)
    states = {}
    for state in survey(cell, items, pixels=True, tolerant=True).states.values():
        item, place, record = state.item, places.get(state.item.id), state.record
        if place is None or place.path is None:
            continue
        is_known = record and is_of(record, place.path, place.index, sha256_of(place.path))
        if is_known and state.status == GENERATED:
            states[item.id] = state
        elif not (is_known and record and record.status != OK) and (place.grid or _is_image(place.path)):
            states[item.id] = to_come(item)
    return states


def _is_image(path: Path) -> bool:
    with contextlib.suppress(OSError, CorruptImage), opened(path):
        return True
    return False


def main() -> ExitStatus:
    """A line for each cell of the requests on stdin."""
    return tell_forecasts(forecast_of)


if __name__ == "__main__":
    run_main(main)
