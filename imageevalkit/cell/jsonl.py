"""JSON Lines that survive ``kill -9`` in the middle of a line, and the shapes that readers rely on.

What is paid for is kept twice: what a file loses is taken back from its copy, a hidden file beside it. Each line of the
copy begins with a checksum, so that it is known which of two different lines is the true one.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from datetime import datetime
from pathlib import Path
from types import UnionType
from typing import Any, Generic, Literal, NewType, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from imageevalkit.atomic import disk_error, sync_folder, write_atomic
from imageevalkit.cell import short_path
from imageevalkit.errors import CellFailure
from imageevalkit.machine import when_one_is_free
from imageevalkit.secrets import one_line
from imageevalkit.text import to_bytes

_MOST_TOLD = 5  # of the bad lines of one file
# Numbers of files are below it: sums of squares of such numbers stay finite, and other programs can read the integers.
_MOST = 2**63
# far more than any file of ours has, and far less than what Python's own recursion stands
_MOST_LEVELS = 64
_LONGEST_VALUE = 60
# what json.loads ends in, without what it does for every call: a third of the time of a record
_decoder: Any = json.JSONDecoder()
_scan = _decoder.scan_once
_CHECKSUM = 9  # characters: 8 hex digits of the CRC-32 and a blank

T = TypeVar("T")
Tell = Callable[[str], None]
"""Takes one line about something that cannot be read."""


NOT_IN_FILES = {"in files": False}
"""Metadata of a dataclass's field that its objects have, but not those that stand for them in a file."""


def tell_nobody(text: str) -> None:
    """For who reads what somebody else has complained of."""


def parse(data: bytes) -> Any:
    """The JSON value in ``data``. Raises ValueError: it is none, no UTF-8, nested too deep, or has a huge number."""
    try:
        text = data.decode()
        value, end = _scan(text, 0)
        is_whole = end == len(text)
    except (ValueError, StopIteration, RecursionError):
        is_whole = False
    if not is_whole:  # blanks around it, another encoding, or no JSON: what is wrong is told
        try:
            value = json.loads(data)
        except json.JSONDecodeError as error:  # its own words have a line number, of a line
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
    """The ``value`` at ``path`` in an object is not of its type; without one it is missing."""

    def __init__(self, path: tuple[str, ...], *value: Any) -> None:
        text = json.dumps(value[0], default=repr) if value else "missing"
        shown = text[:_LONGEST_VALUE] + "…" * (len(text) > _LONGEST_VALUE)
        super().__init__(f"'{'.'.join(path)}' is {shown}" if path else "it is no JSON object")
        self.path, self.value = path, value


