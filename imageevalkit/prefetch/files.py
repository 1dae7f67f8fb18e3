"""Fetches files from any address, and unpacks archives, so that each is whole or not there."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Sequence
from pathlib import Path

from imageevalkit.asset_checks.files import FileFacts, Finding
from imageevalkit.asset_checks.url import (
    UrlRecord,
    address_of,
    check_url,
    file_of,
    folder_of,
    read_record,
    record_of,
    write_record,
)
from imageevalkit.assets import UrlAsset
from imageevalkit.atomic import disk_error, part_path
from imageevalkit.errors import CellFailure
from imageevalkit.hashes import sha256_file
from imageevalkit.prefetch.http import download, forget


def fetch_file(asset: UrlAsset, name: str, hashes: bool, download_allowed: bool) -> Finding:
    """Get ``asset`` where it is not whole; record what somebody has put there by hand.

    Raises:
        CellFailure: it cannot be had, or is not what it should be.
    """
    found = check_url(asset, hashes)
    if not found.problems:
        return _recorded(asset) if read_record(asset) is None else found
    if asset.by_hand:
        raise CellFailure(
            f"{'; '.join(found.problems)}; it cannot be downloaded by a program: {address_of(asset)}"
        )
    if not download_allowed:
        return found
    return Finding(notes=_download(asset, name))


def _download(asset: UrlAsset, name: str) -> list[str]:
    file = file_of(asset)
    part = part_path(file)
    download(asset.url, part, name)
    sha256, size = sha256_file(part), part.stat().st_size
    _verify(asset, sha256, size, part)
    if asset.unpack:
        files = _unpack(asset, part)
    else:
        part.replace(file)
        files = {file.name: FileFacts(size, sha256)}
    write_record(asset, UrlRecord(sha256, files))
    forget(part)
    return [] if asset.sha256 else [_trusted(asset, sha256)]


def _verify(asset: UrlAsset, sha256: str, size: int, part: Path) -> None:
    expected, why = asset.sha256, "it is pinned"
    before = read_record(asset)
    if expected is None and before:
        expected = before.sha256
        why = f"it was first fetched; delete {record_of(asset)} to trust what there is now"
    if expected not in (None, sha256) or asset.size not in (None, size):
        forget(part)
        raise CellFailure(f"{asset.url} does not give the file as {why} (sha256 {sha256}, {size} bytes)")


def _trusted(asset: UrlAsset, sha256: str) -> str:
    return f"{asset.path}: nobody has published its hash; recorded for later checks: sha256 {sha256}"


def _recorded(asset: UrlAsset) -> Finding:
    """Take what lies there for what it should be, as far as a published hash does not tell."""
    folder = folder_of(asset)
    names = asset.unpack or (Path(asset.path).name,)
    files = {name: FileFacts((folder / name).stat().st_size, sha256_file(folder / name)) for name in names}
    if not asset.unpack:
        (facts,) = files.values()
        if asset.sha256 not in (None, facts.sha256):
            raise CellFailure(
                f"{asset.path} has other content than {asset.url}: remove it to have it fetched"
            )
        write_record(asset, UrlRecord(facts.sha256, files))
        return Finding(notes=[] if asset.sha256 else [_trusted(asset, facts.sha256)])
    write_record(asset, UrlRecord(asset.sha256 or "", files))
    return Finding(notes=[f"{asset.path}: its files were put there by hand; recorded for later checks"])


def _unpack(asset: UrlAsset, archive: Path) -> dict[str, FileFacts]:
    folder = folder_of(asset)
    try:
        with zipfile.ZipFile(archive) as opened:
            members = [member for member in opened.infolist() if not member.is_dir()]
            _check_members(asset, members)
            return {member.filename: _extract(opened, member, folder) for member in members}
    except zipfile.BadZipFile as error:
        forget(archive)
        raise CellFailure(f"{asset.url} gives no ZIP file ({error})") from None


def _check_members(asset: UrlAsset, members: Sequence[zipfile.ZipInfo]) -> None:
    names = [member.filename for member in members]
    for name in names:
        path = Path(name)
        if path.is_absolute() or ".." in path.parts:
            raise CellFailure(f"{asset.url}: its file {name} would leave the folder: nothing was unpacked")
    if lacking := [name for name in asset.unpack if name not in names]:
        raise CellFailure(f"{asset.url} lacks {', '.join(lacking)}: nothing was unpacked")


def _extract(archive: zipfile.ZipFile, member: zipfile.ZipInfo, folder: Path) -> FileFacts:
    target = folder / member.filename
    part = part_path(target)
    part.parent.mkdir(parents=True, exist_ok=True)
    try:
        with archive.open(member) as source, part.open("wb") as file:
            shutil.copyfileobj(source, file, 1 << 20)
    except OSError as error:
        raise disk_error(error, target, part) from error
    facts = FileFacts(part.stat().st_size, sha256_file(part))
    part.replace(target)
    return facts
