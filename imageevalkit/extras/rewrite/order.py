"""The order of a rewrite job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from imageevalkit.jobs.plan import Order
from imageevalkit.store.jsonl import Int, Number


@dataclass(frozen=True)
class RewriteOrder(Order):
    """Rewrite the prompts of all cells with the rewriter ``rewriter`` and its settings ``kwargs``.

    The limits of its requests are those of :class:`~imageevalkit.judges.choice.JudgeOptions`.
    """

    rewriter: str
    kwargs: dict[str, Any]
    limit: Int | None = None
    """The number of items of each cell, from the first; None: all."""
    overwrite: bool = False
    retry_refused: bool = False
    workers: Int = 4
    requests_per_minute: Number | None = None
    max_cost: Number | None = None
    shared: str = ""
    kind: Literal["rewrite"] = "rewrite"
