"""Show a comparison: tables in the terminal, two CSV files, and an HTML page in the style of the report."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from rich.cells import cell_len

from imageevalkit.common.atomic import write_atomic
from imageevalkit.common.errors import CellFailure, ExitStatus, show
from imageevalkit.common.machine import garbage_collection
from imageevalkit.common.text import csv_text, plain
from imageevalkit.extras.compare.moves import NOT_SIGNIFICANT, WITHIN_NOISE, Agreement, Item, Move, moves_of
from imageevalkit.extras.compare.sides import find_sides, pairs_of
from imageevalkit.metrics import grouped
from imageevalkit.report.leaderboard import fit, format_value
from imageevalkit.report.pages import COMPARISON_PAGE, comparison_page
from imageevalkit.store.cell import COMPARISONS, output_root, short_path
from imageevalkit.store.results import DRIFTED, folder_name

_WIDTH_OF_A_PIPE, _WIDEST = 120, 200  # columns; a log file gets the wider one, so that names fit
_GAP, _LEAST = "  ", 12  # the gap between columns, and the smallest width of a column that is cut
_WORDS = ("verdict", "agreement")
_ITEMS, _ITEMS_OF_PAGE = 10, 200  # items with the largest change per metric, in terminal and page
_OTHERS = 20  # changed metrics that are not headline metrics, in terminal and page
_LONGEST_PROMPT = 500  # characters, in a table of the page

_COLUMNS = (
    "cell", "evaluator", "metric", "headline", "before", "after", "difference", "ci_low", "ci_high", "p", "p_holm",
    "verdict", "warning", "noise", "smallest_difference", "scale", "n", "paired", "test", "items", "items_up",
    "items_down", "agreement", "kappa", "kappa_low", "kappa_high", "kappa_weighted", "correlation",
)  # fmt: skip
_ITEM_COLUMNS = ("cell", "evaluator", "metric", "item", "before", "after", "difference", "prompt")


def compare_words(words: Sequence[str], here: Path) -> ExitStatus:
    """Run ``--compare A B`` in the current folder ``here``: print the comparison and write its files.

    Raises:
        UserError: A or B is unknown, or A and B cannot be compared.
        CellFailure: a file cannot be written.
    """
    notes = list[str]()
    with garbage_collection(False):  # the data of all items stays in use: collections would only cost time
        sides = find_sides(words, here, notes.append)
        names = sides[0].name, sides[1].name
        moves = moves_of(pairs_of(*sides, notes.append), names, notes.append)
    for line in terminal(moves, names):
        show(line)
    for note in dict.fromkeys(notes):
        show(f"note: {plain(note)}")
    folder = output_root() / COMPARISONS / folder_name(f"{names[0]} vs {names[1]}")
    texts = {
        "comparison.csv": csv_text(rows(moves)),
        "items.csv": csv_text(item_rows(moves)),
        COMPARISON_PAGE: page(moves, names, notes),
    }
    for name, text in texts.items():
        try:
            write_atomic(folder / name, text)
        except OSError as error:
            raise CellFailure(f"{short_path(folder / name)} cannot be written: {error.strerror}") from error
        show(f"comparison: {short_path(folder / name)}")
    return ExitStatus.COMPLETE


# ---- as text


def difference(move: Move) -> str:
    return (
        f"{'+' if move.found.difference >= 0 else '-'}{format_value(abs(move.found.difference), move.scale)}"
    )


def interval(move: Move) -> str:
    if move.found.interval is None:
        return ""
    low, high = (format_value(one, move.scale) for one in move.found.interval)
    return f"[{low}, {high}]"


def chance(p: float | None) -> str:
    """Return ``p`` as shown: ``0.034``, ``<0.001``; empty for None."""
    if p is None:
        return ""
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def verdict(move: Move) -> str:
    """Return the verdict as shown. Without a difference, it adds the smallest one that the test detects.

    If a judge has drifted, the verdict says so."""
    text = move.verdict
    if text in (NOT_SIGNIFICANT, WITHIN_NOISE) and move.smallest:
        text += f" (from ±{format_value(move.smallest, move.scale)} on)"
    return f"{text}; {DRIFTED}" if move.warning else text


def kappa(found: Agreement) -> str:
    if found.kappa is None:
        if found.correlation is None:
            return ""
        return f"ρ {found.correlation:.2f}"
    bounds = "" if found.interval is None else f" [{found.interval[0]:.2f}, {found.interval[1]:.2f}]"
    return f"κ {found.kappa:.2f}{bounds}{' weighted' * found.weighted}"


def _value(value: float, move: Move) -> str:
    return format_value(value, move.scale)


def shown(moves: Sequence[Move]) -> tuple[list[Move], int]:
    """Return the metrics to show and the number of all others.

    Shown are the headline metrics, and other metrics with the most significant changes."""
    headline = [move for move in moves if move.headline]
    significant = [move for move in moves if not move.headline and move.found.is_significant]
    significant.sort(key=lambda move: move.found.adjusted or 0.0)
    kept = headline + significant[:_OTHERS]
    return kept, len(moves) - len(kept)


# ---- in a terminal


def terminal(moves: Sequence[Move], names: tuple[str, str]) -> Iterator[str]:
    """Yield the tables of the comparison, as text for the current terminal."""
    kept, more = shown(moves)
    judges = any(move.agreement for move in kept)
    header = ["metric", "A", "B", "B - A", "95 % interval", "p (Holm)", "n", "verdict"]
    yield f"A: {plain(names[0])}"
    yield f"B: {plain(names[1])}"
    table = []
    for move in kept:
        row = [
            f"{move.cell}/{move.metric}",
            _value(move.before.value or 0.0, move),
            _value(move.after.value or 0.0, move),
            difference(move),
            interval(move),
            chance(move.found.adjusted),
            f"{move.found.n:,}",
            verdict(move),
        ]
        table.append([plain(one) for one in row] + ([_agreement(move)] if judges else []))
    yield _grid([*header, *["agreement"] * judges], table, {1, 2, 3, 5, 6})
    if more:
        yield (
            f"{more:,} more metrics are in comparison.csv; the table has the headline metrics and the most "
            "significant other changes"
        )
    for move in kept:
        if not move.headline:
            continue
        yield f"{plain(f'{move.cell}/{move.metric}@{move.evaluator}')}: {move.summary}"
        if moved := move.moved:
            listed = [
                [plain(one.item), plain(one.prompt), _value(one.before, move), _value(one.after, move)]
                for one in moved[:_ITEMS]
            ]
            yield _grid(["item", "prompt", "A", "B"], listed, {2, 3}, narrow=1)
            if len(moved) > _ITEMS:
                yield f"the {_ITEMS} that moved most; all are in items.csv"


def _agreement(move: Move) -> str:
    if move.agreement is None:
        return ""
    return ", ".join(filter(None, (kappa(move.agreement), f"{100 * move.agreement.same:.0f} % the same")))


def _grid(header: Sequence[str], table: Sequence[Sequence[str]], right: set[int], narrow: int = 0) -> str:
    """Return a table that fits the terminal: verdicts wrap, the column ``narrow`` is cut, numbers never are.

    ``right`` has the numbers of the columns that are aligned to the right."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    width = shutil.get_terminal_size((_WIDTH_OF_A_PIPE, 24)).columns
    if not sys.stdout.isatty():
        width = max(width, _WIDEST)
    widths = [max(map(cell_len, column)) for column in zip(header, *table, strict=True)]
    words = [n for n, name in enumerate(header) if name in _WORDS]
    spare = width - len(_GAP) * (len(header) - 1) - sum(widths) + widths[narrow]
    spare += sum(widths[n] - min(widths[n], _LEAST) for n in words)
    widths[narrow] = min(widths[narrow], max(_LEAST, spare))
    grid = Table(box=None, pad_edge=False, padding=(0, len(_GAP), 0, 0), header_style="bold")
    for n, name in enumerate(header):
        justify: Literal["left", "right"] = "right" if n in right else "left"
        if n in words:
            grid.add_column(name, min_width=min(widths[n], _LEAST))
        else:
            grid.add_column(name, justify=justify, no_wrap=True, width=widths[n])
    for row in table:
        # Text, because a name or a prompt may look like the markup of rich
        grid.add_row(*(Text(fit(text, widths[n]) if n == narrow else text) for n, text in enumerate(row)))
    console = Console(width=width, no_color=True, emoji=False)
    with console.capture() as captured:
        console.print(grid)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


