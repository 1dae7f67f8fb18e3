"""What a cell scored, on how much of the benchmark, measured by whom; and which of several results stands.

The latest ``result.json`` lies in the cell's folder with its scores. ``evaluators/<evaluator>/`` holds those of other
evaluators: that were latest before, and that know less. So comparing two judges costs no result.
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
from typing import Any, Literal, NamedTuple, TypedDict, get_type_hints

from imageevalkit.atomic import write_atomic
from imageevalkit.cell import Cell, short_path
from imageevalkit.cell.jsonl import NOT_IN_FILES, Shape, WrongShape, is_number, parse, read_json, read_jsonl
from imageevalkit.errors import CellFailure, suggest
from imageevalkit.secrets import one_line
from imageevalkit.text import to_bytes

SCHEMA = "imageevalkit.result/1"
_ROUNDING = 1e-9  # what a mean of scores at the top of a scale may be off, of the scale

SCORE = Shape[dict[str, Any]](must={"item": str})
"""A line of ``scores.jsonl``, of any version."""


class ItemPart(NamedTuple):
    """What an item gives to a metric, whose value is Σ share of a group · (Σ total / Σ weight in it).

    ``total`` / ``weight`` is on the metric's own scale (× 100 of a percentage). ``group`` is None where the metric is
    one plain mean. What has one ``cluster``, such as the images of a prompt, is not independent; None: the item is one.
    """

    item: str
    total: float
    weight: float
    group: str | None = None
    cluster: str | None = None

    @property
    def unit(self) -> str:
        """Its cluster, of whatever size: what a resampling or a permutation moves as one."""
        return self.item if self.cluster is None else self.cluster


class _Values(TypedDict):
    values: dict[str, Any]
    keys: dict[str, Any]


_JUDGED = Shape[dict[str, Any]](
    must={"item": str, "status": Literal["judged"], "detail": dict[str, Any], **get_type_hints(_Values)},
    may={"points": list[_Values]},
)


@dataclass(frozen=True)
class Score:
    """What an item is worth: ``values`` are numbers by name, ``keys`` group items, ``detail`` is for reading.

    ``points`` are the scores of its parts (questions, test points), each with values and keys of its own. ``item`` is
    the id, which the engine sets.
    """

    values: Mapping[str, float]
    keys: Mapping[str, Any] = field(default_factory=dict)
    detail: Mapping[str, Any] = field(default_factory=dict)
    points: Sequence[Score] = ()
    item: str = ""

    def of_item(self, item: str) -> Score:
        """The same with its points, told whose they are."""
        points = [Score(one.values, one.keys, one.detail, one.points, item) for one in self.points]
        return Score(self.values, self.keys, self.detail, points, item)


def read_scores(path: Path) -> list[Score]:
    """The scores in a file scores.jsonl, those of the items that were judged. Raises CellFailure: it cannot be read."""

    def score(raw: Mapping[str, Any]) -> Score:
        points = [score(point) for point in raw.get("points", ())]
        return Score(raw["values"], raw["keys"], raw.get("detail", {}), points)

    return [score(record).of_item(record["item"]) for record in read_jsonl(path, _JUDGED)]


@dataclass(frozen=True)
class Coverage:
    """What became of every item.

    expected = generated + refused + failed + blank + corrupt + unasked;
    generated = judged + unparsed + judge_failed.

    ``unasked`` are those that a run with ``--until`` did not ask for. ``failed`` includes items never attempted.
    ``blank`` counts the placeholders that ``GENERATE_BLANK_IMAGE_ON_ERROR`` wrote. ``flat`` of the generated images are
    one flat colour, and scored.
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
    unasked: int = 0

    @property
    def complete(self) -> bool:
        return self.judged == self.expected

    @property
    def asked(self) -> int:
        """How many items a run asked for: all, unless it stopped early."""
        return self.expected - self.unasked

    @property
    def lacks_nothing(self) -> bool:
        """Whether every item that was asked for was judged."""
        return self.judged == self.asked

    def problems(self) -> str:
        """``"3 refused, 1 corrupt"``; empty when everything that was asked for was judged."""
        names = ("refused", "failed", "blank", "corrupt", "unparsed", "judge_failed")
        return ", ".join(f"{getattr(self, n)} {n.replace('_', ' ')}" for n in names if getattr(self, n))


