"""Write the files of one cell in the site: its items for the gallery, and the details of each item.

They are written again only if the cell's own files have changed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

import msgspec

from imageevalkit.common.atomic import write_atomic
from imageevalkit.common.images import CorruptImage, map_threads, thumbnail_of
from imageevalkit.common.machine import available_cores
from imageevalkit.metrics import grouped
from imageevalkit.report import parts
from imageevalkit.report.answers import answers_of, replies
from imageevalkit.report.collect import CellReport, ItemView
from imageevalkit.report.command import command_of
from imageevalkit.store.cell import results_in
from imageevalkit.store.pictures import keep_thumbnail, read_thumbnail, thumbnail_path
from imageevalkit.store.records import CORRUPT, GENERATED
from imageevalkit.store.shards import parts_of

PICTURES = "pictures"
SUMMARY = ".summary.json"
_MORE = 100  # items in one file of details: the page loads a file to show one item
_LONGEST_REMARK = 200
_EXAMPLES = 3
_MOST_FAILURES = 20
_MOST_WORDS, _LONGEST_WORD = 12, 60
_NUMBERS = re.compile(r"\d+")


class Shown(msgspec.Struct):
    """The data of an item that the row of its prompt needs."""

    id: str
    prompt: str
    prompt_sha256: str
    keys: dict[str, str]
    inputs: list[tuple[str, str, str]]
    """For each input image: its SHA-256, the path of its copy (empty: missing), the copy's SHA-256."""


class Summary(msgspec.Struct):
    """The data of a cell with files that the rest of the site needs.

    ``seen`` has the ``st_mtime_ns`` of each image by path below the cell (0: it was missing). ``pictures``
    has the hashes of the images with a preview. ``size`` is the size of the cell's files in bytes.
    """

    seen: dict[str, int]
    pictures: list[str]
    shown: list[Shown]
    failures: list[parts.Failure]
    cost: parts.Cost
    words: list[parts.Word]
    size: int

    @classmethod
    def read(cls, path: Path) -> Summary | None:
        """Read the summary in ``path``; None if it is missing or damaged."""
        with contextlib.suppress(OSError, ValueError):
            return parts.of_json(path.read_bytes(), cls)
        return None

    def without_shown(self) -> Summary:
        """Return a copy without ``shown``, to save memory: it is read again when it is needed."""
        return msgspec.structs.replace(self, shown=[])

    def holds(self, folder: Path) -> bool:
        """Whether all images of the cell in ``folder`` still have the modification times in ``seen``."""
        return all(_modified(f"{folder}/{path}") == then for path, then in self.seen.items())


def state_of(report: CellReport) -> str:
    """Return a hash of the names, sizes and times of a cell's files: its parts are stale if it changes."""
    with results_in(report.root):
        cell = report.cell
        files = [report.source, report.source.with_name(cell.scores.name), cell.fingerprints]
        files += [cell.generation, cell.judgements, *parts_of(cell.generation)]
    lines = [str(parts.CONTRACT), str(report.source)]
    for file in files:
        with contextlib.suppress(OSError):
            about = file.stat()
            lines.append(f"{file} {about.st_size} {about.st_mtime_ns}")
    return hashlib.sha256(os.fsencode("\n".join(lines))).hexdigest()[:32]


def build(report: CellReport, site: Path) -> tuple[str, str, Summary]:
    """Write the files of a cell and the previews of its images below ``site``.

    The folder's name depends on the content, so that an older page can still read the older files.

    Returns:
        The hash of :func:`state_of`, the name of the folder, and the summary.

    Raises:
        OSError, CellFailure: A file cannot be written.
    """
    state = state_of(report)  # before reading: a file that changes meanwhile makes the state stale
    items = report.items()
    previews = _Previews(report, site / PICTURES)
    previews.make(items)
    shown = [_shown(item, previews) for item in items]
    seen = {path: _modified(f"{report.folder}/{path}") for _, path in places(items)}
    digest = hashlib.sha256(f"{state} {sorted(seen.items())}".encode("utf-8", "backslashreplace"))
    folder = digest.hexdigest()[:16]
    data = site / "data" / "cells" / folder
    scales = _scales(report, items)
    statuses = [previews.status(item) for item in items]
    words = list[parts.Word]()
    files: dict[str, parts.Items | parts.More] = {"items": _items(report, items, statuses, scales, previews)}
    if report.is_latest:  # older evaluators' results are of the same images, so they have no details
        with results_in(report.root):
            last_replies = replies(report.cell, report.result)
        commands = command_of(report)
        answers = [answers_of(item, last_replies.get(item.id), scales) for item in items]
        words = _words(answers)
        whole = [_more(item, of_item, commands(item)) for item, of_item in zip(items, answers, strict=True)]
        for n in range(0, len(whole), _MORE):
            files[f"more-{n // _MORE}"] = parts.More(whole[n : n + _MORE])
    size = 0
    for name, part in files.items():
        text = parts.script_of(f"cells/{folder}/{name}", part)
        size += len(text)
        write_atomic(data / f"{name}.js", text, durably=False)
    summary = Summary(
        seen, sorted(previews.placed), shown, _failures(items, statuses), _cost(report, items), words, size
    )
    write_atomic(data / SUMMARY, parts.to_json(summary), durably=False)
    return state, folder, summary.without_shown()


