"""The configuration that eval.sh passes on, the form of an option, parsers of their values, and environments.

The help works before any environment exists, so this module imports the standard library only. In a user's
settings ``;`` separates sets and ``,`` separates pairs. Planning checks their names and types.
"""

from __future__ import annotations

import ast
import json
import os
import re
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from imageevalkit.common.errors import UserError, note_once, say, suggest
from imageevalkit.common.machine import LEAST, require
from imageevalkit.common.python_path import usable_paths
from imageevalkit.common.redaction import holds_secret, redact
from imageevalkit.store.cell import REPO

ALL = "*"
"""The key in a map of config.sh for all names without an entry of their own."""
_TRUE, _FALSE = frozenset({"true", "yes", "on", "1"}), frozenset({"false", "no", "off", "0"})


@dataclass
class Config:
    """The variables that the config files set, as bash values."""

    scalars: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, list[str]] = field(default_factory=dict)
    maps: dict[str, dict[str, str]] = field(default_factory=dict)

    def text(self, name: str) -> str:
        """Return a variable as command line text: elements of an array are joined by semicolons."""
        return _utf8(name, ";".join(self.arrays.get(name, [self.scalars.get(name, "")])))

    def map(self, name: str) -> Mapping[str, str]:
        """Return a map. Raises UserError: the variable is not a map."""
        if name not in self.maps and self.text(name):
            raise UserError(
                f"config.sh or config.local.sh sets {name} to the wrong kind of value: write {name}=(['name']='value')"
            )
        found = self.maps.get(name, {})
        _utf8(name, "".join([*found, *found.values()]))
        return found


def read_config(fd: int) -> Config:
    """Read the output of eval.sh's ``dump_config`` from ``fd``. Print a note if config.local.sh shows a key.

    Raises UserError: the dump is cut short, or the process may open too few files.
    """
    require(LEAST)
    with os.fdopen(fd, "rb") as pipe:
        data = pipe.read()
    *entries, end = data.decode(errors="surrogateescape").split("\0")[:-1]
    if end != "end":
        raise UserError("config.sh or config.local.sh cannot be read completely (see the line above)")
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


def _utf8(name: str, text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(f"{name} in config.sh or config.local.sh is not UTF-8") from None
    return text


def _tell_of_readable_secret(file: Path) -> None:
    try:
        is_open = file.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH)
        if not is_open or not holds_secret(file.read_text(encoding="utf-8", errors="replace")):
            return
    except OSError:  # the file does not exist
        return
    say(f"note: {file} holds a key, and other users may read it: chmod 600 {file}", sys.stderr)


def parse_boolean(text: str, where: str) -> bool:
    """Return the truth of true/yes/on/1 or false/no/off/0, in any case. Raises UserError for other text."""
    word = text.strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise UserError(f"{where} is '{text}': use true or false{suggest(word, _TRUE | _FALSE)}")


def parse_count(text: str, where: str) -> int:
    """Return a whole number of at least 1. Raises UserError for other text."""
    if text.strip().isdecimal() and int(text) >= 1:
        return int(text)
    raise UserError(f"{where} is '{text}': use a whole number of at least 1")


def parse_amount(text: str, where: str) -> float:
    """Return a number above 0; a dollar sign may precede it. Raises UserError for other text."""
    try:
        amount = float(text.strip().removeprefix("$"))
    except ValueError:
        amount = 0.0
    if not 0 < amount < float("inf"):
        raise UserError(f"{where} is '{text}': use a number above 0")
    return amount


def parse_choice(text: str, where: str, choices: Sequence[str]) -> str:
    """Return one of ``choices``, the first if the text is empty. Raises UserError for other text."""
    if (word := text.strip() or choices[0]) in choices:
        return word
    raise UserError(f"{where} is '{text}': use {' or '.join(choices)}{suggest(text, choices)}")


# Names of settings that hold secrets. A secret would leak: settings appear in argv, plans and result files.
_SECRET = re.compile(
    r"(api[_-]?key|secret|password|(access|auth|hf)[_-]?token|^token|authorization|bearer|cookie)$",
    re.IGNORECASE,
)
# user:password@, or a token alone, before a host; a path or a query may hold an @
_URL_WITH_PASSWORD = re.compile(r"\w://[^\s/?#\"']+@")
# characters that input methods and word processors insert for separators, quotes and brackets
_LOOKALIKES = dict(zip("，；＝：“”„‘’［］｛｝", ',;=:"""\'\'[]{}', strict=True))
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KWARGSES = "custom_model_kwargses"
_OPEN, _CLOSE = "[{", "]}"
# Python users write these for true/false/null of JSON; the string "False" would be true to a model.
_PYTHON_WORDS = ("True", "False", "None")


def parse_kwargses(text: str, models: int, source: str = "") -> list[dict[str, Any]]:
    """Return one dict per model; if ``text`` is empty, all dicts are empty.

    ``source`` says in errors where ``text`` comes from.
    ``"a=1,b=[2,3];;c=\\"x, y\\""`` has three sets, the second is empty.

    Raises UserError: a pair is malformed, or the number of sets is not ``models``.
    """
    if not text.strip():
        return [{} for _ in range(models)]
    sets = [parse_kwargs(part) for part in _split(text, ";")]
    if len(sets) != models:
        counts = f"{len(sets)} set{'s' * (len(sets) > 1)} for {models} model{'s' * (models > 1)}"
        raise UserError(
            f"custom_model_kwargses{source} has {counts}: "
            f"give one per model, separated by ';' (an empty one is fine){_lookalike(text)}"
        )
    return sets


