"""The registry of the datasets of foreign benchmarks, as the extension guide has it: a line for each."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

from imageevalkit.errors import CellFailure


class DatasetSetting(NamedTuple):
    """``task``: ``t2i``, ``edit`` or ``subject``; ``module`` is relative to this package; the class takes nothing."""

    task: str
    module: str
    class_name: str


DATASET_SETTINGS: dict[str, tuple[str, str, str]] = {}
"""Benchmarks with a dataset class in ``dataset_cls/`` and a script in ``eval/``, by name:

``"mybench": DatasetSetting("t2i", ".dataset_cls.t2i.mybench", "MyBench")``. Those with a class in ``benchmarks/``
need no line.
"""


def load_dataset(dataset_name: str) -> Any:
    """Import and build the dataset class of ``dataset_name``.

    Raises:
        KeyError: an unknown name.
        CellFailure: the class calls itself, or its task, otherwise than the registry does.
    """
    setting = DatasetSetting(*DATASET_SETTINGS[dataset_name])
    module = importlib.import_module(setting.module, package=__package__)
    dataset = getattr(module, setting.class_name)()
    for attribute, registered in (("dataset_name", dataset_name), ("dataset_task", setting.task)):
        if (own := getattr(dataset, attribute, None)) != registered:
            raise CellFailure(
                f"benchmark {dataset_name}: {attribute} of class {setting.class_name} is {own!r}, and must be "
                f"'{registered}', as in DATASET_SETTINGS of infer/custom_datasets/load_dataset.py"
            )
    return dataset
