"""Fetches authors' repositories with git at a pinned commit, and verifies them by git's hash of all files.

A folder gets its final name only once it is complete. It has the files without ``.git``, and a record of
them, so that a check needs no git. Git's hash also identifies a mirror's folder, or a copy by hand.
"""

from __future__ import annotations

import errno
import os
import re
import subprocess
import tempfile
from pathlib import Path

from imageevalkit.assets import CodeAsset, FileFacts, Finding, Record, compared
from imageevalkit.assets.http import PassingFailure, alone, check_reach, until_it_passes
from imageevalkit.common.atomic import disk_error, part_path
from imageevalkit.common.errors import CellFailure, say
from imageevalkit.common.redaction import environ_with, one_line
from imageevalkit.store.cell import REPO

GITHUB = "https://github.com"
RECORD = ".imageevalkit.json"
"""The file in the folder that records its commit and its files."""
_FILES, _LINK = ("100644", "100755"), "120000"
_COMPILED = re.compile(r"(^|/)__pycache__/|\.py[co]$")
# without conversion of line ends and without filters of the user: the files would not match their hashes
_AS_THEY_ARE = "* -text -ident -filter !working-tree-encoding\n"
_SETTINGS = (
    *("core.autocrlf=false", "core.fsmonitor=false", "core.hooksPath=/dev/null", "core.symlinks=true"),
    *("core.compression=0", "maintenance.auto=false"),  # the repository is temporary
    *("http.lowSpeedLimit=1000", "http.lowSpeedTime=60"),  # bytes per second, seconds
)
# no questions at the terminal, no downloads by a partial clone, English messages for _FINAL
_ENVIRON = {"GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1", "GIT_DEFAULT_HASH": "sha1", "LC_ALL": "C"}
_KEPT = ("GIT_SSL", "GIT_PROXY", "GIT_CONFIG_", "GIT_EXEC_PATH")
# parts of git's messages about failures that a retry cannot fix
_FINAL = (
    *("not found", "not our ref", "could not read Username", "Authentication failed"),
    *("does not appear to be a git repository", "does not exist"),
)


def check_code(asset: CodeAsset, hashes: bool) -> Finding:
    """Checks that all files of ``asset`` exist with the right size, and their contents if ``hashes``.

    If prefetch did not write the folder, contents are always compared. Additional files, which the code may
    write, and files compiled by Python are no problem.
    """
    folder, name = REPO / asset.path, f"{asset.code} ({asset.path})"
    if not folder.is_dir():
        return Finding([f"{name} is missing"])
    recorded = Record.read(folder / RECORD)
    try:
        record = recorded or _cloned(folder) or copied(folder, asset)
    except CellFailure as failure:
        return Finding([f"{name} is not from prefetch, and cannot be identified: {failure}"])
    if record is None:
        return Finding([f"{name} is not commit {asset.commit}, or was changed"])
    if (commit := record.known.get("commit")) != asset.commit:
        return Finding([f"{name} is commit {commit} instead of {asset.commit}"])
    # some authors have compiled files in the repository, and Python compiles them again
    own = {path: facts for path, facts in record.files.items() if not _COMPILED.search(path)}
    # only the existence of links: their targets are checked, and a copy by "cp -rL" has files in their place
    lost = [link for link in record.known.get("links", ()) if not os.path.lexists(folder / link)]
    wrong = compared(name, folder, own, hashes or not recorded)
    return Finding([*wrong, *(f"{name}: the link {link} is missing" for link in lost)])


def _cloned(folder: Path) -> Record | None:
    clone = folder / ".git"
    return _listed(clone, "HEAD", _git(clone, "rev-parse", "HEAD").strip()) if clone.exists() else None


def copied(folder: Path, asset: CodeAsset) -> Record | None:
    """Returns a record of ``folder`` if its files (but compiled ones) equal those of ``asset``, else None."""
    with tempfile.TemporaryDirectory(prefix="imageevalkit-") as temporary:
        repository = _new_repository(Path(temporary))
        if tree_of(repository, folder) != asset.tree:
            _git(repository, "rm", "-rq", "--cached", "--ignore-unmatch", "*.py[co]", "*__pycache__/*")
        is_same = _git(repository, "write-tree").strip() == asset.tree
        return _listed(repository, asset.tree, asset.commit) if is_same else None


def tree_of(repository: Path, folder: Path) -> str:
    """Adds all files in ``folder``, except our record, to ``repository`` and returns git's hash of them."""
    # -f, because the user's ignore list must not hide files
    _git(repository, "add", "-Af", "--", ".", f":(exclude,top){RECORD}", work_tree=folder)
    return _git(repository, "write-tree").strip()


