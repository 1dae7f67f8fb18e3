"""Whether the files that models, judges and encoders take are whole on this machine: from files alone, offline.

Sizes only, unless hashes are asked for: what is told before anything starts must be told quickly. The hub's cache is
looked at without its libraries. A record, which prefetch leaves beside a repository's files, lists all that it has,
with sizes and hashes. It is written before they are fetched, so that a look after a killed download knows what is
short. It lies in the repository's own folder, and so travels with a copy of it, links made files or not.
huggingface_hub neither reads nor minds it.
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
    """What the hub id or folder ``path`` is; ``patterns``: which of its files (empty: all)."""
    if not may_be_hub_id(path) or Path(path).is_dir():
        return LocalFolder(path)
    return HubAsset(path, str(revision) if revision else None, "model", patterns)


def check_asset(asset: Needed, hashes: bool) -> Finding:
    """Sizes always, content if ``hashes``. Reads the disk only."""
    if isinstance(asset, LocalFolder):
        return Finding(_local_problems(asset.path), is_known=False)
    if isinstance(asset, HubAsset):
        return check_hub(asset, hashes)
    return check_code(asset, hashes) if isinstance(asset, CodeAsset) else check_url(asset, hashes)


def name_of(asset: Needed) -> str:
    """A short name for progress and reports."""
    if isinstance(asset, HubAsset):
        revision = asset.revision or ""
        shown = revision[:7] if _is_commit(revision) else revision
        return f"{asset.hub} at {shown}" if shown else asset.hub
    return f"{asset.code} at {asset.commit[:7]}" if isinstance(asset, CodeAsset) else asset.path


def why_missing(assets: Iterable[Needed], options: str) -> str:
    """What of ``assets`` is missing, with the ``options`` of prefetch that get it; empty: nothing is known to be.

    Files that the libraries would download themselves count only where they must not.
    """
    assets = list(assets)
    if problem := disagreement(assets):
        return problem
    # a folder of the user's own is for the class to find, and says itself what is wrong with it
    looked_for = (CodeAsset, UrlAsset, HubAsset) if is_offline() else (CodeAsset, UrlAsset)
    found = [check_asset(asset, hashes=False).problems for asset in assets if isinstance(asset, looked_for)]
    problems = [problem for of_one in found for problem in of_one]
    folders = "HF_HOME, eval_models/weights and infer/custom_models"
    return how_to_get(problems, options, folders) if problems else ""


def missing_path(assets: Iterable[Needed]) -> str:
    """Returns one line on the first local path among ``assets`` that does not exist; empty if all do.

    What is no path on a disk (``s3://…``) is for the model's class to find.
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
            return f"there is no {place}, or nothing in it: put it there, or correct the path"
    except (OSError, RuntimeError) as error:  # no permission, no such user
        return f"{place} cannot be looked at ({error}): correct the path"
    return ""


def _local_problems(place: str) -> list[str]:
    if problem := _absent(place):
        return [problem]
    path = Path(place).expanduser()
    try:
        # of other folders nothing is known
        if not any((path / name).is_file() for name in ("model_index.json", "config.json")):
            return []
        return [f"{place}: {problem}" for problem in checkpoint_problems(path)]
    except OSError as error:  # no permission
        return [f"{place} cannot be looked at ({error}): correct the path"]


# --- the hub's cache ---

_TRUE = frozenset({"1", "ON", "YES", "TRUE"})
# huggingface_hub reads both
_HUB_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


def is_offline() -> bool:
    """Whether the libraries may ask no hub, as they read it from the environment."""
    setting = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or ""
    return setting.upper() in _TRUE


def hub_secrets(assets: Collection[Needed]) -> list[str]:
    """The variables with the hub's token, for a process whose libraries may fetch some of ``assets`` by themselves.

    None where there is code of other people among them: it runs with what prefetch has fetched.
    """
    if is_offline() or any(isinstance(asset, CodeAsset) for asset in assets):
        return []
    return list(_HUB_TOKENS) if any(isinstance(asset, HubAsset) for asset in assets) else []


def cache_folder() -> Path:
    """Where all repositories are, by the variables and defaults of huggingface_hub."""
    environ = os.environ.get
    home = environ("HF_HOME", f"{environ('XDG_CACHE_HOME', '~/.cache')}/huggingface")
    cache = environ("HF_HUB_CACHE", environ("HUGGINGFACE_HUB_CACHE", f"{home}/hub"))
    return Path(os.path.expandvars(cache)).expanduser()


def disagreement(assets: Iterable[Needed]) -> str:
    """One line where transformers before version 5 would look for those of the hub in another cache than all others,
    prefetch too."""
    other = os.environ.get("TRANSFORMERS_CACHE", "")
    is_same = not other or Path(other).resolve() == cache_folder().resolve()
    if is_same or not any(isinstance(asset, HubAsset) for asset in assets):
        return ""
    return (
        f"TRANSFORMERS_CACHE is {other}, but the cache of the hub's libraries is {cache_folder()}: which one is "
        "read depends on the model; leave TRANSFORMERS_CACHE empty (HF_HOME tells the place), or make both the same"
    )


def _is_commit(revision: str) -> bool:
    # as opposed to a branch or tag, which may stand for another commit tomorrow
    return re.fullmatch("[0-9a-f]{40}", revision) is not None


def repo_folder(asset: HubAsset) -> Path:
    """Where the repository of ``asset`` is."""
    return cache_folder() / f"{asset.type}s--{asset.hub.replace('/', '--')}"


def commit_of(asset: HubAsset) -> str | None:
    """The commit that the revision of ``asset`` stood for when it was fetched; None: it never was."""
    revision = asset.revision or "main"
    if _is_commit(revision):
        return revision
    try:
        return (repo_folder(asset) / "refs" / revision).read_text(encoding="utf-8").strip() or None
    except (OSError, ValueError):
        return None


def snapshot_folder(asset: HubAsset, commit: str) -> Path:
    """Where the files of ``commit`` are, as files or as links to them."""
    return repo_folder(asset) / "snapshots" / commit


def record_of(asset: HubAsset, commit: str) -> Path:
    """Where the list of all files of ``commit`` is."""
    return repo_folder(asset) / "imageevalkit" / f"{commit}.json"


def _library_listing(asset: HubAsset, commit: str) -> dict[str, FileFacts]:
    """The repository's files as huggingface_hub 2 keeps them; none where another one has filled the cache."""
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
    """Sizes always, content if ``hashes``.

    Where prefetch has filled the cache, or was killed at it, every file of ``asset`` is known. Elsewhere only those
    are looked at that are there or that a checkpoint cannot do without; a note says so.
    """
    name, commit = name_of(asset), commit_of(asset)
    absent = Finding([f"{name} is not in the cache {cache_folder()}"])
    if commit is None:
        return absent
    notes = [] if asset.revision == commit else [f"{name}: {asset.revision or 'main'} is commit {commit}"]
    folder, record = snapshot_folder(asset, commit), Record.read(record_of(asset, commit))
    # an older record has only those of the patterns that were "wanted"
    is_whole = record and "wanted" not in record.known
    if record and is_whole and (paths := chosen(record.files, asset.patterns)):
        return Finding(compared(name, folder, {path: record.files[path] for path in paths}, hashes), notes)
    if not folder.is_dir():
        return absent
    listed = _library_listing(asset, commit)
    # a link to nothing is a file too
    here = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if not path.is_dir()]
    problems = compared(name, folder, {path: listed.get(path) for path in here}, hashes)
    if asset.type == "model":
        problems += [f"{name}: {lack}" for lack in checkpoint_problems(folder, asset.patterns, listed)]
    known = len(listed.keys() & set(here))
    checked = f"{'sizes and contents' if hashes else 'sizes'} of {known} files, and " * bool(known)
    note = f"{name} was not fetched by prefetch: checked {checked}that its parts have weights; others may be missing"
    return Finding(problems, [*notes, note], bool(known))


