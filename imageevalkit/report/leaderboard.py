"""The leaderboard: which results may stand in one column, and ``leaderboard.csv`` / ``leaderboard.md``."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from imageevalkit.cell import Cell, output_root
from imageevalkit.cell.results import Coverage, Metric, Result
from imageevalkit.report.collect import STALE, CellReport
from imageevalkit.text import decimals, plain

COVERAGE_COLUMNS = (
    "expected", "generated", "refused", "failed", "blank", "corrupt",
    "judged", "unparsed", "judge_failed", "flat",
)  # fmt: skip
CSV_COLUMNS = (
    "model", "benchmark", "benchmark_version", "evaluator", "official", "metric", "score_name", "value",
    "ci_low", "ci_high", "n", "scale", "headline", "state", "withheld", *COVERAGE_COLUMNS,
    "treatment", "limit", "git_commit", "result",
)  # fmt: skip

ORDER_NOTE = (
    "Models are in the order of the first column, best first; models without a number there follow by name."
)


class Board(NamedTuple):
    """Results that may be compared: same benchmark, version, evaluator, items (``limit`` 0 = all) and ``rewriter`` of
    their prompts (empty: the benchmark's own)."""

    benchmark: str
    version: str
    evaluator: str
    limit: int
    rewriter: str = ""


class Column(NamedTuple):
    """One score: a headline metric of a board; ``metric`` is empty while every result of it is withheld."""

    board: Board
    metric: str

    def label(self, with_version: bool) -> str:
        """``longtext/en@ppocr-v4 x-omni-2b8237b (first 8 items)``, without a limit where there is none."""
        board = self.board
        prompts = board.benchmark + (f"+{board.rewriter}" if board.rewriter else "")
        name = f"{prompts}/{self.metric}" if self.metric else prompts
        version = f" {board.version}" if with_version else ""
        return f"{name}@{board.evaluator}{version}" + (f" (first {board.limit} items)" if board.limit else "")


class Figure(NamedTuple):
    """What a leaderboard shows of one result in one column.

    ``value`` is None where a word (``text``) stands instead of a number. ``remark`` qualifies a number that
    was not measured on every item; such a number never competes for the best.
    """

    text: str
    value: float | None = None
    interval: str = ""
    metric: Metric | None = None
    remark: str = ""
    best: bool = False


def board_of(result: Result) -> Board:
    """The board that ``result`` belongs to."""
    rewriter = Cell(result.model, result.benchmark).rewriter
    return Board(result.benchmark, result.benchmark_version, result.evaluator.id, result.limit or 0, rewriter)


def row_of(result: Result) -> str:
    """The model of ``result``, whoever rewrote its prompts: results of raw and of rewritten ones stand side by side."""
    return Cell(result.model, result.benchmark).raw.model


def boards(results: Iterable[Result]) -> dict[Board, list[Result]]:
    """Results by board; full boards by benchmark, then the limited ones."""
    by_board: dict[Board, list[Result]] = {}
    for result in results:
        by_board.setdefault(board_of(result), []).append(result)
    # a trial on a few items comes last: it must not decide the order of the models
    order = sorted(
        by_board, key=lambda b: (b.limit > 0, b.benchmark, b.limit, b.rewriter, b.version, b.evaluator)
    )
    return {board: by_board[board] for board in order}


def headline_of(results: Sequence[Result]) -> list[str]:
    """The headline metrics of one board; a withheld result does not name its own, its neighbours do."""
    return list(dict.fromkeys(name for result in results for name in result.headline)) or [""]


def labels(results: Iterable[Result]) -> dict[Column, str]:
    """The columns of the leaderboard in order, with their labels; those have versions where there are several."""
    by_board, found = boards(results), {}
    for board, members in by_board.items():
        versions = {other.version for other in by_board if other.benchmark == board.benchmark}
        for metric in headline_of(members):
            column = Column(board, metric)
            found[column] = column.label(with_version=len(versions) > 1)
    return found


def digits(scale: float) -> int:
    """Decimals that a score with this top of range is shown with."""
    return 4 if scale <= 1 else 2


def format_value(value: float, scale: float) -> str:
    """``value`` as shown everywhere: 4 decimals on a 0-1 scale, else 2."""
    return decimals(value, digits(scale))


def format_interval(metric: Metric) -> str:
    """``±0.0042`` for an interval that is symmetric as shown, ``[0.9600, 0.9810]`` else, empty for none."""
    if metric.interval is None or metric.value is None:
        return ""
    low, high = metric.interval
    below, above = metric.value - low, high - metric.value
    if abs(above - below) < 10.0 ** -digits(metric.scale):
        return f"±{format_value((above + below) / 2, metric.scale)}"
    return f"[{format_value(low, metric.scale)}, {format_value(high, metric.scale)}]"


def shown(result: Result, metric: str) -> Figure:
    """What may be shown of one metric of ``result``: a number only when its headline is not withheld."""
    coverage = result.coverage
    if not result.headline:
        if result.withheld.startswith(STALE):
            return Figure(STALE)
        if not coverage.complete:
            return Figure(f"incomplete {coverage.judged}/{coverage.expected}")
        return Figure("withheld")
    found = result.metrics.get(metric)
    if found is None:
        return Figure("–")
    if found.value is None:
        return Figure("no score")
    number = format_value(found.value, found.scale)
    remark = "" if coverage.complete else f"{coverage.judged}/{coverage.expected}, {result.treatment} way"
    return Figure(number, found.value, format_interval(found), found, remark)


def mark_best(column: Sequence[Figure]) -> list[Figure]:
    """``column`` with the best marked: the highest as shown, every tie, never an incomplete measurement.

    Ties are ties of the digits shown: a reader must not see two equal numbers and one of them bold.
    """
    numbers = [(s.value, s.text) for s in column if s.value is not None and not s.remark]
    if len(numbers) < 2:
        return list(column)
    _, top = max(numbers)
    return [s._replace(best=s.value is not None and not s.remark and s.text == top) for s in column]


class Grid(NamedTuple):
    """The leaderboard as shown: ``rows[i][j]`` is model i in column j; None where it was not run."""

    columns: list[Column]
    labels: list[str]
    models: list[str]
    rows: list[list[Figure | None]]


def grid(results: Sequence[Result]) -> Grid:
    """Arrange ``results``: models in the order of :data:`ORDER_NOTE`."""
    named = labels(results)
    by_place = {(row_of(result), board_of(result)): result for result in results}
    models = sorted({row_of(result) for result in results})
    table: dict[str, list[Figure | None]] = {model: [] for model in models}
    for column in named:
        here = [model for model in models if (model, column.board) in by_place]
        marked = mark_best([shown(by_place[model, column.board], column.metric) for model in here])
        by_model = dict(zip(here, marked, strict=True))
        for model in models:
            table[model].append(by_model.get(model))
    models.sort(key=lambda model: _order(table[model]))
    return Grid(list(named), list(named.values()), models, [table[model] for model in models])


def _order(row: list[Figure | None]) -> tuple[bool, float]:
    first = row[0]
    value = first.value if first else None
    return value is None, -(value or 0.0)


def csv_text(cells: Iterable[CellReport]) -> str:
    """``leaderboard.csv``: one row per model × benchmark × metric. A withheld result has no values.

    ``result`` is the file, below the output root, that also says where the numbers come from.
    """
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, CSV_COLUMNS, lineterminator="\n")
    writer.writeheader()
    found = [(cell.result, cell.source.relative_to(output_root())) for cell in cells if cell.result]
    for result, source in sorted(found, key=lambda r: (r[0].benchmark, r[0].model)):
        for name in result.metrics:
            writer.writerow({**_csv_row(result, name), "result": source.as_posix()})
    return buffer.getvalue()


