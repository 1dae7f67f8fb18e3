"""What the folders beside the library hold: the only file of it that looks into them.

Jobs and commands have ``infer/`` on their PYTHONPATH (eval.sh and the scripts of ``utils/`` and ``eval/`` see to it).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

_DATASETS = "custom_datasets.load_dataset"


def datasets() -> dict[str, str]:
    """The task (``t2i``, ``edit`` or ``subject``) of every benchmark, by name."""
    settings = importlib.import_module(_DATASETS).DATASET_SETTINGS
    return {name: setting.task for name, setting in settings.items()}


def load_dataset(name: str) -> Any:
    """The dataset of the benchmark ``name``.

    Raises:
        KeyError: an unknown name.
        CellFailure: its class calls itself, or its task, otherwise than its entry does.
    """
    return importlib.import_module(_DATASETS).load_dataset(name)


def image_finder(dataset: Any) -> Callable[[Path, Sequence[Any]], Mapping[str, Any] | None] | None:
    """What finds images made elsewhere in the layouts of ``dataset``; None where it has none of its own.

    A class written to the extension guide may have it: ``find_images(source, items)`` gives the places of images by
    item id (:data:`imageevalkit.adoption.places.Place`), or None for a layout that it does not know.
    """
    finder: Callable[[Path, Sequence[Any]], Mapping[str, Any] | None] | None
    finder = getattr(dataset, "find_images", None)
    return finder
