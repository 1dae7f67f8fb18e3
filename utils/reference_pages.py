"""Writes the generated tables of docs/reference/: .venv/bin/python -m utils.reference_pages

A line ``<!-- rows: NAME -->`` precedes a table. The rows below its head come from the code. Their last column
is the help of an option, or else the existing text. A Chinese page keeps its own last column.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, NamedTuple

from imageevalkit.plan.config import Option
from imageevalkit.plan.options import OF_EXTRAS, TABLE, Options

REPO = Path(__file__).resolve().parent.parent
PAGES = [
    REPO / f"docs/reference/{name}{end}" for name in ("options", "configuration") for end in (".md", ".zh.md")
]
_TABLE = re.compile(r"(?P<head><!-- rows: (?P<name>[^>]*) -->\n\n(?:\|.*\n){2})(?P<rows>(?:\|.*\n)*)")
_VARIABLE = re.compile(r"^(?:declare -gA )?([A-Z][A-Z0-9_]*)=(\(?)(.*?)\)?(?:\s+#.*)?$", re.MULTILINE)
_PREFETCH = "prefetch"


class Row(NamedTuple):
    """The cells of a row but the last one, and the English text of that (empty: the page has it)."""

    cells: tuple[str, ...]
    meaning: str = ""


def rows(name: str) -> dict[str, Row]:
    """Returns the rows of the table ``name`` by their first word."""
    if name in ("scalars", "maps"):
        is_map = name == "maps"
        return {
            variable: row for variable, row in _variables().items() if variable.endswith("_MAP") == is_map
        }
    return {
        entry.name: Row(
            (_code(_words(entry)), _code(_default(field)), _code(entry.config)), _escaped(entry.help)
        )
        for field, entry in TABLE.items()
        if entry.prefetch != "config" and name == (_PREFETCH if entry.prefetch == "own" else entry.group)
    }


def page(text: str, keeps_meanings: bool) -> str:
    """Returns the text of a page with up-to-date tables."""

    def table(found: re.Match[str]) -> str:
        old = {
            line.split("`")[1].split()[0]: line.rsplit(" | ", 1)[-1] for line in found["rows"].splitlines()
        }
        lines = []
        for key, row in rows(found["name"]).items():
            kept = old.get(key, " |").removesuffix("|").strip()
            cells = row.cells if key.startswith("-") else (_code(key), *row.cells)
            meaning = kept if keeps_meanings else row.meaning or kept
            lines.append(f"| {' | '.join([*cells, meaning])} |\n")
        return found["head"] + "".join(lines)

    return _TABLE.sub(table, text)


def _variables() -> dict[str, Row]:
    """Returns a row for each variable of config.sh: its default (not of a map), and its option."""
    options = {
        entry.config: entry.name for entry in TABLE.values() if entry.config and entry.prefetch != "config"
    }
    options |= {"JUDGE_MAP": "--judges", "JUDGE_KWARGS_MAP": "--judge_kwargs", "DS_KWARGS_MAP": "--ds_kwargs"}
    options |= {"REWRITER_KWARGS_MAP": "--rewriter_kwargs"}
    found = {}
    for name, is_array, value in _VARIABLE.findall((REPO / "config.sh").read_text(encoding="utf-8")):
        value = re.sub(r"^\$\{\w+:-(.*)\}$", r"\1", value.strip('"'))
        default = () if name.endswith("_MAP") else (_code("()" if is_array else value),)
        found[name] = Row((*default, _code(options.get(name, ""))))
    return found


def _default(field: str) -> str:
    core = {each.name: each for each in fields(Options) if each.metadata}
    if field in core:
        value: Any = core[field].default
    else:
        value = next(entries[field].default for entries in OF_EXTRAS.values() if field in entries)
    if value is MISSING or value in (None, "", [], {}):
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value).removesuffix(".0")


def _words(entry: Option) -> str:
    if entry.metavar.endswith("…"):
        return f"{entry.name} [{entry.metavar}]"
    return f"{entry.name} {entry.metavar}".strip()


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def _code(text: str) -> str:
    return f"`{text.replace('|', chr(92) + '|')}`" if text else ""


def written() -> Mapping[Path, str]:
    """Returns the up-to-date text of each page with generated tables."""
    return {
        path: page(path.read_text(encoding="utf-8"), ".zh." in path.name) for path in PAGES if path.exists()
    }


if __name__ == "__main__":
    for path, text in written().items():
        path.write_text(text, encoding="utf-8")
