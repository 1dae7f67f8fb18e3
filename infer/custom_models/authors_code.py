"""The authors' repositories that some models need: assets of their entries, put below ``code/`` by prefetch."""

from __future__ import annotations

import sys
from pathlib import Path

from imageevalkit.generation.model import ModelUnusable

CODE = Path(__file__).resolve().parent / "code"


def use(name: str, *below: str) -> Path:
    """Make the modules of repository ``name`` importable, those of its folders ``below`` too; returns its folder.

    Raises:
        ModelUnusable: it is not there.
    """
    folder = folder_of(name)
    # after our own folders: a repository's `utils` or `models` must not hide a module of ours
    for path in (folder, *(folder / part for part in below)):
        if str(path) not in sys.path:
            sys.path.append(str(path))
    return folder


def folder_of(name: str) -> Path:
    """Where repository ``name`` is. Raises ModelUnusable when it is not there."""
    folder = CODE / name
    if not folder.is_dir():
        raise ModelUnusable(f"the authors' code is not at {folder}: {_how_to_get(name)}")
    return folder


def _how_to_get(name: str) -> str:
    # the registry imports this package's settings, not its models: none of them is loaded here
    from custom_models.load_model import MODEL_SETTINGS

    models = [
        model
        for entries in MODEL_SETTINGS.values()
        for model, entry in entries.items()
        if any(asset.get("to") == name for asset in entry.get("assets", ()))
    ]
    if not models:
        return "no model of the registry has it among its assets"
    return f"run bash utils/prefetch.sh --model_names {' or '.join(dict.fromkeys(models))}"
