"""Images and words in the ``content`` of a chat message: a text, or a list of parts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from imageevalkit.api.image_reply import Found, found_in


class Content(NamedTuple):
    """The images in their order, and the words around them."""

    images: list[Found]
    words: str


# Fewer than 64 characters hold no image: a prompt about data URLs is quoted. No pattern has anything after
# the base64 that could fail, which would walk back through megabytes; and none looks beyond where another could begin,
# which would walk through them again and again.
_DATA_URL = r"data:image/[\w.+-]{1,50}(?:;[\w=.+-]{1,50}){0,3};base64,[A-Za-z0-9+/_=-]{64,}"
_MARKDOWN = r"!\[(?:(?!!\[)[^\]]){0,500}\]\(\s*<?"
_IMAGE = re.compile(
    rf"(?:{_MARKDOWN}|<)?({_DATA_URL})>?\)?"
    rf"|{_MARKDOWN}(https?://[^\s)>]+)>?(?:\s+\"[^\"\n]{{0,300}}\")?\)?"
    # a plain URL only where it has a line of its own: in a sentence it is a source or a policy
    r"|^[ \t]*(?:\[[^\]\n]{0,500}\]\()?(https?://[^\s)]+)\)?[ \t]*$",
    re.MULTILINE,
)
_OF_AN_IMAGE = re.compile(r"\.(?:png|jpe?g|webp)(?:\?|$)")
_NOTHING_BUT_A_URL = re.compile(r"\s*(https?://\S+)\s*")


def read_content(content: Any) -> Content:
    """Take ``content`` apart. Text parts may hold images too: gateways put them there as Markdown."""
    images: list[Found] = []
    words: list[str] = []
    for part in content if isinstance(content, list) else [content]:
        text = part.get("text") if isinstance(part, dict) else part
        if isinstance(text, str):
            words.extend(_take_apart(text, images))
        elif isinstance(part, dict) and (found := found_in(part)):
            images.append(found)
    return Content(images, " ".join(" ".join(words).split()))


def _take_apart(text: str, images: list[Found]) -> Iterator[str]:
    """The words of ``text``; its images are added to ``images``. One pass: it may be megabytes long."""
    if alone := _NOTHING_BUT_A_URL.fullmatch(text):
        images.append(Found(url=alone[1]))
        return
    end = looked_at = 0
    while match := _IMAGE.search(text, looked_at):
        data_url, in_markdown, on_its_own = match.groups()
        if on_its_own and not _OF_AN_IMAGE.search(on_its_own):
            looked_at = match.start() + 1  # the pattern of a line of its own begins no second time in it
            continue
        images.append(Found(encoded=data_url) if data_url else Found(url=in_markdown or on_its_own))
        yield text[end : match.start()]
        end = looked_at = match.end()
    yield text[end:]
