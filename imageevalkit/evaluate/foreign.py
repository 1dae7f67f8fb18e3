"""Evaluates a foreign benchmark, which has a script instead of a class in ``benchmarks/``.

The evaluate job runs ``bash eval/<ds>.sh MODEL_NAME EVAL_ENV``. The script writes ``metrics.json`` to the
cell's folder, and this module adds the coverage and writes the result. The format is in docs/how-to/own-benchmark.md.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from imageevalkit import registry
from imageevalkit.benchmark.contract import Scores
from imageevalkit.common.errors import CellFailure, ExitStatus, run_main, say
from imageevalkit.common.redaction import one_line
from imageevalkit.evaluate import scoring as engine
from imageevalkit.jobs.plan import COMPLETE, EvaluateOrder, Outcome, cell_of, given_job, outcome_of
from imageevalkit.store.cell import REPO, Cell, short_path
from imageevalkit.store.items import Item, entries_of, placed
from imageevalkit.store.results import METRICS, SCRIPT, Evaluator, leave, no_score, read_metrics, standing
from imageevalkit.store.states import survey_images

_HASH_DIGITS = 12


def main() -> ExitStatus:
    """Runs the benchmark's script and writes the outcome. If the script fails, exits with its status."""
    plan, job, order = given_job(EvaluateOrder)
    [cell] = map(cell_of, job.cells)
    script = REPO / "eval" / f"{cell.benchmark}.sh"
    command = ["bash", str(script), cell.model, order.environment]
    path = cell.folder / METRICS
    earlier = path.with_name(f".{METRICS}.earlier")
    if path.exists():  # it may be about other images; the finally block restores it if the script writes none
        path.replace(earlier)
    try:
        # in a new session: a script may end its children with `kill 0`, which must not end this process
        status = subprocess.run(command, start_new_session=True, check=False).returncode
        if status:
            sys.exit(status if status > 0 else 128 - status)
        outcome = outcome_of(lambda: _outcome(cell, script, order), say)
        return engine.leave_outcome(cell, outcome, plan)
    finally:
        if path.exists():
            earlier.unlink(missing_ok=True)
        elif earlier.exists():
            earlier.replace(path)


def _outcome(cell: Cell, script: Path, order: EvaluateOrder) -> Outcome:
    """Writes the result of ``cell`` after the script ended with status 0, and returns the outcome.

    Raises CellFailure if there are metrics but no images."""
    path = cell.folder / METRICS
    if not path.exists():
        known = "the result of an earlier run is kept" if standing(cell) else no_score(cell)
        return Outcome(COMPLETE, f"the script ended with status 0; {known}")
    items = _items(cell)
    if order.limit:
        # the script scores every image that it finds, so images of an earlier run beyond --limit count too
        last = max((n for n, item in enumerate(items, 1) if item.path.exists()), default=0)
        limit = max(order.limit, last)
        order = replace(order, limit=limit if limit < len(items) else None)
    found = survey_images(cell, items[: order.limit])
    scores = Scores([engine.item_without_answers(state) for state in found.states.values()])
    coverage = engine.coverage_of(found.states, scores)
    if not coverage.generated:
        raise CellFailure(
            f"no image is behind {short_path(path)}: {coverage.problems()} of {coverage.expected} items"
        )
    metrics = read_metrics(path, coverage.judged)
    digest = hashlib.sha256(script.read_bytes()).hexdigest()
    evaluator = Evaluator(
        f"{SCRIPT}{digest[:_HASH_DIGITS]}", False, {"script": f"eval/{script.name}", "sha256": digest}
    )
    # the benchmark has no version, so a hash of all seeds and prompts identifies it
    shown = "\n".join(f"{item.seed} {item.prompt_sha256}" for item in items)
    result = engine.result_of(
        cell,
        coverage,
        list(metrics)[:1],
        order,
        benchmark_version=f"items/{hashlib.sha256(shown.encode()).hexdigest()[:_HASH_DIGITS]}",
        evaluator=evaluator,
        metrics=metrics,
        # the script may have used any environment and Python
        provenance={**engine.provenance(cell, found, {}), "environment": None, "python": None},
        notes=[f"measured by eval/{script.name}; that it counted every image is its own word"],
    )
    leave(cell, result, engine.scores_text(evaluator.id, found.states, scores), None)
    return engine.outcome_of_result(result)


def _items(cell: Cell) -> list[Item]:
    """Returns all items of the benchmark. Raises CellFailure if its dataset class cannot be imported here."""
    try:
        return placed(entries_of(registry.load_dataset(cell.benchmark), cell.benchmark), cell)
    except ImportError as error:
        raise CellFailure(
            f"{METRICS} is no result: the items of {cell.benchmark} cannot be counted, because its dataset class "
            f"cannot be imported in .venv ({one_line(error, 200)}); install its packages there, and run again"
        ) from error


if __name__ == "__main__":
    run_main(main)
