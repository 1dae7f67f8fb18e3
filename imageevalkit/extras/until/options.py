"""The option ``--until``."""

from __future__ import annotations

import re

from imageevalkit.common.errors import UserError
from imageevalkit.plan.config import Option


def _rivals(text: str, where: str) -> tuple[str, str]:
    names = [name.strip() for name in re.split(r"\s+vs\s+", f" {text} ")]
    if len(names) != 2 or not all(names):
        raise UserError(f"{where}: '{text.strip()}' names no two models: use {where} \"a vs b\"")
    if names[0] == names[1]:
        raise UserError(f"{where} names '{names[0]}' twice: name two models")
    return names[0], names[1]


OPTIONS = {
    "until": Option(
        '"a vs b"',
        "stop a benchmark once a test shows which of two models is better",
        _rivals,
        group="what to evaluate",
    )
}
