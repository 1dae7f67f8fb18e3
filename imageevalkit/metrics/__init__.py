"""Means of scores, with their intervals: every metric of every benchmark."""

from imageevalkit.metrics.means import (
    Key,
    Value,
    arithmetic_mean,
    geometric_mean,
    groups,
    mean,
    mean_by,
    points,
    ratio,
    ratio_by,
    total,
    weighted,
    weighted_sum,
)

__all__ = [
    "Key",
    "Value",
    "arithmetic_mean",
    "geometric_mean",
    "groups",
    "mean",
    "mean_by",
    "points",
    "ratio",
    "ratio_by",
    "total",
    "weighted",
    "weighted_sum",
]
