"""``metrics.json``: the scores of somebody else's program, by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from imageevalkit.cell import Cell, short_path
from imageevalkit.cell.jsonl import Shape, is_number, parse
from imageevalkit.cell.results import Metric
from imageevalkit.errors import CellFailure
from imageevalkit.secrets import one_line

METRICS = "metrics.json"
_REMEDY = 'README, "Add a benchmark"'


def no_score(cell: Cell) -> str:
    """Why ``cell`` has no score though its benchmark's own script has not failed, and how it gets one."""
    script, where = f"eval/{cell.benchmark}.sh", f"{short_path(cell.folder)}/"
    return f"no score: let {script} leave {METRICS} in {where} whenever it runs ({_REMEDY})"


def _is_interval(value: Any) -> bool:
    return value is None or (
        isinstance(value, list) and len(value) == 2 and all(map(is_number, value)) and value[0] <= value[1]
    )


_METRIC = Shape(
    must={"value": float | None},
    may={
        "n": lambda n: is_number(n) and isinstance(n, int) and n >= 0,
        "interval": _is_interval,
        "scale": lambda scale: is_number(scale) and scale > 0,
    },
)


def read_metrics(path: Path, n: int) -> dict[str, Metric]:
    """The metrics in a file of name → number, or name → ``{"value", "n", "interval", "scale"}``, in its order.

    Only ``value`` must be there: a finite number, or null where there is none. Else a metric is over ``n`` items, has
    no interval, and its scale is 1, or 100 if its value lies beyond 1. Raises CellFailure: there is no such file, or
    one metric is none; the message has its name.
    """
    where = short_path(path)
    try:
        raw = parse(path.read_bytes())
    except OSError as error:
        raise CellFailure(f"{where} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise CellFailure(f"{where} is no JSON: {one_line(error, 100)} ({_REMEDY})") from None
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
    if not name.strip():
        raise ValueError("it has no name")
    given = raw if isinstance(raw, dict) else {"value": raw}
    if problem := _METRIC.problem(given):
        raise ValueError(
            f"{problem}: value must be a number or null, n a whole number, interval [low, high], scale above 0"
        )
    if unknown := sorted(set(given) - {*_METRIC.must, *_METRIC.may}):
        raise ValueError(f"'{unknown[0]}' is unknown; value, n, interval and scale are not")
    value, interval = given["value"], given.get("interval")
    scale = given.get("scale", 100 if value is not None and abs(value) > 1 else 1)
    metric = Metric(value, given.get("n", n), tuple(interval) if interval else None, scale)
    if value is not None and abs(value) > scale:
        raise ValueError(f"{value:g} is beyond its scale of {scale:g}: give the scale, the top of its range")
    return metric
