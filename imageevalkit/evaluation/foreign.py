"""The result of a foreign benchmark, one without a class in ``benchmarks/``: its script's own ``metrics.json``.

An evaluate job of it is ``python -m imageevalkit.evaluation.foreign bash eval/<ds>.sh MODEL_NAME EVAL_ENV``. The script
may do anything; what it leaves in the cell's folder becomes a result with coverage. The format is in README.md, "Add a
benchmark".
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from imageevalkit import registry
from imageevalkit.cell import Cell, short_path
from imageevalkit.cell.items import Item, entries_of, placed
from imageevalkit.cell.metrics_file import METRICS, no_score, read_metrics
from imageevalkit.cell.results import Coverage, Evaluator, Result, leave, standing
from imageevalkit.cell.states import BLANK, CORRUPT, GENERATED, REFUSED, ImageState, survey_images
from imageevalkit.cell.states import FAILED as FAILED_ITEM
from imageevalkit.errors import CellFailure, ExitStatus, run_main, say
from imageevalkit.evaluation.provenance import provenance
from imageevalkit.guest_code import guest_code
from imageevalkit.jobs import COMPLETE, FAILED, INCOMPLETE, STATUS_OF_STATE, Outcome, write_outcome
from imageevalkit.secrets import one_line, redact

_HASH_DIGITS = 12


def main() -> ExitStatus:
    """Run the command of the arguments and leave its cell's outcome, unless it fails: then its status says all."""
    command = sys.argv[1:]
    _, script, model, _ = command
    cell = Cell(model, Path(script).stem)
    with _only_new(cell.folder / METRICS):
        # in a session of its own: `kill 0`, with which a script ends what it started, must not end this process
        status = subprocess.run(command, start_new_session=True, check=False).returncode
        if status:
            sys.exit(status if status > 0 else 128 - status)
        try:
            with guest_code():
                outcome = _outcome(cell, Path(script))
        except CellFailure as failure:
            outcome = Outcome(FAILED, one_line(failure))
        except Exception as error:  # of a dataset class; the log has the rest
            say(redact(traceback.format_exc()))
            outcome = Outcome(FAILED, f"{type(error).__name__}: {one_line(error, 300)}")
    say(f"=== {outcome.state}: {outcome.message}")
    write_outcome(Path(os.environ["IMAGEEVALKIT_RUN_FOLDER"]), cell, "evaluate", outcome)
    return STATUS_OF_STATE[outcome.state]


@contextmanager
def _only_new(path: Path) -> Iterator[None]:
    """A block in which ``path`` is only there once it was written in it: an older one may be about other images.

    That one is back afterwards if there is no new one.
    """
    earlier = path.with_name(f".{path.name}.earlier")
    if path.exists():
        path.replace(earlier)
    try:
        yield
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
    result, states = _result(cell, script, path)
    leave(cell, result, _scores(states, result.evaluator.id), None)
    coverage, words = result.coverage, [f"{result.coverage.judged} of {result.coverage.expected} judged"]
    for name in result.headline:
        value = result.metrics[name].value
        words.insert(0, f"{name} has no value" if value is None else f"{name} {value:.4f}")
    state = COMPLETE if coverage.complete else INCOMPLETE
    return Outcome(state, "; ".join(filter(None, [*words, coverage.problems()])))


def _result(cell: Cell, script: Path, path: Path) -> tuple[Result, Mapping[str, ImageState]]:
    """The result that the metrics in ``path`` are, and the images that they are about. Raises CellFailure."""
    items = _items(cell)
    limit = _limit(items)
    states = survey_images(cell, items[:limit])
    coverage = _coverage(states)
    if not coverage.generated:
        raise CellFailure(
            f"no image is behind {short_path(path)}: {coverage.problems()} of {coverage.expected} items"
        )
    metrics = read_metrics(path, coverage.judged)
    digest = hashlib.sha256(script.read_bytes()).hexdigest()
    evaluator = Evaluator(
        f"script/{digest[:_HASH_DIGITS]}", False, {"script": f"eval/{script.name}", "sha256": digest}
    )
    origin = provenance(cell, items[:limit], {}, evaluator.id)
    as_official = os.environ.get("IMAGEEVALKIT_MISSING_ITEMS") == "official"
    withheld = "" if coverage.complete or as_official else f"incomplete: {coverage.problems()}"
    result = Result(
        model=cell.model,
        benchmark=cell.benchmark,
        benchmark_version=_version(items),
        evaluator=evaluator,
        coverage=coverage,
        metrics=metrics,
        headline=[] if withheld else list(metrics)[:1],
        treatment="official" if as_official else "withhold",
        limit=limit,
        # where the script ran its programs only it knows
        provenance={**origin, "environment": None, "python": None},
        withheld=withheld,
        notes=[f"measured by eval/{script.name}; that it counted every image is its own word"],
    )
    return result, states


def _items(cell: Cell) -> list[Item]:
    """All items of the benchmark. Raises CellFailure: this environment cannot read its dataset."""
    try:
        return placed(entries_of(registry.load_dataset(cell.benchmark), cell.benchmark), cell)
    except ImportError as error:
        raise CellFailure(
            f"{METRICS} is no result: nobody can count the items of {cell.benchmark}, whose dataset class cannot be "
            f"imported in .venv ({one_line(error, 200)}); install there what it needs, and run again"
        ) from error


def _limit(items: Sequence[Item]) -> int | None:
    """How many of the first ``items`` the script may have scored; None: all.

    It looks at the images that it finds. Those of an earlier run beyond --limit count, or the result would be told as
    one of fewer items than it has.
    """
    given = os.environ.get("IMAGEEVALKIT_LIMIT")
    if not given:
        return None
    last = max((n for n, item in enumerate(items, 1) if item.path.exists()), default=0)
    limit = max(int(given), last)
    return limit if limit < len(items) else None


def _version(items: Sequence[Item]) -> str:
    """The version of a benchmark that names none: a hash of all that a model is shown."""
    shown = "\n".join(f"{item.seed} {item.prompt_sha256}" for item in items)
    return f"items/{hashlib.sha256(shown.encode()).hexdigest()[:_HASH_DIGITS]}"


def _coverage(states: Mapping[str, ImageState]) -> Coverage:
    counts = Counter(state.status for state in states.values())
    return Coverage(
        expected=len(states),
        generated=counts[GENERATED],
        refused=counts[REFUSED],
        failed=counts[FAILED_ITEM],
        blank=counts[BLANK],
        corrupt=counts[CORRUPT],
        judged=counts[GENERATED],
        unparsed=0,
        judge_failed=0,
        flat=sum(state.flat for state in states.values() if state.status == GENERATED),
    )


def _scores(states: Mapping[str, ImageState], evaluator: str) -> str:
    """The text of scores.jsonl: which image of each item the result is about."""
    records: list[dict[str, Any]] = [
        {
            "item": item,
            "status": "judged" if state.status == GENERATED else "not_generated",
            "image_sha256": state.sha256 or None,
            "attempted": state.attempted,
            "values": {},
            "keys": {},
            "evaluator": evaluator,
            "detail": {},
            "reason": "" if state.status == GENERATED else f"{state.status}: {state.reason}",
        }
        for item, state in states.items()
    ]
    return "".join(json.dumps(r, ensure_ascii=False, separators=(",", ":")) + "\n" for r in records)


if __name__ == "__main__":
    run_main(main)
