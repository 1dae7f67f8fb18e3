"""The pages of the documentation: README.md, docs/, and their Chinese versions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from imageevalkit.store.cell import REPO

_FENCE = re.compile(r"^( *)```(\w*)([^\n]*)\n(.*?)^\1```[ \t]*$", re.DOTALL | re.MULTILINE)


def pages() -> list[Path]:
    """Returns all pages in both languages."""
    return [REPO / "README.md", REPO / "README_zh.md", *sorted((REPO / "docs").rglob("*.md"))]


def is_chinese(page: Path) -> bool:
    """Returns True if ``page`` is in Chinese."""
    return page.name.endswith(("_zh.md", ".zh.md"))


def name_of(page: Path) -> str:
    """Returns the path of ``page`` relative to the repository."""
    return page.relative_to(REPO).as_posix()


class Block(NamedTuple):
    """A code block: its language, its title (the reason if a test cannot run it), and its text."""

    language: str
    title: str
    text: str


def blocks(page: Path) -> list[Block]:
    """Returns the code blocks of ``page``."""
    found = _FENCE.findall(page.read_text(encoding="utf-8"))
    return [
        Block(
            language,
            "".join(re.findall(r'title="([^"]*)"', more)),
            re.sub(f"^{indent}", "", text, flags=re.M),
        )
        for indent, language, more, text in found
    ]


def prose(page: Path) -> str:
    """Returns the text of ``page`` without code blocks and comments."""
    return re.sub(r"<!--.*?-->", "", _FENCE.sub("", page.read_text(encoding="utf-8")), flags=re.DOTALL)
