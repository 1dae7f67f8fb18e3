"""What a file must be, and what a look at files finds; which of a checkpoint's are weights, and what it lacks."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from imageevalkit.hashes import git_blob_of, sha256_file

_NAMED = 10


class Finding(NamedTuple):
    """``problems``: a line for each thing missing or wrong. ``notes``: what a reader should know besides.

    ``is_known``: files were compared with what they must be; else only looked for.
    """

    problems: Sequence[str] = ()
    notes: Sequence[str] = ()
    is_known: bool = True


def of_files(name: str, missing: Sequence[str], wrong: Sequence[str]) -> list[str]:
    """One line about the ``missing`` files of ``name`` (paths) and the ``wrong`` ones (sentences), or none."""
    parts = []
    if missing:
        count = "1 file is" if len(missing) == 1 else f"{len(missing)} files are"
        parts.append(f"{count} missing ({_some(missing)})")
    if wrong:
        parts.append(_some(wrong))
    return [f"{name}: {'; '.join(parts)}"] if parts else []


def _some(words: Sequence[str]) -> str:
    more = len(words) - _NAMED
    return ", ".join(words[:_NAMED]) + (f" and {more} more" if more > 0 else "")


class FileFacts(NamedTuple):
    """``size`` in bytes, and one of the two hashes: SHA-256, or git's name of the content."""

    size: int
    sha256: str = ""
    blob: str = ""

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> FileFacts:
        """From the JSON object that :meth:`as_json` gave. Raises KeyError, TypeError or ValueError for another."""
        return cls(int(value["size"]), str(value.get("sha256", "")), str(value.get("blob", "")))

    def as_json(self) -> dict[str, Any]:
        """An object without empty fields."""
        return {name: value for name, value in self._asdict().items() if value != ""}


def is_there(path: Path) -> bool:
    """Whether there is a file; a link counts by what it stands for."""
    try:
        return path.is_file()
    except OSError:  # no permission, or a link that points to itself
        return False


def wrong(path: Path, name: str, facts: FileFacts, hashes: bool) -> str:
    """What is wrong with the file at ``path``, which is there; empty when it is right.

    Its size is looked at always, its content if ``hashes``.
    """
    try:
        size = path.stat().st_size
        if size != facts.size:
            return f"{name} has {size} bytes instead of {facts.size}"
        if hashes and not (
            sha256_file(path) == facts.sha256 if facts.sha256 else git_blob_of(path) == facts.blob
        ):
            return f"{name} has other content"
    except OSError as error:
        return f"{name} cannot be read ({error.strerror})"
    return ""


def read_json(path: Path) -> Any:
    """What ``path`` holds, or None where it is not there or is no JSON."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None


_LONGEST_HEADER = 100_000_000  # bytes, as the format's own library has it


def chosen(paths: Iterable[str], patterns: Sequence[str]) -> list[str]:
    """Those of ``paths`` that match one of ``patterns`` as huggingface_hub matches them; all without patterns."""
    wanted = list(map(_in_full, patterns))
    return [path for path in paths if not wanted or any(fnmatch(path, pattern) for pattern in wanted)]


def may_choose_below(pattern: str, folder: str) -> bool:
    """Whether ``pattern`` may match a file in or below ``folder`` (empty: the repository itself)."""
    pattern, below = _in_full(pattern), f"{folder}/" if folder else ""
    fixed = re.split(r"[*?[]", pattern)[0]
    return fixed.startswith(below) or (below.startswith(fixed) and fixed != pattern)


def _in_full(pattern: str) -> str:
    return f"{pattern}*" if pattern.endswith("/") else pattern


def index_problems(folder: Path, patterns: Sequence[str] = ()) -> list[str]:
    """A sentence for each part of the checkpoint in ``folder`` that is said to be there and is not, or is cut short.

    What ``patterns`` leave out (empty: nothing) is not missed.
    """
    problems = [*_missing_parts(folder, patterns), *_missing_shards(folder, patterns)]
    for path in sorted(folder.rglob("*.safetensors")):
        if is_there(path) and (problem := _cut_short(path)):
            problems.append(f"{path.relative_to(folder).as_posix()} {problem}")
    return problems


def _missing_parts(folder: Path, patterns: Sequence[str]) -> Iterator[str]:
    pipeline = read_json(folder / "model_index.json")
    for part, made_by in pipeline.items() if isinstance(pipeline, dict) else ():
        # [null, null] is a part that the pipeline does without
        is_part = not part.startswith("_") and isinstance(made_by, list) and any(made_by)
        is_wanted = is_part and any(may_choose_below(pattern, part) for pattern in patterns or ["*"])
        if is_wanted and not any(map(is_there, (folder / part).glob("*"))):
            yield f"model_index.json names the part {part}, which is missing"


def _missing_shards(folder: Path, patterns: Sequence[str]) -> Iterator[str]:
    # a half-precision copy has an index.fp16.json
    for index in sorted(folder.rglob("*.index*.json")):
        value = read_json(index)
        shards = value.get("weight_map") if isinstance(value, dict) else None
        names = sorted(set(map(str, shards.values()))) if isinstance(shards, dict) else []
        for name in names:
            path = (index.parent / name).relative_to(folder).as_posix()
            if chosen([path], patterns) and not is_there(folder / path):
                yield f"{index.relative_to(folder).as_posix()} names {name}, which is missing"


def _cut_short(path: Path) -> str:
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(min(length, _LONGEST_HEADER)))
        end = max((t["data_offsets"][1] for name, t in header.items() if name != "__metadata__"), default=0)
        size = path.stat().st_size
    except (OSError, ValueError, TypeError, AttributeError, KeyError, IndexError):
        return "is no safetensors file"
    expected = 8 + length + end
    return "" if size == expected else f"has {size} bytes instead of {expected}"


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
