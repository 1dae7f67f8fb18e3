"""Checks ``--relations`` before a run."""

from __future__ import annotations

from collections.abc import Mapping

from imageevalkit.common.errors import UserError, suggest
from imageevalkit.extras.relations.relations import Column, Settings
from imageevalkit.plan.benchmarks import BenchmarkChoice, checked
from imageevalkit.plan.options import Options
from imageevalkit.registry import without_alias


def check_relations(options: Options, benchmarks: Mapping[str, BenchmarkChoice]) -> list[str]:
    """Replaces aliases in ``--relations``. Returns no notes.

    Raises UserError: it names no benchmark of the run or an unknown metric, or a setting is wrong.
    """
    own = options.extra["relations"]
    checked(Settings, own["relations_kwargs"], "--relations_kwargs")
    own["relations"] = {without_alias(name): metrics for name, metrics in own["relations"].items()}
    for name, metrics in own["relations"].items():
        if name not in options.benchmarks:
            near = suggest(name, options.benchmarks)
            raise UserError(f"--relations names '{name}', which is no benchmark of this run{near}")
        choice = benchmarks.get(name)
        known = choice.benchmark.item_values if choice and choice.benchmark else ()
        for metric in metrics if known else ():
            try:
                Column.find(metric, known)
            except UserError as error:
                raise UserError(f"--relations: {name}: {error}") from None
    return []
