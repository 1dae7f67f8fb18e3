"""Whether an author's repository is in its place: git's own hash of its files is what tells."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from imageevalkit.asset_checks.file_facts import read_json
from imageevalkit.asset_checks.finding import Finding, of_files
from imageevalkit.asset_manifest import CodeAsset
from imageevalkit.atomic import write_atomic
from imageevalkit.cell import REPO
from imageevalkit.hashes import TreeEntry, git_blob, git_tree

RECORD = ".imageevalkit.json"
"""In the folder: its commit and its files, as they were fetched."""
_NOT_FILES = frozenset({".git", RECORD})
# Python writes them beside modules; but some authors have theirs in the repository
_CACHE = "__pycache__"


class CodeRecord(NamedTuple):
    """``files`` are all that the repository has at ``commit``."""

    commit: str
    files: list[TreeEntry]


def check_code(asset: CodeAsset, hashes: bool) -> Finding:
    """Whether it is there, and of the right commit; its files' contents if ``hashes``.

    Files besides the repository's own, which running its code may leave, are no problem.
    """
    folder, name = REPO / asset.path, f"{asset.code} ({asset.path})"
    if not folder.is_dir():
        return Finding([f"{name} is missing"])
    record = read_record(folder)
    if record is None:  # put there by hand
        other = hashes and not _is_clone(folder, asset.tree)
        return Finding([f"{name} is not commit {asset.commit}, or was changed"] if other else [])
    if record.commit != asset.commit:
        return Finding([f"{name} is commit {record.commit} instead of {asset.commit}"])
    if not hashes:
        return Finding()
    if git_tree(record.files) != asset.tree:
        return Finding([f"{name}: its record {RECORD} was changed"])
    missing = [entry.path for entry in record.files if not os.path.lexists(folder / entry.path)]
    there = [entry for entry in record.files if entry.path not in missing]
    return Finding(of_files(name, missing, [problem for e in there if (problem := _changed(folder, e))]))


def _changed(folder: Path, entry: TreeEntry) -> str:
    try:
        is_same = entry_of(folder, folder / entry.path) == entry
    except OSError as error:
        return f"{entry.path} cannot be read ({error.strerror})"
    return "" if is_same else f"{entry.path} has other content"


def entries(folder: Path) -> list[TreeEntry]:
    """All files of ``folder`` as git sees them, but for git's own and ours."""
    return [entry_of(folder, path) for path in _files(folder)]


def _is_clone(folder: Path, tree: str) -> bool:
    files = entries(folder)
    without_caches = [entry for entry in files if _CACHE not in entry.path.split("/")]
    return tree in (git_tree(files), git_tree(without_caches))


def entry_of(folder: Path, path: Path) -> TreeEntry:
    """The file at ``path`` as git sees it. Raises OSError where there is none that can be read."""
    mode = path.lstat().st_mode
    kind = "120000" if stat.S_ISLNK(mode) else "100755" if mode & stat.S_IXUSR else "100644"
    return TreeEntry(kind, path.relative_to(folder).as_posix(), git_blob(path))


def read_record(folder: Path) -> CodeRecord | None:
    """None where there is none, or a damaged one."""
    value = read_json(folder / RECORD)
    try:
        return CodeRecord(value["commit"], [TreeEntry(*map(str, entry)) for entry in value["files"]])
    except (TypeError, KeyError):
        return None


def write_record(folder: Path, commit: str, files: list[TreeEntry]) -> None:
    """Keep what was fetched beside it."""
    write_atomic(folder / RECORD, json.dumps({"commit": commit, "files": files}, ensure_ascii=False) + "\n")


def _files(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.name in _NOT_FILES:
            continue
        if path.is_dir() and not path.is_symlink():
            yield from _files(path)
        else:
            yield path
