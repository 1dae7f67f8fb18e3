"""JSON that may be damaged: read so that it fails in one way only, and held against the shape that readers rely on."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

# far more than any file of ours has, and far less than what Python's own recursion stands
_MOST_LEVELS = 64
_LONGEST_VALUE = 60

Check = Callable[[Any], bool]


def parse(data: bytes) -> Any:
    """The JSON value in ``data``.

    Raises:
        ValueError: it is none, no UTF-8, nested too deep, or holds a number of thousands of digits.
    """
    try:
        value = json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    if data.count(b"[") + data.count(b"{") > _MOST_LEVELS:
        level = [value]
        for _ in range(_MOST_LEVELS):
            level = [inner for outer in level for inner in _values(outer)]
        if level:
            raise ValueError("it is nested too deep")
    return value


def _values(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


class Shape(NamedTuple):
    """What readers rely on in an object: fields that it ``must`` have, and others that it ``may`` have."""

    must: Mapping[str, Check]
    may: Mapping[str, Check] = {}

    def problem(self, value: Any) -> str:
        """What is wrong with ``value``, in a few words; empty when nothing is."""
        if not isinstance(value, dict):
            return "it is no JSON object"
        for name, check in {**self.must, **self.may}.items():
            if name not in value:
                if name in self.must:
                    return f"'{name}' is missing"
            elif not check(value[name]):
                return f"'{name}' is {_shown(value[name])}"
        return ""


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"


def is_text(value: Any) -> bool:
    """Whether it is a string."""
    return isinstance(value, str)


def is_number(value: Any) -> bool:
    """Whether it is a finite number that a float can hold."""
    most = sys.float_info.max
    return isinstance(value, int | float) and not isinstance(value, bool) and -most <= value <= most


def is_time(value: Any) -> bool:
    """Whether it is an ISO 8601 time."""
    try:
        datetime.fromisoformat(value).timestamp()
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def one_of(*values: str) -> Check:
    """Checks for one of these strings."""
    return lambda value: isinstance(value, str) and value in values


def or_null(check: Check) -> Check:
    """Checks for null or what passes ``check``."""
    return lambda value: value is None or check(value)


def mapping_of(check: Check) -> Check:
    """Checks for an object, each value of which passes ``check``."""
    return lambda value: isinstance(value, dict) and all(map(check, value.values()))


def is_object(value: Any) -> bool:
    """Whether it is an object, whatever is in it."""
    return isinstance(value, dict)