# --- what a checkpoint tells of itself ---

_LONGEST_HEADER = 100_000_000  # bytes, as the format's own library has it
WEIGHTS_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".onnx", ".msgpack", ".h5")
"""What files of weights end with."""
# a pattern of any files, those of weights too
_ANY = ("*", "/")
# parts of a pipeline that may have a config.json and have no weights
_WITHOUT = ("tokenizer", "scheduler", "feature_extractor", "processor", "image_processor")


def chosen(paths: Iterable[str], patterns: Sequence[str]) -> list[str]:
    """Those of ``paths`` that match one of ``patterns`` as huggingface_hub matches them; all without patterns."""
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
    """A sentence for what the checkpoint in ``folder`` says to be there and is not, or is cut short; for each file that
    ``patterns`` name; and for each part without weights: a part is a folder with a config.json.

    What ``patterns`` leave out (empty: nothing) is not missed, nor what is not among the repository's files ``listed``
    (empty: not known).
    """
    pipeline = read_json(folder / "model_index.json")
    for part, made_by in pipeline.items() if isinstance(pipeline, dict) else ():
        # [null, null] is a part that the pipeline does without
        is_part = not part.startswith("_") and isinstance(made_by, list) and any(made_by)
        is_wanted = is_part and any(_may_choose_below(pattern, part) for pattern in patterns or ["*"])
        if is_wanted and not any(map(is_there, (folder / part).glob("*"))):
            yield f"model_index.json names the part {part}, which is missing"
    # a half-precision copy has an index.fp16.json
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
    """What is wrong with the length of the safetensors file ``path``, as its header has it; empty: nothing."""
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
    """Whether ``part`` needs weights and has none."""
    if listed:
        start = f"{part}/" if part else ""
        needs = any(p.endswith(WEIGHTS_SUFFIXES) and p.startswith(start) for p in chosen(listed, patterns))
    elif PurePosixPath(part).name.startswith(_WITHOUT):
        needs = False
    else:
        ends = (*_ANY, *WEIGHTS_SUFFIXES)
        needs = any(p.endswith(ends) and _may_choose_below(p, part) for p in patterns or ["*"])
    return needs and not any(p.suffix in WEIGHTS_SUFFIXES and is_there(p) for p in (folder / part).rglob("*"))
