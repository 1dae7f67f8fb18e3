"""The job that rewrites the prompts of a run, before any image is made (run by a launcher in the driver's environment).

It is the only one that asks the rewriter's endpoint: the jobs that make images need no way to it.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from imageevalkit import logs
from imageevalkit.errors import CellFailure, ExitStatus, UserError, run_main, say, worst
from imageevalkit.jobs import STATUS_OF_STATE, cell_of, load_plan, outcome_of, write_outcome
from imageevalkit.progress import ProgressWriter
from imageevalkit.rewriting.engine import STAGE, RewriteOptions, RewriteRun, make_rewriter
from imageevalkit.secrets import one_line


def main() -> ExitStatus:
    """Rewrite the prompts of every cell of the job; the exit status is that of the worst."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--job", required=True)
    args = parser.parse_args()
    plan = load_plan(args.plan)
    job = plan.job(args.job)
    logs.print_without_fear()
    rewriter = make_rewriter(job.options["rewriter"], job.options["kwargs"])
    run = RewriteRun(rewriter, RewriteOptions(**job.options["options"]), ProgressWriter())
    outcomes = {key: outcome_of(partial(run.plan, cell_of(key)), say) for key in job.cells}
    try:
        run.ask()
    except (CellFailure, UserError, OSError) as error:
        run.problem = run.problem or one_line(error)
    for one in run.planned:
        outcomes[one.cell.key] = outcome_of(partial(run.outcome, one), say)
    for key, outcome in outcomes.items():
        say(f"=== {key} {outcome.state}: {outcome.message}")
        write_outcome(Path(plan.run_folder), cell_of(key), STAGE, outcome)
    return worst(STATUS_OF_STATE[outcome.state] for outcome in outcomes.values())


if __name__ == "__main__":
    run_main(main)
