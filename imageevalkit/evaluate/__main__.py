"""Runs an evaluate job, or evaluates one model on one benchmark for ``eval/<benchmark>.sh``."""

from __future__ import annotations

import argparse
import os
import sys

from imageevalkit.common.errors import ExitStatus, UserError, run_main, say
from imageevalkit.common.machine import garbage_collection
from imageevalkit.evaluate.job import EvaluateJob, Evaluation
from imageevalkit.evaluate.scoring import leave_outcome
from imageevalkit.jobs import plan as jobs
from imageevalkit.jobs.progress import ProgressWriter
from imageevalkit.store.cell import Cell, lock_cell


def main() -> ExitStatus:
    """Evaluates the cells of the plan's job, or the cell named by ``--model_name`` and ``--ds_name``."""
    words = sys.argv[1:]
    if not {"--plan", "--job"} & {*words}:
        parser = argparse.ArgumentParser(description=__doc__)
        parser.add_argument("--ds_name", required=True)
        parser.add_argument("--model_name", required=True)
        args = parser.parse_args(words)
        if not (path := os.environ.get(jobs.PLAN_ENV)):
            return _by_hand(Cell(args.model_name, args.ds_name))
        words = jobs.job_words(path, os.environ.get(jobs.JOB_ENV, ""))
    return EvaluateJob(*jobs.given_job(jobs.EvaluateOrder, words)).run()


def _by_hand(cell: Cell) -> ExitStatus:
    if not cell.folder.is_dir():
        raise UserError(f"there are no images of {cell.key}: {cell.folder} does not exist")
    lock_cell(cell)  # no launcher holds the lock for a command that a user starts
    evaluation = Evaluation(cell, jobs.EvaluateOrder(), {}, ProgressWriter())
    with garbage_collection(False):
        outcome = jobs.outcome_of(evaluation.score, say)
    return leave_outcome(cell, outcome, None)


if __name__ == "__main__":
    run_main(main)
