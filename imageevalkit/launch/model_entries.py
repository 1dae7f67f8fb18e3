"""What can be seen of an entry of MODEL_SETTINGS or DATASET_SETTINGS without importing code of it."""

from __future__ import annotations

import ast
import functools
import json
from collections.abc import Mapping
from importlib.util import resolve_name
from pathlib import Path
from typing import Any

from imageevalkit.asset_manifest import parse_entries
from imageevalkit.cell import REPO
from imageevalkit.errors import CellFailure, suggest

MODELS, DATASETS = "custom_models", "custom_datasets"
"""The packages below ``infer/`` that modules of entries are relative to."""
_GUIDE = '"Add a model" in README.md shows one'


def check_entry(entry: Any, where: str) -> None:
    """Whether ``entry`` has what loading a model takes; ``where`` it stands begins the messages.

    Raises:
        CellFailure: it cannot; one line.
    """
    if not isinstance(entry, Mapping):
        raise CellFailure(f"{where} is {entry!r}, and must be a dict ({_GUIDE})")
    for key in ("model_path", "module", "class"):
        if key not in entry:
            raise CellFailure(f"{where} lacks '{key}' ({_GUIDE})")
        if not isinstance(entry[key], str) or not (entry[key] or key == "model_path"):
            raise CellFailure(f"{where}: '{key}' is {entry[key]!r}, and must be a string ({_GUIDE})")
    kwargs, gpus = entry.get("model_kwargs", {}), entry.get("gpus")
    if not isinstance(kwargs, Mapping):
        raise CellFailure(f"{where}: 'model_kwargs' is {kwargs!r}, and must be a dict")
    try:
        json.dumps(dict(kwargs))
    except (TypeError, ValueError) as error:
        raise CellFailure(f"{where}: 'model_kwargs' holds what is no JSON value: {error}") from None
    if gpus is not None and (type(gpus) is not int or gpus < 0):
        raise CellFailure(f"{where}: 'gpus' is {gpus!r}, and must be a whole number")
    size = kwargs.get("batch_size", 1)
    if not entry.get("api") and (type(size) is not int or size < 1):
        raise CellFailure(f"{where}: 'batch_size' is {size!r}, and must be a whole number of at least 1")
    for key in ("patterns", "assets"):
        if not isinstance(entry.get(key, ()), list | tuple):
            raise CellFailure(f"{where}: '{key}' is {entry[key]!r}, and must be a list")
    if not all(isinstance(pattern, str) for pattern in entry.get("patterns", ())):
        raise CellFailure(f"{where}: 'patterns' is {entry['patterns']!r}, and must be a list of strings")
    parse_entries(list(entry.get("assets", ())), f"{where}: 'assets'")


def check_class(module: str, name: str, where: str, package: str = MODELS) -> None:
    """Whether the file of ``module``, if it is one of the tree, can have a class ``name``. Raises CellFailure."""
    if not module.startswith("."):
        return  # of a package of the model's environment
    try:
        folder = REPO / "infer" / resolve_name(module, package).replace(".", "/")
    except ImportError:
        raise CellFailure(f"{where}: module '{module}' is outside of infer/{package}") from None
    path = folder / "__init__.py" if folder.is_dir() else folder.with_name(f"{folder.name}.py")
    shown = path.relative_to(REPO)
    if not path.is_file():
        near = suggest(path.stem, [p.stem for p in path.parent.glob("*.py")])
        raise CellFailure(f"{where}: there is no file {shown} for its module '{module}'{near}")
    names = _names_in(path)
    if names is not None and name not in names:
        raise CellFailure(f"{where}: {shown} has no class '{name}'{suggest(name, names)}")


@functools.cache  # many models may be of one class
def _names_in(path: Path) -> set[str] | None:
    """The names that a module gives something; None where that cannot be told."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None  # the model's Python may be newer; if not, loading tells it
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Name) and node.id in {"globals", "exec", "setattr"}:
            return None
    return None if names & {"*", "__getattr__"} else names
