"""Reading the reply of ``/images/generations`` and ``/images/edits``."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from imageevalkit.api.failures import (
    LONGEST_MESSAGE,
    Failure,
    Kind,
    error_of,
    in_words,
    parse_error,
    refuses,
)
from imageevalkit.images import CorruptImage, decode
from imageevalkit.secrets import one_line


class ImageReply(NamedTuple):
    """A reply: the bytes of a whole image, or the ``url`` to get them from.

    ``tokens`` are the counts of ``usage``, nested ones with a dotted name; ``extra`` is what the server says
    that it did.
    """

    image: bytes | None
    url: str | None
    tokens: dict[str, int]
    extra: dict[str, Any]


_DATA_URL = re.compile(r"data:[^,]*;base64,", re.IGNORECASE)
# "I'm sorry, but I can't create that": chat models behind an images endpoint. "We" is the operator speaking.
_REFUSAL_SPEECH = re.compile(
    r"(?<![\w/.-])I(?![\w/.-]).{0,30}\b(can['’]?t|cannot|unable to|won['’]?t)\b.{0,30}"
    r"\b(assist|help|create|generate|produce|fulfil)",
    re.IGNORECASE,
)
_PASSES = re.compile(r"overload|\b(later|again|quota|capacity|busy|rates?)\b|rate_?limit", re.IGNORECASE)
_SAID_ABOUT_REPLY = ("model", "size", "quality", "background", "output_format", "id")


def read_reply(content: bytes) -> ImageReply | Failure:
    """Parse the body of a 200 and prove its image whole. Takes CPU time: call it off the event loop."""
    try:
        reply = json.loads(content)
    except ValueError:
        said = parse_error(content[:10_000].decode(errors="replace")).message
        return Failure(Kind.TRANSIENT, f"the reply is not JSON but {said or 'empty'}")
    if not isinstance(reply, dict):
        return Failure(Kind.TRANSIENT, "the reply is not a JSON object")
    entry = _first_image(reply)
    encoded, url = entry.get("b64_json"), entry.get("url")
    if isinstance(url, str) and _DATA_URL.match(url):
        encoded = encoded or url
    if encoded:
        image = _image_of(encoded)
        if isinstance(image, Failure):
            return image
        return ImageReply(image, None, _tokens(reply.get("usage")), _extra(reply, entry))
    if url and isinstance(url, str):
        return ImageReply(None, url, _tokens(reply.get("usage")), _extra(reply, entry))
    return _without_image(reply)


def prove(data: bytes) -> Failure | None:
    """None when ``data`` decodes to its last row, else the failure."""
    try:
        decode(data)
    except CorruptImage as error:
        text = f"the image ({len(data)} bytes) does not decode: {error}"
        return Failure(Kind.TRANSIENT, one_line(text, LONGEST_MESSAGE))
    return None


def _first_image(reply: Mapping[str, Any]) -> Mapping[str, Any]:
    data = reply.get("data")
    entry = data[0] if isinstance(data, list) and data else None
    return entry if isinstance(entry, dict) else {}


def _image_of(encoded: Any) -> bytes | Failure:
    try:
        data = base64.b64decode(_DATA_URL.sub("", encoded, count=1))
    except (binascii.Error, TypeError, ValueError):
        return Failure(Kind.TRANSIENT, "the image is not base64")
    return prove(data) or data


def _without_image(reply: Mapping[str, Any]) -> Failure:
    if reply.get("error"):
        error = error_of(reply)
        if refuses(200, error):
            return Failure(Kind.REFUSAL, error.message or ", ".join(error.codes))
        return Failure(Kind.TRANSIENT, f"the reply (HTTP 200) holds an error: {error.message or 'no words'}")
    refusal = reply.get("refusal") or _first_image(reply).get("refusal")
    if isinstance(refusal, str):
        return Failure(Kind.REFUSAL, one_line(refusal, LONGEST_MESSAGE))
    # whoever answers 200 to a refusal puts its words wherever it likes
    for said in _strings(reply):
        if _refuses_in_words(said):
            return Failure(Kind.REFUSAL, one_line(said, LONGEST_MESSAGE))
    return Failure(Kind.TRANSIENT, "the reply (HTTP 200) holds no image")


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
            if key not in ("revised_prompt", "prompt"):  # the user's words, not the provider's
                yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


def _tokens(usage: Any, prefix: str = "") -> dict[str, int]:
    counts: dict[str, int] = {}
    for name, value in usage.items() if isinstance(usage, dict) else ():
        if isinstance(value, dict):
            counts.update(_tokens(value, f"{prefix}{name}."))
        elif isinstance(value, int) and not isinstance(value, bool):
            counts[prefix + name] = value
    return counts


def _extra(reply: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, Any]:
    said = {name: reply[name] for name in _SAID_ABOUT_REPLY if isinstance(reply.get(name), str)}
    if entry.get("revised_prompt"):
        said["revised_prompt"] = entry["revised_prompt"]
    return said
