"""Checks offline whether the files of models, judges and encoders on this machine are complete.

The check before a run compares only sizes, because hashes would take long. It reads the hub's cache without
huggingface_hub. Before a download, prefetch writes a record of all files of a repository with sizes and
hashes. So the check finds the missing files after a killed download. The record is in the repository's
folder, so it stays with any copy of the folder. huggingface_hub ignores it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any

from imageevalkit.assets import (
    CodeAsset,
    FileFacts,
    Finding,
    HubAsset,
    LocalFolder,
    Needed,
    Record,
    UrlAsset,
    compared,
    how_to_get,
    is_there,
    read_json,
)
from imageevalkit.assets.git import check_code
from imageevalkit.assets.http import check_url
from imageevalkit.assets.weights import may_be_hub_id


def weights_at(path: str, revision: Any, patterns: tuple[str, ...] = ()) -> Needed:
    """Returns the asset for the hub id or folder ``path``. ``patterns`` select its files; empty: all."""
    if not may_be_hub_id(path) or Path(path).is_dir():
        return LocalFolder(path)
    return HubAsset(path, str(revision) if revision else None, "model", patterns)


def check_asset(asset: Needed, hashes: bool) -> Finding:
    """Checks the sizes of an asset's files, and their content if ``hashes``. Reads only the disk."""
    if isinstance(asset, LocalFolder):
        return Finding(_local_problems(asset.path), is_known=False)
    if isinstance(asset, HubAsset):
        return check_hub(asset, hashes)
    return check_code(asset, hashes) if isinstance(asset, CodeAsset) else check_url(asset, hashes)


def name_of(asset: Needed) -> str:
    """Returns a short name for progress and reports."""
    if isinstance(asset, HubAsset):
        revision = asset.revision or ""
        shown = revision[:7] if _is_commit(revision) else revision
        return f"{asset.hub} at {shown}" if shown else asset.hub
    return f"{asset.code} at {asset.commit[:7]}" if isinstance(asset, CodeAsset) else asset.path


def why_missing(assets: Iterable[Needed], options: str) -> str:
    """Returns a line about missing ``assets`` with the prefetch command (``options``), or "".

    Hub files count only offline: otherwise the libraries download them.
    """
    assets = list(assets)
    if problem := disagreement(assets):
        return problem
    # the model's class checks a local folder of the user, with better messages
    looked_for = (CodeAsset, UrlAsset, HubAsset) if is_offline() else (CodeAsset, UrlAsset)
    found = [check_asset(asset, hashes=False).problems for asset in assets if isinstance(asset, looked_for)]
    problems = [problem for of_one in found for problem in of_one]
    folders = "HF_HOME, eval_models/weights and infer/custom_models"
    return how_to_get(problems, options, folders) if problems else ""


def missing_path(assets: Iterable[Needed]) -> str:
    """Returns a line about the first local path among ``assets`` that does not exist, or "".

    Addresses such as ``s3://…`` are skipped: only the model's class can check them.
    """
    for asset in assets:
        if isinstance(asset, LocalFolder) and "://" not in asset.path:
            problem = _absent(asset.path)
            if problem:
                return problem
    return ""


def _absent(place: str) -> str:
    try:
        path = Path(place).expanduser()
        if not path.exists() or (path.is_dir() and not any(path.iterdir())):
            return f"{place} is missing or empty: put the files there, or correct the path"
    except (OSError, RuntimeError) as error:  # no permission, no such user
        return f"{place} cannot be read ({error}): correct the path"
    return ""


def _local_problems(place: str) -> list[str]:
    if problem := _absent(place):
        return [problem]
    path = Path(place).expanduser()
    try:
        # without one of these files the layout of the folder is unknown
        if not any((path / name).is_file() for name in ("model_index.json", "config.json")):
            return []
        return [f"{place}: {problem}" for problem in checkpoint_problems(path)]
    except OSError as error:  # no permission
        return [f"{place} cannot be read ({error}): correct the path"]


# --- the hub's cache ---

_TRUE = frozenset({"1", "ON", "YES", "TRUE"})
# huggingface_hub reads both variables
_HUB_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


def is_offline() -> bool:
    """Whether the environment forbids the libraries to contact the hub."""
    setting = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or ""
    return setting.upper() in _TRUE


def hub_secrets(assets: Collection[Needed]) -> list[str]:
    """Returns the variables with the hub's token for a process whose libraries may download ``assets``.

    Empty if ``assets`` contain authors' code: such code must not see the token.
    """
    if is_offline() or any(isinstance(asset, CodeAsset) for asset in assets):
        return []
    return list(_HUB_TOKENS) if any(isinstance(asset, HubAsset) for asset in assets) else []


