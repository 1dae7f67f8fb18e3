"""What the replies of all routes have in common: an image in some wrapping, counts, or the reason for none."""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from imageevalkit import images
from imageevalkit.api.failures import LONGEST_MESSAGE, Failure, Kind, in_words, refuses
from imageevalkit.api.json_reply import tokens_of
from imageevalkit.api.usage import reported_cost
from imageevalkit.images import CorruptImage, TooLarge
from imageevalkit.secrets import beginning, one_line


class ImageReply(NamedTuple):
    """A reply: the bytes of a whole image, or the ``url`` to get them from.

    ``tokens`` are the counts of ``usage``, nested ones with a dotted name; ``extra`` is what the server says
    that it did. ``reported_cost``: USD, by the gateway's own account.
    """

    image: bytes | None
    url: str | None
    tokens: dict[str, int]
    extra: dict[str, Any]
    reported_cost: float | None = None


class Found(NamedTuple):
    """An image in a reply: base64 (perhaps a data URL), or the ``url`` it can be had from."""

    encoded: Any = None
    url: str | None = None


LARGEST_IMAGE = 100 * 2**20
"""Bytes; 4096² pixels that do not compress take half of it."""
LARGEST_REPLY = 144 * 2**20
"""Bytes of a reply that holds an image: the largest one in base64, and some words."""
_DATA_URL = re.compile(r"data:[^,]{0,200};base64,", re.IGNORECASE)
_URL_SAFE = str.maketrans("-_", "+/")
# "I'm sorry, but I can't create that": chat models behind an images endpoint. "We" is the operator speaking.
_REFUSAL_SPEECH = re.compile(
    r"(?<![\w/.-])I(?![\w/.-]).{0,30}\b(can['’]?t|cannot|unable to|won['’]?t)\b.{0,30}"
    r"\b(assist|help|create|generate|produce|fulfil)",
    re.IGNORECASE,
)
_MOST_WORDS = 10**6  # characters of a reply in which a refusal is looked for
_LEAST_WORDS = 200  # what a short string counts as: it is searched as often as a long one
_PASSES = re.compile(r"overload|\b(later|again|quota|capacity|busy|rates?)\b|rate_?limit", re.IGNORECASE)
# the user's words, the request's settings, and what a model thinks on its way: none is the provider's answer
_NOT_SAID = frozenset(
    {
        "revised_prompt",
        "prompt",
        "input",
        "instructions",
        "tools",
        "metadata",
        "user",
        "model",
        "reasoning",
        "reasoning_content",
        "reasoning_details",
    }
)


def found_in(value: Any) -> Found | None:
    """The image in ``value``: a URL, or an object that holds one in one of the ways servers do."""
    if isinstance(value, str):
        if not value:
            return None
        return Found(encoded=value) if _DATA_URL.match(value) else Found(url=value)
    if not isinstance(value, dict):
        return None
    if value.get("b64_json"):
        return Found(encoded=value["b64_json"])
    inline = value.get("inline_data") or value.get("inlineData")
    if isinstance(inline, dict) and inline.get("data"):
        mime_type = str(inline.get("mime_type") or inline.get("mimeType") or "image/")
        return Found(encoded=inline["data"]) if mime_type.lower().startswith("image/") else None
    return found_in(value.get("image_url") or value.get("imageUrl") or value.get("url"))


def replied(found: Found, reply: Mapping[str, Any], extra: dict[str, Any]) -> ImageReply | Failure:
    """What was ``found`` in ``reply``, an image proven whole. Takes CPU time.

    The tools of ``/responses`` are counted beside the model, under ``tool_usage.``.
    """
    image = None if found.url is not None else _image_of(found.encoded)
    if isinstance(image, Failure):
        return image
    return ImageReply(image, found.url, _counts(reply), extra, reported_cost(reply.get("usage")))


def with_usage(failure: Failure, reply: Mapping[str, Any]) -> Failure:
    """``failure`` with what ``reply`` says that it was billed: a refusal has its price too."""
    return failure._replace(tokens=_counts(reply), reported_cost=reported_cost(reply.get("usage")))


def _counts(reply: Mapping[str, Any]) -> dict[str, int]:
    return tokens_of(reply.get("usage")) | tokens_of(reply.get("tool_usage"), "tool_usage.")


def _image_of(encoded: Any) -> bytes | Failure:
    import pybase64  # base64 of the standard library holds the interpreter lock for 5 ms an image

    try:
        head = _DATA_URL.match(encoded)
        payload = encoded[head.end() :] if head else encoded
        if "-" in payload or "_" in payload:
            # pydantic's base64 (a gateway in Python), whose letters b64decode would silently leave out
            payload = payload.translate(_URL_SAFE)
        data = pybase64.b64decode(payload)
    except (binascii.Error, TypeError, ValueError):
        return Failure(Kind.TRANSIENT, "the image is not base64")
    return prove(data) or data


def prove(data: bytes) -> Failure | None:
    """None when ``data`` is a whole image, to its last row, else the failure."""
    try:
        images.prove(data)
    except TooLarge as error:
        return Failure(Kind.ITEM, f"the image ({len(data)} bytes) is not decoded: {error}", maybe_billed=True)
    except CorruptImage as error:
        text = f"the image ({len(data)} bytes) does not decode: {error}"
        return Failure(Kind.TRANSIENT, one_line(text, LONGEST_MESSAGE))
    return None


def refusal_in_words(reply: Any) -> Failure | None:
    """The refusal among the strings of ``reply``: who answers 200 to one puts its words wherever it likes."""
    left = _MOST_WORDS
    for said in map(beginning, _strings(reply)):
        if _refuses_in_words(said):
            return Failure(Kind.REFUSAL, one_line(said, LONGEST_MESSAGE))
        left -= max(len(said), _LEAST_WORDS)
        if left < 0:
            break
    return None


def no_image(words: str = "", because: str = "") -> Failure:
    """The failure of a reply without an image that is neither error nor refusal, quoting its ``words``."""
    text = "the reply (HTTP 200) holds no image"
    text += f" ({because})" if because else ""
    text += f": {words}" if words else ""
    return Failure(Kind.TRANSIENT, one_line(text, LONGEST_MESSAGE))


def _refuses_in_words(said: str) -> bool:
    error = in_words(said)
    if refuses(200, error._replace(codes=() if " " in said else (said,))):
        return True
    return not error.page and bool(_REFUSAL_SPEECH.search(said)) and not _PASSES.search(said)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str) and value:
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            if key not in _NOT_SAID:
                yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
