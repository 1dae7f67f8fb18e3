"""An entry of the table of options, for the core and for extras. Standard library only."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from imageevalkit.common.errors import UserError

Parse = Callable[[Any, str], Any]
"""Parses a text (or a list of texts) to a value. The second argument names its place, for a UserError."""


OTHER = "other options"


class Option(NamedTuple):
    """An entry of the table of options.

    ``metavar`` is the value in the help: empty for a flag, two unquoted words for an option with two values,
    "…" at the end for any number of values. ``config`` is its variable in config.sh (empty: none).

    ``prefetch`` says who accepts the option: "" eval.sh only, "own" prefetch.sh only, "config" config.sh
    only, else both commands. "decisive" options decide which files are fetched, "taken" options do not.

    ``default`` is the value of an extra's option that is not given; the core's have theirs in
    :class:`Options`. ``absolute`` returns the text with absolute paths, for the folder of the user; None: the
    value has no paths.

    ``command`` is the subcommand that stands for the option, whose values follow it: ``compare A B`` is
    ``--compare A B``. The help of the subcommands ``listed_with`` names the option, too. ``group`` is its
    heading in the help. ``for_report``: the section of its extra in the report gets the value.
    """

    metavar: str
    help: str
    parse: Parse
    config: str = ""
    prefetch: str = "taken"
    name: str = ""
    default: Any = None
    absolute: Callable[[str, Path], str] | None = None
    command: str = ""
    listed_with: tuple[str, ...] = ()
    group: str = OTHER
    for_report: bool = False


def folder(text: str, where: str) -> Path:
    """Returns the path of a folder or file. Raises UserError if ``text`` is empty."""
    if not text.strip():
        raise UserError(f"{where} is empty: name the folder")
    return Path(text).expanduser()


def absolute(text: str, here: Path) -> str:
    """Returns the path ``text``, which may be relative to ``here``, as an absolute path."""
    return str((here / Path(text).expanduser()).absolute())
