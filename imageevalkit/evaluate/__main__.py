"""Evaluates one model on one benchmark: the evaluate job, and the command for ``eval/<benchmark>.sh``."""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from imageevalkit import registry
from imageevalkit.common.errors import CellFailure, ExitStatus, UserError, run_main, say
from imageevalkit.common.machine import garbage_collection
from imageevalkit.evaluate.following import Generation, follow
from imageevalkit.evaluate.scoring import evaluate_cell, judged_items, leave_outcome
from imageevalkit.jobs import plan as jobs
from imageevalkit.jobs.progress import ProgressWriter
from imageevalkit.store.cell import Cell, lock_cell
from imageevalkit.store.items import drawn, items_of

_KEEPER_STARTS_WITHIN = 120.0  # seconds
_TICK = 0.1


def main() -> ExitStatus:
    """Evaluates the cell of the plan's job, or the cell named by ``--model_name`` and ``--ds_name``."""
    words, cell = sys.argv[1:], None
    if not {"--plan", "--job"} & {*words}:
        parser = argparse.ArgumentParser(description=__doc__)
        parser.add_argument("--ds_name", required=True)
        parser.add_argument("--model_name", required=True)
        args = parser.parse_args(words)
        cell = Cell(args.model_name, args.ds_name)
        if not (path := os.environ.get(jobs.PLAN_ENV)):
            if not cell.folder.is_dir():
                raise UserError(f"there are no images of {cell.key}: {cell.folder} does not exist")
            lock_cell(cell)  # no launcher holds the lock for a command that a user starts
            return evaluated(cell, jobs.EvaluateOrder())
        words = jobs.job_words(path, os.environ.get(jobs.JOB_ENV, ""))
    plan, job, order = jobs.given_job(jobs.EvaluateOrder, words)
    if order.keeper:
        return _hand_over(Path(order.keeper), words)
    return evaluated(cell or jobs.cell_of(job.cells[0]), order, plan, job)


def _hand_over(address: Path, words: Sequence[str]) -> ExitStatus:
    """Lets the process at the socket ``address`` run the job that ``words`` name. Returns its exit status.

    The job prints to the output of this process. Raises CellFailure if the other process is gone.
    """
    gone = CellFailure("the process that keeps the judge has ended")
    until = time.monotonic() + _KEEPER_STARTS_WITHIN
    with socket.socket(socket.AF_UNIX) as connection:
        while True:
            try:
                connection.connect(str(address))
                break
            except FileNotFoundError:  # the process may not have made its socket yet
                if time.monotonic() > until:
                    raise gone from None
                time.sleep(_TICK)
            except OSError:
                raise gone from None
        try:
            socket.send_fds(connection, [json.dumps(list(words)).encode()], [1, 2])
            status = connection.recv(1)
        except OSError:
            raise gone from None
    if not status:
        raise gone
    return ExitStatus(status[0])


def evaluated(
    cell: Cell, order: jobs.EvaluateOrder, plan: jobs.Plan | None = None, job: jobs.Job | None = None
) -> ExitStatus:
    """Evaluates ``cell`` as its ``order`` says. ``plan`` and ``job`` are None for a command by hand."""
    settings = plan.settings.get(cell.benchmark, {}) if plan else {}
    progress = ProgressWriter(plan.progress_path(job) if plan and job else None)

    # generation may still be running: a job that follows it evaluates images as they are stored
    generation = Generation(Path(plan.run_folder), cell) if plan and job and job.follows else None
    is_made = not generation or generation.is_made

    def evaluate() -> jobs.Outcome:
        nonlocal is_made
        interview = None
        benchmark = registry.make_benchmark(cell.benchmark, settings, order.judge)
        whole = items_of(registry.BenchmarkDataset(benchmark), cell, order.limit)
        items = drawn(whole, cell.benchmark, order.asked)
        if generation and not is_made:
            with garbage_collection(True):
                interview = follow(cell, benchmark, items, progress, order, generation)
            is_made = generation.is_made
            if not is_made:
                return jobs.Outcome(jobs.FAILED, "images are missing")
        judged, unasked = judged_items(cell, items), len(whole) - len(items)
        return evaluate_cell(cell, benchmark, judged, progress, order, interview, unasked)

    with garbage_collection(False):
        outcome = jobs.outcome_of(evaluate, say)
    if not is_made:
        say(f"{outcome.message}; this goes on from what was answered once all images are made")
        return ExitStatus.LATER
    if job and job.always:  # an earlier job has written the outcome of the cell
        say(f"{outcome.state}: {outcome.message}")
        return ExitStatus.COMPLETE
    return leave_outcome(cell, outcome, plan)


if __name__ == "__main__":
    run_main(main)
