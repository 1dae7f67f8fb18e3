"""The recorded calls of the stand-ins of authors' code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CALLS: list[tuple[str, dict[str, Any]]] = []


def record(name: str, arguments: Mapping[str, Any]) -> None:
    """Keep a call of the stand-in function ``name``; ``arguments`` are its ``locals()``."""
    own = ("self", "__class__")
    CALLS.append((name, {key: value for key, value in arguments.items() if key not in own}))


def calls(name: str) -> list[dict[str, Any]]:
    """The calls of the stand-in function ``name``."""
    return [arguments for called, arguments in CALLS if called == name]
