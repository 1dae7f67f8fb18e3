"""Checkpoints of a training run as models, ``run@1000``: one that the user names, or all in a folder."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from imageevalkit import registry
from imageevalkit.assets.checkpoints import holds_checkpoints, step_of, steps_in, what_lacks
from imageevalkit.common.errors import CellFailure, UserError
from imageevalkit.common.text import some
from imageevalkit.plan.models import entry_name
from imageevalkit.plan.options import Options
from imageevalkit.store.cell import Checkpoint, checkpoint_of

LORA, DENOISER = "lora", "denoiser"
WEIGHTS = (LORA, DENOISER, "model_path")
"""The kwargs of a model whose value may be a folder of checkpoints."""
_NAMES = "checkpoint-1000, step_1000 or 1000"


def with_checkpoints(options: Options) -> dict[str, dict[str, Any]]:
    """Return the models and their settings, with each checkpoint as a model of its own, ordered by step.

    Raises UserError: a checkpoint is missing, a folder has none, or two checkpoints have the same step.
    """
    if options.use_api or options.images is not None:
        return options.models
    found = dict[str, dict[str, Any]]()
    for model, kwargs in options.models.items():
        for name, own in _expanded(model, kwargs, options.makes_images).items():
            if found.setdefault(name, own) != own:
                raise UserError(f"checkpoint '{name}' is named twice, with different settings: leave one out")
    return found


def checkpoint_kwargs(kwargs: Mapping[str, Any], key: str, path: Path) -> dict[str, Any]:
    """Return the ``kwargs`` of a training run with the checkpoint at ``path`` as ``key``."""
    return {**kwargs, key: str(path)}


def lacks_of(model: str, kwargs: Mapping[str, Any]) -> str:
    """Return one line on weights of a checkpoint that are not written yet; empty if ``model`` lacks none."""
    if not checkpoint_of(model) or registry.is_model(model):
        return ""
    for key in WEIGHTS:
        path = Path(str(kwargs.get(key, "")))
        if key in kwargs and path.exists() and (lacks := what_lacks(path)):
            return f"model {model}: {path}: {lacks}; once it is complete, run the same command again (--watch waits)"
    return ""


def _expanded(model: str, kwargs: dict[str, Any], makes_images: bool) -> dict[str, dict[str, Any]]:
    checkpoint = checkpoint_of(model)
    if checkpoint and registry.is_model(model):
        checkpoint = None
    run = entry_name(model)
    try:
        places = _places(run, kwargs)
        if checkpoint is None:
            for key, folder in places.items():
                if holds_checkpoints(folder, key == LORA):
                    of_run = steps_in(folder, key == LORA).items()
                    return {
                        Checkpoint(run, step).name: checkpoint_kwargs(kwargs, key, path)
                        for step, path in of_run
                    }
                if key in kwargs and all(path.is_dir() for path in folder.rglob("*")):
                    raise UserError(
                        f"model '{model}': {folder} holds neither weights nor folders of checkpoints ({_NAMES}): "
                        "correct the path"
                    )
        elif makes_images and registry.is_model(run):  # scoring existing images needs no weights
            if any(key in kwargs and step_of(Path(str(kwargs[key]))) == checkpoint.step for key in WEIGHTS):
                return {model: kwargs}
            for key, folder in places.items():
                if path := steps_in(folder, key == LORA).get(checkpoint.step):
                    return {model: checkpoint_kwargs(kwargs, key, path)}
            raise UserError(f"model '{model}': {_no_such(checkpoint, places)}")
    except OSError as error:
        raise UserError(f"model '{model}': {error.filename} cannot be read: {error.strerror}") from None
    return {model: kwargs}


def _places(run: str, kwargs: Mapping[str, Any]) -> dict[str, Path]:
    """Return the local folders in the settings of a training run that may hold checkpoints, by kwarg."""
    shipped: Any = ""
    with contextlib.suppress(CellFailure):  # a malformed entry is reported when its cells are planned
        entries = registry.model_entries(run).values()
        shipped = next((entry.get("model_path") for entry in entries if isinstance(entry, Mapping)), "")
    given = {"model_path": shipped, **kwargs}
    paths = {key: Path(str(given[key])).expanduser() for key in WEIGHTS if given.get(key)}
    return {key: path.absolute() for key, path in paths.items() if path.is_dir()}


def _no_such(checkpoint: Checkpoint, places: Mapping[str, Path]) -> str:
    if not places:
        return (
            f"no folder of its checkpoints is known: name it as model_path among its kwargs "
            f'(--custom_model_kwargses "model_path=DIR"), with {_NAMES} in it'
        )
    there = [str(step) for key, folder in places.items() for step in steps_in(folder, key == LORA)]
    shown = some(there, ", ")
    where = " and ".join(map(str, places.values()))
    return f"there is no checkpoint of step {checkpoint.step} in {where} (there: {shown or f'none, as {_NAMES}'})"
