"""The order of an adopt job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from imageevalkit.jobs.plan import Order
from imageevalkit.store.jsonl import Int


@dataclass(frozen=True)
class AdoptOrder(Order):
    """Import the images of all cells from ``sources``, a folder or file for each benchmark.

    ``among`` is a folder with the images of several models (empty: there is one model).
    """

    sources: dict[str, str]
    among: str = ""
    limit: Int | None = None
    overwrite: bool = False
    kind: Literal["adopt"] = "adopt"