class Shape(Generic[T]):
    """What readers rely on in an object: fields that it ``must`` have, and others that it ``may`` have, by type.

    Types are JSON's own, Literal, X | None, tuples of so many parts, lists, mappings, :data:`Time`, shapes and what
    :meth:`of` takes. Numbers are below 2⁶³, a float may be whole. ``rest``: the type of all other fields.
    """

    def __init__(
        self, must: Mapping[str, Any], may: Mapping[str, Any] = {}, rest: Any = None, kind: Any = None
    ) -> None:
        hints = {**must, **may}
        self._must, self._rest, self._kind = dict.fromkeys(must), rest and _reader_of(rest), kind
        self._readers = {name: _reader_of(hint) for name, hint in hints.items()}
        # most parts of most records need no reader
        self._as_is = {name: _as_is(hint) for name, hint in hints.items()}
        self._rest_as_is = _as_is(rest) if rest else frozenset[type]()

    @classmethod
    def of(cls, kind: type[T]) -> Shape[T]:
        """That of a TypedDict, or of the objects that stand for a dataclass: fields with a default may be missing."""
        hints = get_type_hints(kind)
        if not is_dataclass(kind):
            return cls(hints)
        for each in fields(kind):
            if each.metadata == NOT_IN_FILES:
                del hints[each.name]
        may = [f.name for f in fields(kind) if f.default is not MISSING or f.default_factory is not MISSING]
        return cls(hints, {name: hints.pop(name) for name in may if name in hints}, kind=kind)

    def read(self, value: Any) -> T:
        """What ``value`` stands for: an object of the dataclass, else itself. Raises WrongShape."""
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
    """Types of values that the reader of ``hint`` gives back as they are, whatever they hold."""
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
    """Of one of several dataclasses, which the default of their field ``kind`` tells apart, or None."""
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
    """Whether it is a finite number below 2⁶³."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -_MOST <= value < _MOST


def _is_time(value: Any) -> bool:
    try:
        datetime.fromisoformat(value).timestamp()
    except (TypeError, ValueError, OverflowError):
        return False
    return True


Time = NewType("Time", str)
"""ISO 8601."""
_CHECKS = {
    Any: lambda value: True,
    int: lambda value: value.__class__ is int and -_MOST <= value < _MOST,
    float: is_number,
    Time: _is_time,
}


def read_jsonl(path: Path, shape: Shape[T], tell: Tell = tell_nobody) -> Iterator[T]:
    """Yield the records of ``path``, if it exists; a line without ``shape`` (a torn tail, damage) is told."""
    bad = 0
    for number, line in enumerate(_file_bytes(path).split(b"\n"), 1):
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


def _file_bytes(path: Path) -> bytes:
    try:
        return when_one_is_free(path.read_bytes)
    except OSError as error:
        # a link may lead to a disk that is not mounted
        if isinstance(error, FileNotFoundError) and not path.is_symlink():
            return b""
        raise CellFailure(f"{short_path(path)} cannot be read: {error.strerror}") from None


def read_json(path: Path) -> Any:
    """The JSON value in ``path``. Raises CellFailure: the file cannot be read, or holds none."""
    try:
        return parse(when_one_is_free(path.read_bytes))
    except OSError as error:
        raise CellFailure(f"{short_path(path)} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise CellFailure(f"{short_path(path)} is no JSON: {one_line(error, 100)}") from None


def copy_of(path: Path) -> Path:
    """Where the copy of ``path`` is."""
    return path.with_name(f".{path.name}.copy")


def read_kept(path: Path, shape: Shape[T], tell: Tell = tell_nobody) -> Iterator[T]:
    """:func:`read_jsonl`, with the records that only the copy of ``path`` still has; touches nothing."""
    main, copy = _file_bytes(path), _file_bytes(copy_of(path))
    records = read_jsonl(path, shape, tell)
    if not copy or _agree(main, copy):
        return records
    deque(records, maxlen=0)  # tells of the damage
    return (shape.read(parse(line)) for line in _merged(main, copy, shape))


def kept_lines(path: Path, shape: Shape[Any]) -> list[bytes]:
    """The lines behind :func:`read_kept`, for who has a faster reader of many; some may be no records. None where the
    file was deleted, whatever its copy has."""
    if not os.path.lexists(path):
        return []
    main, copy = _file_bytes(path), _file_bytes(copy_of(path))
    return main.split(b"\n") if not copy or _agree(main, copy) else _merged(main, copy, shape)


def mend(path: Path, shape: Shape[Any], tell: Tell = tell_nobody) -> None:
    """Give ``path`` the lines that only its copy still has, which is told, and the copy what it lacks."""
    main, copy = _file_bytes(path), _file_bytes(copy_of(path))
    if _agree(main, copy):
        return
    lines, own = _merged(main, copy, shape), list(_by_record(main.split(b"\n"), shape).values())
    # whatever else a file holds that nobody lost anything of stays as it is
    if lines != own:
        deque(read_jsonl(path, shape, tell), maxlen=0)
        lost = f"{len(set(lines).difference(own))} of its lines, lost or damaged,"
        tell(f"{short_path(path)}: {lost} are taken back from {copy_of(path).name}")
        write_atomic(path, b"".join(line + b"\n" for line in lines))
    if copy != (marked := b"".join(_marked(line) + b"\n" for line in lines)):
        write_atomic(copy_of(path), marked)


def take_in(path: Path, parts: Sequence[Path], shape: Shape[Any], tell: Tell = tell_nobody) -> None:
    """Append to ``path`` the records that ``parts``, kept as it is, have more, and remove these.

    Nobody else may write any of them. What is killed in between is done by the next call. Raises CellFailure: the disk
    is full.
    """
    found = dict[tuple[str | bytes, ...], bytes]()
    for part in parts:
        mend(part, shape, tell)
        found |= _by_record(_file_bytes(part).split(b"\n"), shape)
    # of an item that was another part's before, the later record has the last word
    found = dict(sorted(found.items(), key=lambda one: one[0][-1] if len(one[0]) > 1 else b""))
    mend(path, shape, tell)
    writer = JsonlWriter(path, shape)
    try:
        known = _by_record(_file_bytes(path).split(b"\n"), shape)
        for key, line in found.items():
            if key not in known:
                writer.append(parse(line))
    finally:
        writer.close()
    for part in parts:
        copy_of(part).unlink(missing_ok=True)
        part.unlink(missing_ok=True)


def _agree(main: bytes, copy: bytes) -> bool:
    return main == b"".join(line[_CHECKSUM:] for line in copy.splitlines(keepends=True))


def _marked(line: bytes) -> bytes:
    return b"%08x " % zlib.crc32(line) + line


def _by_record(lines: Iterable[bytes], shape: Shape[Any]) -> dict[tuple[str | bytes, ...], bytes]:
    """The whole ones of ``lines`` in their order, by what tells records apart."""
    found = dict[tuple[str | bytes, ...], bytes]()
    for line in lines:
        with contextlib.suppress(ValueError):
            record = parse(line)
            shape.read(record)
            # what it is about and when it was written, or all of it
            found[(record["item"], record["time"]) if {"item", "time"} <= record.keys() else (line,)] = line
    return found


def _merged(main: bytes, copy: bytes, shape: Shape[Any]) -> list[bytes]:
    """The lines of both in the order in which they were written: each may lack some, and the copy's are true."""
    true = (line[_CHECKSUM:] for line in copy.split(b"\n") if _marked(line[_CHECKSUM:]) == line)
    own, kept = _by_record(main.split(b"\n"), shape), _by_record(true, shape)
    # what the copy lacks comes right before the next line that both have
    places, after = {key: (n, 1, 0) for n, key in enumerate(kept)}, len(kept)
    for n, key in reversed([*enumerate(own)]):
        after, *_ = places.setdefault(key, (after, 0, n))
    both = own | kept
    return [both[key] for key in sorted(places, key=places.__getitem__)]


