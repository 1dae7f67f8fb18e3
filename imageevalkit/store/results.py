"""The result of a cell: scores, coverage and evaluator. If there are several results, which one is shown.

The latest ``result.json`` and its scores lie in the cell's folder. ``evaluators/<evaluator>/`` holds results
of other evaluators: earlier ones, and ones with less coverage. A comparison of two judges therefore has both
results.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import reprlib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, TypedDict

from imageevalkit.common.atomic import write_atomic
from imageevalkit.common.errors import CellFailure, suggest
from imageevalkit.common.redaction import one_line
from imageevalkit.common.text import to_bytes
from imageevalkit.store.cell import Cell, short_path
from imageevalkit.store.jsonl import (
    Amount,
    Count,
    Int,
    Number,
    Reader,
    Scale,
    invalid,
    is_number,
    parse,
    read_json,
    read_jsonl,
)

SCHEMA = "imageevalkit.result/1"
_ROUNDING = 1e-9  # tolerance for rounding in a mean of top scores, as a share of the scale


class ItemPart(NamedTuple):
    """The part of an item in a metric: value = Σ over groups of share · (Σ total / Σ weight in the group).

    ``total`` / ``weight`` is on the metric's own scale (× 100 for a percentage). ``group`` is None if the
    metric is one plain mean. Items with the same ``cluster`` (such as the images of one prompt) are not
    independent; None: the item is independent.
    """

    item: str
    total: float
    weight: float
    group: str | None = None
    cluster: str | None = None

    @property
    def unit(self) -> str:
        """The cluster, or the item without one: resampling and permutation move a unit as a whole."""
        return self.item if self.cluster is None else self.cluster


@dataclass(frozen=True)
class Score:
    """The score of an item: ``values`` are numbers by name, ``keys`` group items, ``detail`` is for readers.

    ``points`` are the scores of its parts (questions, test points), each with its own values and keys. The
    engine sets ``item``, the item's id.
    """

    values: Mapping[str, float]
    keys: Mapping[str, Any] = field(default_factory=dict)
    detail: Mapping[str, Any] = field(default_factory=dict)
    points: Sequence[Score] = ()
    item: str = ""

    def of_item(self, item: str) -> Score:
        """Returns the score with the item id set on itself and on its points."""
        points = [Score(one.values, one.keys, one.detail, one.points, item) for one in self.points]
        return Score(self.values, self.keys, self.detail, points, item)


@dataclass(frozen=True)
class Coverage:
    """The number of items in each state.

    expected = generated + refused + failed + blank + corrupt + unasked;
    generated = judged + unparsed + judge_failed.

    ``unasked``: items that a run with ``--until`` did not need. ``failed`` includes items never attempted.
    ``blank``: placeholders written by ``GENERATE_BLANK_IMAGE_ON_ERROR``. ``flat``: generated images of a
    single colour, which are scored.
    """

    expected: Count
    generated: Count
    refused: Count
    failed: Count
    blank: Count
    corrupt: Count
    judged: Count
    unparsed: Count
    judge_failed: Count
    flat: Count = 0
    unasked: Count = 0

    @property
    def complete(self) -> bool:
        return self.judged == self.expected

    @property
    def asked(self) -> int:
        """The number of items that the run covers: all, unless it stopped early."""
        return self.expected - self.unasked

    @property
    def lacks_nothing(self) -> bool:
        """Whether every item that the run covers was judged."""
        return self.judged == self.asked

    def problems(self) -> str:
        """Returns ``"3 refused, 1 corrupt"``; empty if every item that the run covers was judged."""
        names = ("refused", "failed", "blank", "corrupt", "unparsed", "judge_failed")
        return ", ".join(f"{getattr(self, n)} {n.replace('_', ' ')}" for n in names if getattr(self, n))


@dataclass(frozen=True)
class Metric:
    """One number over ``n`` items (None without any) with a 95 % interval. ``scale`` is the top of its range.

    ``parts`` are the contributions of the items, kept in ``scores.jsonl``; empty if the metric is not such a
    sum of means. ``shares`` are the shares of their groups. If a benchmark rounds the value, parts and
    interval are of the unrounded value.
    """

    value: Number | None
    n: Count
    interval: tuple[Number, Number] | None = None
    scale: Scale = 1.0
    shares: Mapping[str, Amount] | None = field(default=None, compare=False)
    parts: Sequence[ItemPart] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True)
class Evaluator:
    """The evaluator of a result. ``id`` is part of the score's name: two evaluators never share a column."""

    id: str
    official: bool
    details: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def as_json(self) -> str:
        """The evaluator as JSON, cached because tens of thousands of request hashes include it."""
        return json.dumps(asdict(self), sort_keys=True, ensure_ascii=False)


