"""Authors' code: git fetches a repository at its commit, and git's own hash of all files proves it.

The folder gets its name only when all is there. It holds the files alone, without a clone's ``.git``, and a record of
them, so that a look at it needs no git. A mirror's folder, or a copy made by hand, is told by what git makes of it.
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
from imageevalkit.atomic import disk_error, part_path
from imageevalkit.cell import REPO
from imageevalkit.errors import CellFailure, say
from imageevalkit.secrets import environ_with, one_line

GITHUB = "https://github.com"
RECORD = ".imageevalkit.json"
"""In the folder: its commit and its files, as they were fetched."""
_FILES, _LINK = ("100644", "100755"), "120000"
_COMPILED = re.compile(r"(^|/)__pycache__/|\.py[co]$")
# files are what their hashes stand for: no line ends changed, no filter of the user's run (git-lfs would download)
_AS_THEY_ARE = "* -text -ident -filter !working-tree-encoding\n"
_SETTINGS = (
    *("core.autocrlf=false", "core.fsmonitor=false", "core.hooksPath=/dev/null", "core.symlinks=true"),
    *("core.compression=0", "maintenance.auto=false"),  # the repository goes at once
    *("http.lowSpeedLimit=1000", "http.lowSpeedTime=60"),  # bytes a second, seconds
)
# no question at the terminal, no file fetched that a partial clone left out, words that we know
_ENVIRON = {"GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1", "GIT_DEFAULT_HASH": "sha1", "LC_ALL": "C"}
_KEPT = ("GIT_SSL", "GIT_PROXY", "GIT_CONFIG_", "GIT_EXEC_PATH")
# what git says where another try would say the same
_FINAL = (
    *("not found", "not our ref", "could not read Username", "Authentication failed"),
    *("does not appear to be a git repository", "does not exist"),
)


def check_code(asset: CodeAsset, hashes: bool) -> Finding:
    """Whether all its files are there, of the right commit and size; their contents if ``hashes``.

    Where prefetch has not put them there, contents are looked at always. Files besides the
    repository's own, which running its code may leave, are no problem, and neither is what Python compiles anew.
    """
    folder, name = REPO / asset.path, f"{asset.code} ({asset.path})"
    if not folder.is_dir():
        return Finding([f"{name} is missing"])
    recorded = Record.read(folder / RECORD)
    try:
        record = recorded or _cloned(folder) or copied(folder, asset)
    except CellFailure as failure:
        return Finding([f"{name} was not put there by prefetch, and cannot be told: {failure}"])
    if record is None:
        return Finding([f"{name} is not commit {asset.commit}, or was changed"])
    if (commit := record.known.get("commit")) != asset.commit:
        return Finding([f"{name} is commit {commit} instead of {asset.commit}"])
    # what Python compiles anew: some authors have it in the repository
    own = {path: facts for path, facts in record.files.items() if not _COMPILED.search(path)}
    # links lead to files that are looked at; a copy made with "cp -rL" has files in their place
    lost = [link for link in record.known.get("links", ()) if not os.path.lexists(folder / link)]
    wrong = compared(name, folder, own, hashes or not recorded)
    return Finding([*wrong, *(f"{name}: the link {link} is missing" for link in lost)])


def _cloned(folder: Path) -> Record | None:
    clone = folder / ".git"
    return _listed(clone, "HEAD", _git(clone, "rev-parse", "HEAD").strip()) if clone.exists() else None


def copied(folder: Path, asset: CodeAsset) -> Record | None:
    """What ``folder`` has, if it is all that ``asset`` is, with or without what Python compiled."""
    with tempfile.TemporaryDirectory(prefix="imageevalkit-") as temporary:
        repository = _new_repository(Path(temporary))
        if tree_of(repository, folder) != asset.tree:
            _git(repository, "rm", "-rq", "--cached", "--ignore-unmatch", "*.py[co]", "*__pycache__/*")
        is_same = _git(repository, "write-tree").strip() == asset.tree
        return _listed(repository, asset.tree, asset.commit) if is_same else None


def tree_of(repository: Path, folder: Path) -> str:
    """git's hash of all files in ``folder`` but for our record, which ``repository`` then holds."""
    # the user's list of files to ignore is overruled
    _git(repository, "add", "-Af", "--", ".", f":(exclude,top){RECORD}", work_tree=folder)
    return _git(repository, "write-tree").strip()


def fetch_code(asset: CodeAsset, name: str, mirror: Path | None) -> Finding:
    """Get ``asset`` from ``mirror`` or GitHub where it is not whole.

    Raises CellFailure: it cannot be had, or is not the pinned commit.
    """
    folder = REPO / asset.path
    with alone(part_path(folder)) as work:
        try:
            is_known = Record.read(folder / RECORD) or (folder / ".git").exists()
            if check_code(asset, hashes=True).problems:
                _fetch(asset, name, mirror, work)
            elif not is_known and (code := copied(folder, asset)):
                # what Python compiles anew in a copy made by hand is no change later; a clone knows
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
        # a malformed tree has a folder of the same name
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
    """What git prints.

    Raises CellFailure: there is no git, or it refuses; PassingFailure: a fetch may pass later; OSError: the disk.
    """
    # the repository is named: git would go on looking in the folders above, where ours is, and refuse another user's
    options = [f"--git-dir={repository}", *([f"--work-tree={work_tree}"] if work_tree else [])]
    options += [word for setting in _SETTINGS for word in ("-c", setting)]
    environ = {k: v for k, v in environ_with(()).items() if not k.startswith("GIT_") or k.startswith(_KEPT)}
    try:
        done = subprocess.run(
            ["git", *options, *words],
            cwd=work_tree,
            env=environ | _ENVIRON,
            stdin=subprocess.DEVNULL,
            close_fds=False,  # it works in a folder whose lock it then has too, longer than a killed prefetch
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",
        )
    except FileNotFoundError:
        raise CellFailure("git is not installed: authors' code comes with it; install git") from None
    if done.returncode == 0:
        return done.stdout
    said = done.stderr.strip()
    for text, code in (("No space left on device", errno.ENOSPC), ("Disk quota exceeded", errno.EDQUOT)):
        if text in said:
            raise OSError(code, text)
    lines = [line for line in said.splitlines() if line.startswith(("fatal:", "error:"))] or said.splitlines()
    why = one_line(f"git {words[0]}: {lines[0] if lines else f'status {done.returncode}'}")
    may_pass = words[0] == "fetch" and not any(word in said for word in _FINAL)
    raise PassingFailure(why) if may_pass else CellFailure(why)
