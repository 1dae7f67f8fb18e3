"""A hook of MkDocs: a section of ``nav`` that is a folder ("benchmarks/") gets the pages of the folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def on_config(config: Any) -> Any:
    """Returns the configuration with the English pages of each folder in the place of its name."""
    for section in config["nav"]:
        [(title, content)] = section.items()
        if isinstance(content, str) and content.endswith("/"):
            folder = Path(config["docs_dir"]) / content
            pages = sorted(path.name for path in folder.glob("*.md") if not path.name.endswith(".zh.md"))
            pages.sort(key=lambda name: name != "index.md")  # the folder's own page first
            section[title] = [content + name for name in pages]
    return config
