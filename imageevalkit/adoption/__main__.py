"""The job of ``--images``: every benchmark's images of one model (run by a launcher in the driver's environment)."""

from __future__ import annotations

import argparse
import traceback
from pathlib import Path

from imageevalkit import logs
from imageevalkit.adoption.adopt import STAGE, adopt_cell
from imageevalkit.adoption.finding import find_images
from imageevalkit.benchmark_settings import settings_of
from imageevalkit.cell import Cell
from imageevalkit.cell.items import items_of
from imageevalkit.errors import CellFailure, ExitStatus, run_main, say, worst
from imageevalkit.guest_code import guest_code
from imageevalkit.jobs import (
    FAILED,
    STATUS_OF_STATE,
    Job,
    Outcome,
    cell_of,
    load_plan,
    write_outcome,
)
from imageevalkit.progress import ProgressWriter
from imageevalkit.registry import load_dataset
from imageevalkit.secrets import one_line, redact


def main() -> ExitStatus:
    """Adopt every cell of the job; the exit status is that of the worst."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--job", required=True)
    args = parser.parse_args()
    plan = load_plan(args.plan)
    job = plan.job(args.job)
    logs.print_without_fear()
    progress = ProgressWriter()
    statuses = []
    for key in job.cells:
        outcome = _adopt(cell_of(key), job, progress)
        say(f"=== {key} {outcome.state}: {outcome.message}")
        write_outcome(Path(plan.run_folder), cell_of(key), STAGE, outcome)
        statuses.append(STATUS_OF_STATE[outcome.state])
    return worst(statuses)


def _adopt(cell: Cell, job: Job, progress: ProgressWriter) -> Outcome:
    try:
        with guest_code():
            return _adopted(cell, job, progress)
    except CellFailure as error:
        return Outcome(FAILED, one_line(error))
    except Exception as error:  # a dataset of one's own may raise anything; the log has the rest
        say(redact(traceback.format_exc()))
        return Outcome(FAILED, f"{type(error).__name__}: {one_line(error, 300)}")


def _adopted(cell: Cell, job: Job, progress: ProgressWriter) -> Outcome:
    dataset = load_dataset(cell.benchmark, settings_of(cell.benchmark))
    items = items_of(dataset, cell, job.options["limit"])
    source = Path(job.options["sources"][cell.benchmark])
    among = Path(job.options["among"]) if job.options["among"] else None
    found = find_images(source, items, dataset, among)
    return adopt_cell(cell, items, source, found, progress, job.options["overwrite"])


if __name__ == "__main__":
    run_main(main)
