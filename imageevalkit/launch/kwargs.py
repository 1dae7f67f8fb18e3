"""``--custom_model_kwargses``: sets by ``;``, pairs by ``,``, values as JSON where they parse."""

from __future__ import annotations

import json
import re
from typing import Any

from imageevalkit.errors import UserError

# Values of these travel through argv, the plan and result files; a secret must not.
_SECRET = re.compile(r"(api[_-]?key|secret|password|(access|auth|hf)[_-]?token|^token)$", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OPEN, _CLOSE = "[{(", "]})"
# JSON writes true/false/null; Python users write these, and the string "False" would be true to a model.
_PYTHON_WORDS: dict[str, Any] = {"True": True, "False": False, "None": None}


def parse_kwargses(text: str, models: int) -> list[dict[str, Any]]:
    """One dict per model; empty ``text`` means none for any.

    ``"a=1,b=[2,3];;c=\\"x, y\\""`` is three sets, the second empty.

    Raises:
        UserError: a pair is malformed, or the number of sets is not ``models``.
    """
    if not text.strip():
        return [{} for _ in range(models)]
    sets = [parse_kwargs(part) for part in _split(text, ";")]
    if len(sets) != models:
        raise UserError(
            f"custom_model_kwargses has {len(sets)} set{'s' * (len(sets) > 1)} for {models} model{'s' * (models > 1)}: "
            "give one per model, separated by ';' (an empty one is fine)"
        )
    return sets


def parse_kwargs(text: str) -> dict[str, Any]:
    """The pairs of one set. Raises UserError for a malformed, repeated or secret one."""
    kwargs: dict[str, Any] = {}
    for pair in _split(text, ","):
        if not pair.strip():
            continue
        name, equals, value = pair.partition("=")
        name = name.strip()
        if not equals or not _NAME.fullmatch(name):
            raise UserError(
                f"custom_model_kwargses: '{pair.strip()}' is no name=value "
                '(a comma inside a value needs quotes: name="a, b")'
            )
        if _SECRET.search(name):
            raise UserError(
                f"custom_model_kwargses: '{name}' looks like a secret; "
                "put keys into config.local.sh or the environment (API_KEY), never on the command line"
            )
        if name in kwargs:
            raise UserError(f"custom_model_kwargses: '{name}' is given twice for one model")
        kwargs[name] = _value(value.strip())
    return kwargs


def _value(text: str) -> Any:
    if text in _PYTHON_WORDS:
        return _PYTHON_WORDS[text]
    if len(text) >= 2 and text[0] == text[-1] == "'":
        return text[1:-1]
    try:
        return json.loads(text, parse_constant=lambda word: word)
    except ValueError:
        return text


def _split(text: str, separator: str) -> list[str]:
    """Split at ``separator`` outside quotes and brackets. Raises UserError when one stays open."""
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
            depth -= 1
        elif char == separator and depth <= 0:
            parts.append(text[start:i])
            start = i + 1
    if quote or depth > 0:
        raise UserError(f"custom_model_kwargses: a quote or bracket stays open in '{text}'")
    return [*parts, text[start:]]
