"""The leaderboard: columns of comparable results, as ``leaderboard.csv`` and as a table for the terminal."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

from imageevalkit.common.text import counted, decimals, some
from imageevalkit.metrics import FEWEST_PROMPTS, grouped
from imageevalkit.report.collect import STALE, CellReport
from imageevalkit.store.cell import Cell, by_name
from imageevalkit.store.results import DRIFTED, METRICS, SCRIPT, Coverage, Metric, Result

COVERAGE_COLUMNS = tuple(each.name for each in fields(Coverage))
CSV_COLUMNS = (
    "model", "benchmark", "benchmark_version", "evaluator", "official", "metric", "score_name", "value",
    "ci_low", "ci_high", "n", "scale", "headline", "group", "noise", "warning", "state", "withheld", *COVERAGE_COLUMNS,
    "treatment", "limit", "git_commit", "result", "mean", "mean_of", "no_interval",
)  # fmt: skip

FEWEST_ITEMS = 30
"""A benchmark with fewer items counts for the mean only if ``--sort_by`` names it."""
GROUP_NOTE = (
    "Models that share a letter do not differ significantly (paired test by prompt where item scores exist, p < 0.05, "
    "Holm's correction over all pairs of the column). With --judge_repeats, a difference must also exceed the noise of "
    "the judge."
)
DRIFT = "!"
"""The mark at a score whose judge has drifted."""
DRIFT_NOTE = f"{DRIFT}: {DRIFTED}; its older and newer scores are not comparable (see the notes)."


class Board(NamedTuple):
    """The properties that comparable results share: benchmark, version, evaluator, items and rewriter.

    ``limit`` is the number of items of a trial, ``asked`` the number in a run that stopped early; 0 means all
    items. ``rewriter`` is empty for the benchmark's own prompts.
    """

    benchmark: str
    version: str
    evaluator: str
    limit: int
    rewriter: str = ""
    asked: int = 0

    def label(self, metric: str, with_version: bool) -> str:
        """Return a label such as ``longtext/en@ppocr-v4 x-omni-2b8237b (first 8 items)``.

        ``metric`` is a headline metric or empty."""
        rewriter = f"+{self.rewriter}" if self.rewriter else ""
        named = f"/{metric}" if metric else ""
        version = f" {self.version}" if with_version else ""
        limit = f" (first {self.limit} items)" if self.limit else ""
        limit += f" (stopped after {self.asked} items)" if self.asked else ""
        return f"{self.benchmark}{rewriter}{named}@{self.evaluator}{version}{limit}"


class Figure(NamedTuple):
    """One ``result`` in one column of the leaderboard. ``text`` shows the value of ``metric`` or a state.

    ``remark`` qualifies a value that does not cover every item; such a value is never the best. ``group`` has
    the letters of :func:`~imageevalkit.report.ranks.rank_groups`. ``best`` means that the value does not
    differ significantly from the highest. ``noise`` is the standard error of the value due to the judge's
    randomness alone, or None if unknown. ``drift`` is a mark if the judge has drifted.
    """

    result: Result
    text: str
    metric: Metric | None = None
    remark: str = ""
    best: bool = False
    group: str = ""
    noise: float | None = None

    @property
    def drift(self) -> str:
        return DRIFT if self.metric and self.result.drift else ""

    @property
    def value(self) -> float | None:
        return self.metric.value if self.metric else None

    @property
    def interval(self) -> str:
        return format_interval(self.metric) if self.metric else ""

    @property
    def no_interval(self) -> str:
        """The reason why the value has no interval; empty if it has one, or if there is no value."""
        return why_no_interval(self.result, self.metric) if self.metric else ""


def why_no_interval(result: Result, metric: Metric) -> str:
    """Return the reason why a value has no interval; empty if it has one, or if there is no value."""
    if metric.value is None or metric.interval is not None:
        return ""
    if result.evaluator.id.startswith(SCRIPT):
        return f"{METRICS} gives none"
    groups = grouped(metric.parts, lambda part: part.group)
    prompts = [len({part.unit for part in parts}) for parts in groups.values()] or [metric.n]
    if min(prompts) < FEWEST_PROMPTS:
        return f"{'a group has ' if len(prompts) > 1 else ''}fewer than {FEWEST_PROMPTS} prompts"
    return "the score is not a mean over items"


def no_interval_notes(results: Iterable[Result]) -> list[str]:
    """Return a line for each reason why headline scores have no interval."""
    found = [
        (why, f"{result.model} / {result.score_name(name)}")
        for result in results
        for name in result.headline
        if (why := why_no_interval(result, result.metrics[name]))
    ]
    return [
        f"no 95 % interval: {_few(own)}: {why}" for why, own in grouped(found, lambda one: one[0]).items()
    ]


def board_of(result: Result) -> Board:
    """Return the board of ``result``."""
    rewriter = Cell(result.model, result.benchmark).rewriter
    coverage, version = result.coverage, result.benchmark_version
    asked = coverage.asked if coverage.unasked else 0
    return Board(result.benchmark, version, result.evaluator.id, result.limit or 0, rewriter, asked)


def boards(results: Iterable[Result]) -> dict[Board, list[Result]]:
    """Return the results by board: full boards by benchmark, then trials and runs that stopped early."""
    by_board = grouped(results, board_of)
    # the first column may order the models, and a trial on a few items must not
    order = sorted(
        by_board,
        key=lambda b: (
            b.limit > 0 or b.asked > 0,
            *(b.benchmark, b.limit, b.asked, b.rewriter, b.version, b.evaluator),
        ),
    )
    return {board: by_board[board] for board in order}


def headline_of(results: Sequence[Result]) -> list[str]:
    """Return the headline metrics of one board; ``[""]`` if all of its results are withheld."""
    return list(dict.fromkeys(name for result in results for name in result.headline)) or [""]


def format_value(value: float, scale: float) -> str:
    """Return ``value`` as text: 4 decimals on a scale from 0 to 1, else 2."""
    return decimals(value, _digits(scale))


def _digits(scale: float) -> int:
    return 4 if scale <= 1 else 2


def format_interval(metric: Metric) -> str:
    """Return ``±0.0042``, or ``[0.9600, 0.9810]`` if the interval is asymmetric; empty without one."""
    if metric.interval is None or metric.value is None:
        return ""
    low, high = metric.interval
    below, above = metric.value - low, high - metric.value
    if abs(above - below) < 10.0 ** -_digits(metric.scale):
        return f"±{format_value((above + below) / 2, metric.scale)}"
    return f"[{format_value(low, metric.scale)}, {format_value(high, metric.scale)}]"


def shown(result: Result, metric: str) -> Figure:
    """Return the figure of one metric of ``result``: a number only if the result is not withheld."""
    coverage, found = result.coverage, result.metrics.get(metric)
    if not result.headline:
        if result.withheld.startswith(STALE):
            return Figure(result, STALE)
        is_short = not coverage.lacks_nothing
        return Figure(result, f"incomplete {coverage.judged}/{coverage.expected}" if is_short else "withheld")
    if found is None or found.value is None:
        return Figure(result, "no score" if found else "–")
    way = f"{result.treatment} way" if not coverage.lacks_nothing else "stopped early"
    remark = "" if coverage.complete else f"{coverage.judged}/{coverage.expected}, {way}"
    noise = result.noise_of(metric)
    return Figure(result, format_value(found.value, found.scale), found, remark, noise=noise)


class Ranks:
    """Marks columns with their rank groups. Each column is tested once, even if several files show it.

    ``sort_by`` names the columns or benchmarks that order the models. If it is empty, all that count for the
    mean do.
    """

    def __init__(self, sort_by: Sequence[str] = ()) -> None:
        self.sort_by = tuple(sort_by)
        self._known = dict[tuple[tuple[str, int], ...], dict[str, str]]()
        self._kept = list[Metric]()  # keeps the metrics alive, so that their id() in the keys stays unique

    def mark(self, column: Sequence[Figure]) -> list[Figure]:
        """Return ``column`` with its groups and best figures. Incomplete results are never the best.

        The best are the highest figure and all that do not differ significantly from it. Figures with the
        same digits are also the best, because one of two equal numbers must not be bold alone. If no test is
        possible, the best are the figures with the highest digits. If all would be the best, none is marked.
        """
        ranked = [one for one in column if one.value is not None and not one.remark]
        if len(ranked) < 2:
            return list(column)
        letters = self._letters(ranked)
        top = max(ranked, key=lambda one: one.value or 0.0)
        of_top = {*letters[top.result.model]}

        best = {
            one.result.model
            for one in ranked
            if one.text == top.text or of_top & {*letters.get(one.result.model, "")}
        }
        if len(best) == len({one.result.model for one in ranked}):
            best = set()

        def marked(one: Figure) -> Figure:
            return one._replace(best=one.result.model in best, group=letters.get(one.result.model, ""))

        return [one if one.value is None or one.remark else marked(one) for one in column]

    def _letters(self, ranked: Sequence[Figure]) -> dict[str, str]:
        """Return the letters of the rank groups by model."""
        by_model = {one.result.model: one for one in ranked}
        key = tuple(sorted((model, id(one.metric)) for model, one in by_model.items()))
        if key not in self._known:
            from imageevalkit.report.comparison import Measured
            from imageevalkit.report.ranks import rank_groups

            column = [
                Measured(model, one.metric, one.noise)
                for model, one in sorted(by_model.items())
                if one.metric
            ]
            self._kept += [one.metric for one in column]
            self._known[key] = dict(zip(sorted(by_model), rank_groups(column), strict=True))
        return self._known[key]


class Mean(NamedTuple):
    """The mean score over the benchmarks that count, which orders the models.

    ``values`` has the mean by model, as a share of the scales from 0 to 1. ``of`` names the benchmarks that
    count, ``left_out`` has the reason for each of the others. ``unknown`` has names of --sort_by that match
    no column.
    """

    values: dict[str, float]
    of: list[str]
    left_out: dict[str, str]
    unknown: list[str]

    @property
    def label(self) -> str:
        """The heading, such as ``mean of 3 benchmarks``; empty if none counts."""
        return f"mean of {counted(len(self.of), 'benchmark')}" if self.of else ""

    @property
    def note(self) -> str:
        """The order of the models, in words."""
        by_reason = grouped(((why, name) for name, why in self.left_out.items()), lambda one: one[0])
        out = "; ".join(f"{_few(named)} ({why})" for why, named in by_reason.items())
        if not self.of:
            return "Models are sorted by the first column." + f" No mean is shown: {out}." * bool(out)
        excluded = f" Not in the mean: {out}; --sort_by chooses others." * bool(out)
        of = ", ".join(self.of)
        return f"Models are sorted by the {self.label}: {of}, in percent of the scale.{excluded}"

    def text(self, model: str) -> str:
        """Return the mean of ``model`` in percent, as shown."""
        return decimals(100 * self.values[model], 2) if model in self.values else "–"


def mean_of(results: Sequence[Result], sort_by: Sequence[str] = ()) -> Mean:
    """Return the mean of each model over benchmarks, from complete headline scores as shares of their scales.

    ``sort_by`` names benchmarks or columns. Without it, boards count that have an official evaluator, all
    items, at least :data:`FEWEST_ITEMS` items, and the benchmark's own prompts. If a benchmark has several
    boards, the board with the most models counts. A model without a score on one of the boards has no mean: a
    mean over fewer benchmarks is not comparable.
    """
    chosen = dict[str, tuple[str, dict[str, float]]]()
    left_out, known_words = dict[str, str](), set[str]()
    for board, members in boards(results).items():
        names = headline_of(members)
        if sort_by:
            of_metric = {name: {*_words_of(board, name)} & {*sort_by} for name in names}
            known_words |= {word for words in of_metric.values() for word in words}
            names = [name for name, words in of_metric.items() if words]
        elif why := _why_not_in_mean(board, members):
            left_out.setdefault(board.label("", with_version=False), why)
            continue
        known = dict[str, float]()
        for result in members if names else ():
            figures = [shown(result, name) for name in names]
            shares = [
                figure.value / figure.metric.scale
                for figure in figures
                if figure.metric and figure.value is not None and not figure.remark
            ]
            if len(shares) == len(figures):
                known[_row_of(result)] = sum(shares) / len(shares)
        if len(known) > len(chosen.get(board.benchmark, ("", {}))[1]):
            label = board.label(names[0] if sort_by and len(names) == 1 else "", with_version=False)
            chosen[board.benchmark] = label, known
    every = [known for _, known in chosen.values()]
    values = {
        model: sum(one[model] for one in every) / len(every)
        for model in dict.fromkeys(model for one in every for model in one)
        if all(model in one for one in every)
    }
    unknown = [word for word in sort_by if word not in known_words]
    return Mean(values, [label for label, _ in chosen.values()], left_out, unknown)


def _words_of(board: Board, metric: str) -> tuple[str, ...]:
    """Return the names that --sort_by accepts for a column."""
    labels = (board.label(name, version) for name in ("", metric) for version in (False, True))
    return board.benchmark, f"{board.benchmark}/{metric}", *labels


def _why_not_in_mean(board: Board, members: Sequence[Result]) -> str:
    """Return why a board counts for the mean only if --sort_by names it; empty if it always counts."""
    if board.evaluator.startswith(SCRIPT):
        return "a script's own result"
    if board.limit or board.asked:
        return "not all items"
    if board.rewriter:
        return "rewritten prompts"
    if min(result.coverage.expected for result in members) < FEWEST_ITEMS:
        return f"fewer than {FEWEST_ITEMS} items"
    return "" if all(result.evaluator.official for result in members) else "no official evaluator"


class Grid(NamedTuple):
    """The leaderboard as shown: ``rows[i][j]`` is model i in the column of label j, or None without a result.

    A model has one row: its results with raw and with rewritten prompts are in different columns. The models
    are in the order of ``mean.note``.
    """

    labels: list[str]
    models: list[str]
    rows: list[list[Figure | None]]
    mean: Mean

    @property
    def mean_label(self) -> str:
        """The heading of the mean; empty if there is only one column, which it would repeat."""
        return self.mean.label if len(self.labels) > 1 else ""


def grid(results: Sequence[Result], ranks: Ranks) -> Grid:
    """Return the leaderboard of ``results``. Labels have versions if a benchmark has several."""
    by_board, labels = boards(results), list[str]()
    table: dict[str, list[Figure | None]] = {model: [] for model in sorted(map(_row_of, results))}
    for board, members in by_board.items():
        versions = {other.version for other in by_board if other.benchmark == board.benchmark}
        alone = {_row_of(result): result for result in members}  # the last of several results counts
        for metric in headline_of(members):
            labels.append(board.label(metric, with_version=len(versions) > 1))
            marked = ranks.mark([shown(alone[model], metric) for model in table if model in alone])
            by_model = {_row_of(figure.result): figure for figure in marked}
            for model, row in table.items():
                row.append(by_model.get(model))
    mean = mean_of(results, ranks.sort_by)
    models = _in_order({model: row[0] for model, row in table.items()}, mean.values)
    return Grid(labels, models, [table[model] for model in models], mean)


def _row_of(result: Result) -> str:
    return Cell(result.model, result.benchmark).raw.model


def _in_order(column: Mapping[str, Figure | None], means: Mapping[str, float]) -> list[str]:
    """Return the models in the order of :attr:`Mean.note`: by mean, then by the first ``column``.

    Checkpoints of a run stay together, by step."""
    best = dict[str, tuple[tuple[bool, float], ...]]()
    for model, figure in column.items():
        run, _ = by_name(model)
        key = _best_first(means.get(model)), _best_first(figure.value if figure else None)
        best[run] = min(best.get(run, key), key)
    return sorted(column, key=lambda model: (best[by_name(model)[0]], by_name(model), model))


def _best_first(value: float | None) -> tuple[bool, float]:
    return value is None, -(value or 0.0)


def csv_text(cells: Iterable[CellReport], ranks: Ranks) -> str:
    """Return ``leaderboard.csv``: one row per model × benchmark × metric. A withheld result has no values.

    ``group`` has the letters of a headline score, ``noise`` its standard error due to the judge's randomness
    alone. ``warning`` says that the judge has drifted. ``result`` is the path of the result file, relative to
    the folder of all results if there is only one. Models are in the order of the leaderboard. ``mean`` is
    the mean of the model over ``mean_of``, from 0 to 1. ``no_interval`` is the reason for a missing interval.
    """
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, CSV_COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        {name: _spreadsheet_text(value) for name, value in row.items()} for row in table_rows(cells, ranks)
    )
    return buffer.getvalue()


def _spreadsheet_text(value: Any) -> Any:
    """Returns ``value`` for a CSV file; text that a spreadsheet would read as a formula gets an apostrophe."""
    is_formula = isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r"))
    return f"'{value}" if is_formula else value


def table_rows(cells: Iterable[CellReport], ranks: Ranks) -> Iterator[dict[str, Any]]:
    """Yield the rows of ``leaderboard.csv``. A missing value is None or has no key."""
    cells = list(cells)
    is_one = len({cell.root for cell in cells}) == 1
    found = [
        (cell.result, cell.source.relative_to(cell.root) if is_one else cell.source)
        for cell in cells
        if cell.result
    ]
    groups = dict[tuple[int, str], str]()
    for members in boards([result for result, _ in found]).values():
        for metric in headline_of(members):
            # the last of several results of one model counts, as on the board
            alone = {_row_of(result): result for result in members}
            figures = ranks.mark([shown(alone[model], metric) for model in sorted(alone)])
            groups |= {(id(figure.result), metric): figure.group for figure in figures}
    board = grid([result for result, _ in found], ranks)
    place = {model: n for n, model in enumerate(board.models)}
    for result, source in sorted(found, key=lambda r: (r[0].benchmark, place[_row_of(r[0])], r[0].model)):
        model = _row_of(result)
        mean = {"mean": board.mean.values.get(model), "mean_of": board.mean.label}
        for name in result.metrics:
            row = {**_csv_row(result, name), "group": groups.get((id(result), name))}
            yield {**row, "result": source.as_posix(), **(mean if model == result.model else {})}


def _csv_row(result: Result, name: str) -> dict[str, Any]:
    metric = result.metrics[name]
    low, high = metric.interval or (None, None)
    values = {"value": metric.value, "ci_low": low, "ci_high": high} if result.headline else {}
    return {
        **values,
        **{column: getattr(result.coverage, column) for column in COVERAGE_COLUMNS},
        **{column: getattr(result, column) for column in ("model", "benchmark", "benchmark_version")},
        **{column: getattr(result, column) for column in ("state", "withheld", "treatment", "limit")},
        "evaluator": result.evaluator.id,
        "official": str(result.evaluator.official).lower(),
        "metric": name,
        "score_name": result.score_name(name),
        "n": metric.n,
        "scale": metric.scale,
        "no_interval": why_no_interval(result, metric) if result.headline else "",
        "noise": result.noise_of(name),
        "warning": result.drift,
        "headline": str(name in result.headline).lower(),
        "git_commit": result.provenance.get("git_commit"),
    }


def coverage_text(coverage: Coverage) -> str:
    """Return the coverage as text, such as ``1276/1280 (3 refused, 1 failed, 2 flat)``."""
    flat = f"{coverage.flat} flat" if coverage.flat else ""
    unasked = f"{coverage.unasked} unasked" if coverage.unasked else ""
    remarks = ", ".join(filter(None, (unasked, coverage.problems(), flat)))
    return f"{coverage.judged}/{coverage.expected}" + (f" ({remarks})" if remarks else "")


# ---- in a terminal

_HEADER = ["", "score", "95 % interval", "group", "n", "judged"]
_RIGHT = (1, 4)  # columns of numbers
_GAP = "  "
_MIN_NAME = 12
_MOST_NAMED = 3  # the names that a note lists


def format_table(results: Sequence[Result], width: int, ranks: Ranks | None = None) -> str:
    """Return the leaderboard for a terminal of ``width`` columns: one block per score, models in order.

    ``*`` marks the best models of a score. A withheld score shows its state instead of a number. The reason
    is below the table, with the notes of all results.
    """
    if not results:
        return "No results."
    board = grid(results, ranks or Ranks())
    blocks, differences = list[tuple[str, list[list[str]]]](), list[str]()
    if board.mean_label:
        rows = [[f"  {model}", board.mean.text(model), "", "", "", ""] for model in board.models]
        blocks.append((board.mean_label, rows))
    for label, column in zip(board.labels, zip(*board.rows, strict=True), strict=True):
        figures = [figure for figure in column if figure]
        beside = max((figure.drift for figure in figures), default="")
        blocks.append((label, [_row(figure, beside) for figure in figures]))
        differences += _difference(label, figures)
    # reasons are never cut, because their end says what to do
    reasons = [f"withheld: {_named(r)}: {' '.join(r.withheld.split())}" for r in results if not r.headline]
    noted = [(" ".join(note.split()), _named(result)) for result in results for note in result.notes]
    notes = [f"note: {_few(of)}: {note}" for note, of in grouped(noted, lambda one: one[0]).items()]
    notes += no_interval_notes(results)
    has_groups = any(figure and figure.group for row in board.rows for figure in row)
    has_noise = any(figure and figure.noise for row in board.rows for figure in row)
    beside = ", beyond the judge's noise" if has_noise else ""
    legend = [f"group: scores that share a letter do not differ significantly{beside}"] * has_groups
    legend += [board.mean.note] * (len(board.models) > 1)
    legend += [DRIFT_NOTE] * any(figure and figure.drift for row in board.rows for figure in row)
    return "\n".join([*_layout(blocks, width), *differences, *legend, *reasons, *notes])


def _difference(label: str, figures: Sequence[Figure]) -> list[str]:
    """Return a line that compares the models of a column, if it has two with a score, and an interval is known."""
    from imageevalkit.report.comparison import Measured, compare

    scored = [one for one in figures if one.metric and one.metric.value is not None and not one.remark]
    if len(scored) != 2 or len(figures) != 2:
        return []
    best, other = (
        Measured(_row_of(one.result), one.metric, one.noise)
        for one in sorted(scored, key=lambda one: -(one.value or 0.0))
        if one.metric
    )
    found = compare(best, other)
    if found.interval is None or found.p is None:
        return []
    by, low, high = (format_value(one, best.metric.scale) for one in (found.difference, *found.interval))
    names = (
        f"{best.name} is better than {other.name} by {by}"
        if found.is_significant
        else f"{best.name} and {other.name} do not differ significantly: difference {by}"
    )
    return [f"{label}: {names} (95 % interval {low} to {high})"]


def _few(noted: Sequence[tuple[str, str]]) -> str:
    """Return the first names of results that share a note, which is shown once."""
    return some([name for _, name in noted], ", ", most=_MOST_NAMED)


def _row(figure: Figure, beside: str) -> list[str]:
    """Return the texts of a row. ``beside`` is the mark of any figure: the others get a space instead."""
    result = figure.result
    word = "incomplete" if figure.text.startswith("incomplete") else figure.text  # counts: last column
    word += figure.drift or " " * len(beside)
    coverage = coverage_text(result.coverage)
    if result.headline and not result.coverage.lacks_nothing:
        coverage += f", {result.treatment} way"
    n = str(figure.metric.n) if figure.metric else ""
    return [f"{'*' if figure.best else ' '} {result.model}", word, figure.interval, figure.group, n, coverage]


def _layout(blocks: list[tuple[str, list[list[str]]]], width: int) -> list[str]:
    from rich.cells import cell_len  # here: benchmarks read leaderboards in environments without rich

    every = [row for _, rows in blocks for row in rows]
    widths = [max(cell_len(row[i]) for row in [_HEADER, *every]) for i in range(len(_HEADER))]
    widths[0] = max(widths[0], *(cell_len(label) for label, _ in blocks))
    spare = width - sum(widths) - len(_GAP) * (len(_HEADER) - 1)
    if spare < 0:
        # the last column shrinks first: the reasons below the table repeat its text
        give = max(0, min(-spare, widths[-1] - cell_len("9999/9999")))
        widths[-1] -= give
        widths[0] = max(_MIN_NAME, widths[0] + spare + give)
    lines = []
    for label, rows in blocks:
        lines += [_line([label, *_HEADER[1:]], widths), *(_line(row, widths) for row in rows), ""]
    return lines


def fit(text: str, columns: int) -> str:
    """Returns ``text``, cut to so many columns of a terminal with an ellipsis if it is longer."""
    from rich.text import Text

    cut = Text(text)
    cut.truncate(columns, overflow="ellipsis")
    return cut.plain


def _line(row: list[str], widths: list[int]) -> str:
    from rich.cells import cell_len

    parts = []
    for i, (text, width) in enumerate(zip(row, widths, strict=True)):
        text = fit(text, width)
        pad = " " * (width - cell_len(text))
        parts.append(pad + text if i in _RIGHT else text + pad)
    return _GAP.join(parts).rstrip()


def _named(result: Result) -> str:
    return f"{result.model} / {result.benchmark}@{result.evaluator.id}"
