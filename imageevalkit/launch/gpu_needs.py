"""What the planner asks of GPUs: how many there are, and whether a job can ever have as many as it needs."""

from __future__ import annotations

import functools

from imageevalkit.errors import UserError
from imageevalkit.launch import gpus
from imageevalkit.launch.gpus import Gpu


@functools.cache
def visible() -> list[Gpu]:
    """The GPUs this run may use; asked only when something wants one (a login node's nvidia-smi may fail)."""
    return gpus.visible_gpus()


def one_if_any() -> int:
    """A GPU for what is fast on one and runs without."""
    return min(1, len(visible()))


def require(count: int, who: str) -> int:
    """``count``. Raises UserError (``who`` begins it) when a process can never have as many GPUs."""
    if count and (problem := gpus.too_few(visible(), count)):
        raise UserError(f"{who} {count} GPU(s), but {problem}")
    return count


def in_replicas(each: int, replicas: int | None) -> int:
    """GPUs that a job of replicas of ``each`` can use; ``replicas`` bounds them."""
    if not each:
        return 0
    there = len(gpus.fitting(visible(), each)) // each
    return each * max(1, there if replicas is None else min(there, replicas))


def mapped(count: str, where: str) -> int | None:
    """The entry ``count`` of a map of GPUs in config.sh; None when it is empty. Raises UserError: no whole number."""
    if not count.strip():
        return None
    if not count.strip().isdecimal():
        raise UserError(f"{where} in config.sh is '{count}': use a whole number")
    return int(count)
