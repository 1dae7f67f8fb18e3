"""The job of ``--images``: every benchmark's images of one model (run by a launcher in the driver's environment)."""

from __future__ import annotations

import argparse
import functools
from pathlib import Path

from imageevalkit import logs
from imageevalkit.adoption.copies import STAGE, adopt_cell
from imageevalkit.adoption.places import places_of_job
from imageevalkit.cell import Cell
from imageevalkit.errors import ExitStatus, run_main, say, worst
from imageevalkit.forecast import Datasets
from imageevalkit.jobs import STATUS_OF_STATE, Job, Outcome, cell_of, load_plan, outcome_of, write_outcome
from imageevalkit.progress import ProgressWriter


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
        outcome = outcome_of(functools.partial(_adopt, cell_of(key), job, progress), say)
        say(f"=== {key} {outcome.state}: {outcome.message}")
        write_outcome(Path(plan.run_folder), cell_of(key), STAGE, outcome)
        statuses.append(STATUS_OF_STATE[outcome.state])
    return worst(statuses)


def _adopt(cell: Cell, job: Job, progress: ProgressWriter) -> Outcome:
    items, source, places = places_of_job(cell, job.options, Datasets())
    return adopt_cell(cell, items, source, places, progress, job.options["overwrite"])


if __name__ == "__main__":
    run_main(main)
