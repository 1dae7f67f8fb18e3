"""JSON Lines files that survive ``kill -9`` and power cuts in the middle of a line, and the shapes of their records."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from datetime import datetime
from pathlib import Path
from types import UnionType
from typing import Any, Generic, Literal, NewType, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from imageevalkit.common.atomic import disk_error, sync_folder
from imageevalkit.common.errors import CellFailure
from imageevalkit.common.machine import when_one_is_free
from imageevalkit.common.redaction import one_line
from imageevalkit.common.text import to_bytes
from imageevalkit.store.cell import short_path

_MOST_TOLD = 5  # bad lines reported per file
# Numbers in files are below 2⁶³: then sums of squares stay finite, and other programs can read the integers.
_MOST = 2**63
# far more levels than our files have, and far fewer than Python's recursion limit
_MOST_LEVELS = 64
_LONGEST_VALUE = 60
# the core of json.loads, without its setup for every call, which takes a third of the time of a record
_decoder: Any = json.JSONDecoder()
_scan = _decoder.scan_once

T = TypeVar("T")
Tell = Callable[[str], None]
"""Receives one line about damaged data."""


NOT_IN_FILES = {"in files": False}
"""Metadata of a dataclass field that exists in memory only, not in files."""


def tell_nobody(text: str) -> None:
    """Ignore the message, because another reader reports it."""


def parse(data: bytes) -> Any:
    """Returns the JSON value in ``data``.

    Raises ValueError if ``data`` is not JSON in UTF-8, is nested too deep, or has a huge number.
    """
    try:
        text = data.decode()
        value, end = _scan(text, 0)
        is_whole = end == len(text)
    except (ValueError, StopIteration, RecursionError):
        is_whole = False
    if not is_whole:  # whitespace around the value, another encoding, or no JSON: json.loads explains
        try:
            value = json.loads(data)
        except json.JSONDecodeError as error:  # its text has a useless line number
            raise ValueError(f"{error.msg} at column {error.colno}") from None
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


class WrongShape(ValueError):
    """The ``value`` at ``path`` in an object has the wrong type; without ``value`` the field is missing."""

    def __init__(self, path: tuple[str, ...], *value: Any) -> None:
        text = json.dumps(value[0], default=repr) if value else "missing"
        shown = text[:_LONGEST_VALUE] + "…" * (len(text) > _LONGEST_VALUE)
        super().__init__(f"'{'.'.join(path)}' is {shown}" if path else "it is no JSON object")
        self.path, self.value = path, value


class Shape(Generic[T]):
    """The type of a JSON object: fields that it ``must`` have and fields that it ``may`` have.

    Field types are JSON's own, Literal, X | None, tuples of fixed length, lists, mappings, :data:`Time`,
    shapes, and the types that :meth:`of` takes. Numbers are below 2⁶³; an integer is a valid float. ``rest``
    is the type of all other fields.
    """

    def __init__(
        self, must: Mapping[str, Any], may: Mapping[str, Any] = {}, rest: Any = None, kind: Any = None
    ) -> None:
        hints = {**must, **may}
        self._must, self._rest, self._kind = dict.fromkeys(must), rest and _reader_of(rest), kind
        self._readers = {name: _reader_of(hint) for name, hint in hints.items()}
        # most values of most records need no conversion
        self._as_is = {name: _as_is(hint) for name, hint in hints.items()}
        self._rest_as_is = _as_is(rest) if rest else frozenset[type]()

    @classmethod
    def of(cls, kind: type[T]) -> Shape[T]:
        """Returns the shape of a TypedDict or dataclass. A dataclass field with a default may be missing."""
        hints = get_type_hints(kind)
        if not is_dataclass(kind):
            return cls(hints)
        for each in fields(kind):
            if each.metadata == NOT_IN_FILES:
                del hints[each.name]
        may = [f.name for f in fields(kind) if f.default is not MISSING or f.default_factory is not MISSING]
        return cls(hints, {name: hints.pop(name) for name in may if name in hints}, kind=kind)

    def read(self, value: Any) -> T:
        """Returns ``value`` as an object of the dataclass if there is one, else itself. Raises WrongShape."""
        if not isinstance(value, dict):
            raise WrongShape((), value)
        if not self._must.keys() <= value.keys():
            raise WrongShape((next(name for name in self._must if name not in value),))
        parts, name, as_is = {}, "", self._as_is
        try:
            for name, part in value.items():
                if part.__class__ in as_is.get(name, self._rest_as_is):
                    parts[name] = part
                elif reader := self._readers.get(name, self._rest):
                    parts[name] = reader(part)
        except WrongShape as error:
            raise WrongShape((name, *error.path), *error.value) from None
        return cast(T, self._kind(**parts) if self._kind else value)


def _as_is(hint: Any) -> frozenset[type]:
    """Returns the types of values that the reader of ``hint`` returns unchanged, whatever they hold."""
    if hint in (str, bool, type(None)):
        return frozenset({hint})
    if hint is Any:
        return frozenset({str, bool, int, float, type(None), list, dict})
    if get_origin(hint) in (Union, UnionType):
        return _as_is(get_args(hint)[0]) | {type(None)}
    return frozenset()


def _reader_of(hint: Any) -> Callable[[Any], Any]:
    origin, args = get_origin(hint), get_args(hint)
    if isinstance(hint, Shape):
        return hint.read
    if hint in _CHECKS:
        return _checked(_CHECKS[hint])
    if hint in (str, bool, type(None)):
        return _checked(lambda value: isinstance(value, hint))
    if origin is Literal:
        return _checked(lambda value: isinstance(value, str) and value in args)
    if origin in (Union, UnionType) and all(
        map(is_dataclass, kinds := [a for a in args if a is not type(None)])
    ):
        return _reader_of_kinds(kinds)
    readers = [_reader_of(part) for part in args]
    if origin in (Union, UnionType):
        return lambda value: None if value is None else readers[0](value)
    if origin is tuple:
        is_tuple = _checked(lambda value: isinstance(value, list | tuple) and len(value) == len(args))
        return lambda value: tuple([read(part) for read, part in zip(readers, is_tuple(value), strict=True)])
    if origin is list:
        is_list = _checked(lambda value: isinstance(value, list))
        return lambda value: [readers[0](part) for part in is_list(value)]
    if origin:  # a mapping
        return Shape[Any]({}, rest=args[1], kind=dict).read
    return Shape.of(hint).read


def _reader_of_kinds(kinds: Sequence[Any]) -> Callable[[Any], Any]:
    """Returns the reader of a union of dataclasses (or None), told apart by their field ``kind``."""
    readers = {
        each.default: Shape.of(kind).read for kind in kinds for each in fields(kind) if each.name == "kind"
    }
    first = Shape.of(kinds[0]).read

    def read(value: Any) -> Any:
        named = value.get("kind") if isinstance(value, dict) else None
        return None if value is None else readers.get(named, first)(value)

    return read


def _checked(check: Callable[[Any], bool]) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if not check(value):
            raise WrongShape((), value)
        return value

    return read


def is_number(value: Any) -> bool:
    """Returns whether ``value`` is a finite number between -2⁶³ and 2⁶³."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -_MOST <= value < _MOST


