"""Whether files of a hub repository are whole in the cache, also where it was copied with links made files.

The cache is looked at without the libraries of Hugging Face. A record, which prefetch leaves beside a repository's
files, says which of them are needed, their sizes and hashes. It is written before they are fetched, so that a look
after a killed download knows what is short. It lies in the repository's own folder, and so travels with a copy of it.
huggingface_hub neither reads nor minds it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from imageevalkit.asset_checks.files import (
    FileFacts,
    Finding,
    chosen,
    index_problems,
    is_there,
    lacking,
    of_files,
    read_json,
    wrong,
)
from imageevalkit.assets import HubAsset
from imageevalkit.atomic import write_atomic

_COMMIT = re.compile(r"[0-9a-f]{40}")
_TRUE = frozenset({"1", "ON", "YES", "TRUE"})


def is_commit(revision: str) -> bool:
    """As opposed to a branch or tag, which may stand for another commit tomorrow."""
    return _COMMIT.fullmatch(revision) is not None


def is_offline() -> bool:
    """Whether the libraries may ask no hub, as they read it from the environment."""
    setting = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or ""
    return setting.upper() in _TRUE


def cache_folder() -> Path:
    """Where all repositories are, by the variables and defaults of huggingface_hub."""
    environ = os.environ.get
    home = environ("HF_HOME", f"{environ('XDG_CACHE_HOME', '~/.cache')}/huggingface")
    cache = environ("HF_HUB_CACHE", environ("HUGGINGFACE_HUB_CACHE", f"{home}/hub"))
    return Path(os.path.expandvars(cache)).expanduser()


def disagreement() -> str:
    """One line where transformers before version 5 would look in another cache than all others, prefetch too."""
    other = os.environ.get("TRANSFORMERS_CACHE", "")
    if not other or Path(other).resolve() == cache_folder().resolve():
        return ""
    return (
        f"TRANSFORMERS_CACHE is {other}, but the cache of the hub's libraries is {cache_folder()}: which one is "
        "read depends on the model; leave TRANSFORMERS_CACHE empty (HF_HOME tells the place), or make both the same"
    )


def repo_folder(asset: HubAsset) -> Path:
    """Where the repository of ``asset`` is."""
    return cache_folder() / f"{asset.type}s--{asset.hub.replace('/', '--')}"


def commit_of(asset: HubAsset) -> str | None:
    """The commit that the revision of ``asset`` stood for when it was fetched; None: it never was."""
    revision = asset.revision or "main"
    if is_commit(revision):
        return revision
    try:
        return (repo_folder(asset) / "refs" / revision).read_text(encoding="utf-8").strip() or None
    except (OSError, ValueError):
        return None


def snapshot_folder(asset: HubAsset, commit: str) -> Path:
    """Where the files of ``commit`` are, as files or as links to them."""
    return repo_folder(asset) / "snapshots" / commit


def short_name(asset: HubAsset) -> str:
    """``org/name at 0123456`` for messages."""
    revision = asset.revision or ""
    return f"{asset.hub} at {revision[:7] if is_commit(revision) else revision}" if revision else asset.hub


class HubRecord(NamedTuple):
    """``wanted``: each set of patterns (empty: everything) that was asked for. ``files``, all of these, by path."""

    wanted: Sequence[Sequence[str]]
    files: Mapping[str, FileFacts]

    def covers(self, patterns: Sequence[str]) -> bool:
        """Whether all files of ``patterns`` are known."""
        return sorted(patterns) in [sorted(known) for known in self.wanted] or () in map(tuple, self.wanted)


def read_record(asset: HubAsset, commit: str) -> HubRecord | None:
    """None where prefetch was never asked for ``commit``, or its record is damaged."""
    value = read_json(_path(asset, commit))
    try:
        files = {str(path): FileFacts.of(facts) for path, facts in value["files"].items()}
        return HubRecord([tuple(map(str, patterns)) for patterns in value["wanted"]], files)
    except (TypeError, KeyError, ValueError, AttributeError):
        return None


def add_to_record(asset: HubAsset, commit: str, listed: Mapping[str, FileFacts]) -> None:
    """Write down which files ``asset`` needs, out of all that its repository has (``listed``)."""
    known = read_record(asset, commit) or HubRecord([], {})
    wanted = [*known.wanted, *([] if known.covers(asset.patterns) else [asset.patterns])]
    files = {**known.files, **{path: listed[path] for path in chosen(listed, asset.patterns)}}
    value = {
        "wanted": [list(patterns) for patterns in wanted],
        "files": {path: facts.as_json() for path, facts in sorted(files.items())},
    }
    write_atomic(_path(asset, commit), json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def _path(asset: HubAsset, commit: str) -> Path:
    return repo_folder(asset) / "imageevalkit" / f"{commit}.json"


_TREE_FORMAT = 1


def check_hub(asset: HubAsset, hashes: bool) -> Finding:
    """Sizes always, content if ``hashes``.

    Where prefetch has filled the cache, or was killed at it, every file of ``asset`` is known. Elsewhere only those
    are looked at that are there or that a checkpoint cannot do without; a note says so.
    """
    name, commit = short_name(asset), commit_of(asset)
    absent = Finding([f"{name} is not in the cache {cache_folder()}"])
    if commit is None:
        return absent
    notes = [] if asset.revision == commit else [f"{name}: {asset.revision or 'main'} is commit {commit}"]
    folder = snapshot_folder(asset, commit)
    record = read_record(asset, commit)
    if record and record.covers(asset.patterns) and (paths := chosen(record.files, asset.patterns)):
        return Finding(_compared(name, folder, {path: record.files[path] for path in paths}, hashes), notes)
    if not folder.is_dir():
        return absent
    listed = _library_listing(asset, commit)
    here = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if not path.is_dir()]
    known = {path: listed[path] for path in here if path in listed}
    problems = _compared(name, folder, known, hashes)
    # a link to nothing is a file too
    problems += of_files(name, [p for p in here if p not in known and not is_there(folder / p)], [])
    problems += [f"{name}: {problem}" for problem in index_problems(folder, asset.patterns)]
    if asset.type == "model":
        problems += [f"{name}: {problem}" for problem in lacking(folder, asset.patterns, listed)]
    what = "sizes and contents" if hashes else "sizes"
    checked = f"{what} of {len(known)} files, and " * bool(known)
    note = f"{name} was not fetched by prefetch: checked {checked}that its parts have weights; others may be missing"
    return Finding(problems, [*notes, note], bool(known))


def _compared(name: str, folder: Path, files: Mapping[str, FileFacts], hashes: bool) -> list[str]:
    missing = [path for path in files if not is_there(folder / path)]
    found = (
        wrong(folder / path, path, facts, hashes) for path, facts in files.items() if path not in missing
    )
    return of_files(name, missing, [problem for problem in found if problem])


def _library_listing(asset: HubAsset, commit: str) -> dict[str, FileFacts]:
    """The repository's files as huggingface_hub 2 keeps them; none where another one has filled the cache."""
    value = read_json(repo_folder(asset) / "trees" / f"{commit}.json")
    try:
        if value["format_version"] != _TREE_FORMAT:
            return {}
        return {
            path: FileFacts(
                file.get("lfs_size") or file["size"], file.get("lfs_sha256") or "", file["blob_id"]
            )
            for path, file in value["files"].items()
        }
    except (TypeError, KeyError, AttributeError):
        return {}
