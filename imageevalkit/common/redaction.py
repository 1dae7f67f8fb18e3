"""Keeps secrets of the environment out of written text, and from processes that do not need them."""

from __future__ import annotations

import os
import re
from collections.abc import Collection

from imageevalkit.common.guest_code import guest_code

_SECRET_NAME = re.compile(
    r"(^|_)(API_KEY|SECRET_ACCESS_KEY|TOKEN|SECRET|PASSWORD)$|^OPENAI_CUSTOM_HEADERS$", re.IGNORECASE
)
_USER_OF_ADDRESS = re.compile(r"""(?<=://)[^\s/?#"'<>]+@""")
# a literal value, not the output of a command or another variable
_SET_TO_VALUE = re.compile(r"""\b(\w+)=["']?([^\s"'$`();]+)""")
SHORTEST = 8  # shorter values are placeholders ("EMPTY"); removing them would garble ordinary text


def secret_names() -> list[str]:
    """Returns the names of the environment variables that hold secrets."""
    return [name for name in os.environ if _SECRET_NAME.search(name)]


def environ_with(names: Collection[str]) -> dict[str, str]:
    """Returns the environment without secrets, except those in ``names``."""
    withheld = set(secret_names()).difference(names)
    return {name: value for name, value in os.environ.items() if name not in withheld}


def holds_secret(script: str) -> bool:
    """Returns whether the text of a shell script sets a variable to a secret."""
    return any(
        _SECRET_NAME.search(name) and len(value) >= SHORTEST
        for line in script.splitlines()
        for name, value in _SET_TO_VALUE.findall(line.partition("#")[0])
    )


def redact(text: str) -> str:
    """Returns ``text`` with the values of secret environment variables replaced by the variables' names.

    ``user:password@`` is removed from addresses.
    """
    for name in secret_names():
        value = os.environ[name]
        # a line of headers is "name: value"
        for part in (value, *(line.partition(":")[2].strip() for line in value.splitlines())):
            if len(part) >= SHORTEST:
                text = text.replace(part, f"<{name}>")
    return _USER_OF_ADDRESS.sub("", text)


def beginning(text: str, longest: int = 10_000) -> str:
    """Returns at most ``longest`` characters of ``text``, to bound the work on long texts.

    No word is cut in two (unless it is the only one), because :func:`redact` would not recognise half a
    secret.
    """
    if len(text) <= longest:
        return text
    text = text.lstrip()
    cut = text[:longest]
    within_word = len(text) > longest and not (cut[-1].isspace() or text[longest].isspace())
    return cut.rsplit(None, 1)[0] if within_word else cut


def one_line(given: BaseException | str, limit: int = 500) -> str:
    """Returns ``given`` redacted on one line, at most ``limit`` characters; for an empty error, its class."""
    text = " ".join(redact(beginning(_words(given))).split())
    if not text and isinstance(given, BaseException):
        text = type(given).__name__
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _words(given: BaseException | str) -> str:
    try:
        with guest_code():
            return str(given)
    except Exception:  # the error class itself may be broken
        return ""
