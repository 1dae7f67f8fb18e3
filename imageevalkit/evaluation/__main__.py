"""The evaluate job, as ``eval/<benchmark>.sh`` calls it in the benchmark's environment."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from imageevalkit import logs, registry
from imageevalkit.cell import Cell, lock_cell
from imageevalkit.cell.items import items_of
from imageevalkit.errors import ExitStatus, UserError, run_main, say
from imageevalkit.evaluation.engine import evaluate_cell
from imageevalkit.evaluation.interview import AskOptions
from imageevalkit.jobs import STATUS_OF_STATE, Outcome, outcome_of, settings_of, write_outcome
from imageevalkit.progress import ProgressWriter


def main() -> ExitStatus:
    """Evaluate one cell; what the launcher decided comes through the environment."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ds_name", required=True)
    parser.add_argument("--model_name", required=True)
    args = parser.parse_args()
    cell = Cell(args.model_name, args.ds_name)
    run_folder = os.environ.get("IMAGEEVALKIT_RUN_FOLDER")
    if not run_folder:
        if not cell.folder.is_dir():
            raise UserError(f"there are no images of {cell.key}: {cell.folder} does not exist")
        lock_cell(cell)  # a launcher holds it for the jobs it starts
    else:
        logs.print_without_fear()
    outcome = outcome_of(lambda: _evaluate(cell), say)
    say(f"=== {outcome.state}: {outcome.message}")
    if run_folder:
        write_outcome(Path(run_folder), cell, "evaluate", outcome)
    return STATUS_OF_STATE[outcome.state]


def _evaluate(cell: Cell) -> Outcome:
    settings = settings_of(cell.benchmark)
    benchmark = registry.make_benchmark(cell.benchmark, settings, os.environ.get("IMAGEEVALKIT_JUDGE", ""))
    limit = int(os.environ["IMAGEEVALKIT_LIMIT"]) if os.environ.get("IMAGEEVALKIT_LIMIT") else None
    return evaluate_cell(
        cell,
        benchmark,
        items_of(registry.BenchmarkDataset(benchmark), cell, limit),
        limit,
        os.environ.get("IMAGEEVALKIT_MISSING_ITEMS") == "official",
        ProgressWriter(),
        AskOptions.from_environment(),
    )


if __name__ == "__main__":
    run_main(main)