def fetch_code(asset: CodeAsset, name: str, mirror: Path | None) -> Finding:
    """Gets ``asset`` from ``mirror`` or GitHub if it is incomplete.

    Raises CellFailure if this fails or the files differ from the pinned commit.
    """
    folder = REPO / asset.path
    with alone(part_path(folder)) as work:
        try:
            is_known = Record.read(folder / RECORD) or (folder / ".git").exists()
            if check_code(asset, hashes=True).problems:
                _fetch(asset, name, mirror, work)
            elif not is_known and (code := copied(folder, asset)):
                # without a record, files that Python compiles later would count as changes of a copy by hand
                code.write(folder / RECORD)
        except OSError as error:
            raise disk_error(error, folder) from error
    return Finding()


def _fetch(asset: CodeAsset, name: str, mirror: Path | None, work: Path) -> None:
    repository = _new_repository(work / "git")
    if mirror:
        where = str(mirror / asset.source)
        if not Path(where).is_dir():
            raise CellFailure(f"there is no folder {where}")
        what = tree_of(repository, Path(where))
    else:
        where = f"{GITHUB}/{asset.code}"
        if where.startswith("https:"):
            check_reach(where)
        say(f"{name}: fetching from {where}")
        words = ("fetch", "-q", "--no-tags", "--depth=1", where, asset.commit)
        until_it_passes(name, lambda: _git(repository, *words))
        what = asset.commit
    folder, files = REPO / asset.path, work / "files"
    files.mkdir()
    _git(repository, "read-tree", "--reset", "-u", what, work_tree=files)
    if (tree := _git(repository, "write-tree").strip()) != asset.tree:
        raise CellFailure(
            f"{where} is not the pinned commit {asset.commit} (tree {tree} instead of {asset.tree})"
        )
    code = _listed(repository, tree, asset.commit)
    for link in (files / path for path in code.known["links"]):
        # a malformed tree may have a folder of the same name as the link
        if not (link.is_symlink() and Path(os.path.realpath(link)).is_relative_to(os.path.realpath(files))):
            raise CellFailure(f"{where}: its link {link.relative_to(files)} points outside of its folder")
    code.write(files / RECORD)
    if folder.exists():
        folder.replace(work / "old")
    files.replace(folder)


def _new_repository(folder: Path) -> Path:
    _git(folder, "init", "-q", "--bare", "--template=")
    (folder / "info").mkdir(exist_ok=True)
    (folder / "info" / "attributes").write_text(_AS_THEY_ARE)
    return folder


def _listed(repository: Path, tree: str, commit: str) -> Record:
    files, links = {}, []
    for line in _git(repository, "ls-tree", "-rlz", "--full-tree", tree).split("\0")[:-1]:
        facts, _, path = line.partition("\t")
        mode, _, blob, size = facts.split()
        if mode in _FILES:
            files[path] = FileFacts(int(size), blob)
        elif mode == _LINK:
            links.append(path)
    return Record({"commit": commit, "links": links}, files)


def _git(repository: Path, *words: str, work_tree: Path | None = None) -> str:
    """Runs git in ``repository`` and returns its output.

    Raises CellFailure if git is missing or fails, PassingFailure if a retry may help, OSError on full disks.
    """
    # without --git-dir git would find our own repository in a parent folder, and refuse others' folders
    options = [f"--git-dir={repository}", *([f"--work-tree={work_tree}"] if work_tree else [])]
    options += [word for setting in _SETTINGS for word in ("-c", setting)]
    environ = {k: v for k, v in environ_with(()).items() if not k.startswith("GIT_") or k.startswith(_KEPT)}
    try:
        done = subprocess.run(
            ["git", *options, *words],
            cwd=work_tree,
            env=environ | _ENVIRON,
            stdin=subprocess.DEVNULL,
            close_fds=False,  # git inherits the lock of its folder: if prefetch is killed, git keeps the lock
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",
        )
    except FileNotFoundError:
        raise CellFailure("git is not installed: authors' code comes with it; install git") from None
    if done.returncode == 0:
        return done.stdout
    message = done.stderr.strip()
    for text, code in (("No space left on device", errno.ENOSPC), ("Disk quota exceeded", errno.EDQUOT)):
        if text in message:
            raise OSError(code, text)
    lines = [
        line for line in message.splitlines() if line.startswith(("fatal:", "error:"))
    ] or message.splitlines()
    why = one_line(f"git {words[0]}: {lines[0] if lines else f'status {done.returncode}'}")
    may_pass = words[0] == "fetch" and not any(word in message for word in _FINAL)
    raise PassingFailure(why) if may_pass else CellFailure(why)
