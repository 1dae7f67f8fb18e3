"""Append-only JSON Lines that survive ``kill -9`` in the middle of a line, and the shapes that readers rely on."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from datetime import datetime
from pathlib import Path
from types import FunctionType, UnionType
from typing import Any, Literal, NewType, Union, get_args, get_origin, get_type_hints

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

Tell = Callable[[str], None]
"""Takes one line about something that cannot be read."""


def tell_nobody(text: str) -> None:
    """For who reads what somebody else has complained of."""


def parse(data: bytes) -> Any:
    """The JSON value in ``data``.

    Raises ValueError: it is none, no UTF-8, nested too deep, or holds a number of thousands of digits.
    """
    try:
        value = json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    if data.count(b"[") + data.count(b"{") > _MOST_LEVELS:
        level = [value]
        for _ in range(_MOST_LEVELS):
            lists = [list(v.values()) if isinstance(v, dict) else v for v in level]
            level = [inner for each in lists if isinstance(each, list) for inner in each]
        if level:
            raise ValueError("it is nested too deep")
    return value


class Shape:
    """What readers rely on in an object: fields that it ``must`` have, and others that it ``may`` have, by type.

    Types are JSON's own, Literal, X | None, tuples of so many parts, lists, mappings, what :meth:`of` takes,
    :data:`Time`, shapes, and functions that say whether a value passes. Numbers are finite, a float may be whole.
    """

    def __init__(self, must: Mapping[str, Any], may: Mapping[str, Any] = {}) -> None:
        self.must = {name: _check_of(hint) for name, hint in must.items()}
        self.may = {name: _check_of(hint) for name, hint in may.items()}

    @classmethod
    def of(cls, kind: type) -> Shape:
        """The shape of the objects that stand for a dataclass (fields with a default may be missing) or TypedDict."""
        hints = get_type_hints(kind)
        optional = [
            each.name
            for each in (fields(kind) if is_dataclass(kind) else ())
            if each.default is not MISSING or each.default_factory is not MISSING
        ]
        may = {name: hints.pop(name) for name in optional}
        return cls(hints, may)

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
                text = json.dumps(part, default=repr)
                return f"'{name}' is {text if len(text) <= _LONGEST_VALUE else f'{text[:_LONGEST_VALUE]}…'}"
        return ""


def _check_of(hint: Any) -> Callable[[Any], bool]:
    if isinstance(hint, FunctionType):
        return hint
    if hint in _CHECKS:
        return _CHECKS[hint]
    origin = get_origin(hint)
    if origin is Literal:
        return lambda value: isinstance(value, str) and value in get_args(hint)
    args = [_check_of(part) for part in get_args(hint)]
    if origin in (Union, UnionType):
        return lambda value: any(check(value) for check in args)
    if origin is tuple:
        return lambda value: (
            isinstance(value, list | tuple)
            and len(value) == len(args)
            and all(check(part) for check, part in zip(args, value, strict=True))
        )
    if origin in (list, Sequence):
        return lambda value: isinstance(value, list) and all(map(args[0], value))
    if origin in (dict, Mapping):
        return lambda value: isinstance(value, dict) and all(map(args[1], value.values()))
    shape = hint if isinstance(hint, Shape) else Shape.of(hint)
    return lambda value: not shape.problem(value)


def is_number(value: Any) -> bool:
    """Whether it is a finite number that a float can hold."""
    most = sys.float_info.max
    return isinstance(value, int | float) and not isinstance(value, bool) and -most <= value <= most


def _is_time(value: Any) -> bool:
    try:
        datetime.fromisoformat(value).timestamp()
    except (TypeError, ValueError, OverflowError):
        return False
    return True


Time = NewType("Time", str)
"""ISO 8601."""
_CHECKS: dict[Any, Callable[[Any], bool]] = {
    Any: lambda value: True,
    type(None): lambda value: value is None,
    str: lambda value: isinstance(value, str),
    bool: lambda value: isinstance(value, bool),
    int: lambda value: isinstance(value, int) and not isinstance(value, bool),
    float: is_number,
    Time: _is_time,
}


def file_bytes(path: Path) -> bytes:
    """The content of ``path``, empty when it does not exist. Raises CellFailure: it is there and cannot be read."""
    try:
        return when_one_is_free(path.read_bytes)
    except OSError as error:
        # a link may lead to a disk that is not mounted
        if isinstance(error, FileNotFoundError) and not path.is_symlink():
            return b""
        raise CellFailure(f"{short_path(path)} cannot be read: {error.strerror}") from None


def read_jsonl(path: Path, shape: Shape, tell: Tell = tell_nobody) -> Iterator[dict[str, Any]]:
    """Yield the records of ``path`` that have ``shape``; nothing when it does not exist.

    Another line (the torn tail of a killed writer, damage) is passed over as if it was not there, and told with its
    number. Raises CellFailure: the file is there and cannot be read.
    """
    bad = 0
    for number, line in enumerate(file_bytes(path).split(b"\n"), 1):
        try:
            record = parse(line.strip())
            problem = shape.problem(record)
        except json.JSONDecodeError as error:
            problem = f"{error.msg} at column {error.colno}"
        except ValueError as error:
            problem = one_line(error, 100)
        if not problem:
            yield record
        elif line.strip():
            bad += 1
            if bad <= _MOST_TOLD:
                tell(f"{short_path(path)}:{number}: not a record: {problem}")
    if bad > _MOST_TOLD:
        tell(f"{short_path(path)}: {bad - _MOST_TOLD} more lines are no records")


class JsonlWriter:
    """Appends records to ``path``; each is one ``write`` call, so that writers never interleave.

    All of it raises CellFailure when the disk is full.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        self._unsynced = False
        size = os.fstat(self._fd).st_size
        if size and os.pread(self._fd, 1, size - 1) != b"\n":
            # close a torn last line, or the next record would be glued to it and lost with it
            self._write(b"\n")

    def _write(self, data: bytes) -> None:
        try:
            written = os.write(self._fd, data)
        except OSError as error:
            raise disk_error(error, self._path) from error
        if written < len(data):
            # a full disk takes the first bytes and refuses the rest: raise the same error for both
            self._write(data[written:])

    def append(self, record: dict[str, Any]) -> bytes:
        """Append one record; returns its line, without the newline."""
        line = to_bytes(json.dumps(record, ensure_ascii=False, separators=(",", ":")))
        self.append_line(line)
        return line

    def append_line(self, line: bytes) -> None:
        """Append one ``line`` as it is."""
        self._write(line + b"\n")
        self._unsynced = True

    def sync(self) -> None:
        """Return when all that was appended before is on the disk; at once where it is."""
        if self._unsynced:
            self._unsynced = False
            try:
                os.fsync(self._fd)
            except OSError as error:
                self._unsynced = True
                raise disk_error(error, self._path) from error

    @property
    def is_there(self) -> bool:
        """Whether the file that is written is still the one at its path, and was not removed."""
        try:
            return os.path.samestat(os.fstat(self._fd), self._path.stat())
        except FileNotFoundError:
            return False

    def close(self) -> None:
        """Flush to the disk and close."""
        try:
            self.sync()
        finally:
            os.close(self._fd)
