"""Every message that ``docs/troubleshooting.md`` explains is one that the toolkit prints."""

from __future__ import annotations

import re
from functools import cache

import pytest

from imageevalkit.store.cell import REPO
from tests.support.extras import needs_extra

_FOLDERS = ("imageevalkit", "infer", "benchmarks", "eval_models")
_PAGES = ("docs/troubleshooting.md", "docs/troubleshooting.zh.md")


def messages(page: str) -> list[str]:
    """Returns the messages in the headings of ``page``."""
    return re.findall(r"^### `(.+)`$", (REPO / page).read_text(encoding="utf-8"), re.MULTILINE)


@cache
def code() -> str:
    """Returns the sources of the toolkit, with the parts of a message that stands on several lines joined."""
    files = [REPO / "eval.sh", *(path for folder in _FOLDERS for path in (REPO / folder).rglob("*.py"))]
    return re.sub(r"""["']\n\s*f?["']""", "", "\n".join(path.read_text(encoding="utf-8") for path in files))


@needs_extra("adopt", "batch", "serve")  # they print some of the messages
@pytest.mark.parametrize("message", messages(_PAGES[0]))
def test_each_message_is_in_the_code(message: str) -> None:
    missing = [part for part in message.split("…") if part.strip(" '`(),") and part not in code()]
    assert not missing


def test_both_languages_explain_the_same_messages() -> None:
    assert messages(_PAGES[0]) == messages(_PAGES[1])
