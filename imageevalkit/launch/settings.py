"""The settings that a user gave, as a dataclass: names and types are checked here, once, at planning."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from imageevalkit.errors import UserError, suggest

T = TypeVar("T")

_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "object": "an object",
    "array": "a list",
    "null": "null",
}


def checked(cls: type[T], given: Mapping[str, Any], where: str, remark: str = "") -> T:
    """The dataclass ``cls`` with the settings ``given``, the others at their defaults.

    ``where`` begins a message ("judge 'x' of wise"), ``remark`` follows the names that are known.

    Raises:
        UserError: there is no such setting, or not with that value.
    """
    hints = get_type_hints(cls)
    known = [each.name for each in fields(cls)]  # type: ignore[arg-type]
    for name in given:
        if name not in known:
            raise UserError(
                f"{where}: there is no setting '{name}'{suggest(name, known)}; known: {', '.join(known)}{remark}"
            )
    try:
        return msgspec.convert(dict(given), cls)
    except UserError as error:  # of the class itself
        raise UserError(f"{where}: {error}") from None
    except msgspec.ValidationError as error:
        raise UserError(f"{where}: {_in_words(str(error), given, hints)}") from None


def _in_words(problem: str, given: Mapping[str, Any], hints: Mapping[str, Any]) -> str:
    """What msgspec says ("Expected `int | null`, got `str` - at `$.size`"), or the class itself in other words."""
    place = re.search(r" - at `\$\.(\w+)", problem)
    if place is None:
        return problem
    name = place[1]
    value, hint = given[name], hints[name]
    if get_origin(hint) is Literal:
        choices = [str(choice) for choice in get_args(hint)]
        return f"{name} must be {' or '.join(choices)}, not {value!r}{suggest(str(value), choices)}"
    if expected := re.match(r"Expected `([\w |]+)`", problem):
        kinds = [_WORDS.get(kind, kind) for kind in expected[1].split(" | ")]
        return f"{name} must be {' or '.join(kinds)}, not {value!r}"
    return f"{name}: {problem}"
