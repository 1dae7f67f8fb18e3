"""Which item of a benchmark a request is about, told from the first bytes of its body."""

from __future__ import annotations

import json
import re

HEAD = 1 << 15
"""Bytes that are enough: images come after the words."""
# as WISE's judge is asked; in a JSON string its quotes are escaped
_JUDGED = re.compile(rb'PROMPT: \\"((?:[^"\\]|\\[^"]|\\"(?!\\n))*)\\"\\nEXPLANATION')


def request_item(body: bytes) -> str:
    """The prompt of an image: as it is in a request for one, or as a judge's question quotes it."""
    if judged := _JUDGED.search(body):
        prompt: str = json.loads(b'"' + judged[1] + b'"')
        return prompt
    return str(json.loads(body)["prompt"])
