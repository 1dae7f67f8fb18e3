"""Read every cell below ``output/``. Unreadable files are reported by file and line, never raised."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, NamedTuple

from imageevalkit import registry
from imageevalkit.common.errors import CellFailure
from imageevalkit.common.images import IMAGE_SUFFIXES, sha256_file
from imageevalkit.common.redaction import one_line
from imageevalkit.common.text import to_bytes
from imageevalkit.report.item_parts import SCORE, with_parts
from imageevalkit.store.cell import Cell, by_name, output_root, results_in, short_path
from imageevalkit.store.jsonl import Tell, is_number, read_jsonl, tell_nobody
from imageevalkit.store.pictures import Input
from imageevalkit.store.records import CORRUPT, FAILED, GENERATED, OF_IMAGES, OK, Record, Status, last_records
from imageevalkit.store.results import DRIFTED, Result, no_score, others, read_result

# One item's free text may be a whole page of OCR; a report of thousands of items must stay small.
MAX_TEXT = 12_000
_LONGEST_NAME = 255  # bytes, the limit of common file systems
_DIGITS = re.compile("([0-9]+)")
# nearly all paths match this pattern, which is safe inside the cell without further checks
_PLAIN_PATH = re.compile(r"\w[\w-]{0,120}(?:/\w[\w-]{0,120})*(?:\.\w{1,9})?", re.ASCII)
_OF_A_CELL = {*OF_IMAGES, "result.json"}  # a folder with any of these files is a cell
# Subfolders of a cell. They may outlive its images, and may contain other programs' files of the names above.
_WITHIN_A_CELL = {Cell("", "").relations.name, Cell("", "").official.name}

Scores = dict[str, Mapping[str, Any]]

# The state of a result or score whose image was generated again after the evaluation.
STALE = "stale"


class ItemView(NamedTuple):
    """The data of one item of one cell that the report shows.

    | field | meaning |
    |---|---|
    | ``outcome`` | generated, refused, failed, blank or corrupt |
    | ``path`` | the image, relative to the cell's folder; ``source`` is the file of an adopted image |
    | ``size`` | (width, height) in pixels |
    | ``judged`` | the status in ``scores.jsonl`` or stale; empty without a record |
    | ``reason`` | why the status is not "judged" |
    | ``facts`` | remarks on the generation by label, in the order of display |
    | ``inputs`` | the images that the model got |
    | ``prompt`` | the benchmark's own prompt |
    | ``rewritten`` | the rewriter, and the rewritten prompt or the reason why the original was kept |
    | ``points`` | the first value of the score of each part |
    | ``price`` | USD |
    | ``fingerprint`` | the fingerprint of the model's settings |
    """

    id: str
    outcome: str
    path: str
    image_sha256: str
    size: tuple[int, int] | None
    prompt: str
    prompt_sha256: str
    seed: int | None
    seed_honoured: bool | None
    error: tuple[str, str] | None
    facts: dict[str, str]
    judged: str
    reason: str
    evaluator: str
    values: dict[str, float]
    keys: dict[str, str]
    detail: dict[str, str]
    inputs: list[Input]
    rewritten: tuple[str, str] | None
    points: list[float | None]
    source: str | None
    seconds: float
    price: float | None
    fingerprint: str


class CellReport(NamedTuple):
    """A result on disk, or a cell without one: then ``result`` is None and ``problem`` has the reason.

    A result older than its images is withheld, with a reason that begins with :data:`STALE`. ``source`` is
    the file of the result, below ``root``, the folder of all results. ``model`` is the name in the report and
    in ``result``. If several folders are read, it may differ from the folder's name. ``recorded`` is the
    number of items; ``outcomes`` counts them by outcome, only for a cell without a result.
    """

    cell: Cell
    result: Result | None
    problem: str
    source: Path
    root: Path
    model: str
    recorded: int = 0
    outcomes: Mapping[str, int] = MappingProxyType({})

    @property
    def key(self) -> str:
        return f"{self.model}/{self.cell.benchmark}"

    @property
    def is_invalid(self) -> bool:
        """Whether the result has a file that cannot be read."""
        return self.result is None and os.path.lexists(self.source)

    @property
    def folder(self) -> Path:
        """The folder of the cell."""
        return self.root / self.cell.key

    @property
    def is_latest(self) -> bool:
        """Whether the result is of the latest evaluator: its file is in the cell's own folder."""
        return self.source.parent == self.folder

    def named(self, model: str) -> CellReport:
        """Return a copy with the model's name ``model``."""
        return self._replace(model=model, result=self.result and replace(self.result, model=model))

    def without_parts(self) -> CellReport:
        """Return a smaller copy without parts and outcomes, to send to another process."""
        result = self.result
        metrics = (
            {name: replace(metric, parts=()) for name, metric in result.metrics.items()} if result else {}
        )
        return self._replace(result=result and replace(result, metrics=metrics), outcomes={})

    def items(self) -> list[ItemView]:
        """Read the items of the cell, sorted by id. Returns an empty list if they cannot be read.

        They are not kept, because they take as much memory as all results."""
        if not self.recorded:
            return []
        with results_in(self.root), contextlib.suppress(CellFailure, OSError):
            made, scored = last_records(self.cell), _scores(self.source.with_name(self.cell.scores.name))
            if self.result:
                _, scored = _without_stale(self.result, made, scored)
            return _items(self.cell, made, scored, self.result)
        return []


