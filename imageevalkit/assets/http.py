"""Checks and downloads files from any URL. An interrupted download resumes at the byte where it stopped."""

from __future__ import annotations

import functools
import os
import shutil
import socket
import ssl
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar
from urllib.parse import unquote, urlsplit

from imageevalkit.assets import FileFacts, Finding, Record, UrlAsset, compared, is_there
from imageevalkit.common.atomic import disk_error, part_path
from imageevalkit.common.errors import CellFailure, UserError, say
from imageevalkit.common.locks import take_lock
from imageevalkit.common.network import check_network, proxy_of
from imageevalkit.common.redaction import one_line, redact
from imageevalkit.common.text import some
from imageevalkit.store.cell import REPO

if TYPE_CHECKING:
    import httpx2

T = TypeVar("T")

TRIES = 5
_FIRST_WAIT = 2.0
_LONGEST_WAIT = 120.0
_PAUSE = 2.0  # a name server may be unavailable for a moment
_CHUNK = 1 << 16  # bytes; a broken connection loses at most one chunk
_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
_HUB = "https://huggingface.co"


def _places(asset: UrlAsset) -> tuple[Path, Path, Path]:
    """Returns the folder of the asset's files, the path of the download, and the path of the record.

    A later check compares with the record if nobody has published a hash."""
    place = REPO / asset.path
    folder = place if asset.unpack else place.parent
    file = folder / Path(urlsplit(asset.url).path if asset.unpack else asset.path).name
    return folder, file, file.with_name(f".{file.name}.fetched.json")


def check_url(asset: UrlAsset, hashes: bool) -> Finding:
    """Checks the sizes of the asset's files as far as known, and their content if ``hashes``."""
    folder, file, kept = _places(asset)
    record = Record.read(kept)
    if record and asset.sha256 and record.known.get("sha256") != asset.sha256:
        return Finding([f"{asset.path} is not the required version"])
    published = FileFacts(asset.size, asset.sha256) if asset.sha256 and not asset.unpack else None
    files = (record and record.files) or dict.fromkeys(asset.unpack or [file.name], published)
    problems = compared(asset.path, folder, files, hashes)
    if problems and not asset.unpack and not is_there(file):
        problems = [f"{asset.path} is missing"]  # compared() would name the only file twice
    is_known = any(files.values())
    unknown = f"{asset.path}: nobody has published its hash, and it was not fetched by prefetch: not verified"
    return Finding(problems, [] if problems or is_known else [unknown], is_known)


def fetch_file(asset: UrlAsset, name: str, hashes: bool, download_allowed: bool) -> Finding:
    """Downloads ``asset`` if it is incomplete, and records files that a user has put there by hand.

    Raises CellFailure if the download fails or the content is wrong.
    """
    found = check_url(asset, hashes)
    if found.problems and asset.by_hand:
        raise CellFailure(
            f"{some(found.problems)}; it cannot be downloaded by a program: get it from {asset.url}"
            f"{', unpacked' * bool(asset.unpack)} and put it at {REPO / asset.path}"
        )
    if found.problems:
        return Finding(notes=_download(asset, name)) if download_allowed else found
    folder, file, record = _places(asset)
    if Record.read(record):
        return found
    # without a published hash the existing files are trusted
    files = {part: FileFacts.of(folder / part) for part in asset.unpack or (file.name,)}
    sha256 = (asset.sha256 or "") if asset.unpack else files[file.name].digest
    if asset.is_other(sha256):
        raise CellFailure(f"{asset.path} has other content than {asset.url}: remove it to download it again")
    return Finding(notes=_recorded(asset, sha256, files))


def _download(asset: UrlAsset, name: str) -> list[str]:
    folder, file, record = _places(asset)
    part = part_path(file)
    with download(asset.url, part, name):
        facts, before = FileFacts.of(part), Record.read(record)
        recorded, why = None, "pinned"
        if asset.sha256 is None and before:
            recorded = before.known.get("sha256")
            why = f"at the first download; delete {record} to accept the new file"
        is_other = recorded not in (None, facts.digest) or asset.is_other(facts.digest)
        if is_other or asset.size not in (None, facts.size):
            forget(part)
            raise CellFailure(
                f"{asset.url} has another file than {why} (sha256 {facts.digest}, {facts.size} bytes)"
            )
        if asset.unpack:
            files = _unpack(asset, part, folder)
        else:
            part.replace(file)
            files = {file.name: facts}
        notes = _recorded(asset, facts.digest, files)
        forget(part)
    return notes


