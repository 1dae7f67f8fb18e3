"""The authors' repositories that some models need: assets of their entries, put below ``code/`` by prefetch."""

from __future__ import annotations

import sys
from pathlib import Path

from imageevalkit.generation.contract import ModelUnusable

CODE = Path(__file__).resolve().parent / "code"


def use(name: str, *below: str) -> Path:
    """Make the modules of repository ``name`` importable, those of its folders ``below`` too; returns its folder.

    Raises:
        ModelUnusable: it is not there.
    """
    folder = CODE / name
    if not folder.is_dir():
        raise ModelUnusable(
            f"the authors' code is not at {folder}: run bash utils/prefetch.sh --model_names with this model"
        )
    # after our own folders: a repository's `utils` or `models` must not hide a module of ours
    for path in (folder, *(folder / part for part in below)):
        if str(path) not in sys.path:
            sys.path.append(str(path))
    return folder
