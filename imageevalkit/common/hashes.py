"""Hashes of files, as used by results, the hub and git, and of the environment. Standard library only."""

from __future__ import annotations

import functools
import hashlib
import platform
import re
from collections.abc import Iterable
from pathlib import Path

from imageevalkit.common.text import to_bytes

_CHUNK = 1 << 20


def sha256_file(path: Path) -> str:
    """Returns the hex SHA-256 of a file's bytes."""
    return _digest_of(path, hashlib.sha256())


def git_blob_of(path: Path) -> str:
    """Returns git's hash of a file's content: 40 hex digits."""
    return _digest_of(path, hashlib.sha1(b"blob %d\0" % path.stat().st_size))


def _digest_of(path: Path, digest: hashlib._Hash) -> str:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


_SAMPLE = 1 << 20


def weights_of(model_path: str) -> dict[str, str]:
    """Returns a hash of a local checkpoint (names, sizes, first and last MiB of files) or an empty dict."""
    path = Path(model_path)
    if not model_path or not path.exists():
        return {}  # a hub id, an API's model id, or a missing path
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    digest = hashlib.sha256()
    for file in files:
        if not file.name.startswith("."):
            size = file.stat().st_size
            digest.update(to_bytes(f"{file.relative_to(path)}:{size}:"))
            with file.open("rb") as opened:
                digest.update(opened.read(_SAMPLE))
                opened.seek(max(0, size - _SAMPLE))
                digest.update(opened.read(_SAMPLE))
    return {"weights": digest.hexdigest()[:16]}


# Both are in the first lines of a METADATA file. importlib.metadata parses the whole file, description
# included, for every attribute, which takes ten times as long.
_NAME = re.compile(r"^Name:[ \t]*(\S+)", re.MULTILINE | re.IGNORECASE)
_VERSION = re.compile(r"^Version:[ \t]*(\S+)", re.MULTILINE | re.IGNORECASE)


@functools.cache
def environment_hash() -> str:
    """Returns :func:`hash_of` the distributions and the Python of this process."""
    return hash_of(installed(), platform.python_version())


def hash_of(versions: Iterable[str], python: str) -> str:
    """Returns the SHA-256 (hex) of the lines ``python==3.12.1`` and sorted, unique ``name==version``."""
    lines = [f"python=={python}", *sorted(set(versions))]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def installed() -> list[str]:
    """Returns ``name==version`` of every installed distribution, names normalised according to PEP 503."""
    from importlib.metadata import distributions  # importing it takes a third of the start of a small command

    found = []
    for distribution in distributions():
        # of a wheel, an egg, an egg-info that is a file
        text = next(filter(None, map(distribution.read_text, ("METADATA", "PKG-INFO", ""))), "")
        name, version = _NAME.search(text), _VERSION.search(text)
        if name and version:
            found.append(f"{re.sub(r'[-_.]+', '-', name[1]).lower()}=={version[1]}")
    return found
