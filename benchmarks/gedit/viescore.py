"""Reads the scores in a reply as VIEScore does in GEdit-Bench: ``{"score": [8, 9], "reasoning": "…"}``."""

from __future__ import annotations

import json
import re
import unicodedata
from typing import Any

from imageevalkit.benchmark.contract import Unparsed

GUESS = "guess"
"""The official program takes a random number from 0 to 10 as the score."""
STOPS = "stops"
"""The official program raises an error while it reads the reply."""
UNUSABLE = "unusable"
"""The official program reads scores of which it cannot compute a result."""

_DELIMITER = "||V^=^V||"
_RATE_LIMIT = "rate_limit_exceeded"
_PAIR_OF_NUMBERS = re.compile(r"\[\d+, ?\d+\]")
_ENTRY = re.compile(r'(".*?"):(.*?)(,|})')
_NUMBER = re.compile(r"-?\d+(\.\d+)?")
_CONSTANT = re.compile("true|false|null", re.IGNORECASE)
_NOT_JSON = (ValueError, RecursionError)
_MOST = 1e99  # with larger scores the mean could overflow


class Stops(Exception):
    """The official program raises an error at such a reply, and starts the item again."""


def grade(reply: str, gives_up: bool) -> float | str | None:
    """Returns the lowest score of a reply by official rules; None if the program asks again.

    ``gives_up``: the program guesses if the reply has no braces. See also GUESS, STOPS and UNUSABLE. A
    negative or infinite score is UNUSABLE too: the official program accepts some of them.
    """
    try:
        scores = scores_in(reply, gives_up)
        if scores is GUESS:
            return GUESS
    except Unparsed:
        return None
    except Stops:
        return STOPS
    try:
        lowest = min(scores)
    except (TypeError, ValueError):
        return UNUSABLE
    # +: true counts as 1
    return +lowest if isinstance(lowest, int | float) and 0 <= lowest <= _MOST else UNUSABLE


def scores_in(reply: str, gives_up: bool = False) -> Any:
    """Returns the value of ``score`` in a reply, not checked: usually a list. GUESS if the program guesses.

    Raises Unparsed if the program asks again, and Stops if it raises an error.
    """
    if reply == _RATE_LIMIT:
        return None
    if reply.count(_DELIMITER) == 2:
        text = reply[reply.find(_DELIMITER) + len(_DELIMITER) : reply.rfind(_DELIMITER)]
    else:
        start, end = reply.find("{"), reply.rfind("}")
        if start < 0 or end < 0:
            return GUESS if gives_up else _without_braces(reply)
        text = reply[start : end + 1]
    text = text.strip().replace("\n", "")
    try:
        scores = json.loads(text)["score"]
        return scores if isinstance(scores, list) else [scores]
    except (*_NOT_JSON, TypeError, KeyError):
        pass
    try:
        found = json.loads(repaired(text))
    except _NOT_JSON:
        found = False
    if found is False:
        raise Unparsed("no scores", reply)
    # quirk: here a single value is not made a list, and the score may be missing
    return found.get("score") if isinstance(found, dict) else None


def _without_braces(reply: str) -> list[Any]:
    """Returns the two numbers between the outer brackets, or the number that is the whole reply."""
    start, end = reply.find("["), reply.rfind("]")
    listed = reply[start : end + 1] if start >= 0 else ""
    try:
        if _PAIR_OF_NUMBERS.fullmatch(listed):
            pair: list[Any] = json.loads(listed)
            return pair
    except ValueError:  # quirk: no JSON number has a leading zero, and nothing catches the error
        raise Stops from None
    try:
        if 0 <= (number := int(reply)) <= 10:
            return [number]
    except ValueError:
        pass
    raise Unparsed("no scores", reply)


def repaired(text: str) -> str:
    """Returns ``text`` with quotes around names and values; a number becomes a list of one number."""

    def entry(found: re.Match[str]) -> str:
        name, value, end = found[1], found[2].strip(), found[3]
        if _NUMBER.fullmatch(value):
            value = f"[{value}]"
        elif not _CONSTANT.fullmatch(value):
            value = f'"{value}"'
        return f"{name}: {value}{end}"

    *names, rest = text.split(":")
    return _ENTRY.sub(entry, ":".join([*map(_quoted, names), rest]))


def _quoted(text: str) -> str:
    """Returns ``text`` with quotes around the word at its end."""
    start = len(text)
    while start and _is_part_of_word(text[start - 1]):
        start -= 1
    return f'{text[:start]}"{text[start:]}"' if start < len(text) else text


def _is_part_of_word(character: str) -> bool:
    # the official program uses the package regex, whose \w has combining marks and no "²", unlike that of re
    category = unicodedata.category(character)
    return category[0] in "LM" or category in ("Nd", "Nl", "Pc")
