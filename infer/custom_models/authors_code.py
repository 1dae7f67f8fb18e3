"""The authors' repositories that some models need: assets of their entries, put below ``code/`` by prefetch."""

from __future__ import annotations

import ast
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


def text_in(name: str, file: str, variable: str) -> str:
    """The string that the authors' program ``file`` of repository ``name`` gives to ``variable``; it is not run.

    Raises:
        ModelUnusable: the repository is not there, or says no such thing.
    """
    path = folder_of(name) / file
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError) as error:
        raise ModelUnusable(f"{path} cannot be read: {error}") from error
    for node in tree.body:
        names = [ast.unparse(target) for target in node.targets] if isinstance(node, ast.Assign) else []
        if names == [variable] and isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            return str(node.value.value)
    raise ModelUnusable(f"{path} does not say {variable}")


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