def _recorded(asset: UrlAsset, sha256: str, files: dict[str, FileFacts]) -> list[str]:
    """Records the hashes of the download and of its files. Returns a note if there is no published hash."""
    Record({"url": asset.url, "sha256": sha256}, files).write(_places(asset)[2])
    shown = f": sha256 {sha256}" * bool(sha256)
    published = f"published are only the first {len(asset.sha256_start)} digits of its hash"
    why = published if asset.sha256_start else "nobody has published its hash"
    note = f"{asset.path}: {why}; recorded for later checks{shown}"
    return [] if asset.sha256 else [note]


def _unpack(asset: UrlAsset, archive: Path, folder: Path) -> dict[str, FileFacts]:
    new = archive.with_name(f"{archive.name}.files")
    shutil.rmtree(new, ignore_errors=True)
    try:
        with zipfile.ZipFile(archive) as opened:
            names = [member.filename for member in opened.infolist() if not member.is_dir()]
            for name in names:
                if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
                    raise CellFailure(
                        f"{asset.url}: its file {name} would leave the folder: nothing was unpacked"
                    )
            if lacking := [name for name in asset.unpack if name not in names]:
                raise CellFailure(f"{asset.url} lacks {', '.join(lacking)}: nothing was unpacked")
            opened.extractall(new)
        files = {name: FileFacts.of(new / name) for name in names}
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (new / name).replace(folder / name)
    except CellFailure:
        raise
    except Exception as error:  # each compression has its own errors: bz2 an OSError without a number
        if isinstance(error, OSError) and error.errno:
            raise disk_error(error, folder) from error
        forget(archive)
        raise CellFailure(f"{asset.url} is no ZIP file that can be unpacked ({one_line(error)})") from None
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return files


# --- downloads ---


class PassingFailure(Exception):
    """A failure that a retry may fix. ``wait`` is Retry-After in seconds; ``has_moved``: bytes arrived."""

    def __init__(self, why: str, wait: float = 0.0, has_moved: bool = False) -> None:
        super().__init__(why)
        self.wait, self.has_moved = wait, has_moved


def until_it_passes(name: str, attempt: Callable[[], T]) -> T:
    """Returns the result of ``attempt``, retried after each PassingFailure. Announces retries on stderr.

    Raises CellFailure after :data:`TRIES` failures in a row without any new bytes.
    """
    failures, wait = 0, _FIRST_WAIT
    while True:
        try:
            return attempt()
        except PassingFailure as failure:
            if failure.has_moved:
                failures, wait = 0, _FIRST_WAIT
            failures += 1
            if failures == TRIES:
                message = f"{failure} (after {TRIES} tries; the same command resumes here)"
                raise CellFailure(message) from None
            pause = min(max(wait, failure.wait), _LONGEST_WAIT)
            say(f"{name}: {failure}; try {failures + 1} of {TRIES} in {pause:g} s", sys.stderr)
        time.sleep(pause)
        wait *= 2


_ELSEWHERE = "run this where there is internet, or copy from a folder with --mirror DIR"


def check_reach(url: str, remedy: str = _ELSEWHERE, wanted: str = "") -> None:
    """Raises CellFailure if the host of ``url`` has no address or the environment names an unusable proxy.

    Behind a proxy the host is not looked up: the proxy does this itself.
    """
    try:
        check_network(url)
    except UserError as error:
        raise CellFailure(f"{wanted}{': ' * bool(wanted)}{error}") from None
    if proxy_of(url):
        return
    if why := _why(urlsplit(url).hostname or ""):
        raise CellFailure(f"{wanted}{': ' * bool(wanted)}{why}; {remedy}")


@functools.cache
def _why(host: str) -> str:
    why = ""
    for pause in (0.0, _PAUSE):
        time.sleep(pause)
        try:
            socket.getaddrinfo(host, None)
            return ""
        except OSError as error:
            why = f"{host} cannot be reached ({error.strerror or error})"
    return why


@contextmanager
def download(url: str, part: Path, name: str, shown: bool = True) -> Iterator[None]:
    """A ``with`` block in which the content of ``url`` is at ``part``, locked. The block moves the file.

    If ``part`` has the beginning of an earlier download, only the rest is requested, provided that ETag or
    date show the same file. Transient failures (network, 429, 5xx) are retried. With ``shown``, a progress
    bar has the name ``name``. Raises CellFailure if the server refuses, stays unreachable, or the disk is
    full; OSError for other disk errors.
    """
    from tqdm import tqdm

    address = url.replace(_HUB, _endpoint(), 1) if url.startswith(f"{_HUB}/") else url
    check_reach(address)
    sizes: dict[str, Any] = {"unit": "B", "unit_scale": True, "unit_divisor": 1024}
    try:
        with locked(part) as file:
            with tqdm(desc=name, disable=None if shown else True, **sizes) as bar:
                until_it_passes(name, lambda: _get(address, part, file, bar))
            yield
    except OSError as error:
        raise disk_error(error, part) from error
    except CellFailure:
        if part.exists() and not part.stat().st_size:
            forget(part)
        raise


