"""Write leaderboard and gallery from result files alone, and load the same numbers as pandas tables.

from imageevalkit.report import load_results, load_scores
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


def load_results(path: str | Path) -> pd.DataFrame:
    """Return a table with a row for each metric of each result below ``path``, as in ``leaderboard.csv``.

    ``path`` is a folder of results such as ``output``, the folder of a model or of a cell, or a
    ``result.json``. A withheld result has no values. ``group`` ranks all models below ``path``. Raises
    UserError if there is no result.
    """
    from imageevalkit.report.tables import results_table

    return results_table(Path(path))


def load_scores(path: str | Path) -> pd.DataFrame:
    """Return a table with one row for each item and metric of each result below ``path``, as in
    :func:`load_results`.

    ``score`` is ``total`` / ``weight``, on the scale of the metric. The value of the metric is Σ share of
    ``group`` · (Σ ``total`` / Σ ``weight``). This is the plain mean of ``score`` if there are no groups and
    all weights are 1. An item with test points in several groups has a row for each group. Items with the
    same ``cluster`` are not independent (the images of a prompt); else ``cluster`` is the item. Items without
    a score, and metrics that are not means over items, have no rows. Raises UserError if there is no result.
    """
    from imageevalkit.report.tables import scores_table

    return scores_table(Path(path))