def cache_folder() -> Path:
    """Returns the hub's cache folder, by the variables and defaults of huggingface_hub."""
    environ = os.environ.get
    home = environ("HF_HOME", f"{environ('XDG_CACHE_HOME', '~/.cache')}/huggingface")
    cache = environ("HF_HUB_CACHE", environ("HUGGINGFACE_HUB_CACHE", f"{home}/hub"))
    return Path(os.path.expandvars(cache)).expanduser()


def disagreement(assets: Iterable[Needed]) -> str:
    """Returns a line if transformers before version 5 would use another hub cache than prefetch and the other
    libraries; otherwise ""."""
    other = os.environ.get("TRANSFORMERS_CACHE", "")
    is_same = not other or Path(other).resolve() == cache_folder().resolve()
    if is_same or not any(isinstance(asset, HubAsset) for asset in assets):
        return ""
    return (
        f"TRANSFORMERS_CACHE is {other}, but the cache of the hub's libraries is {cache_folder()}: the model "
        "decides which one is read; leave TRANSFORMERS_CACHE empty (HF_HOME sets the cache), or set both to one folder"
    )


def _is_commit(revision: str) -> bool:
    # a branch or tag is no commit: it may point to another commit tomorrow
    return re.fullmatch("[0-9a-f]{40}", revision) is not None


def repo_folder(asset: HubAsset) -> Path:
    """Returns the folder of the repository of ``asset`` in the cache."""
    return cache_folder() / f"{asset.type}s--{asset.hub.replace('/', '--')}"


def commit_of(asset: HubAsset) -> str | None:
    """Returns the commit of the revision of ``asset`` at its last download; None without a download."""
    revision = asset.revision or "main"
    if _is_commit(revision):
        return revision
    try:
        return (repo_folder(asset) / "refs" / revision).read_text(encoding="utf-8").strip() or None
    except (OSError, ValueError):
        return None


def snapshot_folder(asset: HubAsset, commit: str) -> Path:
    """Returns the folder with the files of ``commit``, or links to them."""
    return repo_folder(asset) / "snapshots" / commit


def record_of(asset: HubAsset, commit: str) -> Path:
    """Returns the path of the record of all files of ``commit``."""
    return repo_folder(asset) / "imageevalkit" / f"{commit}.json"


def _library_listing(asset: HubAsset, commit: str) -> dict[str, FileFacts]:
    """Returns the repository's files as listed by huggingface_hub 2; empty for caches of older versions."""
    value = read_json(repo_folder(asset) / "trees" / f"{commit}.json")
    try:
        files = value["files"].items() if value["format_version"] == 1 else ()
        return {
            path: FileFacts(file.get("lfs_size") or file["size"], file.get("lfs_sha256") or file["blob_id"])
            for path, file in files
        }
    except (TypeError, KeyError, AttributeError):
        return {}


def check_hub(asset: HubAsset, hashes: bool) -> Finding:
    """Checks the sizes of the files of ``asset`` in the cache, and their content if ``hashes``.

    If prefetch has downloaded the repository, even only in part, all its files are checked. Otherwise only
    existing files and files that a checkpoint needs are checked; a note says this.
    """
    name, commit = name_of(asset), commit_of(asset)
    absent = Finding([f"{name} is not in the cache {cache_folder()}"])
    if commit is None:
        return absent
    notes = [] if asset.revision == commit else [f"{name}: {asset.revision or 'main'} is commit {commit}"]
    folder, record = snapshot_folder(asset, commit), Record.read(record_of(asset, commit))
    # a record of an older version lists only the files that match its patterns "wanted"
    is_whole = record and "wanted" not in record.known
    if record and is_whole and (paths := chosen(record.files, asset.patterns)):
        return Finding(compared(name, folder, {path: record.files[path] for path in paths}, hashes), notes)
    if not folder.is_dir():
        return absent
    listed = _library_listing(asset, commit)
    # includes broken links: compared() must report them
    here = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if not path.is_dir()]
    problems = compared(name, folder, {path: listed.get(path) for path in here}, hashes)
    if asset.type == "model":
        problems += [f"{name}: {lack}" for lack in checkpoint_problems(folder, asset.patterns, listed)]
    known = len(listed.keys() & set(here))
    checked = f"{'sizes and contents' if hashes else 'sizes'} of {known} files, and " * bool(known)
    note = f"{name} was not fetched by prefetch: checked {checked}that its parts have weights; others may be missing"
    return Finding(problems, [*notes, note], bool(known))


# --- checks of a checkpoint by its own files ---

