"""The items of a benchmark, from the dicts of a dataset class (README.md, "Add a benchmark")."""

from __future__ import annotations

import hashlib
import json
import operator
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, TypedDict

from imageevalkit.atomic import write_atomic
from imageevalkit.cell import Cell, output_root, short_path
from imageevalkit.cell.jsonl import Shape, read_jsonl
from imageevalkit.errors import CellFailure
from imageevalkit.text import to_bytes

MODEL_NAME_MARK = "<MODEL_NAME>"
_PATH = "image_save_path (the file of a Sample)"
# The official kit adds the item's seed to a driver seed that its shell driver never changes.
BASE_SEED = 42


class Rewriting(TypedDict):
    """What stands behind the prompt of an item that a rewriter (``by``, as in :attr:`Cell.rewriter`) was given.

    ``original`` are all texts of the benchmark's own prompt, ``original_sha256`` is its hash as in
    :attr:`Item.prompt_sha256`. ``kept`` says why the model is shown that one all the same; empty: it was rewritten.
    ``lost``: another one was asked for in vain.
    """

    by: str
    original: str
    original_sha256: str
    kept: str
    lost: bool


@dataclass(frozen=True)
class Item:
    """One image to make.

    ``id`` is the image's path below the cell without suffix (``images/text_prompts/0000_1``); ``path`` is
    where it goes; ``seed`` is the effective seed (``BASE_SEED`` + the dataset's), the same for every worker,
    shard and order; ``data`` is that of a Sample, or the foreign dataset's own dict. ``rewriting`` is None where what
    the model is shown is the benchmark's own.
    """

    id: str
    path: Path
    seed: int
    prompt: str | None
    input_list: Sequence[Any] | None
    data: Mapping[str, Any]
    rewriting: Rewriting | None = None

    @property
    def texts(self) -> list[str]:
        """All texts that the model is shown, in their order."""
        parts: Sequence[Any] = [self.prompt] if self.input_list is None else self.input_list
        return [part for part in parts if isinstance(part, str)]

    def with_texts(self, texts: Sequence[str], rewriting: Rewriting) -> Item:
        """The same with other ``texts`` in their places; images stay."""
        if self.input_list is None:
            return replace(self, prompt=texts[0], rewriting=rewriting)
        left = iter(texts)
        parts = [next(left) if isinstance(part, str) else part for part in self.input_list]
        return replace(self, input_list=parts, rewriting=rewriting)

    @property
    def folder(self) -> Path:
        """The folder of the item's result: ``output/<model>/<benchmark>``."""
        return self.path.parents[len(PurePosixPath(self.id).parts) - 1]

    @property
    def model(self) -> str:
        """The name of the model whose image it is."""
        return self.folder.parent.relative_to(output_root()).as_posix()

    @property
    def prompt_sha256(self) -> str:
        """Hash of everything the model is shown: text, and the input images' files (else their pixels)."""
        return self._hashes[0]

    @property
    def inputs(self) -> list[tuple[str, Any]]:
        """The input images in their order, each with its hash: of its file, else of its mode, size and pixels."""
        images = [part for part in self.input_list or () if not isinstance(part, str)]
        return list(zip(self._hashes[1], images, strict=True))

    @cached_property
    def _hashes(self) -> tuple[str, list[str]]:
        """Of everything, and of each input image."""
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
        return digest.hexdigest(), images


def file_bytes(image: Any) -> bytes | None:
    """The bytes of the file that an input image was opened from, which stays undecoded; None: it was from none."""
    file = getattr(image, "filename", "")
    return Path(file).read_bytes() if file else None


class SampleEntry(dict[str, Any]):
    """An entry of a benchmark of ours: its ``data`` may have any keys, those of an entry too."""

    def __init__(self, entry: Mapping[str, Any], data: Mapping[str, Any]) -> None:
        super().__init__(entry)
        self.data = data


def items_of(dataset: Any, cell: Cell, limit: int | None = None) -> list[Item]:
    """The first ``limit`` items (all when None) of ``dataset`` for ``cell``. Raises like :func:`entries_of`."""
    return placed(entries_of(dataset, cell.benchmark)[:limit], cell)


def drawn(items: Sequence[Item], benchmark: str, asked: int | None) -> list[Item]:
    """The first ``asked`` of ``items`` in a random order, the same for every model and in every run; all, in the order
    of the benchmark, when None. Images of one prompt stay together: they are no independent draws."""
    if asked is None:
        return list(items)

    def place(item: Item) -> bytes:
        return hashlib.sha256(f"{benchmark}/{item.prompt_sha256}".encode()).digest()

    return sorted(items, key=place)[:asked]


