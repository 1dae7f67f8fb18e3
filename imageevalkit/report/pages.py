"""Render ``leaderboard.md`` and the page of a comparison from their templates."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from imageevalkit.common.text import plain
from imageevalkit.report.collect import CellReport
from imageevalkit.report.curves import COLUMNS, CURVE_NOTE, Curve, curves
from imageevalkit.report.leaderboard import (
    COVERAGE_COLUMNS,
    DRIFT_NOTE,
    GROUP_NOTE,
    Ranks,
    grid,
    no_interval_notes,
)

COMPARISON_PAGE = "comparison.html"
"""The page of ``--compare``. Each comparison has its own folder below the folder of comparisons."""
_TEMPLATES = Path(__file__).parent / "templates"
_MD_SPECIAL = str.maketrans({c: f"\\{c}" for c in "\\`*_|<>[]#~"})


def markdown_text(
    cells: Sequence[CellReport],
    unreadable: Sequence[str] = (),
    ranks: Ranks | None = None,
    over_steps: Sequence[Curve] | None = None,
) -> str:
    """Return ``leaderboard.md``: headline scores, notes and coverage, curves, cells without a result.

    If ``over_steps`` is None, the curves are computed here. ``unreadable`` has a line for each unreadable
    file."""
    results = [cell.result for cell in cells if cell.result]
    page = template("leaderboard.md.j2", finalize=_markdown, keep_trailing_newline=True)
    return page.render(
        curves=curves(results) if over_steps is None else over_steps,
        curve_note=CURVE_NOTE,
        curve_columns=COLUMNS,
        board=grid(results, ranks or Ranks()),
        no_intervals=no_interval_notes(results),
        group_note=GROUP_NOTE,
        drift_note=DRIFT_NOTE if any(result.drift for result in results) else "",
        results=results,
        withheld=[result for result in results if not result.headline],
        without=[cell for cell in cells if not cell.result],
        unreadable=unreadable,
        columns=COVERAGE_COLUMNS,
    )


def comparison_page(**found: Any) -> str:
    """Return ``comparison.html`` from the data of :mod:`imageevalkit.extras.compare`."""
    style = Markup((_TEMPLATES / "comparison.css").read_text(encoding="utf-8"))
    return template("comparison.html.j2", autoescape=True).render(found, style=style)


def template(name: str, **options: Any) -> Template:
    """Return the template ``name``. Rendering it fails if a variable is missing."""
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        **options,
    )
    environment.filters["words"] = lambda text: text.replace("_", " ")
    return environment.get_template(name)


def _markdown(value: Any) -> str:
    """Return Markdown that shows ``value`` exactly, on one line."""
    return plain(str(value)).translate(_MD_SPECIAL)
