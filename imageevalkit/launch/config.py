"""The configuration as eval.sh hands it over: bash scalars, arrays and maps, NUL-separated."""

from __future__ import annotations

import os
import stat
import sys
from dataclasses import dataclass, field
from pathlib import Path

from imageevalkit.cell import COMPARISONS, REPO, REPORTS, REWRITES
from imageevalkit.errors import UserError, say, suggest
from imageevalkit.machine import LEAST, require
from imageevalkit.secrets import holds_secret

_TRUE, _FALSE = frozenset({"true", "yes", "on", "1"}), frozenset({"false", "no", "off", "0"})
_LONGEST_NAME = 200  # bytes; file systems take 255, and names of logs and outcomes have more in them


@dataclass
class Config:
    """The names of config.sh, as bash values."""

    scalars: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, list[str]] = field(default_factory=dict)
    maps: dict[str, dict[str, str]] = field(default_factory=dict)

    def names(self, name: str) -> list[str]:
        """An array of names; elements may themselves hold several, separated by semicolons."""
        return split_names(";".join(self.arrays.get(name, [])))


def read_config(fd: int) -> Config:
    """Read what eval.sh's ``dump_config`` writes to ``fd``; say so where other users may read a key in its files.

    Raises:
        UserError: the dump is cut short or no UTF-8, or so few files may be open that there is none.
    """
    require(LEAST)
    with os.fdopen(fd, "rb") as pipe:
        data = pipe.read()
    try:
        *entries, end = data.decode().split("\0")[:-1]
    except UnicodeDecodeError as error:
        raise UserError(f"config.sh or config.local.sh is not UTF-8 ({error.reason})") from None
    if end != "end":
        raise UserError(
            "config.sh or config.local.sh sets a name to the wrong kind of value (see the line above)"
        )
    config, words = Config(), iter(entries)
    for kind in words:
        name, count = next(words), int(next(words))
        values = [next(words) for _ in range(count)]
        if kind == "scalar":
            config.scalars[name] = values[0]
        elif kind == "array":
            config.arrays[name] = values
        else:
            config.maps[name] = dict(zip(values[::2], values[1::2], strict=True))
    _tell_of_readable_secret(REPO / "config.local.sh")
    return config


def _tell_of_readable_secret(file: Path) -> None:
    try:
        is_open = file.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH)
        if not is_open or not holds_secret(file.read_text(encoding="utf-8", errors="replace")):
            return
    except OSError:  # there is none
        return
    say(f"note: {file} holds a key, and other users may read it: chmod 600 {file}", sys.stderr)


def split_names(text: str) -> list[str]:
    """Names between semicolons, stripped, empties dropped, repetitions kept."""
    return [name for part in text.split(";") if (name := part.strip())]


def check_name(name: str) -> str:
    """``name``, if it can name a folder below output/ and travel on command lines (``org/model`` can).

    Raises:
        UserError: it cannot.
    """
    parts = name.split("/")
    if not name.isprintable() or any(part in ("", ".", "..") or part[0] in "-." for part in parts):
        raise UserError(
            f"'{name}' cannot be a name: no part of it may be empty or begin with '.' or '-', none may be unprintable"
        )
    if any(len(part.encode()) > _LONGEST_NAME for part in parts):
        raise UserError(f"'{name[:40]}…' cannot be a name: a part of it has more than {_LONGEST_NAME} bytes")
    if parts[0] in (*REPORTS, COMPARISONS, REWRITES):
        what = "holds rewritten prompts" if parts[0] == REWRITES else "is a report of the run"
        raise UserError(f"'{name}' cannot be a name: output/{parts[0]} {what}")
    return name


def parse_boolean(text: str, where: str) -> bool:
    """true/yes/on/1 or false/no/off/0, in any case. Raises UserError for anything else."""
    word = text.strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise UserError(f"{where} is '{text}': use true or false{suggest(word, _TRUE | _FALSE)}")


def parse_count(text: str, where: str) -> int:
    """A whole number of at least 1. Raises UserError for anything else."""
    if text.strip().isdecimal() and int(text) >= 1:
        return int(text)
    raise UserError(f"{where} is '{text}': use a whole number of at least 1")


def parse_amount(text: str, where: str) -> float:
    """A number above 0, a dollar sign before it tolerated. Raises UserError for anything else."""
    try:
        amount = float(text.strip().removeprefix("$"))
    except ValueError:
        amount = 0.0
    if not 0 < amount < float("inf"):
        raise UserError(f"{where} is '{text}': use a number above 0")
    return amount


def is_boolean(text: str) -> bool:
    """Whether :func:`parse_boolean` would take ``text``."""
    return text.strip().lower() in _TRUE | _FALSE
