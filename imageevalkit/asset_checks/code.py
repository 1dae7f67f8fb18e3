"""Whether an author's repository is in its place: git's own hash of its files is what tells."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from imageevalkit.asset_checks.files import Finding, of_files, read_json
from imageevalkit.assets import CodeAsset
from imageevalkit.atomic import write_atomic
from imageevalkit.cell import REPO
from imageevalkit.hashes import TreeEntry, git_blob, git_tree

RECORD = ".imageevalkit.json"
"""In the folder: its commit and its files, as they were fetched."""
_NOT_FILES = frozenset({".git", RECORD})
_CACHE = "__pycache__"
_COMPILED = (".pyc", ".pyo")


class CodeRecord(NamedTuple):
    """``sizes`` has all files that the repository has at ``commit``, with their bytes; None: unknown."""

    commit: str
    sizes: Mapping[TreeEntry, int | None]


def check_code(asset: CodeAsset, hashes: bool) -> Finding:
    """Whether all its files are there, of the right commit and size; their contents if ``hashes``.

    Where prefetch has not put them there, contents are looked at always: nothing tells their sizes. Files besides the
    repository's own, which running its code may leave, are no problem, and neither is what Python compiles anew.
    """
    folder, name = REPO / asset.path, f"{asset.code} ({asset.path})"
    if not folder.is_dir():
        return Finding([f"{name} is missing"])
    record = read_record(folder) or _of_clone(folder)
    if record is None:  # copied there by hand
        problem = (
            "" if _is_tree(folder, asset.tree) else f"{name} is not commit {asset.commit}, or was changed"
        )
        return Finding([problem] if problem else [])
    if record.commit != asset.commit:
        return Finding([f"{name} is commit {record.commit} instead of {asset.commit}"])
    if git_tree(record.sizes) != asset.tree:
        return Finding([f"{name}: its record {RECORD} was changed"])
    own = {entry: size for entry, size in record.sizes.items() if not _is_compiled(entry.path)}
    missing = [entry.path for entry in own if not os.path.lexists(folder / entry.path)]
    gone = set(missing)
    found = (_changed(folder, e, size, hashes) for e, size in own.items() if e.path not in gone)
    return Finding(of_files(name, missing, [problem for problem in found if problem]))


def _changed(folder: Path, entry: TreeEntry, size: int | None, hashes: bool) -> str:
    path = folder / entry.path
    try:
        if size is not None and (here := path.lstat().st_size) != size:
            return f"{entry.path} has {here} bytes instead of {size}"
        is_same = entry_of(folder, path) == entry if hashes or size is None else True
    except OSError as error:
        return f"{entry.path} cannot be read ({error.strerror})"
    return "" if is_same else f"{entry.path} has other content"


def _is_compiled(path: str) -> bool:
    # some authors have what their Python compiled in the repository: another Python writes it anew
    return _CACHE in path.split("/") or path.endswith(_COMPILED)


def entries(folder: Path) -> list[TreeEntry]:
    """All files of ``folder`` as git sees them, but for git's own and ours."""
    return [entry_of(folder, path) for path in _files(folder)]


def _is_tree(folder: Path, tree: str) -> bool:
    try:
        files = entries(folder)
    except OSError:  # no permission
        return False
    own = [entry for entry in files if not _is_compiled(entry.path)]
    return tree in (git_tree(files), git_tree(own))


def _of_clone(folder: Path) -> CodeRecord | None:
    """What git says that a clone has. Sizes are not asked for: git might have to fetch a file to know its size."""
    try:
        commit = _git(folder, "rev-parse", "HEAD").strip()
        lines = _git(folder, "ls-tree", "-r", "-z", "HEAD").split("\0")
    except (OSError, subprocess.CalledProcessError):  # no clone, or no git
        return None
    fields = (line.partition("\t") for line in lines if line)
    return CodeRecord(
        commit, {TreeEntry(what.split()[0], path, what.split()[2]): None for what, _, path in fields}
    )


def _git(folder: Path, *words: str) -> str:
    # of this folder's own repository: git would go on looking in the folders above, where ours is
    command = ["git", f"--git-dir={folder / '.git'}", *words]
    return subprocess.run(command, check=True, capture_output=True, encoding="utf-8").stdout


def entry_of(folder: Path, path: Path) -> TreeEntry:
    """The file at ``path`` as git sees it. Raises OSError where there is none that can be read."""
    mode = path.lstat().st_mode
    kind = "120000" if stat.S_ISLNK(mode) else "100755" if mode & stat.S_IXUSR else "100644"
    return TreeEntry(kind, path.relative_to(folder).as_posix(), git_blob(path))


def read_record(folder: Path) -> CodeRecord | None:
    """None where there is none, or a damaged one."""
    value = read_json(folder / RECORD)
    try:
        files = {TreeEntry(str(mode), str(p), str(blob)): int(size) for mode, p, blob, size in value["files"]}
        return CodeRecord(value["commit"], files)
    except (TypeError, KeyError, ValueError):
        return None


def write_record(folder: Path, commit: str, files: Iterable[TreeEntry]) -> None:
    """Keep what was fetched beside it."""
    sized = [[*entry, (folder / entry.path).lstat().st_size] for entry in files]
    write_atomic(folder / RECORD, json.dumps({"commit": commit, "files": sized}, ensure_ascii=False) + "\n")


def _files(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.name in _NOT_FILES:
            continue
        if path.is_dir() and not path.is_symlink():
            yield from _files(path)
        else:
            yield path