@dataclass(frozen=True)
class Metric:
    """One number over ``n`` items, None when none had it, with a 95 % interval; ``scale``: the top of its range.

    ``parts`` are what each item gives to it, which ``scores.jsonl`` keeps; none where it is no such sum of means.
    ``shares`` are those of their groups. A benchmark that rounds a value leaves both as the interval, of the unrounded.
    """

    value: float | None
    n: int
    interval: tuple[float, float] | None = None
    scale: float = 1.0
    shares: Mapping[str, float] | None = field(default=None, compare=False)
    parts: Sequence[ItemPart] = field(default=(), compare=False, repr=False, metadata=NOT_IN_FILES)


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
class Until:
    """What ``--until`` asked for, a verdict on the two models of ``pair``; ``better`` is the model of each headline
    metric for which it is settled, with how many items it took."""

    pair: list[str]
    better: dict[str, tuple[str, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Drift:
    """Whether the judge answers questions otherwise than it did in the run that began at ``since`` (ISO 8601; empty: it
    is not known when).

    Of ``asked`` questions those ``changed`` have one answer then and one other now, in all replies. ``p`` is how likely
    so many are at most, of a judge that has not changed, however unsure it is; ``found``: it is too unlikely. ``host``
    is where it was asked then, if that is another endpoint than now.
    """

    since: str
    asked: int
    changed: list[str]
    p: float
    found: bool
    host: str = ""


@dataclass(frozen=True)
class Noise:
    """How far the judge is unsure, and whether it is still the same; told by questions that were asked again.

    Of ``of`` questions with an answer so many were asked twice in one run (``repeated``), and ``changed`` of them had
    another answer; ``interval`` is the 95 % interval of the share (None: of too few items). ``unparsed`` repeats held
    no value. ``item_errors`` are standard errors of the values of one item, ``standard_errors`` those of the metrics,
    that come of the judge's randomness alone (:mod:`imageevalkit.evaluation.noise`). ``repeats`` and ``probes`` are
    what questions of the cell and the judge's probes tell of a drift; None: nothing. ``usd`` is what the cell's repeats
    cost, over all runs; None: no price is known.
    """

    of: int
    repeated: int
    changed: int
    interval: tuple[float, float] | None = None
    unparsed: int = 0
    item_errors: dict[str, float] = field(default_factory=dict)
    standard_errors: dict[str, float] = field(default_factory=dict)
    repeats: Drift | None = None
    probes: Drift | None = None
    usd: float | None = None

    @property
    def has_drifted(self) -> bool:
        return any(one is not None and one.found for one in (self.repeats, self.probes))


DRIFTED = "the judge has drifted"
"""How a note begins that says so."""


@dataclass(frozen=True)
class Result:
    """The result of a cell. ``headline`` names the metrics shown on the leaderboard; empty = withheld.

    ``treatment`` is ``withhold`` (below full coverage the headline is withheld) or ``official`` (the official
    evaluator's own way with missing items). ``limit`` is N when only the first N items were run: such a
    result is never compared with full ones. ``provenance["environment"]`` is the evaluating environment's
    :func:`~imageevalkit.hashes.environment_hash`; those of ``provenance["model_packages"]`` are the model's.
    ``provenance["run"]`` is when the asking began. ``noise`` is there where the judge was asked again, ``until`` where
    the run was one that stops early: where items are unasked, it is never compared with one of other items either.
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
    noise: Noise | None = None
    until: Until | None = None

    @property
    def state(self) -> str:
        if self.coverage.complete:
            return "complete"
        return "partial" if self.coverage.lacks_nothing else "incomplete"

    def score_name(self, metric: str) -> str:
        """The full name of a score: benchmark, metric and evaluator, e.g. ``longtext/en@ppocr-v4``; and who rewrote the
        prompts, if somebody did: ``longtext+mine-1a2b3c4d/en@ppocr-v4``."""
        rewriter = Cell(self.model, self.benchmark).rewriter
        return f"{self.benchmark}{f'+{rewriter}' if rewriter else ''}/{metric}@{self.evaluator.id}"

    def noise_of(self, metric: str) -> float | None:
        """The standard error that the judge's randomness alone gives to ``metric``; None: it was not measured."""
        return self.noise.standard_errors.get(metric) if self.noise else None

    @property
    def drift(self) -> str:
        """The note that the judge has drifted, which stands beside every score; empty without one."""
        return next((note for note in self.notes if note.startswith(DRIFTED)), "")


_RESULT = Shape.of(Result)
_PROVENANCE = Shape[dict[str, Any]](
    {},
    may={
        "time": str,
        "git_commit": str | None,
        "model_settings": list[dict[str, Any]],
        "generation_usd": float | None,
        "judge_usd": float | None,
    },
)


def validate(raw: Any) -> Result:
    """The result that a JSON object is. Every reader of results gets them from here, so that one bad value in one file
    cannot stop a report. Raises ValueError: names the first field that is wrong."""
    if isinstance(raw, dict) and raw.get("schema") != SCHEMA:
        raise ValueError(f"schema is {raw.get('schema')!r}, expected {SCHEMA!r}")
    result = _RESULT.read(raw)
    c, origin = result.coverage, result.provenance
    try:
        _PROVENANCE.read(origin)
    except WrongShape as error:
        raise WrongShape(("provenance", *error.path), *error.value) from None
    # these lie between 0 and 2⁶³
    counts = {f"coverage.{name}": count for name, count in vars(c).items()}
    counts |= {f"provenance.{name}": origin.get(name) for name in ("generation_usd", "judge_usd")}
    counts["limit"] = result.limit
    if result.noise:
        counts |= {f"noise.standard_errors.{name}": e for name, e in result.noise.standard_errors.items()}
    for name, metric in result.metrics.items():
        check_metric(metric, f"metrics.{name}")
    for path, count in counts.items():
        if count is not None and count < 0:
            raise WrongShape((path,), count)
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


def check_metric(metric: Metric, path: str) -> None:
    """Raises WrongShape, which begins with ``path``: a count or share is negative, the scale is not above 0, or the
    interval ends before it begins."""
    low, high = metric.interval or (0, 0)
    wrong = {"n": metric.n < 0, "interval": low > high, "scale": metric.scale <= 0}
    wrong["shares"] = any(share < 0 for share in (metric.shares or {}).values())
    for field_, is_wrong in wrong.items():
        if is_wrong:
            raise WrongShape((*filter(None, (path,)), field_), getattr(metric, field_))


def check_within_scale(metrics: Mapping[str, Metric], unbounded: Sequence[str]) -> None:
    """Raises ValueError: one not ``unbounded`` (shell patterns) is not from ``-scale`` (a cosine) to ``scale``."""
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
    """``result`` as the JSON object of its file."""
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
    """Read a result. Raises ValueError when it breaks the schema (or is no JSON), OSError if unreadable."""
    return validate(parse(path.read_bytes()))


_KEPT = "evaluators"


def leave(cell: Cell, result: Result, scores: str, official: Mapping[str, str | bytes] | None) -> None:
    """Write the result of ``cell``, its ``scores`` (the text of scores.jsonl) and the ``official`` files by name.

    ``official`` None: what lies in a folder of that name is a script's own, and stays as it is. Raises CellFailure: a
    file cannot be written.
    """
    of_others, latest = cell.folder / _KEPT, result
    folder, kept = cell.folder, of_others / folder_name(result.evaluator.id)
    with contextlib.suppress(OSError, ValueError):
        latest = read_result(cell.result)
    try:
        if latest.evaluator.id != result.evaluator.id:
            if _covers_more(latest.coverage, result.coverage):
                folder = kept  # a trial with another judge hides no full result
            else:
                _move(cell, of_others / folder_name(latest.evaluator.id), official is not None)
        write_atomic(folder / cell.scores.name, scores)
        if official is not None:
            write_files(folder / cell.official.name, official)
        text = json.dumps(as_object(result), indent=1, ensure_ascii=False)
        write_atomic(folder / cell.result.name, f"{text}\n")
        if folder != kept:
            if (kept / cell.relations.name).is_dir():  # its own, from when it was the latest
                shutil.rmtree(cell.relations, ignore_errors=True)
                (kept / cell.relations.name).replace(cell.relations)
            shutil.rmtree(kept, ignore_errors=True)
    except OSError as error:
        path = short_path(str(error.filename2 or error.filename))
        raise CellFailure(f"{path} cannot be written: {error.strerror}") from None


def _covers_more(one: Coverage, other: Coverage) -> bool:
    if one.asked == other.asked:
        # both lack the images that could not be had; what counts is who has said something of all others
        return one.judged == one.generated and other.judged < other.generated
    return one.asked > other.asked


def check_files(files: Mapping[str, Any], where: str) -> None:
    """Raises CellFailure, which begins with ``where``: one is no file below a folder, with a text or bytes."""
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
    """Let ``folder`` hold these ``files``, each whole, and no other: those are of a run that covered more, or else."""
    for name, content in files.items():
        write_atomic(folder / name, content)
    for path in sorted(folder.rglob("*"), reverse=True):  # what is in a folder before the folder
        if not path.is_dir() or path.is_symlink():
            if path.relative_to(folder).as_posix() not in files:
                path.unlink()
        elif not any(path.iterdir()):
            path.rmdir()


def _move(cell: Cell, target: Path, with_official: bool) -> None:
    target.mkdir(parents=True, exist_ok=True)
    if cell.relations.is_dir():  # a copy: the next report goes by what was asked for once
        theirs = {path.name: path.read_bytes() for path in cell.relations.iterdir() if path.is_file()}
        write_files(target / cell.relations.name, theirs)
    # the result goes last: until then the next run sees whose files these are, and goes on here
    for path in (cell.scores, *[cell.official] * with_official, cell.result):
        if path.exists():
            if (target / path.name).is_dir():
                shutil.rmtree(target / path.name)
            path.replace(target / path.name)


def folder_name(text: str) -> str:
    """A name for a folder that no other ``text`` has."""
    readable = re.sub(r"[^\w.-]+", "-", text).strip("-.")[:80]
    return f"{readable}-{hashlib.sha256(to_bytes(text)).hexdigest()[:8]}"


def others(cell: Cell) -> list[Path]:
    """result.json of each evaluator but the latest; its scores.jsonl lies beside it."""
    return sorted((cell.folder / _KEPT).glob(f"*/{cell.result.name}"))


def standing(cell: Cell) -> list[Result]:
    """The results of ``cell`` that can be read, the latest evaluator's first."""
    results = []
    for path in (cell.result, *others(cell)):
        with contextlib.suppress(OSError, ValueError):
            results.append(read_result(path))
    return results


Basis = tuple[str | None, bool]
"""What a result knew of an item: the SHA-256 of its image (None: there was none), and whether one was attempted."""
_BASIS = Shape[dict[str, Any]]({"item": str, "image_sha256": str | None, "attempted": bool})


def bases(cell: Cell) -> dict[Path, dict[str, Basis] | None]:
    """What each result of ``cell`` rests on, by its folder and by item; None where that is not known."""
    known = dict[Path, dict[str, Basis] | None]()
    for path in (cell.result, *others(cell)):
        basis = dict[str, Basis]()
        silent = list[str]()  # lines that are damaged, or of a version that did not say
        with contextlib.suppress(CellFailure):
            records = read_jsonl(path.with_name(cell.scores.name), _BASIS, silent.append)
            basis = {one["item"]: (one["image_sha256"], one["attempted"]) for one in records}
        if path.exists():
            known[path.parent] = basis if basis and not silent else None
    return known


def forget(cell: Cell, folder: Path) -> None:
    """Remove the result of ``cell`` in ``folder``."""
    # the result last: who finds it without scores takes it for one that rests on everything
    for path in (folder / one.name for one in (cell.official, cell.relations, cell.scores, cell.result)):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    if folder != cell.folder:
        shutil.rmtree(folder, ignore_errors=True)


def forget_evaluator(cell: Cell, evaluator: str) -> None:
    """Remove the results of ``cell`` that the ``evaluator`` of that id has given."""
    for path in (cell.result, *others(cell)):
        with contextlib.suppress(OSError, ValueError):
            if read_result(path).evaluator.id == evaluator:
                forget(cell, path.parent)


# ---- the scores of somebody else's program, by name

METRICS = "metrics.json"
SCRIPT = "script/"
"""The prefix of an evaluator's id if the evaluator is a script ``eval/<benchmark>.sh``."""
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
        check_metric(metric, "")
    except WrongShape as error:
        raise ValueError(
            f"{error}: value must be a number or null, n a whole number, interval [low, high], scale above 0"
        ) from None
    if value is not None and abs(value) > metric.scale:
        raise ValueError(
            f"{value:g} is beyond its scale of {metric.scale:g}: give the scale, the top of its range"
        )
    return metric