def _is_time(value: Any) -> bool:
    try:
        datetime.fromisoformat(value).timestamp()
    except (TypeError, ValueError, OverflowError):
        return False
    return True


Time = NewType("Time", str)
"""A point in time as ISO 8601."""
_CHECKS = {
    Any: lambda value: True,
    int: lambda value: value.__class__ is int and -_MOST <= value < _MOST,
    float: is_number,
    Time: _is_time,
}


def read_jsonl(path: Path, shape: Shape[T], tell: Tell = tell_nobody) -> Iterator[T]:
    """Yield the records of ``path``, if it exists. ``tell`` receives each invalid line (torn or damaged)."""
    bad = 0
    for number, line in enumerate(file_bytes(path).split(b"\n"), 1):
        try:
            record = shape.read(parse(line.strip()))
        except ValueError as error:
            if not line.strip():
                continue
            bad += 1
            if bad <= _MOST_TOLD:
                tell(f"{short_path(path)}:{number}: not a record: {one_line(error, 100)}")
        else:
            yield record
    if bad > _MOST_TOLD:
        tell(f"{short_path(path)}: {bad - _MOST_TOLD} more lines are no records")


def file_bytes(path: Path) -> bytes:
    """Returns the content of ``path``, empty if there is no file. Raises CellFailure: it cannot be read."""
    try:
        return when_one_is_free(path.read_bytes)
    except OSError as error:
        # a broken link may lead to a disk that is not mounted: then the file is not just missing
        if isinstance(error, FileNotFoundError) and not path.is_symlink():
            return b""
        raise CellFailure(f"{short_path(path)} cannot be read: {error.strerror}") from None


