"""What a file must be, and what a look at it finds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from imageevalkit.hashes import git_blob_of, sha256_file


class FileFacts(NamedTuple):
    """``size`` in bytes, and one of the two hashes: SHA-256, or git's name of the content."""

    size: int
    sha256: str = ""
    blob: str = ""

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> FileFacts:
        """From the JSON object that :meth:`as_json` gave. Raises KeyError, TypeError or ValueError for another."""
        return cls(int(value["size"]), str(value.get("sha256", "")), str(value.get("blob", "")))

    def as_json(self) -> dict[str, Any]:
        """An object without empty fields."""
        return {name: value for name, value in self._asdict().items() if value != ""}


def is_there(path: Path) -> bool:
    """Whether there is a file; a link counts by what it stands for."""
    try:
        return path.is_file()
    except OSError:  # no permission, or a link that points to itself
        return False


def wrong(path: Path, name: str, facts: FileFacts, hashes: bool) -> str:
    """What is wrong with the file at ``path``, which is there; empty when it is right.

    Its size is looked at always, its content if ``hashes``.
    """
    try:
        size = path.stat().st_size
        if size != facts.size:
            return f"{name} has {size} bytes instead of {facts.size}"
        if hashes and not (
            sha256_file(path) == facts.sha256 if facts.sha256 else git_blob_of(path) == facts.blob
        ):
            return f"{name} has other content"
    except OSError as error:
        return f"{name} cannot be read ({error.strerror})"
    return ""


def read_json(path: Path) -> Any:
    """What ``path`` holds, or None where it is not there or is no JSON."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