class JsonlTail(Generic[T]):
    """Follows a file that another process writes: each :meth:`read` gives the records that were added since.

    A line that is still being written is left for the next time. A file that takes its place is read from its
    beginning.
    """

    def __init__(self, path: Path, shape: Shape[T]) -> None:
        self._path, self._shape = path, shape
        self._file, self._offset = (0, 0), 0

    def read(self) -> list[T]:
        """The records of the whole lines; empty while there is no file."""
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
            with contextlib.suppress(ValueError):  # the torn line of a killed writer
                records.append(self._shape.read(parse(line)))
        return records


class JsonlWriter:
    """Appends records to ``path``, from any thread; each is one ``write`` call, so that writers never interleave.

    With a ``shape`` they are kept twice, and what was lost before is mended first. All of it raises CellFailure when
    the disk is full.
    """

    def __init__(self, path: Path, shape: Shape[Any] | None = None) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if shape:
            mend(path, shape)
        self._path, self._unsynced = path, False
        self._appending = threading.Lock()  # both in the same order
        self._files = dict[Path, int]()
        for file in [path, copy_of(path)] if shape else [path]:
            fd = self._files[file] = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
            size = os.fstat(fd).st_size
            if size and os.pread(fd, 1, size - 1) != b"\n":
                # close a torn last line, or the next record would be glued to it and lost with it
                self._write(file, b"\n")

    def _write(self, file: Path, data: bytes) -> None:
        try:
            while data:  # a full disk takes the first bytes and refuses the rest
                data = data[os.write(self._files[file], data) :]
        except OSError as error:
            raise disk_error(error, file) from error

    def append(self, record: Mapping[str, Any]) -> None:
        """Append one record."""
        line = to_bytes(json.dumps(record, ensure_ascii=False, separators=(",", ":")))
        with self._appending:
            for file in self._files:
                self._write(file, (line if file == self._path else _marked(line)) + b"\n")
            self._unsynced = True

    def sync(self) -> None:
        """Return when all that was appended before is on the disk; at once where it is."""
        if self._unsynced:
            self._unsynced = False
            try:
                for fd in self._files.values():
                    os.fsync(fd)
            except OSError as error:
                self._unsynced = True
                raise disk_error(error, self._path) from error

    @property
    def is_there(self) -> bool:
        """Whether its path still leads to the file that is written."""
        try:
            return os.path.samestat(os.fstat(self._files[self._path]), self._path.stat())
        except FileNotFoundError:
            return False

    def close(self) -> None:
        """Flush to the disk and close."""
        try:
            self.sync()
        finally:
            for fd in self._files.values():
                os.close(fd)


def writer_of(path: Path, shape: Shape[Any]) -> JsonlWriter:
    """For more lines of a file that is kept twice, and that its user may delete: then the copy goes, too."""
    if not os.path.lexists(path):
        copy_of(path).unlink(missing_ok=True)
    writer = JsonlWriter(path, shape)
    sync_folder(path.parent)
    return writer


def read_if_there(path: Path, shape: Shape[T], tell: Tell = tell_nobody) -> Iterator[T]:
    """:func:`read_kept` of such a file; nothing once it was deleted."""
    return read_kept(path, shape, tell) if os.path.lexists(path) else iter(())
