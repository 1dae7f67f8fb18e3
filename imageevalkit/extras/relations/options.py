"""The options ``--relations`` and ``--relations_kwargs``."""

from __future__ import annotations

from imageevalkit.common.errors import UserError
from imageevalkit.plan.config import Option, parse_kwargs
from imageevalkit.store.cell import split_names


def parse_relations(text: str, where: str = "--relations") -> dict[str, list[str]]:
    """Returns metrics by benchmark, from ``"wise=consistency/2,realism/2;mine=a,b"``. Raises UserError."""
    found: dict[str, list[str]] = {}
    for part in split_names(text):
        benchmark, _, words = (word.strip() for word in part.partition("="))
        metrics = list(dict.fromkeys(filter(None, (word.strip() for word in words.split(",")))))
        if not benchmark or len(metrics) < 2:
            raise UserError(
                f"{where}: '{part}' names no two metrics of a benchmark; use --relations "
                '"wise=consistency/2,realism/2" (c/2: a score from 0 to 2; c/1:5: one from 1 to 5)'
            )
        if found.setdefault(benchmark, metrics) != metrics:
            raise UserError(f"{where} names {benchmark} twice: give all its metrics at once")
    return found


OPTIONS = {
    "relations": Option(
        '"x=a,b;y=c/5,d/5"',
        "relations between the scores of an item, by benchmark; c/5: from 0 to 5",
        parse_relations,
        default={},
        group="results",
        for_report=True,
    ),
    "relations_kwargs": Option(
        '"p=1,q=2"',
        "settings of the relations of this run",
        parse_kwargs,
        default={},
        group="results",
        for_report=True,
    ),
}