def _words(answers: Iterable[Sequence[parts.Answer]]) -> list[parts.Word]:
    """Return the most frequent values of answers with their counts, and the count of all others under "".

    The list is empty if all replies are different."""
    # an empty value means that the reply is the value
    values = [
        answer.value or answer.reply for of_item in answers for answer in of_item if answer.status == "ok"
    ]
    counts = Counter(value[:_LONGEST_WORD] for value in values if value)
    most = counts.most_common(_MOST_WORDS)
    if not most or (most[0][1] == 1 and len(counts) > _MOST_WORDS):
        return []
    rest = counts.total() - sum(count for _, count in most)
    return [parts.Word(value, count) for value, count in (*most, *[("", rest)] * bool(rest))]


def _shown(item: ItemView, previews: _Previews) -> Shown:
    inputs = [
        (one["sha256"], one["path"] * previews.is_there(one["copy_sha256"], one["path"]), one["copy_sha256"])
        for one in item.inputs
    ]
    return Shown(item.id, item.prompt, item.prompt_sha256, item.keys, inputs)


def preview_path(sha256: str) -> str:
    """Return the path of an image's preview from the page. The name is a hash: it hides the model."""
    return f"{PICTURES}/{sha256[:2]}/{sha256}.webp"


class _Previews:
    """Previews of the images of a cell below ``folder``: hard links to the thumbnails that the cell keeps.

    ``placed`` has the hashes of the images with a preview.
    """

    def __init__(self, report: CellReport, folder: Path) -> None:
        self._root, self._cell, self._folder = report.root, report.cell, folder
        self.placed = set[str]()
        self._there = set[tuple[str, str]]()

    def make(self, items: Sequence[ItemView]) -> None:
        """Place the previews of all images. Thumbnails that were not kept with the image are made now."""
        with results_in(self._root):
            folder, kept = str(self._cell.folder), str(thumbnail_path(self._cell, ""))
        ending = kept.rpartition("/")[2]
        kept = kept.removesuffix(ending)
        slow = [
            (sha256, path)
            for sha256, path in places(items)
            if not self._take(sha256, path, f"{kept}{sha256}{ending}", f"{folder}/{path}")
        ]
        # equal images share one thumbnail: two threads must not write it at once
        equal = grouped(slow, lambda one: one[0]).values()
        for _ in map_threads(self._look_at, equal, available_cores()):
            pass

    def is_there(self, sha256: str, path: str) -> bool:
        """Whether the file at ``path`` is the image with this hash."""
        return (sha256, path) in self._there

    def status(self, item: ItemView) -> str:
        """Return the outcome of ``item``: corrupt if its image is missing, changed or cannot be decoded."""
        if item.outcome == GENERATED and not self.is_there(item.image_sha256, item.path):
            return CORRUPT
        return item.outcome

    def _take(self, sha256: str, path: str, kept: str, image: str) -> bool:
        """Link the thumbnail ``kept`` if it exists and belongs to ``image``; return whether it does.

        Paths are texts instead of Path objects for speed: a site may have 100,000 images."""
        about = _about(kept)
        if about is None or about.st_mtime_ns != _modified(image):
            return False
        target = _about(self._target(sha256))
        if target is None or target.st_size != about.st_size:
            with results_in(self._root):
                data = read_thumbnail(self._cell, sha256)
            if not data:
                return False
            self._place(sha256, data)
        self.placed.add(sha256)
        self._there.add((sha256, path))
        return True

    def _look_at(self, images: Sequence[tuple[str, str]]) -> None:
        """Make and place the thumbnail of equal ``images``, each a hash and a path. Thread-safe."""
        sha256, is_kept = images[0][0], False
        with results_in(self._root):
            kept = read_thumbnail(self._cell, sha256)
            for _, path in images:
                file = self._cell.folder / path
                with contextlib.suppress(OSError, CorruptImage):
                    modified, data = file.stat().st_mtime_ns, file.read_bytes()
                    if hashlib.sha256(data).hexdigest() != sha256:
                        continue
                    kept = kept or thumbnail_of(data)
                    if not is_kept:
                        keep_thumbnail(self._cell, sha256, kept, modified)
                        is_kept = True
                    self._there.add((sha256, path))
        if kept:
            self._place(sha256, kept)
            self.placed.add(sha256)

    def _target(self, sha256: str) -> str:
        return f"{self._folder}/{sha256[:2]}/{sha256}.webp"

    def _place(self, sha256: str, data: bytes) -> None:
        target = Path(self._target(sha256))
        # Another process may place the same picture at this moment, so each process has its own part file.
        part = target.with_name(f".{target.name}.{os.getpid()}.part")
        target.parent.mkdir(parents=True, exist_ok=True)
        part.unlink(missing_ok=True)
        try:
            part.hardlink_to(thumbnail_path(self._cell, sha256))
        except OSError:  # another file system, or a folder without permission to keep thumbnails
            write_atomic(part, data, durably=False)
        part.replace(target)
        part.unlink(missing_ok=True)  # replace() does nothing if both names are links to one file


