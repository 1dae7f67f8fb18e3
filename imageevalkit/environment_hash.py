"""The hash of an environment: two results with the same one were made with the same packages, by the same Python."""

from __future__ import annotations

import functools
import hashlib
import platform
import re
from collections.abc import Iterable
from importlib.metadata import distributions

# Both stand among the first lines of a METADATA file. Parsing it as a whole, description included, as
# importlib.metadata does for every attribute, takes ten times as long.
_NAME = re.compile(r"^Name:[ \t]*(\S+)", re.MULTILINE | re.IGNORECASE)
_VERSION = re.compile(r"^Version:[ \t]*(\S+)", re.MULTILINE | re.IGNORECASE)


@functools.cache
def environment_hash() -> str:
    """The :func:`hash_of` the distributions installed for this process and of its Python; computed once."""
    return hash_of(installed(), platform.python_version())


def hash_of(versions: Iterable[str], python: str) -> str:
    """64 hex digits: the SHA-256 of ``python==3.12.1`` and of the sorted ``name==version``, a line each.

    The same in a conda environment and a venv; their places, and what was installed twice, do not count.
    """
    lines = [f"python=={python}", *sorted(set(versions))]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def installed() -> list[str]:
    """``name==version`` of every installed distribution, names normalised as PEP 503 says, versions as they stand.

    A folder that an interrupted installation left without a name or a version is none.
    """
    found = []
    for distribution in distributions():
        # a wheel's, an egg's, an egg-info that is a file
        text = next(filter(None, map(distribution.read_text, ("METADATA", "PKG-INFO", ""))), "")
        name, version = _NAME.search(text), _VERSION.search(text)
        if name and version:
            found.append(f"{re.sub(r'[-_.]+', '-', name[1]).lower()}=={version[1]}")
    return found