# ---- as files


def rows(moves: Sequence[Move]) -> Iterator[Sequence[Any]]:
    """Yield the rows of ``comparison.csv``: every metric that both results have."""
    yield _COLUMNS
    for move in moves:
        low, high = move.found.interval or (None, None)
        agreement = move.agreement
        k_low, k_high = (agreement.interval if agreement else None) or (None, None)
        up = sum(one.moved > 0 for one in move.moved)
        yield (
            move.cell, move.evaluator, move.metric, str(move.headline).lower(), move.before.value, move.after.value,
            move.found.difference, low, high, move.found.p, move.found.adjusted, move.verdict, move.warning,
            move.found.noise or None, move.smallest, move.scale, move.found.n, str(move.found.paired).lower(),
            move.found.test, len(move.items), up, len(move.moved) - up, agreement and agreement.same,
            agreement and agreement.kappa, k_low, k_high, str(agreement.weighted).lower() if agreement else None,
            agreement and agreement.correlation,
        )  # fmt: skip


def item_rows(moves: Sequence[Move]) -> Iterator[Sequence[Any]]:
    """Yield the rows of ``items.csv``: every common item of each headline metric, largest change first."""
    yield _ITEM_COLUMNS
    for move in moves:
        if move.headline:
            for one in sorted(move.items, key=lambda one: (-abs(one.moved), one.item)):
                about = (move.cell, move.evaluator, move.metric)
                yield (*about, one.item, one.before, one.after, one.moved, one.prompt)


def page(moves: Sequence[Move], names: tuple[str, str], notes: Sequence[str]) -> str:
    """Return ``comparison.html``."""
    kept, more = shown(moves)
    by_cell = grouped(kept, lambda move: (move.cell, move.evaluator))

    def cells(move: Move) -> list[str]:
        value = [_value(one.value or 0.0, move) for one in (move.before, move.after)]
        p = chance(move.found.adjusted)
        return [
            *value,
            difference(move),
            interval(move),
            p,
            f"{move.found.n:,}",
            verdict(move),
            _agreement(move),
        ]

    def listed(one: Item, move: Move) -> list[str]:
        return [
            one.item,
            fit(one.prompt, _LONGEST_PROMPT),
            _value(one.before, move),
            _value(one.after, move),
        ]

    sections = [
        {
            "cell": cell,
            "evaluator": evaluator,
            "judges": any(move.agreement for move in of_cell),
            "metrics": [(move.metric, move.headline, cells(move), move.found.test) for move in of_cell],
            "moved": [
                (move.metric, move.summary, [listed(one, move) for one in move.moved[:_ITEMS_OF_PAGE]])
                for move in of_cell
                if move.headline
            ],
        }
        for (cell, evaluator), of_cell in by_cell.items()
    ]
    return comparison_page(names=names, sections=sections, more=more, notes=list(dict.fromkeys(notes)))
