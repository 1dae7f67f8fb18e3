"""The results as an aligned plain-text table for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from imageevalkit.cell.results import Result
from imageevalkit.report.leaderboard import board_of, coverage_text, grid, row_of
from imageevalkit.text import columns_of, fit

_HEADER = ["", "score", "95 % interval", "n", "judged"]
_GAP = "  "
_MIN_NAME = 12
_MOST_NAMED = 3  # cells with the same note


def format_table(results: Sequence[Result], width: int) -> str:
    """One block per score, best model first; ``width`` is the terminal's, in columns.

    ``*`` marks the best of a score. A withheld score shows its state instead of a number and its reason
    below the table, where the notes of all results are, too.
    """
    if not results:
        return "No results."
    board = grid(results)
    by_place = {(row_of(r), board_of(r)): r for r in results}
    blocks: list[tuple[str, list[list[str]]]] = []
    for j, column in enumerate(board.columns):
        cells = [
            (by_place[model, column.board], cell)
            for model, row in zip(board.models, board.rows, strict=True)
            if (cell := row[j])
        ]
        rows = []
        for result, cell in sorted(cells, key=lambda c: (c[1].value is None, -(c[1].value or 0), c[0].model)):
            word = "incomplete" if cell.text.startswith("incomplete") else cell.text  # counts: last column
            n = str(cell.metric.n) if cell.metric else ""
            star = "*" if cell.best else " "
            coverage = coverage_text(result.coverage)
            if result.headline and not result.coverage.complete:
                coverage += f", {result.treatment} way"
            rows.append([f"{star} {result.model}", word, cell.interval, n, coverage])
        blocks.append((board.labels[j], rows))
    return "\n".join([*_layout(blocks, width), *_reasons(results), *_notes(results)])


def _layout(blocks: list[tuple[str, list[list[str]]]], width: int) -> list[str]:
    every = [row for _, rows in blocks for row in rows]
    widths = [max(columns_of(row[i]) for row in [_HEADER, *every]) for i in range(len(_HEADER))]
    widths[0] = max(widths[0], *(columns_of(label) for label, _ in blocks))
    spare = width - sum(widths) - len(_GAP) * (len(_HEADER) - 1)
    if spare < 0:
        # the reasons of a gap in coverage are repeated below the table, so that column gives way first
        give = min(-spare, widths[4] - columns_of("9999/9999"))
        widths[4] -= max(0, give)
        widths[0] = max(_MIN_NAME, widths[0] + min(0, spare + max(0, give)))
    lines = []
    for label, rows in blocks:
        lines += [_line([label, *_HEADER[1:]], widths), *(_line(row, widths) for row in rows), ""]
    return lines


def _line(row: list[str], widths: list[int]) -> str:
    parts = []
    for i, (text, width) in enumerate(zip(row, widths, strict=True)):
        text = fit(text, width)
        pad = " " * (width - columns_of(text))
        parts.append(pad + text if i in (1, 3) else text + pad)
    return _GAP.join(parts).rstrip()


def _notes(results: Sequence[Result]) -> list[str]:
    """Each note once, with whose it is."""
    named: dict[str, list[str]] = {}
    for r in results:
        for note in r.notes:
            named.setdefault(" ".join(note.split()), []).append(f"{r.model} / {r.benchmark}@{r.evaluator.id}")
    return [f"note: {_few(names)}: {note}" for note, names in named.items()]


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def _reasons(results: Sequence[Result]) -> list[str]:
    # never cut: the end of a reason says what to do
    return [
        f"withheld: {r.model} / {r.benchmark}@{r.evaluator.id}: {' '.join(r.withheld.split())}"
        for r in results
        if not r.headline
    ]
