"""The registry of the datasets of foreign benchmarks, as the extension guide has it: a line for each."""

from __future__ import annotations

from imageevalkit.registry import DatasetSetting

DATASET_SETTINGS: dict[str, DatasetSetting] = {}
"""Benchmarks with a dataset class in ``dataset_cls/`` and a script in ``eval/``, by name:

``"mybench": DatasetSetting("t2i", ".dataset_cls.t2i.mybench", "MyBench")``, or as a plain tuple. Those with a class in
``benchmarks/`` need no line.
"""
