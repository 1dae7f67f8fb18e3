"""The items of a benchmark, built from the dicts of a dataset class (docs/how-to/own-benchmark.md)."""

from __future__ import annotations

import hashlib
import operator
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, TypedDict

from PIL import Image

from imageevalkit.common.errors import CellFailure
from imageevalkit.common.images import format_of
from imageevalkit.common.text import to_bytes
from imageevalkit.store.cell import Cell, output_root, short_path
from imageevalkit.store.jsonl import Reader, read_jsonl

MODEL_NAME_MARK = "<MODEL_NAME>"
_PATH = "image_save_path (the file of a Sample)"
# The official kit adds the item's seed to a driver seed that its shell driver never changes.
BASE_SEED = 42


class Rewriting(TypedDict):
    """How the prompt of an item was rewritten by the rewriter ``by`` (:attr:`Cell.rewriter`).

    ``original`` is the benchmark's own prompt (all its texts), ``original_sha256`` its
    :attr:`Item.prompt_sha256`. If the model receives the original prompt after all, ``kept`` gives the
    reason, else it is empty. ``lost`` is True if the rewriter was asked and gave no usable prompt.
    """

    by: str
    original: str
    original_sha256: str
    kept: str
    lost: bool


@dataclass(frozen=True)
class Item:
    """One image to generate.

    ``id`` is the image's path below the cell without suffix (``images/text_prompts/0000_1``), ``path`` the
    file. ``seed`` is the effective seed (``BASE_SEED`` + the dataset's), the same for every worker, shard and
    order. ``data`` is the data of a Sample, or the dict of a foreign dataset. ``rewriting`` is None if the
    model receives the benchmark's own prompt. ``size`` (width, height) is the size that the benchmark asks
    for; None: the model's own.
    """

    id: str
    path: Path
    seed: int
    prompt: str | None
    input_list: Sequence[Any] | None
    data: Mapping[str, Any]
    rewriting: Rewriting | None = None
    size: tuple[int, int] | None = None

    @property
    def texts(self) -> list[str]:
        """All texts that the model receives, in order."""
        parts: Sequence[Any] = [self.prompt] if self.input_list is None else self.input_list
        return [part for part in parts if isinstance(part, str)]

    def with_texts(self, texts: Sequence[str], rewriting: Rewriting) -> Item:
        """Returns the item with ``texts`` in place of its texts; input images stay."""
        if self.input_list is None:
            return replace(self, prompt=texts[0], rewriting=rewriting)
        left = iter(texts)
        parts = [next(left) if isinstance(part, str) else part for part in self.input_list]
        return replace(self, input_list=parts, rewriting=rewriting)

    @property
    def folder(self) -> Path:
        """The cell's folder: ``output/<model>/<benchmark>``."""
        return self.path.parents[len(PurePosixPath(self.id).parts) - 1]

    @property
    def model(self) -> str:
        """The name of the model that generates the image."""
        return self.folder.parent.relative_to(output_root()).as_posix()

    @property
    def prompt_sha256(self) -> str:
        """The hash of the model's whole input: texts, input images (files, or pixels without a file), size."""
        return self._hashes[0]

    @property
    def inputs(self) -> list[tuple[str, Any]]:
        """The input images in order, each with the hash of its file, or of its pixels without a file."""
        images = [part for part in self.input_list or () if not isinstance(part, str)]
        return list(zip(self._hashes[1], images, strict=True))

    @cached_property
    def _hashes(self) -> tuple[str, list[str]]:
        """The hash of the whole input, and a hash for each input image."""
        digest, images = hashlib.sha256(), list[str]()
        parts: Sequence[Any] = [self.prompt] if self.input_list is None else self.input_list
        for part in parts:
            if isinstance(part, str):
                digest.update(b"text:" + to_bytes(part))
                continue
            kind, data = b"file:", file_bytes(part)
            if data is None:
                kind, data = b"", f"image:{part.mode}:{part.size}:".encode() + part.tobytes()
            digest.update(kind + data)
            images.append(hashlib.sha256(data).hexdigest())
        if self.size:
            digest.update(f"size:{self.size}".encode())
        return digest.hexdigest(), images


