"""``result.json``: what a cell scored, on how much of the benchmark, measured by whom."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any

from imageevalkit.atomic import write_atomic
from imageevalkit.json_values import is_number, parse

SCHEMA = "imageevalkit.result/1"
_SHA256 = re.compile("[0-9a-f]{64}")
_ROUNDING = 1e-9  # what a mean of scores at the top of a scale may be off, of the scale


@dataclass(frozen=True)
class Coverage:
    """What became of every item.

    expected = generated + refused + failed + blank + corrupt; generated = judged + unparsed + judge_failed.

    ``failed`` includes items never attempted. ``blank`` counts the placeholders that
    ``GENERATE_BLANK_IMAGE_ON_ERROR`` wrote. ``flat`` of the generated images are one flat colour: the model
    itself made them, so they are scored, but a reader should know.
    """

    expected: int
    generated: int
    refused: int
    failed: int
    blank: int
    corrupt: int
    judged: int
    unparsed: int
    judge_failed: int
    flat: int = 0

    @property
    def complete(self) -> bool:
        return self.judged == self.expected

    def problems(self) -> str:
        """``"3 refused, 1 corrupt"``; empty when everything was judged."""
        names = ("refused", "failed", "blank", "corrupt", "unparsed", "judge_failed")
        return ", ".join(f"{getattr(self, n)} {n.replace('_', ' ')}" for n in names if getattr(self, n))


@dataclass(frozen=True)
class Metric:
    """One number over ``n`` items, with a 95 % interval (``[low, high]``) where one is defined.

    ``value`` is None when no item could be scored. ``scale`` is the top of its range (1 or 100).
    """

    value: float | None
    n: int
    interval: tuple[float, float] | None = None
    scale: float = 1.0


@dataclass(frozen=True)
class Evaluator:
    """Who measured. ``id`` is part of the score's name: two evaluators never share a leaderboard column."""

    id: str
    official: bool
    details: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def as_json(self) -> str:
        """Its fields, written once: tens of thousands of request hashes have them."""
        return json.dumps(asdict(self), sort_keys=True, ensure_ascii=False)


@dataclass(frozen=True)
class Result:
    """The result of a cell. ``headline`` names the metrics shown on the leaderboard; empty = withheld.

    ``treatment`` is ``withhold`` (below full coverage the headline is withheld) or ``official`` (the official
    evaluator's own way with missing items). ``limit`` is N when only the first N items were run: such a
    result is never compared with full ones. ``provenance["environment"]`` is the evaluating environment's
    :func:`~imageevalkit.environment_hash.environment_hash`; those of ``provenance["model_packages"]`` are the model's.
    """

    model: str
    benchmark: str
    benchmark_version: str
    evaluator: Evaluator
    coverage: Coverage
    metrics: dict[str, Metric]
    headline: list[str]
    treatment: str
    limit: int | None
    provenance: dict[str, Any]
    withheld: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def state(self) -> str:
        return "complete" if self.coverage.complete else "incomplete"

    def score_name(self, metric: str) -> str:
        """The full name of a score: benchmark, metric and evaluator, e.g. ``longtext/en@ppocr-v4``."""
        return f"{self.benchmark}/{metric}@{self.evaluator.id}"


def validate(raw: dict[str, Any]) -> None:
    """Check a result object against the schema.

    Raises:
        ValueError: names the first field that is wrong.
    """
    if not isinstance(raw, dict):
        raise ValueError("it is no JSON object")
    if raw.get("schema") != SCHEMA:
        raise ValueError(f"schema is {raw.get('schema')!r}, expected {SCHEMA!r}")
    for key, kind in _FIELDS.items():
        if key not in raw:
            raise ValueError(f"'{key}' is missing")
        if not isinstance(raw[key], kind):
            raise ValueError(f"'{key}' is {type(raw[key]).__name__}")
    if not isinstance(raw["evaluator"].get("id"), str) or not isinstance(
        raw["evaluator"].get("official"), bool
    ):
        raise ValueError("'evaluator' has no text 'id' or no true/false 'official'")
    if not isinstance(raw["evaluator"].get("details") or {}, dict):
        raise ValueError("'evaluator' has 'details' that are no object")
    c = raw["coverage"]
    if set(c) != {f.name for f in fields(Coverage)}:
        raise ValueError("coverage lacks a count or holds an unknown one")
    if any(not isinstance(v, int) or v < 0 for v in c.values()):
        raise ValueError("coverage holds a negative or fractional count")
    if c["expected"] != c["generated"] + c["refused"] + c["failed"] + c["blank"] + c["corrupt"]:
        raise ValueError("coverage: expected ≠ generated + refused + failed + blank + corrupt")
    if c["generated"] != c["judged"] + c["unparsed"] + c["judge_failed"]:
        raise ValueError("coverage: generated ≠ judged + unparsed + judge_failed")
    for name, metric in raw["metrics"].items():
        _validate_metric(name, metric)
    _validate_environments(raw["provenance"])
    unknown = [name for name in raw["headline"] if not isinstance(name, str) or name not in raw["metrics"]]
    if unknown:
        raise ValueError(f"headline names unknown metric '{unknown[0]}'")
    if not raw["headline"] and not raw["withheld"]:
        raise ValueError("no headline and no reason for withholding it")