def parse_kwargs(text: str, where: str = _KWARGSES) -> dict[str, Any]:
    """Return the pairs of one set. Raises UserError for a malformed, repeated or secret pair in ``where``."""
    kwargs: dict[str, Any] = {}
    for pair in _split(text, ",", where):
        if not pair.strip():
            continue
        name, equals, value = pair.partition("=")
        name = name.strip()
        if not equals or not _NAME.fullmatch(name):
            raise UserError(
                f"{where}: '{pair.strip()}' is no name=value "
                f'(a comma inside a value needs quotes: name="a, b"){_lookalike(pair)}'
            )
        if name in kwargs:
            raise UserError(f"{where}: '{name}' is given twice")
        kwargs[name] = _value(value.strip())
        if not value.strip().startswith(('"', "'")) and (found := _lookalike(value)):
            note_once(f"{where}: the value of '{name}' is {value.strip()!r}{found}")
        _check_no_secret(name, kwargs[name], where)
    return kwargs


def _lookalike(text: str) -> str:
    """Return a hint on the first character of ``text`` that only looks like a separator; "" if none does."""
    char = next((char for char in text if char in _LOOKALIKES), "")
    return f"; '{char}' is not '{_LOOKALIKES[char]}'" if char else ""


def _check_no_secret(name: str, value: Any, where: str) -> None:
    if isinstance(value, dict):
        for key, nested in value.items():
            _check_no_secret(str(key), nested, where)
    for nested in value if isinstance(value, list) else []:
        _check_no_secret(name, nested, where)
    if isinstance(value, str) and _URL_WITH_PASSWORD.search(value):
        raise UserError(
            f"{where}: '{name}' holds a URL with a user name or password; give the URL without them, "
            "and put the key into config.local.sh or the environment (API_KEY, or what api_key_env names)"
        )
    if _SECRET.search(name) or (isinstance(value, str) and redact(value) != value):
        raise UserError(
            f"{where}: '{name}' looks like a secret; "
            "put keys into config.local.sh or the environment (API_KEY), never on the command line"
        )


def _value(text: str) -> Any:
    """Return ``text`` parsed as JSON, else as a Python literal, else as it is."""
    try:
        value = json.loads(text, parse_constant=lambda word: word)
    except ValueError:
        if text not in _PYTHON_WORDS and text[:1] not in ("'", "[", "{"):
            return text
        try:
            value = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            return text
    return text if value in (float("inf"), float("-inf")) else value


def _split(text: str, separator: str, where: str = _KWARGSES) -> list[str]:
    """Split ``text`` outside quotes and brackets. Raises UserError if a quote or bracket stays open."""
    parts, start, depth, quote, escaped = [], 0, 0, "", False
    for i, char in enumerate(text):
        if escaped:
            escaped = False
        elif quote:
            escaped = char == "\\"
            quote = "" if char == quote else quote
        elif char == '"' or (char == "'" and text[:i].rstrip().endswith(("=", "[", ","))):
            # an apostrophe within a word (don't) opens no quotation
            quote = char
        elif char in _OPEN:
            depth += 1
        elif char in _CLOSE:
            depth = max(0, depth - 1)
        elif char == separator and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    if quote or depth > 0:
        raise UserError(f"{where}: a quote or bracket stays open in '{text}'")
    return [*parts, text[start:]]


Parse = Callable[[Any, str], Any]
"""Parses a text (or a list of texts) to a value. The second argument names its place, for a UserError."""
OTHER = "other options"


class Option(NamedTuple):
    """An entry of the table of options.

    ``metavar`` is the value in the help. It is empty for a flag, has two unquoted words for an option with
    two values, and ends with "…" for any number of values. ``config`` is its variable in config.sh (empty:
    none).

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


DRIVER_ENV = REPO / ".venv"
DRIVER_PYTHON = str(DRIVER_ENV / "bin" / "python")


def python_of(environment: str, used_by: str, build: str) -> str:
    """Returns the path of the Python of ``environment`` (empty: the driver's, which eval.sh builds first).

    The error names its user (``used_by``: "model bagel") and the options of ``make_env.sh`` (``build``).

    Raises UserError: the environment does not exist.
    """
    if not environment:
        return DRIVER_PYTHON
    return str(program_of(environment, "python", used_by, build))


def program_of(environment: str, name: str, used_by: str, build: str) -> Path:
    """Returns the path of program ``name`` in ``environment``.

    ``environment`` is a folder, a name in CONDA_BASE/envs, or empty for the driver's environment.

    Raises UserError: the program does not exist, or ``environment`` is a name and CONDA_BASE is not set.
    """
    base = os.environ.get("CONDA_BASE", "")
    if not environment:
        folder = DRIVER_ENV
    elif "/" in environment:
        folder = Path(environment).expanduser()
    elif base:
        folder = Path(base) if environment == "base" else Path(base) / "envs" / environment
    else:
        raise UserError(
            f"{used_by} runs in environment '{environment}', but CONDA_BASE is empty: set it in config.sh, or name "
            "a folder in INFER_ENV_MAP or EVAL_ENV_MAP (bash utils/make_env.sh … --path FOLDER builds one)"
        )
    program = folder / "bin" / name
    if not os.access(program, os.X_OK):
        raise UserError(
            f"environment '{environment}' of {used_by} is missing: no {program}; build it with "
            f"'bash utils/make_env.sh {build}' or correct config.sh"
        )
    return program


OUR_PATHS = (REPO, REPO / "infer")


def with_our_paths(environ: dict[str, str], program: str = DRIVER_PYTHON) -> dict[str, str]:
    """Returns ``environ`` with a PYTHONPATH by which ``program`` can import the toolkit and ``infer/``."""
    own = map(str, OUR_PATHS)
    return environ | {
        "PYTHONPATH": os.pathsep.join([*own, *usable_paths(environ.get("PYTHONPATH", ""), program)])
    }