def collect(tell: Tell = tell_nobody, below: Path | None = None) -> list[CellReport]:
    """Read every cell below the output root, sorted by model and benchmark.

    A cell with several evaluators has one report for each, the latest first. With ``below``, only cells that
    contain this folder or are inside it are read. ``tell`` gets one line for each file, line and folder that
    cannot be read.
    """
    cells = cells_there(tell)
    if below is not None:
        cells = [one for one in cells if one.folder.is_relative_to(below) or below.is_relative_to(one.folder)]
    return _with_drift([report for cell in cells for report in _read_cell(cell, tell)])


def _with_drift(reports: Sequence[CellReport]) -> list[CellReport]:
    """Return ``reports`` with a note at each result whose judge has drifted on another result."""
    drifted = dict[str, str]()
    for one in reports:
        if one.result and one.result.noise and one.result.noise.has_drifted:
            drifted.setdefault(_judge_of(one.result), one.key)
    warned = list[CellReport]()
    for one in reports:
        result = one.result
        if (
            result
            and not (result.noise and result.noise.has_drifted)
            and (by := drifted.get(_judge_of(result)))
        ):
            note = f"{DRIFTED}, as {by} shows: older and newer scores are not comparable"
            one = one._replace(result=replace(result, notes=[*result.notes, note]))
        warned.append(one)
    return warned


def _judge_of(result: Result) -> str:
    """Return a text that identifies the judge of a result, or the evaluator's id without a judge."""
    details = result.evaluator.details
    parts = [details, *filter(None, map(_dict, _dict(details.get("answerers")).values()))]
    judges = (part["judge"] for part in parts if "judge" in part)
    return json.dumps(next(judges, result.evaluator.id), sort_keys=True)


def cells_there(tell: Tell = tell_nobody) -> list[Cell]:
    """Return all cells below the output root, by model and benchmark; report unreadable folders."""
    return sorted(_cells(output_root(), tell), key=lambda cell: (by_name(cell.model), cell))


def _cells(root: Path, tell: Tell) -> Iterator[Cell]:
    folders = [PurePosixPath()]
    while folders:
        relative = folders.pop()
        try:
            entries = list(os.scandir(root / relative))
        except OSError as error:
            tell(f"{short_path(root / relative)} cannot be read: {error.strerror}")
            continue
        names = {entry.name for entry in entries}
        if len(relative.parts) >= 2 and names & _OF_A_CELL:
            yield Cell(relative.parent.as_posix(), relative.name)
            continue  # a cell holds images and no further cells
        # a link may lead back up, so links count on the first two levels only (a model on another disk)
        follow = len(relative.parts) < 2
        within = _WITHIN_A_CELL if len(relative.parts) >= 2 else ()
        shown = [entry for entry in entries if not entry.name.startswith(".") and entry.name not in within]
        folders += [relative / entry.name for entry in shown if _is_folder(entry, follow, tell)]


def _is_folder(entry: os.DirEntry[str], follow: bool, tell: Tell) -> bool:
    """Whether ``entry`` is a folder to search. Links to folders count only with ``follow``."""
    try:
        found = entry.is_dir(follow_symlinks=follow)
        if follow and not found and entry.is_symlink():
            entry.stat()  # raises for a dangling link, whose disk may not be mounted
    except OSError as error:
        tell(f"{short_path(entry.path)} cannot be read: {error.strerror}")
        return False
    if found and to_bytes(entry.name) != os.fsencode(entry.name):
        tell(f"{short_path(entry.path)} is left out: its name is not UTF-8; rename it")
        return False
    return found


def _read_cell(cell: Cell, tell: Tell) -> Iterator[CellReport]:
    yield _read(cell, cell.result, tell, tell)
    for path in others(cell):
        yield _read(cell, path, tell, tell_nobody)  # the line above reported unreadable records already