_LONGEST_HEADER = 100_000_000  # bytes, the limit of the safetensors library
WEIGHTS_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".onnx", ".msgpack", ".h5")
"""The suffixes of weight files."""
# a pattern with one of these ends matches weight files too
_ANY = ("*", "/")
# parts of a pipeline that need no weights, even if they have a config.json
_WITHOUT = ("tokenizer", "scheduler", "feature_extractor", "processor", "image_processor")


def chosen(paths: Iterable[str], patterns: Sequence[str]) -> list[str]:
    """Returns the ``paths`` that match any of ``patterns``, as in huggingface_hub; all without patterns."""
    wanted = list(map(_in_full, patterns))
    return [path for path in paths if not wanted or any(fnmatch(path, pattern) for pattern in wanted)]


def _in_full(pattern: str) -> str:
    return f"{pattern}*" if pattern.endswith("/") else pattern


def _may_choose_below(pattern: str, folder: str) -> bool:
    """Whether ``pattern`` may match a file in or below ``folder`` (empty: the repository itself)."""
    pattern, below = _in_full(pattern), f"{folder}/" if folder else ""
    fixed = re.split(r"[*?[]", pattern)[0]
    return fixed.startswith(below) or (below.startswith(fixed) and fixed != pattern)


def checkpoint_problems(
    folder: Path, patterns: Sequence[str] = (), listed: Collection[str] = ()
) -> Iterator[str]:
    """Yields a sentence for each problem of the checkpoint in ``folder``.

    Problems are files that its index files or ``patterns`` name and that are missing, truncated safetensors
    files, and parts (folders with a config.json) without weights. Files outside of ``patterns`` (empty: all
    files) and outside of the repository's files ``listed`` (empty: unknown) are no problems.
    """
    pipeline = read_json(folder / "model_index.json")
    for part, made_by in pipeline.items() if isinstance(pipeline, dict) else ():
        # [null, null] marks an optional part that the pipeline does not have
        is_part = not part.startswith("_") and isinstance(made_by, list) and any(made_by)
        is_wanted = is_part and any(_may_choose_below(pattern, part) for pattern in patterns or ["*"])
        if is_wanted and not any(map(is_there, (folder / part).glob("*"))):
            yield f"model_index.json names the part {part}, which is missing"
    # the pattern also matches the index.fp16.json of a half-precision copy
    for index in sorted(folder.rglob("*.index*.json")):
        value = read_json(index)
        shards = value.get("weight_map") if isinstance(value, dict) else None
        for name in sorted(set(map(str, shards.values()))) if isinstance(shards, dict) else ():
            path = (index.parent / name).relative_to(folder).as_posix()
            if chosen([path], patterns) and not is_there(folder / path):
                yield f"{index.relative_to(folder).as_posix()} names {name}, which is missing"
    for file in filter(is_there, sorted(folder.rglob("*.safetensors"))):
        if problem := cut_short(file):
            yield f"{file.relative_to(folder).as_posix()} {problem}"
    for path in patterns:
        is_file = not path.endswith(_ANY) and not set("*?[") & set(path)
        if is_file and (not listed or path in listed) and not is_there(folder / path):
            yield f"{path} is missing"
    parts = sorted(path.parent.relative_to(folder).as_posix() for path in folder.rglob("config.json"))
    parts = ["" if part == "." else part for part in parts]
    bare = [part for part in parts if _is_bare(folder, part, patterns, listed)]
    for part in bare:
        yield f"there are no weights for {f'{part}/' if part else 'its '}config.json"
    if not bare and _is_bare(folder, "", patterns, listed):
        yield "there are no weights"


def cut_short(path: Path) -> str:
    """Returns a text if the length of the safetensors file ``path`` contradicts its header; otherwise ""."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(min(length, _LONGEST_HEADER)))
        end = max((t["data_offsets"][1] for name, t in header.items() if name != "__metadata__"), default=0)
        size, expected = path.stat().st_size, 8 + length + end
    except (OSError, ValueError, TypeError, AttributeError, KeyError, IndexError):
        return "is no safetensors file"
    return "" if size == expected else f"has {size} bytes instead of {expected}"


def _is_bare(folder: Path, part: str, patterns: Sequence[str], listed: Collection[str]) -> bool:
    """Whether ``part`` needs weights but has no weight file."""
    if listed:
        start = f"{part}/" if part else ""
        needs = any(p.endswith(WEIGHTS_SUFFIXES) and p.startswith(start) for p in chosen(listed, patterns))
    elif PurePosixPath(part).name.startswith(_WITHOUT):
        needs = False
    else:
        ends = (*_ANY, *WEIGHTS_SUFFIXES)
        needs = any(p.endswith(ends) and _may_choose_below(p, part) for p in patterns or ["*"])
    return needs and not any(p.suffix in WEIGHTS_SUFFIXES and is_there(p) for p in (folder / part).rglob("*"))
