"""Reads the JSON of a reply, for image models and judges: its object, errors, refusals and token counts."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from imageevalkit.api.failures import (
    LONGEST_MESSAGE,
    LOOKED_AT,
    Failure,
    Kind,
    classify_error_in_200,
    error_of,
    in_words,
)
from imageevalkit.api.streams import joined
from imageevalkit.common.redaction import one_line

T = TypeVar("T")

_MOST_TOKENS = 10**12  # a larger number is no count, and with hundreds of digits no float
# Bounds on the counts of a reply: the record of the image contains all of them.
_MOST_COUNTS = 100
_LONGEST_NAME = 200
# finish reasons: OpenAI's content_filter, and Gemini's SAFETY, PROHIBITED_CONTENT, BLOCKLIST, SPII,
# RECITATION, each also as IMAGE_…
_POLICY = re.compile(r"content_?filter|safety|prohibited|blocklist|spii|recitation", re.IGNORECASE)


def read_json(content: bytes, read: Callable[[dict[str, Any]], T | Failure]) -> T | Failure:
    """Returns ``read`` of the JSON object in the body of a 200, which may be a stream of events."""
    try:
        try:
            reply = json.loads(content)
        except ValueError:
            reply = joined(content)
        if isinstance(reply, Failure):
            return reply
        if reply is None:
            words = in_words(content[:LOOKED_AT].decode(errors="replace")).message
            text = f"the reply is not JSON but {words or 'empty'}"
            return Failure(Kind.TRANSIENT, text, unlike="it is not JSON")
        if not isinstance(reply, dict):
            return Failure(Kind.TRANSIENT, "the reply is not a JSON object", unlike="it is not a JSON object")
        return read(reply)
    except RecursionError:
        return Failure(Kind.TRANSIENT, "the reply is JSON nested too deep to be read")


def failure_in(*holders: Mapping[str, Any]) -> Failure | None:
    """Returns the Failure for the first ``error`` in ``holders``, else the first ``refusal``, else None."""
    for holder in holders:
        if holder.get("error"):
            return classify_error_in_200(error_of(holder))
    for holder in holders:
        words = holder.get("refusal")
        if isinstance(words, str) and words.strip():
            return Failure(Kind.REFUSAL, one_line(words, LONGEST_MESSAGE))
    return None


def tokens_of(usage: Any, prefix: str = "") -> dict[str, int]:
    """Returns the integers of ``usage`` that can be counts; nested ones have a dotted name."""
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
    """Returns ``value`` if it is a list, else an empty list."""
    return value if isinstance(value, list) else []


def objects_in(value: Any) -> list[dict[str, Any]]:
    """Returns the objects in ``value`` if it is a list, else an empty list."""
    return [each for each in list_of(value) if isinstance(each, dict)]


def finish_reasons(reply: Mapping[str, Any], choice: Mapping[str, Any]) -> tuple[str, str]:
    """Returns why a chat model stopped: the endpoint's reason and its provider's, each empty if missing."""
    native = choice.get("native_finish_reason") or reply.get("native_finish_reason") or ""
    reasons = str(choice.get("finish_reason") or ""), str(native)
    return one_line(reasons[0], LONGEST_MESSAGE), one_line(reasons[1], LONGEST_MESSAGE)


def stopped_by_policy(reply: Mapping[str, Any], choice: Mapping[str, Any], words: str) -> Failure | None:
    """Returns the refusal, with ``words`` if any, if a content filter ended ``choice``; else None."""
    finish, native = finish_reasons(reply, choice)
    # gateways report all of Gemini's reasons (NO_IMAGE, IMAGE_OTHER) as content_filter: use Gemini's own
    reason = native or finish
    return Failure(Kind.REFUSAL, words or f"finish reason {reason}") if _POLICY.search(reason) else None
