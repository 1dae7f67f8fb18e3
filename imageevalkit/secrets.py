"""Names of the secrets a run may hold, and their removal from anything that is written."""

from __future__ import annotations

import os

SECRET_NAMES = ("API_KEY", "OPENAI_API_KEY", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_SHORTEST = 8  # shorter values are placeholders ("EMPTY"); removing them would garble ordinary text


def redact(text: str) -> str:
    """``text`` with every secret's value replaced by its name."""
    for name in SECRET_NAMES:
        value = os.environ.get(name, "")
        if len(value) >= _SHORTEST:
            text = text.replace(value, f"<{name}>")
    return text


def one_line(said: BaseException | str, limit: int = 500) -> str:
    """``said`` on one line, redacted, at most ``limit`` characters; an error without text gives its class."""
    text = " ".join(redact(str(said)).split())
    if not text and isinstance(said, BaseException):
        text = type(said).__name__
    return text if len(text) <= limit else text[: limit - 1] + "…"