def _read(cell: Cell, path: Path, tell: Tell, tell_of_records: Tell) -> CellReport:
    result, problem = _read_result(cell, path, tell)
    found = CellReport(cell, result, problem, path, output_root(), cell.model)
    try:
        scores = path.with_name(cell.scores.name)
        made, scored = last_records(cell, tell_of_records), _scores(scores, tell)
        if result:
            try:
                result = with_parts(result, scored.values(), _prompts(made))
            except ValueError as error:
                result, problem = None, _invalid(scores, one_line(error), tell)
                found = found._replace(result=None, problem=problem)
        if result:
            result, scored = _without_stale(result, made, scored)
            return found._replace(result=result, recorded=len({*made, *scored}))
        outcomes = Counter(item.outcome for item in _items(cell, made, scored, None))
        return found._replace(recorded=outcomes.total(), outcomes=outcomes)
    except (CellFailure, OSError) as error:
        note = f"items are not readable: {one_line(error)}"
        return found._replace(
            result=result and replace(result, notes=[*result.notes, note]), problem=problem or note
        )


def _items(cell: Cell, made: Mapping[str, Record], scored: Scores, result: Result | None) -> list[ItemView]:
    evaluator = result.evaluator.id if result else ""
    ids = sorted({*made, *scored}, key=natural)
    return [_item(cell, id, made.get(id), scored.get(id, {}), evaluator) for id in ids]


def _prompts(made: Mapping[str, Record]) -> dict[str, str]:
    """Return the hash of each item's prompt."""
    return {item: record.prompt_sha256 for item, record in made.items() if record.prompt_sha256}


def _read_result(cell: Cell, path: Path, tell: Tell) -> tuple[Result | None, str]:
    try:
        result = read_result(path)
    except (OSError, ValueError) as error:
        if isinstance(error, FileNotFoundError) and not path.is_symlink():
            return None, no_score(cell) if registry.is_foreign(cell.benchmark) else "not evaluated"
        why = error.strerror or str(error) if isinstance(error, OSError) else one_line(error)
        return None, _invalid(path, why, tell)
    if (result.model, result.benchmark) != cell:
        # the user renamed the folder, perhaps to keep an older run: the folder's name counts
        note = f"measured as {result.model}/{result.benchmark}; named here after its folder"
        result = replace(result, model=cell.model, benchmark=cell.benchmark, notes=[*result.notes, note])
    return result, ""


def _invalid(path: Path, why: str, tell: Tell) -> str:
    """Report in one line that the result in ``path`` is left out, and return that line."""
    remedy = "its result is left out; evaluate the model again, or remove the file"
    problem = f"{short_path(path)} is not readable: {why}: {remedy}"
    tell(problem)
    return problem


def _without_stale(result: Result, made: Mapping[str, Record], scored: Scores) -> tuple[Result, Scores]:
    """Return ``result`` and ``scored`` without scores of images generated again after the evaluation.

    If there are such images, the result is withheld."""
    measured = _time(result.provenance.get("time"))
    stale = {
        id: {
            **score,
            "status": STALE,
            "values": {},
            "detail": {},
            "reason": "generated again after it was judged",
        }
        for id, score in scored.items()
        if measured and _is_newer(made.get(id), score, measured)
    }
    if not stale:
        return result, scored
    reason = f"{STALE}: {len(stale)} of {len(scored)} items were generated again after this evaluation; evaluate again"
    return replace(result, headline=[], withheld=reason), {**scored, **stale}


def _is_newer(record: Record | None, score: Mapping[str, Any], measured: datetime) -> bool:
    if record is None:
        return False
    if record.status != OK and score.get("status") == "not_generated":
        return False  # the item had no image before and has none now, so its score is still right
    if record.status == OK and score.get("image_sha256"):
        return bool(score["image_sha256"] != record.image_sha256)  # a new image may equal the old one
    time = _time(record.time)
    return bool(time and time > measured)


def _time(value: Any) -> datetime | None:
    """Return an ISO 8601 time with a zone, rounded down to seconds; None for any other value."""
    try:
        time = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return None
    return time.replace(microsecond=0) if time.tzinfo else None


def _scores(path: Path, tell: Tell = tell_nobody) -> Scores:
    return {record["item"]: record for record in read_jsonl(path, SCORE, tell)}


def natural(id: str) -> list[tuple[int, str, str]]:
    """Return a sort key that puts ``p_2`` before ``p_10``."""
    # texts and numbers alternate in the key, so a text is never compared with a number
    parts = [(0, "", part) for part in _DIGITS.split(id)]
    for i in range(1, len(parts), 2):
        number = parts[i][2].lstrip("0")
        parts[i] = len(number), number, parts[i][2]
    return parts