def read_json(path: Path) -> Any:
    """Returns the JSON value in ``path``. Raises CellFailure if the file cannot be read or is not JSON."""
    try:
        return parse(when_one_is_free(path.read_bytes))
    except OSError as error:
        raise CellFailure(f"{short_path(path)} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise CellFailure(f"{short_path(path)} is no JSON: {one_line(error, 100)}") from None


def take_in(path: Path, parts: Sequence[Path], shape: Shape[Any], tell: Tell = tell_nobody) -> None:
    """Append the valid lines of ``parts`` that ``path`` lacks, in the order of their times; then delete ``parts``.

    No other process may write any of these files. The next call completes an interrupted one: it skips the
    lines that are in ``path`` already. Raises CellFailure if the disk is full.
    """
    found = dict[bytes, str]()
    for part in parts:
        for line in file_bytes(part).split(b"\n"):
            with contextlib.suppress(ValueError):
                shape.read(record := parse(line))
                found[line] = record.get("time", "")
        deque(read_jsonl(part, shape, tell), maxlen=0)  # to report damaged lines
    known = set(file_bytes(path).split(b"\n"))
    with contextlib.closing(JsonlWriter(path)) as writer:
        # if several parts have records of one item, the latest must come last
        for line in sorted(found, key=found.__getitem__):
            if line not in known:
                writer.append_line(line)
    for part in parts:
        part.unlink(missing_ok=True)


class JsonlTail(Generic[T]):
    """Follows a file that another process writes: each :meth:`read` returns the records added since the last.

    An incomplete last line is left for the next call. If the file is replaced, the new one is read from its
    start.
    """

    def __init__(self, path: Path, shape: Shape[T]) -> None:
        self._path, self._shape = path, shape
        self._file, self._offset = (0, 0), 0

    def read(self) -> list[T]:
        """Returns the new records, from complete lines only; empty while there is no file."""
        try:
            with self._path.open("rb") as file:
                about = os.fstat(file.fileno())
                if (about.st_dev, about.st_ino) != self._file or about.st_size < self._offset:
                    self._file, self._offset = (about.st_dev, about.st_ino), 0
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        whole, newline, _ = data.rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        records = []
        for line in whole.splitlines():
            with contextlib.suppress(ValueError):  # a torn line of a killed writer
                records.append(self._shape.read(parse(line)))
        return records


class JsonlWriter:
    """Appends records to ``path``, from any thread, one ``write`` call each: writers never interleave.

    All methods raise CellFailure if the disk is full.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._unsynced, self._is_torn = path, False, False
        self._appending = threading.Lock()  # a nearly full disk takes a line in several pieces
        self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        size = os.fstat(self._fd).st_size
        if not size:
            sync_folder(path.parent)  # syncing the file does not save its name
        elif os.pread(self._fd, 1, size - 1) != b"\n":
            # close a torn last line, or the next record would be glued to it and lost with it
            self._write(b"\n")

    def _write(self, data: bytes) -> None:
        try:
            while data:  # a nearly full disk accepts the first bytes only
                data = data[os.write(self._fd, data) :]
        except OSError as error:
            self._is_torn = True
            raise disk_error(error, self._path) from error
        self._is_torn = False

    def append(self, record: Mapping[str, Any]) -> None:
        """Append one record."""
        self.append_line(to_bytes(json.dumps(record, ensure_ascii=False, separators=(",", ":"))))

    def append_line(self, line: bytes) -> None:
        """Append one record, given as its line of JSON."""
        with self._appending:
            self._write(b"\n" * self._is_torn + line + b"\n")
            self._unsynced = True

    def sync(self) -> None:
        """Return when all appended records are on the disk."""
        if self._unsynced:
            self._unsynced = False
            try:
                os.fsync(self._fd)
            except OSError as error:
                self._unsynced = True
                raise disk_error(error, self._path) from error

    @property
    def is_there(self) -> bool:
        """Whether the path still leads to the open file: it may have been deleted or replaced."""
        try:
            return os.path.samestat(os.fstat(self._fd), self._path.stat())
        except FileNotFoundError:
            return False

    def close(self) -> None:
        """Flush to the disk and close the file."""
        try:
            self.sync()
        finally:
            os.close(self._fd)