def is_environment(value: Any) -> bool:
    """Whether it is a hash of an environment, or null where there is none."""
    return value is None or (isinstance(value, str) and _SHA256.fullmatch(value) is not None)


def _validate_environments(provenance: dict[str, Any]) -> None:
    """The hashes of the evaluator's and the model's environments, which results of older toolkits lack."""
    of_models = provenance.get("model_packages", [])
    if not isinstance(of_models, list) or not all(isinstance(packages, dict) for packages in of_models):
        raise ValueError("provenance: 'model_packages' is no list of objects")
    for holder in (provenance, *of_models):
        if not is_environment(holder.get("environment")):
            raise ValueError("provenance: an 'environment' is not a SHA-256 in 64 hex digits")


def _validate_metric(name: str, metric: Any) -> None:
    if not isinstance(metric, dict) or not {"value", "n"} <= set(metric):
        raise ValueError(f"metric '{name}' lacks value or n")
    interval = metric.get("interval")
    if interval is not None and (not isinstance(interval, list | tuple) or len(interval) != 2):
        raise ValueError(f"metric '{name}': interval is not [low, high]")
    numbers = [metric["n"], metric.get("scale", 1.0), *(interval or [])]
    if metric["value"] is not None:
        numbers.append(metric["value"])
    if not all(map(is_number, numbers)):
        raise ValueError(f"metric '{name}' is not finite")


def check_within_scale(metrics: Mapping[str, Metric], unbounded: Sequence[str]) -> None:
    """Whether each value is one that its scale allows: from ``-scale`` (a cosine may be negative) to ``scale``.

    ``unbounded`` are shell patterns of the names of those that may lie beyond.

    Raises:
        ValueError: names the first that does not.
    """
    for name, metric in metrics.items():
        top = metric.scale + _ROUNDING * abs(metric.scale)
        if metric.value is None or -top <= metric.value <= top:
            continue
        if not any(fnmatchcase(name, pattern) for pattern in unbounded):
            raise ValueError(
                f"metric '{name}' is {metric.value:g} on a scale of {metric.scale:g}: give Metric() the scale that it "
                "has, or name the metric in the benchmark's 'unbounded' if it may lie beyond"
            )


_FIELDS: dict[str, type | tuple[type, ...]] = {
    "model": str,
    "benchmark": str,
    "benchmark_version": str,
    "evaluator": dict,
    "coverage": dict,
    "metrics": dict,
    "headline": list,
    "treatment": str,
    "limit": (int, type(None)),
    "provenance": dict,
    "withheld": str,
    "notes": list,
    "state": str,
}


def write_result(path: Path, result: Result) -> None:
    """Validate ``result`` and write it atomically. Raises ValueError when it breaks the schema."""
    raw = as_object(result)
    validate(raw)
    write_atomic(path, json.dumps(raw, indent=1, ensure_ascii=False) + "\n")


def as_object(result: Result) -> dict[str, Any]:
    """``result`` as the JSON object of its file."""
    return {"schema": SCHEMA, "state": result.state, **asdict(result)}


def read_result(path: Path) -> Result:
    """Read a result. Raises ValueError when it breaks the schema (or is no JSON), OSError if unreadable."""
    raw = parse(path.read_bytes())
    validate(raw)
    values = {key: raw[key] for key in _FIELDS if key != "state"}
    evaluator = raw["evaluator"]
    values["evaluator"] = Evaluator(evaluator["id"], evaluator["official"], evaluator.get("details") or {})
    values["coverage"] = Coverage(**raw["coverage"])
    values["metrics"] = {
        name: Metric(
            metric["value"],
            metric["n"],
            tuple(metric["interval"]) if metric.get("interval") else None,
            metric.get("scale", 1.0),
        )
        for name, metric in raw["metrics"].items()
    }
    return Result(**values)
