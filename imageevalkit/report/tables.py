"""Read the results of any folder, as pandas tables or as columns of comparable models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from imageevalkit.common.errors import UserError
from imageevalkit.metrics import grouped
from imageevalkit.report.collect import CellReport, collect
from imageevalkit.report.comparison import Measured
from imageevalkit.report.leaderboard import CSV_COLUMNS, Board, Ranks, boards, table_rows
from imageevalkit.store.cell import results_in, short_path
from imageevalkit.store.jsonl import Tell, tell_nobody
from imageevalkit.store.results import read_result

if TYPE_CHECKING:
    import pandas as pd

_RESULT = "result.json"
_KEPT = "evaluators"
_DEPTHS = ("", "*/", "*/*/", "*/*/*/")  # below a cell, a model, all results, and results of org/model


def read_cells(path: Path, tell: Tell = tell_nobody) -> tuple[Path, list[CellReport]]:
    """Return the folder of all results, and the cells at or below ``path``, with or without a result.

    ``path`` is the folder of all results, of a model or of a cell, or a result.json. ``tell`` gets one line
    for each unreadable file. Raises UserError if there is no result.
    """
    meant = path.absolute()
    if meant.name == _RESULT and meant.is_file():
        meant = meant.parent
    # the model and benchmark in the first result show which of its parents is the folder of all results
    found = next((one for depth in _DEPTHS for one in sorted(meant.glob(f"{depth}{_RESULT}"))), None)
    if found is None:
        raise UserError(f"{short_path(path)} holds no results: give a folder such as output, or a {_RESULT}")
    cell = found.parent.parent.parent if found.parent.parent.name == _KEPT else found.parent
    root = cell.parent.parent
    try:
        result = read_result(found)
        names = [*Path(result.model).parts, result.benchmark]
        if [*cell.parts[-len(names) :]] == names:
            root = cell.parents[len(names) - 1]
    except (OSError, ValueError):
        pass  # collect() reports the unreadable file
    with results_in(root):
        cells = collect(tell, meant)
    return root, [
        one
        for one in cells
        if one.source.is_relative_to(meant) or (one.cell.folder.is_relative_to(meant) and not one.result)
    ]


def read_folders(folders: Sequence[Path], tell: Tell = tell_nobody) -> list[CellReport]:
    """Return the cells of all ``folders``, by model and benchmark.

    If several folders contain a model, the folder's name is appended to the model's name (``run
    (before)@1000`` for a checkpoint). If folders have the same name, the whole path is appended. Raises
    UserError if a folder has no result.
    """
    found = [(folder, cell) for folder in folders for cell in read_cells(folder, tell)[1]]
    places = grouped(found, lambda one: one[1].cell.raw.model)
    several = {model for model, those in places.items() if len({folder for folder, _ in those}) > 1}
    names = Counter(folder.name for folder in folders)
    cells = []
    for folder, cell in found:
        raw, rewriter = cell.cell.raw.model, cell.cell.rewriter
        if raw in several:
            place = folder.name if names[folder.name] == 1 else str(folder)
            checkpoint = cell.cell.checkpoint
            # the step stays at the end of the name, else the model would not count as a checkpoint
            name = (
                checkpoint._replace(run=f"{checkpoint.run} ({place})").name
                if checkpoint
                else f"{raw} ({place})"
            )
            cell = cell.named(name + (f"+{rewriter}" if rewriter else ""))
        cells.append(cell)
    return sorted(cells, key=lambda one: (one.model, one.cell.benchmark, not one.is_latest))


def columns(
    cells: Iterable[CellReport], across_evaluators: bool = False
) -> dict[tuple[Board, str], list[Measured]]:
    """Return the columns of comparable models by board and metric, headline metrics first.

    With ``across_evaluators``, a column has the results of all evaluators under names ``model@evaluator``;
    its board names no evaluator.
    """
    results = [cell.result for cell in cells if cell.result and cell.result.headline]
    found: dict[tuple[Board, str], list[Measured]] = {}
    for board, members in boards(results).items():
        of_all = board._replace(evaluator="") if across_evaluators else board
        headline = dict.fromkeys(name for result in members for name in result.headline)
        for name in dict.fromkeys([*headline, *(name for result in members for name in result.metrics)]):
            column = found.setdefault((of_all, name), [])
            for result in members:
                metric = result.metrics.get(name)
                if metric and metric.value is not None:
                    label = f"{result.model}@{result.evaluator.id}" if across_evaluators else result.model
                    column.append(Measured(label, metric, result.noise_of(name)))
    return {key: column for key, column in found.items() if column}


def results_table(path: Path) -> pd.DataFrame:
    """Return the table of :func:`imageevalkit.report.load_results`."""
    import pandas as pd

    _, cells = read_cells(path)
    rows = list(table_rows(cells, Ranks()))
    table = pd.DataFrame(rows, columns=list(CSV_COLUMNS))
    for name in ("official", "headline"):
        table[name] = table[name] == "true"
    return table.astype(
        dict.fromkeys(("value", "ci_low", "ci_high", "scale", "noise"), float) | {"limit": "Int64"}
    )


def scores_table(path: Path) -> pd.DataFrame:
    """Return the table of :func:`imageevalkit.report.load_scores`."""
    import pandas as pd

    _, cells = read_cells(path)
    tables = []
    names = ["item", "total", "weight", "group", "cluster"]
    for cell in cells:
        for metric, found in cell.result.metrics.items() if cell.result else ():
            if not found.parts or not cell.result:
                continue
            table = pd.DataFrame(found.parts, columns=names)
            table["cluster"] = [part.unit for part in found.parts]
            table.insert(1, "score", table["total"] / table["weight"].where(table["weight"] != 0))
            result = cell.result
            about = {
                "model": result.model,
                "benchmark": result.benchmark,
                "benchmark_version": result.benchmark_version,
                "evaluator": result.evaluator.id,
                "limit": result.limit,
                "metric": metric,
            }
            for place, (name, value) in enumerate(about.items()):
                table.insert(place, name, value)
            tables.append(table)
    columns = [
        "model",
        "benchmark",
        "benchmark_version",
        "evaluator",
        "limit",
        "metric",
        "item",
        "score",
        *names[1:],
    ]
    if not tables:
        return pd.DataFrame(columns=columns)
    table = pd.concat([one.astype({"limit": "Int64", "group": object}) for one in tables], ignore_index=True)
    return table.astype(dict.fromkeys(columns[:4], "category") | {"metric": "category"})
