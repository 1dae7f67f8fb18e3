"""Reads what ``scores.jsonl`` says of the items: their scores, and in any version their parts of each metric."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

from imageevalkit.store.jsonl import Reader, invalid, is_number, read_jsonl
from imageevalkit.store.results import ItemPart, Metric, Result, Score

_CLOSE = 1e-9  # share of the scale: the rounding error of a value in a file


class ScoreLine(TypedDict):
    """A line of ``scores.jsonl``, of any version. Its readers check the fields that they use."""

    item: str
    status: NotRequired[Any]
    values: NotRequired[Any]
    keys: NotRequired[Any]
    detail: NotRequired[Any]
    points: NotRequired[Any]
    parts: NotRequired[Any]
    reason: NotRequired[Any]
    evaluator: NotRequired[Any]
    image_sha256: NotRequired[Any]


SCORE = Reader(ScoreLine)


class _Values(TypedDict):
    values: dict[str, Any]
    keys: dict[str, Any]


class _Judged(_Values):
    item: str
    status: Literal["judged"]
    detail: dict[str, Any]
    points: NotRequired[list[_Values]]


_JUDGED = Reader(_Judged)


def read_scores(path: Path) -> list[Score]:
    """Returns the scores of all judged items in a ``scores.jsonl``. Raises CellFailure: it is unreadable."""

    def score(raw: Mapping[str, Any]) -> Score:
        points = [score(point) for point in raw.get("points", ())]
        return Score(raw["values"], raw["keys"], raw.get("detail", {}), points)

    return [score(record).of_item(record["item"]) for record in read_jsonl(path, _JUDGED)]


def with_parts(result: Result, records: Iterable[Mapping[str, Any]], prompts: Mapping[str, str]) -> Result:
    """Returns ``result`` with the parts of its metrics, read from the ``records`` of its scores.jsonl.

    Older files have no parts. If a metric is the plain mean (× 100 for a percentage) of one of the items'
    values, its parts are these values. Items with the same entry in ``prompts`` (by item, such as a hash)
    then share a cluster.

    Raises:
        ValueError: A part is not [total, weight, group, cluster] with numbers and texts.
    """
    records = list(records)
    judged = [record for record in records if record.get("status", "judged") == "judged"]
    valued = {name: metric for name, metric in result.metrics.items() if metric.value is not None}
    found: dict[str, list[ItemPart]] = {}
    for record in records:
        known = record.get("parts")
        for name, parts in known.items() if isinstance(known, dict) else ():
            if name in valued:
                found.setdefault(name, []).extend(_read(record["item"], parts, name, valued[name]))
    # a file may have lost lines: then the parts would not add up to the value
    found = {
        name: parts for name, parts in found.items() if len({one.item for one in parts}) == valued[name].n
    }
    if not any(isinstance(record.get("parts"), dict) for record in records):
        several = {prompt for prompt, count in Counter(prompts.values()).items() if count > 1}
        clusters = {item: prompt for item, prompt in prompts.items() if prompt in several}
        for name, metric in valued.items():
            if parts := _of_plain_mean(name, metric, judged, clusters):
                found[name] = parts
    metrics = {name: replace(one, parts=found.get(name, ())) for name, one in result.metrics.items()}
    return replace(result, metrics=metrics)


def _read(item: str, parts: Any, name: str, metric: Metric) -> list[ItemPart]:
    """Returns the parts of an item for one metric. Raises ValueError if a part is invalid."""
    groups = {*metric.shares} if metric.shares else {None}
    found = []
    for one in parts if isinstance(parts, list) else [parts]:
        if not isinstance(one, list) or not 2 <= len(one) <= 4:
            raise invalid(f"{item}.parts.{name}", one)
        group, cluster = [*one[2:], None, None][:2]
        is_right = all(map(is_number, one[:2])) and one[1] >= 0
        if not is_right or not isinstance(group, str | None) or not isinstance(cluster, str | None):
            raise invalid(f"{item}.parts.{name}", one)
        if group in groups:
            found.append(ItemPart(item, one[0], one[1], group, cluster))
    return found


def _of_plain_mean(
    name: str, metric: Metric, records: Sequence[Mapping[str, Any]], clusters: Mapping[str, str]
) -> list[ItemPart]:
    by_value: dict[str, dict[str, float]] = {}
    for record in records:
        values = record.get("values")
        for key, value in values.items() if isinstance(values, dict) else ():
            if is_number(value):
                by_value.setdefault(key, {})[record["item"]] = value
    # two values may have the same mean: prefer the value with the metric's own name
    for key in sorted(by_value, key=lambda key: key != name):
        values = by_value[key]
        mean = math.fsum(values.values()) / len(values)
        for shown in (1, 100):
            if len(values) == metric.n and math.isclose(
                shown * mean, metric.value or 0.0, rel_tol=0, abs_tol=_CLOSE * abs(metric.scale)
            ):
                return [ItemPart(i, shown * v, 1.0, None, clusters.get(i)) for i, v in values.items()]
    return []
