"""What the JSON replies of all endpoints have in common, whatever was asked for."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from imageevalkit.api.failures import (
    LONGEST_MESSAGE,
    Failure,
    Kind,
    classify_error_in_200,
    error_of,
    in_words,
)
from imageevalkit.secrets import beginning, one_line

_LOOKED_AT = 10_000  # bytes of what is no JSON
_MOST_TOKENS = 10**12  # more are no count, and no float either where they have hundreds of digits
# of the counts that a reply tells: a record of its image holds them all
_MOST_COUNTS = 100
_LONGEST_NAME = 200
# finish reasons: OpenAI's content_filter, and Gemini's SAFETY, PROHIBITED_CONTENT, BLOCKLIST, SPII,
# RECITATION, each also as IMAGE_…
_POLICY = re.compile(r"content_?filter|safety|prohibited|blocklist|spii|recitation", re.IGNORECASE)


def json_object(content: bytes) -> dict[str, Any] | Failure:
    """The body of a 200 as the JSON object that it should be."""
    try:
        reply = json.loads(content)
    except ValueError:
        said = in_words(content[:_LOOKED_AT].decode(errors="replace")).message
        return Failure(Kind.TRANSIENT, f"the reply is not JSON but {said or 'empty'}")
    if not isinstance(reply, dict):
        return Failure(Kind.TRANSIENT, "the reply is not a JSON object")
    return reply


def error_in(holder: Mapping[str, Any]) -> Failure | None:
    """The failure that the ``error`` of a 200 means; None when there is none."""
    if not holder.get("error"):
        return None
    return classify_error_in_200(error_of(holder))


def refusal(said: Any) -> Failure | None:
    """The refusal that a ``refusal`` field holds; None when it holds no words."""
    if isinstance(said, str) and said.strip():
        return Failure(Kind.REFUSAL, one_line(said, LONGEST_MESSAGE))
    return None


def tokens_of(usage: Any, prefix: str = "") -> dict[str, int]:
    """The whole numbers of ``usage`` that can be counts, nested ones with a dotted name."""
    return dict(itertools.islice(_counts(usage, prefix), _MOST_COUNTS))


def _counts(usage: Any, prefix: str) -> Iterator[tuple[str, int]]:
    for name, value in usage.items() if isinstance(usage, dict) else ():
        if len(dotted := prefix + name) > _LONGEST_NAME:
            continue
        if isinstance(value, dict):
            yield from _counts(value, f"{dotted}.")
        elif isinstance(value, int) and not isinstance(value, bool) and abs(value) < _MOST_TOKENS:
            yield dotted, value


def list_of(value: Any) -> list[Any]:
    """``value`` where it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def strings_of(holder: Mapping[str, Any], *names: str) -> dict[str, str]:
    """Those of the fields ``names`` of ``holder`` that are strings, or their beginnings: they are for the record."""
    return {
        name: beginning(holder[name]) for name in names if isinstance(holder.get(name), str) and holder[name]
    }


def finish_reasons(reply: Mapping[str, Any], choice: Mapping[str, Any]) -> tuple[str, str]:
    """Why a chat model stopped, in the words of the endpoint and of the provider behind it; empty where not told."""
    native = choice.get("native_finish_reason") or reply.get("native_finish_reason") or ""
    reasons = str(choice.get("finish_reason") or ""), str(native)
    return one_line(reasons[0], LONGEST_MESSAGE), one_line(reasons[1], LONGEST_MESSAGE)


def stopped_by_policy(reply: Mapping[str, Any], choice: Mapping[str, Any], words: str) -> Failure | None:
    """The refusal of a ``choice`` that a filter ended, in its own ``words`` if there are any."""
    finish, native = finish_reasons(reply, choice)
    # gateways fold all of Gemini's reasons (NO_IMAGE, IMAGE_OTHER) into content_filter: its own one decides
    reason = native or finish
    return Failure(Kind.REFUSAL, words or f"finish reason {reason}") if _POLICY.search(reason) else None
