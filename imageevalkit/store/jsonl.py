"""JSON Lines files that survive ``kill -9`` and power cuts in the middle of a line, and typed readers of JSON."""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import msgspec
from msgspec import Meta

from imageevalkit.common.atomic import disk_error, sync_folder
from imageevalkit.common.errors import CellFailure
from imageevalkit.common.machine import when_one_is_free
from imageevalkit.common.redaction import one_line
from imageevalkit.common.text import to_bytes
from imageevalkit.store.cell import short_path

_MOST_TOLD = 5  # bad lines reported per file
# far more levels than our files have, and far fewer than Python's recursion limit
_MOST_LEVELS = 64
_LONGEST_VALUE = 60
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Tell = Callable[[str], None]
"""Receives one line about damaged data."""

# Numbers in files are below 2⁶³: then sums of squares stay finite, and other programs can read the integers.
_MOST = 2**63
Int = Annotated[int, Meta(ge=-_MOST, le=_MOST - 1)]
Number = Int | Annotated[float, Meta(ge=float(-_MOST), lt=float(_MOST))]
"""A finite number. It stays an integer if the file has one."""
Count = Annotated[int, Meta(ge=0, le=_MOST - 1)]
Amount = Count | Annotated[float, Meta(ge=0.0, lt=float(_MOST))]
"""A :data:`Number` that is not negative."""
Scale = Annotated[int, Meta(gt=0, le=_MOST - 1)] | Annotated[float, Meta(gt=0.0, lt=float(_MOST))]
"""A :data:`Number` above 0."""
Time = Annotated[
    str, Meta(pattern=r"^\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])([T ][\d:.,]+(Z|[+-][\d:]+)?)?$")
]
"""A point in time as ISO 8601."""


def tell_nobody(text: str) -> None:
    """Ignore the message, because another reader reports it."""


def parse(data: bytes) -> Any:
    """Returns the JSON value in ``data``.

    Raises ValueError if ``data`` is not JSON in UTF-8, is nested too deep, or has a huge number.
    """
    try:
        value = json.loads(data)
    except json.JSONDecodeError as error:  # its text has a useless line number
        raise ValueError(f"{error.msg} at column {error.colno}") from None
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    if _may_be_deep(data):
        level = [value]
        for _ in range(_MOST_LEVELS):
            lists = [list(v.values()) if isinstance(v, dict) else v for v in level]
            level = [inner for each in lists if isinstance(each, list) for inner in each]
        if level:
            raise ValueError("it is nested too deep")
    return value


def _may_be_deep(data: bytes) -> bool:
    return data.count(b"[") + data.count(b"{") > _MOST_LEVELS


def invalid(path: str, value: Any) -> ValueError:
    """Returns the error that the field at ``path`` has the invalid ``value``."""
    text = json.dumps(value, default=repr)
    return ValueError(f"'{path}' is {text[:_LONGEST_VALUE]}{'…' * (len(text) > _LONGEST_VALUE)}")


class Reader(Generic[T_co]):
    """Reads JSON objects as objects of ``kind``: a TypedDict, a dataclass or a mapping.

    Fields that ``kind`` does not have are dropped. ``hook`` makes the objects of other classes from JSON values.
    """

    def __init__(self, kind: type[T_co], hook: Callable[[type, Any], Any] | None = None) -> None:
        self._kind, self._hook = kind, hook
        self._decoder = msgspec.json.Decoder(kind, dec_hook=hook)

    def decode(self, data: bytes) -> T_co:
        """Returns the object in ``data``. Raises ValueError that names the first invalid field."""
        if not _may_be_deep(data):
            with contextlib.suppress(msgspec.DecodeError):
                return self._decoder.decode(data)
        # the slow way explains what is wrong, and accepts halves of surrogate pairs and NaN outside of numbers
        return self.read(parse(data))

    def read(self, value: Any) -> T_co:
        """Returns the object in a JSON value. Raises ValueError that names the first invalid field."""
        try:
            return msgspec.convert(value, self._kind, dec_hook=self._hook)
        except msgspec.ValidationError as error:
            raise self._in_words(str(error), deepcopy(value), error.__cause__) from None

    def _in_words(self, said: str, value: Any, cause: BaseException | None) -> ValueError:
        """Returns an error for what msgspec ``said`` ("Expected `int`, got `str` - at `$.size`") about ``value``.

        ``cause`` is the error that the hook raised, if any. Changes ``value``.
        """
        problem, _, place = said.partition(" - at `$")
        whole, path = value, list[str]()
        for name in re.findall(r"\.\.\.|[^.`\[\]]+", place):
            if name == "...":  # msgspec does not name the key of a mapping: leave only the first invalid one
                for name, part in list(value.items()):
                    value.clear()
                    value[name] = part
                    with contextlib.suppress(msgspec.ValidationError):
                        msgspec.convert(whole, self._kind, dec_hook=self._hook)
                        continue
                    break
            path.append(name)
            value = value[int(name) if isinstance(value, list | tuple) else name]
        if missing := re.search("missing required field `(.*)`", problem):
            return ValueError(f"'{'.'.join((*path, missing[1]))}' is missing")
        if cause:
            return ValueError(f"'{'.'.join(path)}': {cause}")
        if path:
            return invalid(".".join(path), value)
        return ValueError("it is no JSON object" if problem.startswith("Expected `object`") else problem)


def is_number(value: Any) -> bool:
    """Returns whether ``value`` is a finite number between -2⁶³ and 2⁶³."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -_MOST <= value < _MOST


def read_jsonl(path: Path, reader: Reader[T], tell: Tell = tell_nobody) -> Iterator[T]:
    """Yield the records of ``path``, if it exists. ``tell`` receives each invalid line (torn or damaged)."""
    bad = 0
    for number, line in enumerate(file_bytes(path).split(b"\n"), 1):
        try:
            record = reader.decode(line)
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


def take_in(path: Path, parts: Sequence[Path], reader: Reader[Any], tell: Tell = tell_nobody) -> None:
    """Append the valid lines of ``parts`` that ``path`` lacks, in the order of their times; then delete ``parts``.

    No other process may write any of these files. The next call completes an interrupted one: it skips the
    lines that are in ``path`` already. Raises CellFailure if the disk is full.
    """
    found = dict[bytes, str]()
    for part in parts:
        for line in file_bytes(part).split(b"\n"):
            with contextlib.suppress(ValueError):
                reader.read(record := parse(line))
                found[line] = record.get("time", "")
        deque(read_jsonl(part, reader, tell), maxlen=0)  # to report damaged lines
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

    def __init__(self, path: Path, reader: Reader[T]) -> None:
        self._path, self._reader = path, reader
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
                records.append(self._reader.decode(line))
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
