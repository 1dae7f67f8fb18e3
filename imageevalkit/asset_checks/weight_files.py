"""Which files of a checkpoint are its weights, and whether a part of it lacks them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path, PurePosixPath

from imageevalkit.asset_checks.file_facts import is_there
from imageevalkit.asset_checks.hub_record import chosen, may_choose_below

_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".onnx", ".msgpack", ".h5")
# a pattern of any files, those of weights too
_ANY = ("*", "/")
# parts of a pipeline that may have a config.json and have no weights
_WITHOUT = ("tokenizer", "scheduler", "feature_extractor", "processor", "image_processor")


def lacking(folder: Path, patterns: Sequence[str], listed: Collection[str]) -> Iterator[str]:
    """A sentence for each file that ``patterns`` name and each part without weights in the snapshot ``folder``.

    A part is a folder with a config.json. What ``patterns`` leave out (empty: nothing) is not missed, nor what is not
    among the repository's files ``listed`` (empty: not known).
    """
    for path in patterns:
        is_file = not path.endswith(_ANY) and not set("*?[") & set(path)
        if is_file and (not listed or path in listed) and not is_there(folder / path):
            yield f"{path} is missing"
    parts = sorted(path.parent.relative_to(folder).as_posix() for path in folder.rglob("config.json"))
    bare = [
        part
        for part in map(_below, parts)
        if _needs_weights(part, patterns, listed) and not _has(folder, part)
    ]
    for part in bare:
        yield (
            f"there are no weights for {part}/config.json"
            if part
            else "there are no weights for its config.json"
        )
    if not bare and _needs_weights("", patterns, listed) and not _has(folder, ""):
        yield "there are no weights"


def _below(part: str) -> str:
    return "" if part == "." else part


def _has(folder: Path, part: str) -> bool:
    return any(path.suffix in _SUFFIXES and is_there(path) for path in (folder / part).rglob("*"))


def _needs_weights(part: str, patterns: Sequence[str], listed: Collection[str]) -> bool:
    if listed:
        start = f"{part}/" if part else ""
        return any(path.endswith(_SUFFIXES) and path.startswith(start) for path in chosen(listed, patterns))
    if PurePosixPath(part).name.startswith(_WITHOUT):
        return False
    ends = (*_ANY, *_SUFFIXES)
    return any(pattern.endswith(ends) and may_choose_below(pattern, part) for pattern in patterns or ["*"])