def places(items: Iterable[ItemView]) -> list[tuple[str, str]]:
    """Return the hash and path of each recorded image and of each copy of an input image."""
    found = dict[tuple[str, str], None]()
    for item in items:
        if item.outcome == GENERATED:
            found[item.image_sha256, item.path] = None
        for one in item.inputs:
            found[one["copy_sha256"], one["path"]] = None
    return [(sha256, path) for sha256, path in found if sha256 and path]


def _about(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)  # noqa: PTH116 - a Path takes longer than its stat
    except (OSError, ValueError):
        return None


def _modified(path: str) -> int:
    about = _about(path)
    return about.st_mtime_ns if about else 0


def _scales(report: CellReport, items: Sequence[ItemView]) -> dict[str, float]:
    """Return the top of each score's range: the metric's scale, else the largest value, at least 1."""
    top = dict[str, float]()
    for item in items:
        for name, value in item.values.items():
            top[name] = max(top.get(name, 1.0), value)
    known = report.result.metrics if report.result else {}
    return {name: known[name].scale if name in known else seen for name, seen in top.items()}


def _items(
    report: CellReport,
    items: Sequence[ItemView],
    statuses: Sequence[str],
    scales: Mapping[str, float],
    previews: _Previews,
) -> parts.Items:
    found = [
        _item(item, status, scales, previews.placed) for item, status in zip(items, statuses, strict=True)
    ]
    evaluator = next((item.evaluator for item in items if item.values), "")
    return parts.Items([*scales], [*scales.values()], _MORE, found, evaluator)


def _item(item: ItemView, status: str, scales: Mapping[str, float], placed: set[str]) -> parts.Item:
    width, height = item.size or (0, 0)
    remark = ""
    if status != GENERATED:
        kind, text = item.error or ("", "")
        remark = (text or kind or item.reason)[:_LONGEST_REMARK]
    is_shown = status == GENERATED and item.image_sha256 in placed
    return parts.Item(
        item.id,
        status,
        item.judged,
        [item.values.get(name) for name in scales] if item.values else [],
        preview_path(item.image_sha256) if is_shown else "",
        quote(os.fsencode(item.path)),
        width,
        height,
        remark,
        msgspec.UNSET if item.seed is None else item.seed,
        item.seed_honoured is False,
    )


def _more(item: ItemView, answers: list[parts.Answer], command: str) -> parts.MoreItem:
    return parts.MoreItem(
        item.facts,
        item.detail,
        answers,
        command,
        item.error or msgspec.UNSET,
        "" if item.error else item.reason,
        item.rewritten or msgspec.UNSET,
    )


def _failures(items: Sequence[ItemView], statuses: Sequence[str]) -> list[parts.Failure]:
    """Return the failures, most frequent first. Reasons that differ only in numbers count as one."""
    found = dict[tuple[str, str], parts.Failure]()
    for item, status in zip(items, statuses, strict=True):
        outcome = status if status != GENERATED else item.judged
        if outcome in (GENERATED, "judged", "", "not_generated"):
            continue
        text = ": ".join(filter(None, item.error)) if item.error else item.reason
        text = text[:_LONGEST_REMARK]
        one = found.setdefault((outcome, _NUMBERS.sub("#", text)), parts.Failure(outcome, text, 0, []))
        one.count += 1
        if len(one.items) < _EXAMPLES:
            one.items.append(item.id)
    return sorted(found.values(), key=lambda one: -one.count)[:_MOST_FAILURES]


def _cost(report: CellReport, items: Sequence[ItemView]) -> parts.Cost:
    """Return the costs of a result from its file, and the costs of an image from the records."""
    made = [item for item in items if item.outcome == GENERATED]
    prices = [item.price for item in made if item.price is not None]
    origin = report.result.provenance if report.result else {}
    seconds = [item.seconds for item in made if item.seconds]
    return parts.Cost(
        _number(origin.get("generation_usd")),
        _number(origin.get("judge_usd")),
        sum(seconds) / len(seconds) if seconds else None,
        sum(prices) / len(prices) if prices and len(prices) == len(made) else None,
    )


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
