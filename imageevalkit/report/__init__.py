"""Leaderboard and gallery, from result files alone; and the same numbers as tables, for whoever goes on with them.

from imageevalkit.report import load_results, load_scores
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


def load_results(path: str | Path) -> pd.DataFrame:
    """One row for each metric of each result below ``path``: a folder of results such as ``output``, that of a model
    or of a cell, or a ``result.json``. Columns are those of ``leaderboard.csv``.

    A withheld result has no values. ``group`` is of all models below ``path``. Raises UserError: there is no result.
    """
    from imageevalkit.report.tables import results_table

    return results_table(Path(path))


def load_scores(path: str | Path) -> pd.DataFrame:
    """One row for each item and metric of each result below ``path``, which is as :func:`load_results` takes it.

    ``score`` is ``total`` / ``weight``, on the scale of the metric, whose value is Σ share of ``group`` ·
    (Σ ``total`` / Σ ``weight``): a plain mean of ``score`` where there is neither group nor weight other than 1. An
    item with test points in several groups has a row for each. ``cluster`` is the item, or what it shares with others
    that are not independent (the images of a prompt). Items without a score, and metrics that are no such means, have
    no rows. Raises UserError: there is no result.
    """
    from imageevalkit.report.tables import scores_table

    return scores_table(Path(path))
