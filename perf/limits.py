"""The limits of generation through an API, and which of them a measurement breaks."""

from __future__ import annotations

from perf.measure import Usage

_RATIO = {
    ("small", 4): 1.10,
    ("small", 16): 1.10,
    ("small", 64): 1.35,
    ("real", 16): 1.15,
    ("real", 64): 2.0,
}
_WITH_FAULTS = 0.25
_PEAK_MB = {("small", 64): 200.0, ("real", 64): 600.0}
_CPU_SHARE = {"small": 1 / 4, "real": 1 / 6}


def ratio_limit(images: str, workers: int, faults: bool) -> float | None:
    """The largest wall time / makespan; None where none is set."""
    limit = _RATIO.get((images, workers))
    return limit + _WITH_FAULTS * faults if limit else None


def broken_limits(
    images: str, workers: int, faults: bool, ratio: float, usage: Usage, pool: Usage | None
) -> list[str]:
    """The limits that a run breaks, in words."""
    broken = []
    limit = ratio_limit(images, workers, faults)
    if limit and ratio > limit:
        broken.append(f"wall/makespan {ratio:.2f} > {limit:.2f}")
    peak = _PEAK_MB.get((images, workers))
    if peak and usage.peak_mb > peak:
        broken.append(f"memory {usage.peak_mb:.0f} > {peak:.0f} MB")
    if pool and usage.cpu > pool.cpu * _CPU_SHARE[images]:
        broken.append(f"CPU 1/{pool.cpu / usage.cpu:.1f} of the pool's > 1/{1 / _CPU_SHARE[images]:.0f}")
    return broken
