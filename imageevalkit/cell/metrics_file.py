"""``metrics.json``: the scores of somebody else's program, by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from imageevalkit.cell import Cell, short_path
from imageevalkit.cell.jsonl import Shape, WrongShape, is_number, read_json
from imageevalkit.cell.results import Metric
from imageevalkit.errors import CellFailure
from imageevalkit.secrets import one_line

METRICS = "metrics.json"
_REMEDY = 'README, "Add a benchmark"'


def no_score(cell: Cell) -> str:
    """Why ``cell`` has no score though its benchmark's own script has not failed, and how it gets one."""
    script, where = f"eval/{cell.benchmark}.sh", f"{short_path(cell.folder)}/"
    return f"no score: let {script} leave {METRICS} in {where} whenever it runs ({_REMEDY})"


_METRIC = Shape.of(Metric)


def read_metrics(path: Path, n: int) -> dict[str, Metric]:
    """The metrics in a file of name → number, or of name → its fields, ``n`` items where they name none."""
    where = short_path(path)
    try:
        raw = read_json(path)
    except CellFailure as error:
        raise CellFailure(f"{error} ({_REMEDY})") from None
    if not isinstance(raw, dict) or not raw:
        raise CellFailure(
            f'{where} holds no metrics: it must be an object such as {{"accuracy": 0.5}} ({_REMEDY})'
        )
    metrics = {}
    for name, value in raw.items():
        try:
            metrics[name] = _metric(name, value, n)
        except ValueError as error:
            raise CellFailure(f"{where}: metric '{one_line(name, 60)}': {error} ({_REMEDY})") from None
    return metrics


def _metric(name: str, raw: Any, n: int) -> Metric:
    """One metric. Raises ValueError: what is wrong with it."""
    given = raw if isinstance(raw, dict) else {"value": raw}
    if not name.strip():
        raise ValueError("it has no name")
    if unknown := sorted(given.keys() - {"value", "n", "interval", "scale"}):
        raise ValueError(f"'{unknown[0]}' is unknown; value, n, interval and scale are not")
    value: Any = given.get("value")
    try:
        metric = _METRIC.read({"n": n, "scale": 100 if is_number(value) and abs(value) > 1 else 1, **given})
        low, high = metric.interval or (0, 0)
        for field, is_wrong in (("n", metric.n < 0), ("interval", low > high), ("scale", metric.scale <= 0)):
            if is_wrong:
                raise WrongShape((field,), given[field])
    except WrongShape as error:
        raise ValueError(
            f"{error}: value must be a number or null, n a whole number, interval [low, high], scale above 0"
        ) from None
    if value is not None and abs(value) > metric.scale:
        raise ValueError(
            f"{value:g} is beyond its scale of {metric.scale:g}: give the scale, the top of its range"
        )
    return metric
