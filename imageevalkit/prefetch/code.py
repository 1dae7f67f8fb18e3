"""Fetches authors' repositories at a commit; a folder gets its name only when git's hash of its files is right."""

from __future__ import annotations

import os
import shutil
import tarfile
import zlib
from pathlib import Path, PurePosixPath

from imageevalkit.asset_checks.code import check_code, entries, read_record, write_record
from imageevalkit.asset_checks.files import Finding
from imageevalkit.assets import CodeAsset
from imageevalkit.atomic import disk_error, part_path
from imageevalkit.cell import REPO
from imageevalkit.errors import CellFailure
from imageevalkit.hashes import git_tree
from imageevalkit.prefetch.http import download, forget

ARCHIVES = "https://codeload.github.com"


def fetch_code(asset: CodeAsset, name: str, mirror: Path | None) -> Finding:
    """Get ``asset`` from ``mirror`` or GitHub where it is not whole.

    Raises:
        CellFailure: it cannot be had, or is not the pinned commit.
    """
    found = check_code(asset, hashes=True)
    folder = REPO / asset.path
    if not found.problems:
        if read_record(folder) is None:
            _record_copy(asset, folder)
        return found
    part = part_path(folder)
    _remove(part)
    try:
        if mirror:
            _copy(mirror / asset.source, part)
        else:
            _download(asset, name, part)
        _verify(asset, part, mirror)
        _put_in_place(part, folder)
    except OSError as error:
        raise disk_error(error, folder) from error
    finally:
        _remove(part)
    return Finding()


def _record_copy(asset: CodeAsset, folder: Path) -> None:
    """Write down a copy made by hand, so that what Python compiles anew in it is no change later; a clone knows."""
    files = entries(folder)
    if git_tree(files) == asset.tree:
        write_record(folder, asset.commit, files)


def _copy(source: Path, part: Path) -> None:
    if not source.is_dir():
        raise CellFailure(f"there is no folder {source}")
    shutil.copytree(source, part, symlinks=True, ignore=shutil.ignore_patterns(".git"))


def _download(asset: CodeAsset, name: str, part: Path) -> None:
    archive = part.with_name(f"{part.name}.tar.gz")
    url = f"{ARCHIVES}/{asset.code}/tar.gz/{asset.commit}"
    # made anew for each request: there is nothing to go on with
    download(url, archive, name, resume=False)
    try:
        _extract(archive, part)
    except (tarfile.TarError, EOFError, zlib.error, ValueError) as error:  # the last: a name that holds a NUL
        raise CellFailure(f"{url} gives no archive that may be unpacked ({error})") from None
    finally:
        forget(archive)


def _extract(archive: Path, part: Path) -> None:
    """Unpack what is below the archive's one folder into ``part``, which is made anew.

    Member by member: tarfile's filters (PEP 706) are not in the Python 3.11 of Debian 12, those before 3.11.13 and
    3.12.11 can be got round, and a filter may rewrite where a link points, which git's hash tells.

    Raises:
        tarfile.TarError: a member would lie, or point, outside of the folder, or is neither file, folder nor link.
    """
    part.mkdir(parents=True)
    root = Path(os.path.realpath(part))
    links = []
    with tarfile.open(archive, "r:gz") as opened:
        for member in opened:
            path = PurePosixPath(*PurePosixPath(member.name).parts[1:])
            if ".." in path.parts or member.name.startswith("/"):
                raise tarfile.TarError(f"{member.name} lies outside of its folder")
            if path.parts:
                _unpack(opened, member, path, root)
            if member.issym():
                links.append((member.name, root / path))
    # only now: where a link points may go through links that come after it
    for name, link in links:
        if not Path(os.path.realpath(link)).is_relative_to(root):
            raise tarfile.TarError(f"{name} points outside of its folder")


def _unpack(opened: tarfile.TarFile, member: tarfile.TarInfo, path: PurePosixPath, root: Path) -> None:
    target = root / path
    folder = target if member.isdir() else target.parent
    # nothing is written through a link; git has nothing below one either
    if Path(os.path.realpath(folder)) != folder:
        raise tarfile.TarError(f"{member.name} lies below a link")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if member.issym() and not member.linkname.startswith("/"):
            target.symlink_to(member.linkname)
        elif member.isfile() and (content := opened.extractfile(member)):
            mode = 0o777 if member.mode & 0o100 else 0o666  # the rest is the umask's, for a team's folder
            with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                shutil.copyfileobj(content, file)
        elif not member.isdir():
            raise tarfile.TarError(f"{member.name} is no file, folder or link within its folder")
    except (FileExistsError, NotADirectoryError):
        raise tarfile.TarError(f"{member.name} lies where another member is") from None


def _verify(asset: CodeAsset, part: Path, mirror: Path | None) -> None:
    files = entries(part)
    if (tree := git_tree(files)) != asset.tree:
        where = mirror / asset.source if mirror else f"https://github.com/{asset.code}"
        raise CellFailure(
            f"{where} is not the pinned commit {asset.commit} (tree {tree} instead of {asset.tree})"
        )
    write_record(part, asset.commit, files)


def _put_in_place(part: Path, folder: Path) -> None:
    old = folder.with_name(f".{folder.name}.old")
    _remove(old)
    if folder.exists():
        folder.replace(old)
    part.replace(folder)
    _remove(old)


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