def _item(cell: Cell, id: str, made: Record | None, score: Mapping[str, Any], evaluator: str) -> ItemView:
    record = made or _unrecorded(cell, id, score)
    error, behind = record.error, record.rewriting
    return ItemView(
        id=id,
        outcome=_outcome(record, score),
        path=_inside(record.path),
        image_sha256=_sha256(record.image_sha256),
        size=record.size,
        prompt=text_of(behind["original"] if behind else record.prompt),
        prompt_sha256=text_of(behind["original_sha256"] if behind else record.prompt_sha256),
        seed=record.seed,
        seed_honoured=record.seed_honoured,
        error=(text_of(error["class"]), text_of(error["text"])) if error else None,
        facts=_facts(record) if made else {},
        judged=text_of(score.get("status")),
        reason=text_of(score.get("reason")),
        evaluator=text_of(score.get("evaluator")) or evaluator,
        values={k: float(v) for k, v in _dict(score.get("values")).items() if is_number(v)},
        keys={k: text_of(v) for k, v in _dict(score.get("keys")).items()},
        detail={k: text_of(v) for k, v in _dict(score.get("detail")).items()},
        inputs=[_input(one) for one in record.inputs or []],
        rewritten=_rewritten(record),
        points=[_first_number(one) for one in _list(score.get("points")) if isinstance(one, dict)],
        source=record.source,
        seconds=record.seconds,
        price=record.price,
        fingerprint=record.fingerprint,
    )


def _first_number(point: Mapping[str, Any]) -> float | None:
    return next((float(v) for v in _dict(point.get("values")).values() if is_number(v)), None)


def _unrecorded(cell: Cell, id: str, score: Mapping[str, Any]) -> Record:
    """Return a record for an item without one: an image from outside, or an item that was never attempted."""
    if score.get("status") in ("judged", "unparsed", "judge_failed") and _inside(id):
        for suffix in sorted(IMAGE_SUFFIXES):
            path = cell.folder / f"{id}{suffix}"
            if path.is_file():
                return Record(id, OK, f"{id}{suffix}", image_sha256=sha256_file(path))
    return Record(
        id, FAILED, error={"class": "not attempted", "text": "there is no generation record of this item"}
    )


def _outcome(record: Record, score: Mapping[str, Any]) -> Status:
    is_lost = score.get("status") == "not_generated" and text_of(score.get("reason")).startswith(CORRUPT)
    return CORRUPT if record.outcome == GENERATED and is_lost else record.outcome


def _rewritten(record: Record) -> tuple[str, str] | None:
    behind = record.rewriting
    if not behind:
        return None
    if behind["kept"]:
        return f"not rewritten by {behind['by']}", text_of(behind["kept"])
    return f"rewritten by {behind['by']}", text_of(record.prompt)


def _facts(record: Record) -> dict[str, str]:
    size, requested = record.size, record.requested_size
    facts = {
        "size": f"{size[0]} × {size[1]} px" if size else "",
        "requested size": f"{requested[0]} × {requested[1]} px" if requested and requested != size else "",
        "seconds": f"{record.seconds:.2f}",
        "attempts": str(record.attempts),
        "tokens": ", ".join(f"{k} {text_of(v)}" for k, v in (record.tokens or {}).items()),
        "price": text_of(record.price),
        "made": record.time,
        "settings": text_of(record.fingerprint),
    }
    return {name: text for name, text in facts.items() if text}


def _input(recorded: Input) -> Input:
    """Return ``recorded`` without invalid hashes, and without its copy if the path is not inside the cell."""
    sha256, copy_sha256 = _sha256(recorded["sha256"]), _sha256(recorded["copy_sha256"])
    path = _inside(recorded["path"]) if sha256 and copy_sha256 else ""
    return Input(sha256=sha256, path=path, copy_sha256=copy_sha256 if path else "")


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def text_of(value: Any) -> str:
    """Return ``value`` as readable text: a list of texts has one line each, other values are JSON.

    Texts are cut at :data:`MAX_TEXT` characters."""
    if isinstance(value, str) and len(value) <= MAX_TEXT:  # the fast path for nearly all values
        return value
    if value is None:
        return ""
    if isinstance(value, list) and all(isinstance(v, str) for v in value):
        value = "\n".join(value)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]} … (cut: {len(text)} characters)"


def _sha256(value: Any) -> str:
    """Return ``value`` if it is a SHA-256 in hex, else an empty text: the value becomes a file name."""
    ok = isinstance(value, str) and len(value) == 64 and set(value) <= set("0123456789abcdef")
    return value if ok else ""


def _inside(value: Any) -> str:
    """Return ``value`` if it is a valid path inside the cell's folder, else an empty text."""
    if not isinstance(value, str) or not value or "\0" in value:
        return ""
    if _PLAIN_PATH.fullmatch(value):
        return value
    path = PurePosixPath(value)
    try:
        too_long = any(len(os.fsencode(part)) > _LONGEST_NAME for part in path.parts)
    except UnicodeEncodeError:
        return ""
    return "" if path.is_absolute() or ".." in path.parts or too_long else path.as_posix()
