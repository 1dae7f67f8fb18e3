"""The registry of models. A new model needs one entry here, and a class file if no generic class fits."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from custom_models.model_settings import api, authors, native, own, reference
from custom_models.model_settings.api import API_ENDPOINT, API_MODELS, API_SETTINGS, api_setting
from imageevalkit.assets import HubAsset
from imageevalkit.assets.check import commit_of
from imageevalkit.assets.weights import may_be_hub_id

__all__ = ["API_ENDPOINT", "API_MODELS", "API_SETTINGS", "MODEL_SETTINGS", "api_setting", "load_model"]

CHECKPOINTS = Path(__file__).resolve().parent / "checkpoints"

# task -> model name -> entry; model_settings/__init__.py documents entries. Add your own models here, with
# "model_path": str(CHECKPOINTS / "my-model"). An entry replaces the toolkit's entry of the same name.
MODEL_SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "t2i": {},
    "edit": {},
    "subject": {},
}

_FAMILIES = (reference, own, native, authors, api)

for _task, _own in MODEL_SETTINGS.items():
    _shipped = (family.SETTINGS.get(_task, {}) for family in _FAMILIES)
    MODEL_SETTINGS[_task] = {name: entry for entries in (*_shipped, _own) for name, entry in entries.items()}


def load_model(setting: Mapping[str, Any]) -> Any:
    """Returns an instance of the class of a resolved ``setting`` (an entry merged with the user's kwargs).

    Exceptions of the class propagate.
    """
    module = importlib.import_module(setting["module"], package=__package__)
    cls = getattr(module, setting["class"])
    path, kwargs = setting["model_path"], setting.get("model_kwargs", {})
    return cls(model_path=path, **_first_download(cls, path, kwargs), **kwargs)


def _first_download(cls: type, model_path: str, kwargs: Mapping[str, Any]) -> dict[str, str]:
    """Returns the cached commit as ``revision`` if ``model_path`` is a hub id without a revision. Images of
    one result must come from one commit.
    """
    if "revision" in kwargs or not may_be_hub_id(model_path) or Path(model_path).exists():
        return {}
    constructors = (vars(base)["__init__"] for base in cls.__mro__[:-1] if "__init__" in vars(base))
    if not any("revision" in inspect.signature(init).parameters for init in constructors):
        return {}
    commit = commit_of(HubAsset(model_path))
    return {"revision": commit} if commit else {}