@contextmanager
def locked(path: Path) -> Iterator[BinaryIO]:
    """A ``with`` block that has the file ``path`` open for appending, with an exclusive lock.

    If the previous owner removed or renamed the file, the block gets a new file."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            take_lock(file.fileno(), path, wait=True)
            if path.exists() and os.path.samestat(path.stat(), os.fstat(file.fileno())):
                yield file
                return


@contextmanager
def alone(work: Path) -> Iterator[Path]:
    """A ``with`` block that has the empty folder ``work`` alone, and removes it at the end.

    It first waits for the children of a killed process to end, and removes that process's files."""
    with locked(work / "lock") as lock:
        os.set_inheritable(lock.fileno(), True)
        for left in work.iterdir():
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            elif left.name != "lock":
                left.unlink()
        try:
            yield work
        finally:
            shutil.rmtree(work, ignore_errors=True)


def forget(part: Path) -> None:
    """Removes the files of an unfinished download."""
    part.unlink(missing_ok=True)
    _edition_path(part).unlink(missing_ok=True)


@functools.cache
def _client() -> httpx2.Client:
    import httpx2

    from imageevalkit.common.transports import Transport

    timeout = httpx2.Timeout(60, connect=30)
    return httpx2.Client(
        transport=Transport(verify=httpx2.create_ssl_context()), timeout=timeout, follow_redirects=True
    )


def _get(url: str, part: Path, file: BinaryIO, bar: Any) -> None:
    import httpx2

    here = before = file.seek(0, os.SEEK_END)
    edition = _edition_path(part).read_text(encoding="utf-8") if _edition_path(part).exists() else ""
    headers = {"Accept-Encoding": "identity", **_token(url)}
    if here and edition:
        headers |= {"Range": f"bytes={here}-", "If-Range": edition}
    bare, user = _without_user(url)
    try:
        with _client().stream("GET", bare, headers=headers, auth=user) as reply:
            if reply.status_code == 416:  # the download is complete, or the server has another file
                is_whole = reply.headers.get("Content-Range") == f"bytes */{here}"
                if is_whole and _edition(reply) in ("", edition):
                    bar.update(here)
                    return
                file.truncate(0)
                _edition_path(part).unlink(missing_ok=True)
                raise PassingFailure("the server has another file now")
            _check(reply, url)
            if reply.status_code != 206:
                here = file.truncate(0)
                _edition_path(part).write_text(_edition(reply), encoding="utf-8")
            length = reply.headers.get("Content-Length")
            bar.reset(here + int(length) if length else None)
            bar.update(here)
            for chunk in reply.iter_raw(_CHUNK):
                bar.update(file.write(chunk))
            file.flush()
    except (httpx2.HTTPError, httpx2.InvalidURL, ssl.SSLError, UnicodeError) as error:
        file.flush()
        why = f"{url} cannot be reached ({type(error).__name__})"
        raise PassingFailure(redact(why), has_moved=file.seek(0, os.SEEK_END) > before) from None


def _check(reply: httpx2.Response, url: str) -> None:
    status = reply.status_code
    if status in _TRANSIENT:
        after = reply.headers.get("Retry-After", "")
        raise PassingFailure(redact(f"{url} answers {status}"), float(after) if after.isdecimal() else 0.0)
    if status not in (200, 206):
        access = "; set HF_TOKEN to one that has access" if status in (401, 403) else ""
        raise CellFailure(one_line(f"{url} answers {status} {reply.reason_phrase}{access}"))


def _edition(reply: httpx2.Response) -> str:
    """Returns the strong ETag of the file, or else its date, or "": a changed value means a changed file."""
    etag = reply.headers.get("ETag", "")
    return (etag if etag and not etag.startswith("W/") else reply.headers.get("Last-Modified", "")) or ""


def _edition_path(part: Path) -> Path:
    return part.with_name(f"{part.name}.edition")


def _endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or _HUB


def _token(url: str) -> dict[str, str]:
    """Returns a header with the hub's token for a URL of the hub. httpx2 drops it on redirects elsewhere."""
    token = os.environ.get("HF_TOKEN", "")
    of_hub = url.startswith((f"{_HUB}/", f"{_endpoint()}/"))
    return {"Authorization": f"Bearer {token}"} if token and of_hub else {}


def _without_user(url: str) -> tuple[str, tuple[str, str] | None]:
    """Returns ``url`` without ``user:password@``, and user and password without percent encoding."""
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    name, _, password = user.partition(":")
    return parts._replace(netloc=host).geturl(), (unquote(name), unquote(password)) if at else None
