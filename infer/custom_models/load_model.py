"""The registry of models. Adding a model costs one entry here, and a class file if no generic class fits."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from custom_models.model_settings import api, authors, native, reference
from custom_models.model_settings.api import API_ENDPOINT, API_MODELS, API_SETTINGS, api_setting
from imageevalkit.assets import HubAsset
from imageevalkit.assets.check import commit_of
from imageevalkit.assets.weights import may_be_hub_id

__all__ = ["API_ENDPOINT", "API_MODELS", "API_SETTINGS", "MODEL_SETTINGS", "api_setting", "load_model"]

CHECKPOINTS = Path(__file__).resolve().parent / "checkpoints"

# task -> model name -> entry; model_settings/__init__.py says what an entry holds. Your own models go here, with
# "model_path": str(CHECKPOINTS / "my-model"); an entry of the same name as one that comes with the toolkit replaces it.
MODEL_SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "t2i": {},
    "edit": {},
    "subject": {},
}

_FAMILIES = (reference, native, authors, api)

for _task, _own in MODEL_SETTINGS.items():
    _shipped = (family.SETTINGS.get(_task, {}) for family in _FAMILIES)
    MODEL_SETTINGS[_task] = {name: entry for entries in (*_shipped, _own) for name, entry in entries.items()}


def load_model(setting: Mapping[str, Any]) -> Any:
    """Import the class of a resolved ``setting`` (an entry with the user's kwargs merged in) and build it.

    Raises whatever the class raises.
    """
    module = importlib.import_module(setting["module"], package=__package__)
    cls = getattr(module, setting["class"])
    path, kwargs = setting["model_path"], setting.get("model_kwargs", {})
    return cls(model_path=path, **_first_download(cls, path, kwargs), **kwargs)


def _first_download(cls: type, model_path: str, kwargs: Mapping[str, Any]) -> dict[str, str]:
    """For a hub id without a revision, the commit that is in the cache: images of one cell must be of one commit."""
    if "revision" in kwargs or not may_be_hub_id(model_path) or Path(model_path).exists():
        return {}
    constructors = (vars(base)["__init__"] for base in cls.__mro__[:-1] if "__init__" in vars(base))
    if not any("revision" in inspect.signature(init).parameters for init in constructors):
        return {}
    commit = commit_of(HubAsset(model_path))
    return {"revision": commit} if commit else {}
