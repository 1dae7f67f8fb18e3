"""The evaluate job, as ``eval/<benchmark>.sh`` calls it in the benchmark's environment."""

from __future__ import annotations

import argparse
import os

from imageevalkit import logs, registry
from imageevalkit.cell import Cell, lock_cell
from imageevalkit.cell.items import items_of
from imageevalkit.errors import ExitStatus, UserError, run_main, say
from imageevalkit.evaluation.engine import evaluate_cell, judged_items, leave_outcome
from imageevalkit.evaluation.interview import EvaluateOptions
from imageevalkit.jobs import Outcome, outcome_of, settings_of
from imageevalkit.progress import ProgressWriter


def main() -> ExitStatus:
    """Evaluate one cell; what the launcher decided comes through the environment."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ds_name", required=True)
    parser.add_argument("--model_name", required=True)
    args = parser.parse_args()
    cell = Cell(args.model_name, args.ds_name)
    if os.environ.get("IMAGEEVALKIT_RUN_FOLDER"):
        logs.print_without_fear()
    else:
        if not cell.folder.is_dir():
            raise UserError(f"there are no images of {cell.key}: {cell.folder} does not exist")
        lock_cell(cell)  # a launcher holds it for the jobs it starts
    return leave_outcome(cell, outcome_of(lambda: _evaluate(cell), say))


def _evaluate(cell: Cell) -> Outcome:
    settings, options = settings_of(cell.benchmark), EvaluateOptions.from_environment()
    benchmark = registry.make_benchmark(cell.benchmark, settings, os.environ.get("IMAGEEVALKIT_JUDGE", ""))
    items = judged_items(cell, items_of(registry.BenchmarkDataset(benchmark), cell, options.limit))
    return evaluate_cell(cell, benchmark, items, ProgressWriter(), options)


if __name__ == "__main__":
    run_main(main)
