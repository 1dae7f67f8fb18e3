"""Hashes of files, as results, the hub and git name them. Needs the standard library only."""

from __future__ import annotations

import hashlib
import os
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
    folders = [(os.fsencode(name) + b"/", b"40000", git_tree(held)) for name, held in below.items()]
    content = b"".join(
        mode + b" " + name.removesuffix(b"/") + b"\0" + bytes.fromhex(hexed)
        for name, mode, hexed in sorted(files + folders)
    )
    return hashlib.sha1(b"tree %d\0" % len(content) + content).hexdigest()


def _digest_of(path: Path, digest: hashlib._Hash) -> str:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
