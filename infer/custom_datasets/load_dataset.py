"""The registry of foreign benchmarks' datasets, one line per benchmark, as the extension guide describes."""

from __future__ import annotations

from imageevalkit.registry import DatasetSetting

DATASET_SETTINGS: dict[str, DatasetSetting] = {}
"""Benchmarks with a dataset class in ``dataset_cls/`` and a script in ``eval/``, by name:

``"mybench": DatasetSetting("t2i", ".dataset_cls.t2i.mybench", "MyBench")``, or a plain tuple. Benchmarks with
a class in ``benchmarks/`` need no line.
"""
