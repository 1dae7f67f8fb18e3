"""The option ``--export``."""

from __future__ import annotations

from pathlib import Path

from imageevalkit.common.errors import UserError
from imageevalkit.plan.config import Option, absolute, parse_choice

TRACKERS = ("wandb", "trackio", "tensorboard")


def _tracker(text: str, where: str) -> tuple[str, str]:
    name, _, place = (word.strip() for word in text.partition(":"))
    if not name:
        raise UserError(f"{where} is empty: use {' or '.join(TRACKERS)}")
    return parse_choice(name, where, TRACKERS), place


def _absolute(text: str, here: Path) -> str:
    name, _, folder = text.partition(":")
    return f"{name}:{absolute(folder, here)}" if name == "tensorboard" and folder else text


OPTIONS = {
    "export": Option(
        "TRACKER",
        "send metrics and samples to wandb, trackio or tensorboard (TRACKER:PROJECT)",
        _tracker,
        prefetch="",
        absolute=_absolute,
        listed_with=("publish",),
        group="results",
    )
}
