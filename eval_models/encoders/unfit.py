"""A checkpoint that is not what it is taken for."""

from __future__ import annotations

from collections.abc import Sequence

from eval_models.weights_source import WeightsSource
from imageevalkit.errors import CellFailure


def raise_unfit(
    source: WeightsSource,
    what: str,
    missing: Sequence[str],
    unexpected: Sequence[str],
    odd_shapes: Sequence[str] = (),
) -> None:
    """Raise CellFailure with a few names where a checkpoint's weights are not those of ``what``."""
    found = [
        f"{words} {', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''}"
        for words, names in (
            ("lacks", missing),
            ("has unexpected", unexpected),
            ("has another shape of", odd_shapes),
        )
        if names
    ]
    if found:
        raise CellFailure(f"encoders: {source.model_path} is not {what}: it {'; it '.join(found)}")
