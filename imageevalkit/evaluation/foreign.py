"""The result of a foreign benchmark, one without a class in ``benchmarks/``: its script's own ``metrics.json``.

An evaluate job of it is ``python -m imageevalkit.evaluation.foreign bash eval/<ds>.sh MODEL_NAME EVAL_ENV``. The script
may do anything; what it leaves in the cell's folder becomes a result with coverage. The format is in README.md, "Add a
benchmark".
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

from imageevalkit import registry
from imageevalkit.benchmark.contract import Answers, ScoredItem, Scores
from imageevalkit.cell import Cell, short_path
from imageevalkit.cell.items import Item, entries_of, placed
from imageevalkit.cell.metrics_file import METRICS, no_score, read_metrics
from imageevalkit.cell.results import Evaluator, Score, leave, standing
from imageevalkit.cell.states import GENERATED, survey_images
from imageevalkit.errors import CellFailure, ExitStatus, run_main, say
from imageevalkit.evaluation import engine
from imageevalkit.evaluation.interview import EvaluateOptions
from imageevalkit.evaluation.provenance import provenance
from imageevalkit.jobs import COMPLETE, Outcome, outcome_of
from imageevalkit.secrets import one_line

_HASH_DIGITS = 12


def main() -> ExitStatus:
    """Run the command of the arguments and leave its cell's outcome, unless it fails: then its status says all."""
    command = sys.argv[1:]
    _, script, model, _ = command
    cell = Cell(model, Path(script).stem)
    path = cell.folder / METRICS
    earlier = path.with_name(f".{METRICS}.earlier")
    if path.exists():  # may be of other images; it is back if no new one comes
        path.replace(earlier)
    try:
        # in a session of its own: `kill 0`, with which a script ends what it started, must not end this process
        status = subprocess.run(command, start_new_session=True, check=False).returncode
        if status:
            sys.exit(status if status > 0 else 128 - status)
        return engine.leave_outcome(cell, outcome_of(lambda: _outcome(cell, Path(script)), say))
    finally:
        if path.exists():
            earlier.unlink(missing_ok=True)
        elif earlier.exists():
            earlier.replace(path)


def _outcome(cell: Cell, script: Path) -> Outcome:
    """How a script that ended with status 0 leaves ``cell``, whose result is written. Raises CellFailure."""
    path = cell.folder / METRICS
    if not path.exists():
        known = "the result of an earlier run stands" if standing(cell) else no_score(cell)
        return Outcome(COMPLETE, f"the script ended with status 0; {known}")
    options = EvaluateOptions.from_environment()
    items = _items(cell)
    if options.limit:
        # the script looks at the images that it finds: those of an earlier run beyond --limit count too
        last = max((n for n, item in enumerate(items, 1) if item.path.exists()), default=0)
        limit = max(options.limit, last)
        options = options._replace(limit=limit if limit < len(items) else None)
    states = survey_images(cell, items[: options.limit])
    scores = Scores(
        [
            ScoredItem(one.item, one.path, Answers({}), {}, Score({}))
            if one.status == GENERATED
            else engine.not_made(one)
            for one in states.values()
        ]
    )
    coverage = engine.coverage_of(states, scores)
    if not coverage.generated:
        raise CellFailure(
            f"no image is behind {short_path(path)}: {coverage.problems()} of {coverage.expected} items"
        )
    metrics = read_metrics(path, coverage.judged)
    digest = hashlib.sha256(script.read_bytes()).hexdigest()
    evaluator = Evaluator(
        f"script/{digest[:_HASH_DIGITS]}", False, {"script": f"eval/{script.name}", "sha256": digest}
    )
    # of a benchmark that names no version: all that a model is shown
    shown = "\n".join(f"{item.seed} {item.prompt_sha256}" for item in items)
    origin = provenance(cell, items[: options.limit], {}, evaluator.id)
    result = engine.result_of(
        cell,
        coverage,
        list(metrics)[:1],
        options,
        benchmark_version=f"items/{hashlib.sha256(shown.encode()).hexdigest()[:_HASH_DIGITS]}",
        evaluator=evaluator,
        metrics=metrics,
        # where the script ran its programs only it knows
        provenance={**origin, "environment": None, "python": None},
        notes=[f"measured by eval/{script.name}; that it counted every image is its own word"],
    )
    leave(cell, result, engine.scores_text(evaluator.id, states, scores), None)
    return engine.outcome_of_result(result)


def _items(cell: Cell) -> list[Item]:
    """All items of the benchmark. Raises CellFailure: this environment cannot read its dataset."""
    try:
        return placed(entries_of(registry.load_dataset(cell.benchmark), cell.benchmark), cell)
    except ImportError as error:
        raise CellFailure(
            f"{METRICS} is no result: nobody can count the items of {cell.benchmark}, whose dataset class cannot be "
            f"imported in .venv ({one_line(error, 200)}); install there what it needs, and run again"
        ) from error


if __name__ == "__main__":
    run_main(main)
