"""Hashes of files, as results, the hub and git name them, and of the environment. Needs the standard library only."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

_CHUNK = 1 << 20


def sha256_file(path: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    return _digest_of(path, hashlib.sha256())


def git_blob(path: Path) -> str:
    """git's name for the content of a file, or for where a link points: 40 hex digits."""
    if path.is_symlink():
        target = os.fsencode(os.readlink(path))  # noqa: PTH115 - pathlib drops the slash at its end
        return hashlib.sha1(b"blob %d\0" % len(target) + target).hexdigest()
    return git_blob_of(path)


def git_blob_of(path: Path) -> str:
    """The same, of the file that a link stands for."""
    return _digest_of(path, hashlib.sha1(b"blob %d\0" % path.stat().st_size))


class TreeEntry(NamedTuple):
    """A file as git knows it: ``mode`` is "100644", "100755" (executable) or "120000" (a link)."""

    mode: str
    path: str
    blob: str


def git_tree(entries: Iterable[TreeEntry]) -> str:
    """git's hash of a folder with these files; their paths are relative to it, with slashes."""
    files: list[tuple[bytes, bytes, str]] = []
    below: dict[str, list[TreeEntry]] = {}
    for mode, path, blob in entries:
        first, slash, rest = path.partition("/")
        if slash:
            below.setdefault(first, []).append(TreeEntry(mode, rest, blob))
        else:
            files.append((os.fsencode(first), mode.encode(), blob))
    # git sorts a folder as if its name ended in a slash
    files += [(os.fsencode(name) + b"/", b"40000", git_tree(held)) for name, held in below.items()]
    content = b"".join(
        mode + b" " + name.removesuffix(b"/") + b"\0" + bytes.fromhex(hexed)
        for name, mode, hexed in sorted(files)
    )
    return hashlib.sha1(b"tree %d\0" % len(content) + content).hexdigest()


def _digest_of(path: Path, digest: hashlib._Hash) -> str:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


# Both stand among the first lines of a METADATA file. Parsing it as a whole, description included, as
# importlib.metadata does for every attribute, takes ten times as long.
_NAME = re.compile(r"^Name:[ \t]*(\S+)", re.MULTILINE | re.IGNORECASE)
_VERSION = re.compile(r"^Version:[ \t]*(\S+)", re.MULTILINE | re.IGNORECASE)


@functools.cache
def environment_hash() -> str:
    """The :func:`hash_of` the distributions installed for this process and of its Python."""
    return hash_of(installed(), platform.python_version())


def hash_of(versions: Iterable[str], python: str) -> str:
    """64 hex digits: the SHA-256 of ``python==3.12.1`` and of the sorted ``name==version``, a line each, once each."""
    lines = [f"python=={python}", *sorted(set(versions))]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def installed() -> list[str]:
    """``name==version`` of every installed distribution that has both, names normalised as PEP 503 says."""
    from importlib.metadata import distributions  # a third of a light command's start

    found = []
    for distribution in distributions():
        # a wheel's, an egg's, an egg-info that is a file
        text = next(filter(None, map(distribution.read_text, ("METADATA", "PKG-INFO", ""))), "")
        name, version = _NAME.search(text), _VERSION.search(text)
        if name and version:
            found.append(f"{re.sub(r'[-_.]+', '-', name[1]).lower()}=={version[1]}")
    return found