def placed(entries: Sequence[Item], cell: Cell) -> list[Item]:
    """The items of the model of ``cell`` that stand for ``entries``, which are of none."""
    folder, ids = cell.folder, [entry.id.replace(MODEL_NAME_MARK, cell.model) for entry in entries]
    # dataclasses.replace takes twice as long for each of 50,000
    return [
        Item(id, folder / f"{id}{e.path.suffix}", e.seed, e.prompt, e.input_list, e.data, e.rewriting)
        for id, e in zip(ids, entries, strict=True)
    ]


def entries_of(dataset: Any, benchmark: str) -> list[Item]:
    """All entries of the ``dataset`` of ``benchmark``, checked, as items of a model called by its mark.

    Their paths are below the folder of a cell. Input images stay undecoded. Raises CellFailure: one breaks the
    contract, or two share a path; the message has its number, counted from 0.
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
                    f"{_PATH} '{raw['image_save_path']}' is that of entry {same} too (suffixes do not count)"
                )
        except ValueError as error:
            raise CellFailure(f"benchmark {benchmark}, entry {n} (data[{n}]): {error}") from None
    return entries


def _entry(raw: Any, folder: PurePosixPath, task: str) -> Item:
    """One entry, whose image goes below ``folder``. Raises ValueError: what is wrong with it, and what it must be."""
    _check(isinstance(raw, Mapping), "it", raw, "a dict")
    shown, not_shown = ("prompt", "input_list") if task == "t2i" else ("input_list", "prompt")
    if missing := [key for key in (shown, "seed", "image_save_path") if key not in raw]:
        raise ValueError(f"lacks {', '.join(missing)}")
    if not_shown in raw:
        raise ValueError(
            f"has {not_shown} beside {shown}: what the model is shown in task {task} is {shown} alone"
        )
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
    from imageevalkit.images import format_of

    try:
        format_of(path)
    except ValueError as error:
        raise ValueError(f"{_PATH} {error}") from None
    path = Path(*names[depth:])
    return Item(
        path=path,
        id=str(path).removesuffix(path.suffix),
        seed=number,
        prompt=prompt,
        input_list=parts,
        data=raw.data if isinstance(raw, SampleEntry) else raw,
    )


def _check(is_right: object, name: str, value: Any, must_be: str) -> None:
    if not is_right:
        raise ValueError(f"{name} is {reprlib.repr(value)}, and must be {must_be}")


def _check_input_list(parts: Any) -> None:
    from PIL import Image  # the launcher, which plans without it, imports this module

    _check(isinstance(parts, list | tuple), "input_list", parts, "a list of texts and PIL images")
    for n, part in enumerate(parts):
        _check(isinstance(part, str | Image.Image), f"input_list[{n}]", part, "a text or a PIL image")
    if not any(isinstance(part, str) and part.strip() for part in parts):
        raise ValueError("input_list holds no text that says what is to be made")
    if all(isinstance(part, str) for part in parts):
        raise ValueError("input_list holds no image")


# ---- prompts.jsonl: the texts that a model is shown in place of the benchmark's own


@dataclass(frozen=True)
class ShownTexts:
    """What the model is shown of ``item``: ``texts`` for the ``original`` ones, in their order.

    ``kept`` says why they are the original ones; ``lost``: others were asked for in vain.
    """

    item: str
    original: list[str]
    texts: list[str]
    kept: str = ""
    lost: bool = False


_SHAPE = Shape.of(ShownTexts)


def write_shown(cell: Cell, shown: Iterable[ShownTexts]) -> None:
    """Keep ``shown``, whole or not at all. Raises CellFailure: the disk is full."""
    lines = (json.dumps(vars(one), ensure_ascii=False, separators=(",", ":")) for one in shown)
    write_atomic(cell.prompts, "".join(f"{line}\n" for line in lines))


def as_shown(cell: Cell, items: Sequence[Item]) -> list[Item]:
    """``items`` with the texts that the model is shown; those of which that is not known yet stay as they are.

    Raises CellFailure: the file that tells cannot be read.
    """
    if not cell.rewriter:
        return list(items)
    shown = {one.item: one for one in read_jsonl(cell.prompts, _SHAPE)}
    return [_shown(cell, item, shown.get(item.id)) for item in items]


def all_shown(cell: Cell, items: Sequence[Item]) -> list[Item]:
    """:func:`as_shown`. Raises CellFailure also where it is not known of all ``items``."""
    found = as_shown(cell, items)
    if cell.rewriter and (lacking := [item.id for item in found if item.rewriting is None]):
        raise CellFailure(
            f"{short_path(cell.prompts)} does not hold the rewritten prompts of {len(lacking)} items (the first: "
            f"{lacking[0]}): run the same command again, which has them rewritten first"
        )
    return found


def _shown(cell: Cell, item: Item, known: ShownTexts | None) -> Item:
    if known is None or known.original != item.texts:  # the benchmark's own may have changed
        return item
    behind = Rewriting(
        by=cell.rewriter,
        original=" ".join(known.original),
        original_sha256=item.prompt_sha256,
        kept=known.kept,
        lost=known.lost,
    )
    return item.with_texts(known.texts, behind)