def _csv_row(result: Result, name: str) -> dict[str, Any]:
    metric = result.metrics[name]
    withheld = not result.headline
    low, high = metric.interval or (None, None)
    coverage = {c: getattr(result.coverage, c) for c in COVERAGE_COLUMNS}
    return {
        "model": result.model,
        "benchmark": result.benchmark,
        "benchmark_version": result.benchmark_version,
        "evaluator": result.evaluator.id,
        "official": str(result.evaluator.official).lower(),
        "metric": name,
        "score_name": result.score_name(name),
        "value": None if withheld else metric.value,
        "ci_low": None if withheld else low,
        "ci_high": None if withheld else high,
        "n": metric.n,
        "scale": metric.scale,
        "headline": str(name in result.headline).lower(),
        "state": result.state,
        "withheld": result.withheld,
        **coverage,
        "treatment": result.treatment,
        "limit": result.limit,
        "git_commit": result.provenance.get("git_commit"),
    }


def coverage_text(coverage: Coverage) -> str:
    """``1276/1280 judged: 3 refused, 1 failed, 2 flat images``."""
    problems = coverage.problems()
    flat = f"{coverage.flat} flat" if coverage.flat else ""
    remarks = ", ".join(part for part in (problems, flat) if part)
    return f"{coverage.judged}/{coverage.expected}" + (f" ({remarks})" if remarks else "")


