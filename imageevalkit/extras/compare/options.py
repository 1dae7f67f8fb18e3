"""The options ``--compare``, ``--gate`` and ``--save_baseline``."""

from __future__ import annotations

from collections.abc import Sequence

from imageevalkit.common.errors import UserError
from imageevalkit.plan.config import Option, absolute, folder


def _pair(texts: Sequence[str], where: str) -> tuple[str, str]:
    one, other = (text.strip() for text in texts)
    if not one or not other:
        raise UserError(f"{where} has an empty name: use {where} A B")
    if one == other:
        raise UserError(f"{where} names '{one}' twice: name two")
    return one, other


OPTIONS = {
    "gate": Option(
        "BASELINE",
        "fail with status 4 if a score fell below BASELINE: an older output folder, or a saved file",
        folder,
        absolute=absolute,
        command="gate",
        group="results",
    ),
    "save_baseline": Option(
        "FILE",
        "save the results to a file for --gate",
        folder,
        absolute=absolute,
        listed_with=("gate",),
        group="results",
    ),
    "compare": Option(
        "A B",
        "compare two models, output folders, or evaluators (MODEL/BENCHMARK@EVALUATOR)",
        _pair,
        prefetch="",
        command="compare",
        group="results",
    ),
}
