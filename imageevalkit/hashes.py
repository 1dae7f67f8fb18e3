"""Hashes of files, as results, the hub and git name them, and of the environment. Needs the standard library only."""

from __future__ import annotations

import functools
import hashlib
import platform
import re
from collections.abc import Iterable
from pathlib import Path

_CHUNK = 1 << 20


def sha256_file(path: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    return _digest_of(path, hashlib.sha256())


def git_blob_of(path: Path) -> str:
    """git's name for the content of a file: 40 hex digits."""
    return _digest_of(path, hashlib.sha1(b"blob %d\0" % path.stat().st_size))


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
