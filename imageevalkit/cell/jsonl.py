"""Append-only JSON Lines that survive ``kill -9`` in the middle of a line, and the shapes that readers rely on."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from datetime import datetime
from pathlib import Path
from types import UnionType
from typing import Any, Literal, NamedTuple, NewType, Union, get_args, get_origin, get_type_hints

from imageevalkit.atomic import disk_error
from imageevalkit.cell import short_path
from imageevalkit.errors import CellFailure
from imageevalkit.machine import when_one_is_free
from imageevalkit.secrets import one_line
from imageevalkit.text import to_bytes

_MOST_TOLD = 5  # of the bad lines of one file
# far more than any file of ours has, and far less than what Python's own recursion stands
_MOST_LEVELS = 64
_LONGEST_VALUE = 60

Check = Callable[[Any], bool]
Tell = Callable[[str], None]
"""Takes one line about something that cannot be read."""


def tell_nobody(text: str) -> None:
    """For who reads what somebody else has complained of."""


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
        for name in self.must:
            if name not in value:
                return f"'{name}' is missing"
        for name, part in value.items():
            check = self.must.get(name) or self.may.get(name)
            if check and not check(part):
                return f"'{name}' is {_shown(part)}"
        return ""


def _shown(value: Any) -> str:
    text = json.dumps(value, default=repr)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"


def shape_of(cls: type) -> Shape:
    """The shape of the objects that stand for ``cls``, a dataclass (fields with a default may be missing) or TypedDict.

    Known are JSON's own types, Literal, X | None, tuples of so many parts, lists, mappings, further such classes
    and :data:`Time`. Numbers are finite, and a float may be a whole number.
    """
    hints = {name: _check_of(hint) for name, hint in get_type_hints(cls).items()}
    if not is_dataclass(cls):  # a TypedDict
        return Shape(hints)
    must, may = dict[str, Check](), dict[str, Check]()
    for each in fields(cls):
        needed = each.default is MISSING and each.default_factory is MISSING
        (must if needed else may)[each.name] = hints[each.name]
    return Shape(must, may)


def _check_of(hint: Any) -> Check:
    origin = get_origin(hint)
    if origin is Literal:
        return one_of(*get_args(hint))
    if origin in (Union, UnionType):  # of a type and None
        return or_null(*(_check_of(part) for part in get_args(hint) if part is not type(None)))
    args = [_check_of(part) for part in get_args(hint)]
    if origin is tuple:
        return lambda value: (
            isinstance(value, list | tuple)
            and len(value) == len(args)
            and all(check(part) for check, part in zip(args, value, strict=True))
        )
    if origin in (list, Sequence):
        return lambda value: isinstance(value, list) and all(map(args[0], value))
    if origin in (dict, Mapping):
        return mapping_of(args[1])
    if hint in _CHECKS:
        return _CHECKS[hint]
    shape = shape_of(hint)
    return lambda value: not shape.problem(value)


def is_text(value: Any) -> bool:
    """Whether it is a string."""
    return isinstance(value, str)


def is_number(value: Any) -> bool:
    """Whether it is a finite number that a float can hold."""
    most = sys.float_info.max
    return isinstance(value, int | float) and not isinstance(value, bool) and -most <= value <= most


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


def _is_time(value: Any) -> bool:
    try:
        datetime.fromisoformat(value).timestamp()
    except (TypeError, ValueError, OverflowError):
        return False
    return True


Time = NewType("Time", str)
"""ISO 8601."""
_CHECKS: dict[Any, Check] = {
    Any: lambda value: True,
    str: is_text,
    bool: lambda value: isinstance(value, bool),
    int: lambda value: isinstance(value, int) and not isinstance(value, bool),
    float: is_number,
    Time: _is_time,
}


def read_jsonl(path: Path, shape: Shape, tell: Tell = tell_nobody) -> Iterator[dict[str, Any]]:
    """Yield the records of ``path`` that have ``shape``; nothing when it does not exist.

    Another line (the torn tail of a killed writer, damage) is passed over as if it was not there, and told with its
    number.

    Raises:
        CellFailure: the file is there and cannot be read.
    """
    bad = 0
    try:
        for number, line in enumerate(_lines(path), 1):
            record, problem = _record(line, shape)
            if not problem:
                yield record
            elif line.strip():
                bad += 1
                if bad <= _MOST_TOLD:
                    tell(f"{short_path(path)}:{number}: not a record: {problem}")
    except OSError as error:
        raise CellFailure(f"{short_path(path)} cannot be read: {error.strerror}") from None
    if bad > _MOST_TOLD:
        tell(f"{short_path(path)}: {bad - _MOST_TOLD} more lines are no records")


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with when_one_is_free(lambda: path.open("rb")) as file:
            yield from file
    except FileNotFoundError:
        if path.is_symlink():  # perhaps to a disk that is not mounted
            raise


def _record(line: bytes, shape: Shape) -> tuple[Any, str]:
    try:
        record = parse(line.strip())
    except json.JSONDecodeError as error:
        return None, f"{error.msg} at column {error.colno}"
    except ValueError as error:
        return None, one_line(error, 100)
    return record, shape.problem(record)


class JsonlWriter:
    """Appends records to ``path``; each is one ``write`` call, so that writers never interleave."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        self._unsynced = False
        size = os.fstat(self._fd).st_size
        if size and not self._ends_with_newline(size):
            # close a torn last line, or the next record would be glued to it and lost with it
            self._write(b"\n")

    def _ends_with_newline(self, size: int) -> bool:
        with self._path.open("rb") as file:
            file.seek(size - 1)
            return file.read(1) == b"\n"

    def _write(self, data: bytes) -> None:
        try:
            written = os.write(self._fd, data)
        except OSError as error:
            raise disk_error(error, self._path) from error
        if written < len(data):
            # a full disk takes the first bytes and refuses the rest: raise the same error for both
            self._write(data[written:])

    def append(self, record: dict[str, Any]) -> bytes:
        """Append one record; returns its line, without the newline.

        Raises:
            CellFailure: the disk is full.
        """
        line = to_bytes(json.dumps(record, ensure_ascii=False, separators=(",", ":")))
        self.append_line(line)
        return line

    def append_line(self, line: bytes) -> None:
        """Append one ``line`` as it is. Raises CellFailure when the disk is full."""
        self._write(line + b"\n")
        self._unsynced = True

    def sync(self) -> None:
        """Return when all that was appended before is on the disk; at once where it is.

        Raises:
            CellFailure: the disk is full.
        """
        if self._unsynced:
            self._unsynced = False
            try:
                os.fsync(self._fd)
            except OSError as error:
                self._unsynced = True
                raise disk_error(error, self._path) from error

    def is_at(self, path: Path) -> bool:
        """Whether the file that is written is the one at ``path``, and not one that was removed."""
        try:
            return os.path.samestat(os.fstat(self._fd), path.stat())
        except FileNotFoundError:
            return False

    def close(self) -> None:
        """Flush to the disk and close."""
        try:
            self.sync()
        finally:
            os.close(self._fd)