@dataclass(frozen=True)
class Until:
    """The result of ``--until`` for the two models of ``pair``.

    ``better``: for each decided headline metric, the better model and the number of items needed.
    """

    pair: list[str]
    better: dict[str, tuple[str, Int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Drift:
    """Whether the judge answers differently than in the run begun at ``since`` (ISO 8601; empty: unknown).

    ``changed`` of ``asked`` questions had one answer in all replies then and another one in all replies now.
    ``p`` is an upper bound on the probability of so many changes by any unchanged judge. ``found``: ``p`` is
    small enough. ``host`` is the old endpoint if it differs from the new one.
    """

    since: str
    asked: Int
    changed: list[str]
    p: Number
    found: bool
    host: str = ""


@dataclass(frozen=True)
class Noise:
    """The randomness of the judge and its drift, measured with repeated questions.

    ``repeated`` of ``of`` answered questions were asked twice in one run, and ``changed`` of them got another
    answer. ``interval`` is the 95 % interval of that share (None: too few items). ``unparsed`` repeats had no
    value. ``item_errors`` and ``standard_errors`` are the standard errors of one item's values and of the
    metrics, from the judge's randomness alone (:mod:`imageevalkit.extras.noise.repeats`). ``repeats`` and
    ``probes`` are the drift in the cell's questions and in the judge's probe questions; None: not measured.
    ``usd`` is the cost of all repeats of the cell; None: unknown.
    """

    of: Int
    repeated: Int
    changed: Int
    interval: tuple[Number, Number] | None = None
    unparsed: Int = 0
    item_errors: dict[str, Number] = field(default_factory=dict)
    standard_errors: dict[str, Amount] = field(default_factory=dict)
    repeats: Drift | None = None
    probes: Drift | None = None
    usd: Number | None = None

    @property
    def has_drifted(self) -> bool:
        return any(one is not None and one.found for one in (self.repeats, self.probes))


DRIFTED = "the judge has drifted"
"""The first words of the note about a drift."""


@dataclass(frozen=True)
class Result:
    """The result of a cell. ``headline`` names the metrics on the leaderboard; empty if they are withheld.

    ``treatment`` is ``withhold`` (no headline below full coverage) or ``official`` (missing items are treated
    as the official evaluator does). ``limit`` is N if only the first N items were run: such a result is never
    compared with full ones. ``provenance["environment"]`` is the evaluator's
    :func:`~imageevalkit.common.hashes.environment_hash`, ``provenance["model_packages"]`` holds the model's.
    ``provenance["run"]`` is the start of the questions. ``noise`` is set if the judge was asked repeatedly,
    ``until`` in a run that may stop early. A result with unasked items is never compared with a result on
    other items.
    """

    model: str
    benchmark: str
    benchmark_version: str
    evaluator: Evaluator
    coverage: Coverage
    metrics: dict[str, Metric]
    headline: list[str]
    treatment: str
    limit: Count | None
    provenance: dict[str, Any]
    withheld: str = ""
    notes: list[str] = field(default_factory=list)
    noise: Noise | None = None
    until: Until | None = None

    @property
    def state(self) -> str:
        if self.coverage.complete:
            return "complete"
        return "partial" if self.coverage.lacks_nothing else "incomplete"

    def score_name(self, metric: str) -> str:
        """Returns the full name of a score: benchmark, metric, evaluator: ``longtext/en@ppocr-v4``.

        With a prompt rewriter, its name is included: ``longtext+mine-1a2b3c4d/en@ppocr-v4``.
        """
        rewriter = Cell(self.model, self.benchmark).rewriter
        return f"{self.benchmark}{f'+{rewriter}' if rewriter else ''}/{metric}@{self.evaluator.id}"

    def noise_of(self, metric: str) -> float | None:
        """Returns the standard error of ``metric`` from the judge's randomness alone; None if unmeasured."""
        return self.noise.standard_errors.get(metric) if self.noise else None

    @property
    def drift(self) -> str:
        """The note that the judge has drifted, shown beside every score; empty without a drift."""
        return next((note for note in self.notes if note.startswith(DRIFTED)), "")


class _Provenance(TypedDict, total=False):
    time: str
    git_commit: str | None
    model_settings: list[dict[str, Any]]
    generation_usd: Amount | None
    judge_usd: Amount | None


class _Parts(TypedDict):
    schema: Any
    provenance: _Provenance


_PARTS, _RESULT = Reader(_Parts), Reader(Result)


def validate(raw: Any) -> Result:
    """Returns the result in a JSON object. Raises ValueError that names the first invalid field.

    Every reader of results uses this function, so that one bad value in a file cannot stop a report.
    """
    if isinstance(raw, dict) and raw.get("schema") != SCHEMA:
        raise ValueError(f"schema is {raw.get('schema')!r}, expected {SCHEMA!r}")
    _PARTS.read(raw)
    if isinstance(metrics := raw.get("metrics"), dict):  # the parts of items count from scores.jsonl only
        alone = {
            name: {key: part for key, part in one.items() if key != "parts"} if isinstance(one, dict) else one
            for name, one in metrics.items()
        }
        raw = {**raw, "metrics": alone}
    result = _RESULT.read(raw)
    c = result.coverage
    for name, metric in result.metrics.items():
        check_interval(metric, f"metrics.{name}.interval")
    if c.expected != c.generated + c.refused + c.failed + c.blank + c.corrupt + c.unasked:
        raise ValueError("coverage: expected ≠ generated + refused + failed + blank + corrupt + unasked")
    if c.generated != c.judged + c.unparsed + c.judge_failed:
        raise ValueError("coverage: generated ≠ judged + unparsed + judge_failed")
    if unknown := [name for name in result.headline if name not in result.metrics]:
        known = f"{suggest(unknown[0], result.metrics)}; known: {', '.join(result.metrics)}"
        raise ValueError(f"headline names unknown metric '{unknown[0]}'{known}")
    if not result.headline and not result.withheld:
        raise ValueError("no headline and no reason for withholding it")
    return result


def check_interval(metric: Metric, path: str) -> None:
    """Raises ValueError about the field ``path`` if the interval of ``metric`` ends before it begins."""
    if metric.interval and metric.interval[0] > metric.interval[1]:
        raise invalid(path, metric.interval)


def check_within_scale(metrics: Mapping[str, Metric], unbounded: Sequence[str]) -> None:
    """Raises ValueError if a metric is not from ``-scale`` (a cosine) to ``scale``.

    Metrics whose name matches one of the shell patterns ``unbounded`` are not checked.
    """
    for name, metric in metrics.items():
        top = metric.scale + _ROUNDING * abs(metric.scale)
        if metric.value is None or -top <= metric.value <= top:
            continue
        if not any(fnmatchcase(name, pattern) for pattern in unbounded):
            raise ValueError(
                f"metric '{name}' is {metric.value:g} on a scale of {metric.scale:g}: give the top of its range, "
                "as in mean(…, top=5) or Metric(…, scale=5), or name it in 'unbounded' if it may lie beyond"
            )


def as_object(result: Result) -> dict[str, Any]:
    """Returns ``result`` as the JSON object of its file."""
    metrics = {name: _metric_object(metric) for name, metric in result.metrics.items()}
    return {
        "schema": SCHEMA,
        "state": result.state,
        **asdict(replace(result, metrics={})),
        "metrics": metrics,
    }


def _metric_object(metric: Metric) -> dict[str, Any]:
    found = {"value": metric.value, "n": metric.n, "interval": metric.interval, "scale": metric.scale}
    return found if metric.shares is None else {**found, "shares": dict(metric.shares)}


def read_result(path: Path) -> Result:
    """Returns the result in ``path``. Raises ValueError if it is invalid, OSError if it cannot be read."""
    return validate(parse(path.read_bytes()))


_KEPT = "evaluators"


def leave(cell: Cell, result: Result, scores: str, official: Mapping[str, str | bytes] | None) -> None:
    """Write the result of ``cell``, its ``scores`` (text of scores.jsonl), the ``official`` files by name.

    ``official`` None: the ``official`` folder belongs to the benchmark's script and stays unchanged. Raises
    CellFailure if a file cannot be written.
    """
    of_others, latest = cell.folder / _KEPT, result
    folder, kept = cell.folder, of_others / folder_name(result.evaluator.id)
    with contextlib.suppress(OSError, ValueError):
        latest = read_result(cell.result)
    try:
        if latest.evaluator.id != result.evaluator.id:
            if _covers_more(latest.coverage, result.coverage):
                folder = kept  # a trial with another judge must not hide a full result
            else:
                _move(cell, of_others / folder_name(latest.evaluator.id), official is not None)
        write_atomic(folder / cell.scores.name, scores)
        if official is not None:
            write_files(folder / cell.official.name, official)
        text = json.dumps(as_object(result), indent=1, ensure_ascii=False)
        write_atomic(folder / cell.result.name, f"{text}\n")
        if folder != kept:
            if (kept / cell.relations.name).is_dir():  # this evaluator's older one
                shutil.rmtree(cell.relations, ignore_errors=True)
                (kept / cell.relations.name).replace(cell.relations)
            shutil.rmtree(kept, ignore_errors=True)
    except OSError as error:
        path = short_path(str(error.filename2 or error.filename))
        raise CellFailure(f"{path} cannot be written: {error.strerror}") from None


def _covers_more(one: Coverage, other: Coverage) -> bool:
    if one.asked == other.asked:
        # neither has the missing images: only a result that scores all generated ones covers more
        return one.judged == one.generated and other.judged < other.generated
    return one.asked > other.asked


def check_files(files: Mapping[str, Any], where: str) -> None:
    """Raises CellFailure, with ``where`` in front: a name is no relative path, or a content no text/bytes."""
    for name, content in files.items():
        path = PurePosixPath(name)
        if not path.name or path.is_absolute() or ".." in path.parts or str(path) != name:
            raise CellFailure(
                f"{where} has '{name}': give a file name, or one below folders as in 'en/a.csv'"
            )
        if not isinstance(content, str | bytes):
            raise CellFailure(
                f"{where} has '{name}', which is {reprlib.repr(content)}: give its text or bytes"
            )


def write_files(folder: Path, files: Mapping[str, str | bytes]) -> None:
    """Make ``folder`` hold exactly ``files``; other files, as of a run on more items, are deleted."""
    for name, content in files.items():
        write_atomic(folder / name, content)
    for path in sorted(folder.rglob("*"), reverse=True):  # the content of a folder before the folder
        if not path.is_dir() or path.is_symlink():
            if path.relative_to(folder).as_posix() not in files:
                path.unlink()
        elif not any(path.iterdir()):
            path.rmdir()


def _move(cell: Cell, target: Path, with_official: bool) -> None:
    target.mkdir(parents=True, exist_ok=True)
    if cell.relations.is_dir():  # a copy: the next report reads the old request
        theirs = {path.name: path.read_bytes() for path in cell.relations.iterdir() if path.is_file()}
        write_files(target / cell.relations.name, theirs)
    # the result last: after an interruption, the next run still knows the owner and completes the move
    for path in (cell.scores, *[cell.official] * with_official, cell.result):
        if path.exists():
            if (target / path.name).is_dir():
                shutil.rmtree(target / path.name)
            path.replace(target / path.name)


def folder_name(text: str) -> str:
    """Returns a folder name that is unique for ``text``."""
    readable = re.sub(r"[^\w.-]+", "-", text).strip("-.")[:80]
    return f"{readable}-{hashlib.sha256(to_bytes(text)).hexdigest()[:8]}"


def others(cell: Cell) -> list[Path]:
    """Returns the ``result.json`` of each evaluator but the latest. Its ``scores.jsonl`` is beside it."""
    return sorted((cell.folder / _KEPT).glob(f"*/{cell.result.name}"))


def standing(cell: Cell) -> list[Result]:
    """Returns all readable results of ``cell``, the latest evaluator's first."""
    results = []
    for path in (cell.result, *others(cell)):
        with contextlib.suppress(OSError, ValueError):
            results.append(read_result(path))
    return results


Basis = tuple[str | None, bool]
"""The SHA-256 of an item's image (None: no image) behind a result, and whether it was attempted."""


class _Basis(TypedDict):
    item: str
    image_sha256: str | None
    attempted: bool


_BASIS = Reader(_Basis)


def bases(cell: Cell) -> dict[Path, dict[str, Basis] | None]:
    """Returns the basis of each result of ``cell`` by folder and item id; None for a result if unknown."""
    known = dict[Path, dict[str, Basis] | None]()
    for path in (cell.result, *others(cell)):
        basis = dict[str, Basis]()
        silent = list[str]()  # damaged lines, and lines of an older version
        with contextlib.suppress(CellFailure):
            records = read_jsonl(path.with_name(cell.scores.name), _BASIS, silent.append)
            basis = {one["item"]: (one["image_sha256"], one["attempted"]) for one in records}
        if path.exists():
            known[path.parent] = basis if basis and not silent else None
    return known


def forget(cell: Cell, folder: Path) -> None:
    """Delete the result of ``cell`` in ``folder``."""
    # the result last: a result without scores counts as based on all items
    for path in (folder / one.name for one in (cell.official, cell.relations, cell.scores, cell.result)):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    if folder != cell.folder:
        shutil.rmtree(folder, ignore_errors=True)


def forget_evaluator(cell: Cell, evaluator: str) -> None:
    """Delete the results of ``cell`` by the evaluator with the id ``evaluator``."""
    for path in (cell.result, *others(cell)):
        with contextlib.suppress(OSError, ValueError):
            if read_result(path).evaluator.id == evaluator:
                forget(cell, path.parent)


# ---- the metrics of a benchmark's own script, by name

METRICS = "metrics.json"
SCRIPT = "script/"
"""The prefix of an evaluator's id if the evaluator is a script ``eval/<benchmark>.sh``."""
_REMEDY = "docs/how-to/own-benchmark.md"


def no_score(cell: Cell) -> str:
    """Returns why ``cell`` has no score although its benchmark's script succeeded, and what to do."""
    script, where = f"eval/{cell.benchmark}.sh", f"{short_path(cell.folder)}/"
    return f"no score: let {script} leave {METRICS} in {where} whenever it runs ({_REMEDY})"


_METRIC = Reader(Metric)


def read_metrics(path: Path, n: int) -> dict[str, Metric]:
    """Returns the metrics in a JSON file of name → number or name → fields, with ``n`` items by default.

    Raises CellFailure if the file cannot be read or a metric is invalid.
    """
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
    """Returns one metric. Raises ValueError if it is invalid."""
    given = raw if isinstance(raw, dict) else {"value": raw}
    if not name.strip():
        raise ValueError("it has no name")
    if unknown := sorted(given.keys() - {"value", "n", "interval", "scale"}):
        raise ValueError(f"'{unknown[0]}' is unknown; value, n, interval and scale are not")
    value: Any = given.get("value")
    try:
        metric = _METRIC.read({"n": n, "scale": 100 if is_number(value) and abs(value) > 1 else 1, **given})
        check_interval(metric, "interval")
    except ValueError as error:
        raise ValueError(
            f"{error}: value must be a number or null, n a whole number, interval [low, high], scale above 0"
        ) from None
    if value is not None and abs(value) > metric.scale:
        raise ValueError(
            f"{value:g} is beyond its scale of {metric.scale:g}: give the scale, the top of its range"
        )
    return metric
