"""The option ``--judge_repeats``."""

from __future__ import annotations

from imageevalkit.common.errors import UserError
from imageevalkit.plan.config import Option, parse_count


def _count_or_none(text: str, where: str) -> int:
    try:
        return parse_count(text, where) if text.strip() not in ("", "0") else 0
    except UserError:
        raise UserError(
            f"{where}: '{text}' is no number of questions: use a whole number, 0 for none"
        ) from None


OPTIONS = {
    "judge_repeats": Option(
        "N",
        "ask N questions of each result again, and probe questions, to measure noise and drift",
        _count_or_none,
        default=0,
        config="JUDGE_REPEATS",
        group="scores",
    )
}
