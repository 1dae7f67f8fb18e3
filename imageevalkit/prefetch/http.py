"""Files over HTTP that go on where a killed or cut-off download stopped."""

from __future__ import annotations

import functools
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from tqdm import tqdm

from imageevalkit.errors import CellFailure, say
from imageevalkit.locks import take_lock
from imageevalkit.secrets import one_line, redact

# a resolver may be away for a moment
_PAUSE = 2.0


def why_unreachable(url: str) -> str:
    """``"huggingface.co cannot be reached (Name or service not known)"``; empty where its host has an address.

    Behind a proxy nothing is asked: the proxy looks hosts up.
    """
    if any(name.lower() in ("https_proxy", "http_proxy", "all_proxy") for name in os.environ):
        return ""
    return _why(urlsplit(url).hostname or "")


@functools.cache
def _why(host: str) -> str:
    for last in (False, True):
        try:
            socket.getaddrinfo(host, None)
        except OSError as error:
            if last:
                return f"{host} cannot be reached ({error.strerror or error})"
            time.sleep(_PAUSE)
        else:
            break
    return ""


TRIES = 5
_FIRST_WAIT = 2.0
_LONGEST_WAIT = 120.0
_TIMEOUT = (30, 60)  # seconds to connect, and without a byte
_CHUNK = 1 << 16  # a chunk that is cut off is lost
_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
_HUB = "https://huggingface.co"


class _PassingFailure(Exception):
    """A failure that may pass; ``wait`` is what the server asks for, in seconds."""

    def __init__(self, why: str, wait: float = 0.0) -> None:
        super().__init__(why)
        self.wait = wait


def download(url: str, part: Path, name: str, resume: bool = True) -> None:
    """Leave what ``url`` gives at ``part``, where an earlier attempt may have left its beginning.

    Goes on there only if the server has the same file still, as its ETag or date tells; without ``resume`` it starts
    anew. A bar called ``name`` shows how far it is. A transient failure (network, 429, 5xx) is tried again,
    :data:`TRIES` times without a new byte.

    Raises:
        CellFailure: one line on what the server refused, or that it stays away.
        OSError: the disk.
    """
    if why := why_unreachable(_through_mirror(url)):
        raise CellFailure(f"{why}; run this where there is internet, or copy from a folder with --mirror DIR")
    part.parent.mkdir(parents=True, exist_ok=True)
    with _locked(part) as file:
        if not resume:
            file.truncate(0)
        failures, wait = 0, _FIRST_WAIT
        with tqdm(desc=name, unit="B", unit_scale=True, unit_divisor=1024, disable=None) as bar:
            while True:
                before = file.seek(0, os.SEEK_END)
                try:
                    return _get(_through_mirror(url), part, file, bar)
                except _PassingFailure as failure:
                    if file.seek(0, os.SEEK_END) > before:
                        failures, wait = 0, _FIRST_WAIT
                    failures += 1
                    if failures == TRIES:
                        raise CellFailure(
                            f"{failure} (after {TRIES} tries; the same command goes on from here)"
                        ) from None
                    pause = min(max(wait, failure.wait), _LONGEST_WAIT)
                    say(f"{name}: {failure}; try {failures + 1} of {TRIES} in {pause:g} s", sys.stderr)
                time.sleep(pause)
                wait *= 2


def forget(part: Path) -> None:
    """Remove what a download has left."""
    part.unlink(missing_ok=True)
    _edition_path(part).unlink(missing_ok=True)


@contextmanager
def _locked(part: Path) -> Iterator[IO[bytes]]:
    with part.open("ab") as file:
        take_lock(file.fileno(), part, wait=True)
        yield file


def _get(url: str, part: Path, file: IO[bytes], bar: tqdm[Any]) -> None:
    import requests

    here, edition = file.seek(0, os.SEEK_END), _read(_edition_path(part))
    headers = {"Accept-Encoding": "identity", **_token(url)}
    if here and edition:
        headers |= {"Range": f"bytes={here}-", "If-Range": edition}
    try:
        with requests.get(url, headers=headers, stream=True, timeout=_TIMEOUT) as reply:
            if reply.status_code == 416:  # nothing is left, or it is another file
                if _is_whole(reply, here, edition):
                    bar.reset(here)
                    bar.update(here)
                    return
                file.truncate(0)
                _edition_path(part).unlink(missing_ok=True)
                raise _PassingFailure("the server has another file now")
            _check(reply, url)
            if reply.status_code != 206:
                here = file.truncate(0)
                _edition_path(part).write_text(_edition(reply), encoding="utf-8")
            length = reply.headers.get("Content-Length")
            total = here + int(length) if length else None
            bar.reset(total)
            bar.update(here)
            for chunk in reply.iter_content(_CHUNK):
                bar.update(file.write(chunk))
            file.flush()
    except requests.RequestException as error:
        file.flush()
        raise _PassingFailure(redact(f"{url} cannot be reached ({type(error).__name__})")) from None
    if total is not None and file.seek(0, os.SEEK_END) != total:
        raise _PassingFailure(redact(f"{url} was cut off"))


def _is_whole(reply: Any, here: int, edition: str) -> bool:
    """Whether the server refuses the range because all ``here`` bytes of the file have come already."""
    return reply.headers.get("Content-Range") == f"bytes */{here}" and _edition(reply) in ("", edition)


def _check(reply: Any, url: str) -> None:
    status = reply.status_code
    if status in _TRANSIENT:
        after = reply.headers.get("Retry-After", "")
        raise _PassingFailure(redact(f"{url} answers {status}"), float(after) if after.isdecimal() else 0.0)
    if status not in (200, 206):
        access = "; set HF_TOKEN to one that has access" if status in (401, 403) else ""
        raise CellFailure(one_line(f"{url} answers {status} {reply.reason}{access}"))


def _edition(reply: Any) -> str:
    """What tells whether a file is still the same: a strong ETag, else its date; empty: nothing does."""
    etag = reply.headers.get("ETag", "")
    return (etag if etag and not etag.startswith("W/") else reply.headers.get("Last-Modified", "")) or ""


def _edition_path(part: Path) -> Path:
    return part.with_name(f"{part.name}.edition")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


def _endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or _HUB


def _through_mirror(url: str) -> str:
    return _endpoint() + url.removeprefix(_HUB) if url.startswith(f"{_HUB}/") else url


def _token(url: str) -> dict[str, str]:
    """The hub's token, for the hub alone: requests does not take it along to another host."""
    token = os.environ.get("HF_TOKEN", "")
    of_hub = url.startswith((f"{_HUB}/", f"{_endpoint()}/"))
    return {"Authorization": f"Bearer {token}"} if token and of_hub else {}