def file_bytes(image: Any) -> bytes | None:
    """Returns the bytes of the file of ``image`` without decoding it; None if it comes from no file."""
    file = getattr(image, "filename", "")
    return Path(file).read_bytes() if file else None


class SampleEntry(dict[str, Any]):
    """An entry built from a Sample. Its ``data`` is kept apart and may have any keys, also an entry's."""

    def __init__(
        self, entry: Mapping[str, Any], data: Mapping[str, Any], size: tuple[int, int] | None = None
    ) -> None:
        super().__init__(entry)
        self.data, self.size = data, size


def items_of(dataset: Any, cell: Cell, limit: int | None = None) -> list[Item]:
    """Returns the first ``limit`` items of ``dataset`` for ``cell``. Raises as :func:`entries_of` does."""
    return placed(entries_of(dataset, cell.benchmark)[:limit], cell)


def drawn(items: Sequence[Item], benchmark: str, asked: int | None) -> list[Item]:
    """Returns a random sample of ``asked`` items, the same in every run; all, in order, if ``asked`` is None.

    Items with the same prompt stay together, because their images are not independent.
    """
    if asked is None:
        return list(items)

    def place(item: Item) -> bytes:
        return hashlib.sha256(f"{benchmark}/{item.prompt_sha256}".encode()).digest()

    return sorted(items, key=place)[:asked]


def placed(entries: Sequence[Item], cell: Cell) -> list[Item]:
    """Returns ``entries`` (items of no particular model) as items of the model of ``cell``."""
    folder, ids = cell.folder, [entry.id.replace(MODEL_NAME_MARK, cell.model) for entry in entries]
    # dataclasses.replace takes twice as long, for up to 50,000 items
    return [
        Item(id, folder / f"{id}{e.path.suffix}", e.seed, e.prompt, e.input_list, e.data, e.rewriting, e.size)
        for id, e in zip(ids, entries, strict=True)
    ]


def entries_of(dataset: Any, benchmark: str) -> list[Item]:
    """Checks all entries of ``dataset`` and returns them as items with the model name ``MODEL_NAME_MARK``.

    Item paths are relative to the cell's folder. Input images stay undecoded. Raises CellFailure if an entry
    breaks the contract or two entries share a path; the message has the entry's number, counted from 0.
    """
    data, entries, number_of = getattr(dataset, "data", None), list[Item](), dict[str, int]()
    folder = PurePosixPath(MODEL_NAME_MARK, benchmark)
    if not isinstance(data, Sequence) or isinstance(data, str | bytes) or not data:
        raise CellFailure(
            f"benchmark {benchmark}: its data is {reprlib.repr(data)}, and must be a list of dicts, one for each image"
        )
    for n, raw in enumerate(data):
        try:
            entries.append(entry := _entry(raw, folder, dataset.dataset_task))
            if (same := number_of.setdefault(entry.id, n)) != n:
                raise ValueError(
                    f"{_PATH} '{raw['image_save_path']}' is also the path of entry {same} (suffixes do not count)"
                )
        except ValueError as error:
            raise CellFailure(f"benchmark {benchmark}, entry {n} (data[{n}]): {error}") from None
    return entries