def markdown_text(cells: Sequence[CellReport], unreadable: Sequence[str] = ()) -> str:
    """``leaderboard.md``: headline scores, notes and coverage of every cell, cells without a result, and what is
    ``unreadable``."""
    results = [cell.result for cell in cells if cell.result]
    lines = ["# Leaderboard", ""]
    lines += _score_table(grid(results)) if results else ["No results yet."]
    withheld = [r for r in results if not r.headline]
    if withheld:
        lines += ["", "## Withheld scores", ""]
        lines += [
            f"- {_md(f'{r.model} / {r.benchmark}@{r.evaluator.id}')}: {_md(r.withheld)}" for r in withheld
        ]
    if noted := [(r, note) for r in results for note in r.notes]:
        lines += ["", "## Notes", ""]
        lines += [f"- {_md(f'{r.model} / {r.benchmark}@{r.evaluator.id}')}: {_md(note)}" for r, note in noted]
    if results:
        lines += ["", "## Coverage", "", *_coverage_table(results)]
    without = [cell for cell in cells if not cell.result]
    if without:
        lines += ["", "## Cells without a result", ""]
        lines += [f"- {_md(c.cell.key)}: {_md(c.problem)} (items recorded: {len(c.items)})" for c in without]
    if unreadable:
        lines += ["", "## What could not be read", "", *(f"- {_md(line)}" for line in unreadable)]
    return "\n".join(lines) + "\n"


def _score_table(board: Grid) -> list[str]:
    rows = [
        [_md(model), *(_md_cell(cell) for cell in row)]
        for model, row in zip(board.models, board.rows, strict=True)
    ]
    return [
        *_md_table(["model", *(_md(label) for label in board.labels)], rows, "left"),
        "",
        f"{ORDER_NOTE} Bold is the best of a column (ties too); higher is better; ± and [ ] are 95 % "
        "intervals. Scores of different evaluators, versions or item counts are never in one column.",
    ]


def _md_cell(cell: Figure | None) -> str:
    if cell is None:
        return "–"
    number = f"**{_md(cell.text)}**" if cell.best else _md(cell.text)
    remark = f"({_md(cell.remark)})" if cell.remark else ""
    return " ".join(part for part in (number, _md(cell.interval), remark) if part)


def _coverage_table(results: Sequence[Result]) -> list[str]:
    header = ["model", "benchmark", "evaluator", *(c.replace("_", " ") for c in COVERAGE_COLUMNS)]
    rows = [
        [
            _md(r.model),
            _md(r.benchmark + (f" (first {r.limit} items)" if r.limit else "")),
            _md(r.evaluator.id + (" (official)" if r.evaluator.official else "")),
            *(str(getattr(r.coverage, c)) for c in COVERAGE_COLUMNS),
        ]
        for r in sorted(results, key=lambda r: (r.benchmark, r.model))
    ]
    return _md_table(header, rows, "right")


def _md_table(header: list[str], rows: list[list[str]], numbers: str) -> list[str]:
    rule = "---:" if numbers == "right" else "---"
    align = ["---" if name in ("model", "benchmark", "evaluator") else rule for name in header]
    return ["| " + " | ".join(row) + " |" for row in (header, align, *rows)]


_MD_SPECIAL = str.maketrans({c: f"\\{c}" for c in "\\`*_|<>[]#~"})


def _md(text: str) -> str:
    """``text`` as Markdown that shows exactly it, on one line."""
    return plain(text).translate(_MD_SPECIAL)
