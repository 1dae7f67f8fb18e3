"""Numbers that a user gives for an API."""

from __future__ import annotations

from typing import Any

from imageevalkit.errors import UserError


def positive(name: str, value: Any, whole: bool = False) -> float:
    """``value`` of the setting ``name``, which must be a finite number above 0; ``whole``: an integer.

    Raises:
        UserError: it is not.
    """
    kinds = (int,) if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not 0 < value < float("inf"):
        raise UserError(f"{name} must be a positive {'whole ' * whole}number, not {value!r}")
    return value