def _entry(raw: Any, folder: PurePosixPath, task: str) -> Item:
    """Returns the item of one entry, its image below ``folder``. Raises ValueError if it is invalid."""
    _check(isinstance(raw, Mapping), "it", raw, "a dict")
    shown, not_shown = ("prompt", "input_list") if task == "t2i" else ("input_list", "prompt")
    if missing := [key for key in (shown, "seed", "image_save_path") if key not in raw]:
        raise ValueError(f"lacks {', '.join(missing)}")
    if not_shown in raw:
        raise ValueError(f"has {not_shown} beside {shown}: in task {task} the model receives {shown} only")
    prompt, parts, seed, declared = (
        raw.get(key) for key in ("prompt", "input_list", "seed", "image_save_path")
    )
    if task == "t2i":
        _check(isinstance(prompt, str) and prompt.strip(), "prompt", prompt, "a text that is not empty")
    else:
        _check_input_list(parts)
    try:
        number = BASE_SEED + operator.index(raw["seed"])  # NumPy's integers too
        _check(not isinstance(seed, bool), "seed", seed, "a whole number")
    except TypeError:
        _check(False, "seed", seed, "a whole number")
    _check(isinstance(declared, str | PurePath), _PATH, declared, f"a text: {folder}/….png")
    path, depth = Path(declared), len(folder.parts)
    names = path.parts
    if len(names) <= depth or names[:depth] != folder.parts or ".." in names:
        raise ValueError(f"{_PATH} '{declared}' must lie in {folder}/")
    try:
        format_of(path)
    except ValueError as error:
        raise ValueError(f"{_PATH} {error}") from None
    size = raw.size if isinstance(raw, SampleEntry) else None
    if size is not None:
        is_size = len(size) == 2 and all(type(side) is int and side > 0 for side in size)
        _check(is_size and task == "t2i", "size", size, "(width, height) in pixels, of a text-to-image item")
    place = "/".join(names[depth:])
    return Item(
        path=Path(place),
        id=place.removesuffix(path.suffix),
        seed=number,
        prompt=prompt,
        input_list=parts,
        data=raw.data if isinstance(raw, SampleEntry) else raw,
        size=size,
    )


def _check(is_right: object, name: str, value: Any, must_be: str) -> None:
    if not is_right:
        raise ValueError(f"{name} is {reprlib.repr(value)}, and must be {must_be}")


def _check_input_list(parts: Any) -> None:
    _check(isinstance(parts, list | tuple), "input_list", parts, "a list of texts and PIL images")
    for n, part in enumerate(parts):
        _check(isinstance(part, str | Image.Image), f"input_list[{n}]", part, "a text or a PIL image")
    if not any(isinstance(part, str) and part.strip() for part in parts):
        raise ValueError("input_list has no text that says what to generate")
    if all(isinstance(part, str) for part in parts):
        raise ValueError("input_list holds no image")


# ---- prompts.jsonl: the rewritten texts that a model receives instead of the benchmark's own


@dataclass(frozen=True)
class ShownTexts:
    """The ``texts`` that the model receives for ``item`` in place of the ``original`` ones, in that order.

    ``kept`` is the reason if the original texts are used; ``lost``: the rewriter was asked and gave none.
    """

    item: str
    original: list[str]
    texts: list[str]
    kept: str = ""
    lost: bool = False


_READER = Reader(ShownTexts)


def as_shown(cell: Cell, items: Sequence[Item]) -> list[Item]:
    """Returns ``items`` with their rewritten texts. An item without one yet is returned unchanged.

    Raises CellFailure if ``prompts.jsonl`` cannot be read.
    """
    if not cell.rewriter:
        return list(items)
    shown = {one.item: one for one in read_jsonl(cell.prompts, _READER)}
    return [_shown(cell, item, shown.get(item.id)) for item in items]


def all_shown(cell: Cell, items: Sequence[Item]) -> list[Item]:
    """Returns :func:`as_shown`. Raises CellFailure also if one of ``items`` has no rewritten text."""
    found = as_shown(cell, items)
    if cell.rewriter and (lacking := [item.id for item in found if item.rewriting is None]):
        raise CellFailure(
            f"{short_path(cell.prompts)} has no rewritten prompts of {len(lacking)} items (the first: {lacking[0]}): "
            "run the same command again, which rewrites them first"
        )
    return found


def _shown(cell: Cell, item: Item, known: ShownTexts | None) -> Item:
    if known is None or known.original != item.texts:  # the benchmark's own prompt may have changed
        return item
    behind = Rewriting(
        by=cell.rewriter,
        original=" ".join(known.original),
        original_sha256=item.prompt_sha256,
        kept=known.kept,
        lost=known.lost,
    )
    return item.with_texts(known.texts, behind)
