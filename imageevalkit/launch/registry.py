"""The registries of infer/ as the planner sees them: names, tasks, resolved model settings."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Mapping
from typing import Any

from imageevalkit.cell.items import entries_of
from imageevalkit.errors import CellFailure, UserError, suggest
from imageevalkit.guest_code import guest_code
from imageevalkit.launch import model_entries
from imageevalkit.load_errors import may_be_hub_id
from imageevalkit.secrets import one_line

TASKS = ("t2i", "edit", "subject")


def _registry(module: str) -> Any:
    try:
        with guest_code():
            return importlib.import_module(module)
    except Exception as error:
        path = f"infer/{module.replace('.', '/')}.py"
        raise UserError(f"{path} cannot be read: {type(error).__name__}: {one_line(error)}") from error


def benchmark_tasks() -> dict[str, str]:
    """The task (``t2i``, ``edit`` or ``subject``) of every registered benchmark."""
    settings = _registry("custom_datasets.load_dataset").DATASET_SETTINGS
    return {name: setting.task for name, setting in settings.items()}


def model_tasks() -> dict[str, list[str]]:
    """The tasks of every registered model."""
    tasks: dict[str, list[str]] = {}
    for task, models in _registry("custom_models.load_model").MODEL_SETTINGS.items():
        if task not in TASKS:
            raise UserError(
                f"MODEL_SETTINGS['{task}'] in infer/custom_models/load_model.py is no task: a model's entry goes into "
                f"MODEL_SETTINGS['t2i'] (or {', '.join(TASKS[1:])})"
            )
        for name in models:
            tasks.setdefault(name, []).append(task)
    return tasks


def is_api_only(name: str, task: str) -> bool:
    """Whether ``name`` is registered as a model that can only be reached through an API."""
    entry = _entry(name, task)
    return bool(entry and entry.get("api"))


def _entry(name: str, task: str) -> Mapping[str, Any] | None:
    """What MODEL_SETTINGS has of a model for ``task``. Raises CellFailure where no model can be loaded by it."""
    entries = _registry("custom_models.load_model").MODEL_SETTINGS.get(task, {})
    if name not in entries:
        return None
    model_entries.check_entry(entries[name], _place(name, task))
    entry: Mapping[str, Any] = entries[name]
    return entry


def _place(name: str, task: str) -> str:
    return f"model '{name}': MODEL_SETTINGS['{task}']['{name}']"


def check_class(name: str, task: str, setting: Mapping[str, Any]) -> None:
    """Whether the class of a resolved ``setting`` is there, as far as that can be seen. Raises CellFailure."""
    model_entries.check_class(setting["module"], setting["class"], _place(name, task))


def check_model(name: str, task: str) -> None:
    """Whether the registered model can be loaded by its entry, as far as that can be seen. Raises CellFailure."""
    if entry := _entry(name, task):
        check_class(name, task, entry)


class WrongTask(CellFailure):
    """The model is registered, but not for the task."""


def check_dataset_class(benchmark: str) -> None:
    """Whether the class of a benchmark's dataset is there, as far as that can be seen. Raises CellFailure."""
    setting = _registry("custom_datasets.load_dataset").DATASET_SETTINGS[benchmark]
    where = f"benchmark '{benchmark}': DATASET_SETTINGS['{benchmark}']"
    model_entries.check_class(setting.module, setting.class_name, where, model_entries.DATASETS)


def check_dataset(benchmark: str) -> None:
    """Whether the dataset of a benchmark can be read, with all its entries. Raises CellFailure: one line."""
    try:
        # a dataset class may print
        with guest_code(), contextlib.redirect_stdout(sys.stderr):
            entries_of(_registry("custom_datasets.load_dataset").load_dataset(benchmark), benchmark)
    except CellFailure:
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {one_line(error, 300)}"
        raise CellFailure(f"benchmark {benchmark}: its dataset cannot be read: {said}") from error


def resolve_model(name: str, task: str, use_api: bool, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The setting of model ``name`` for ``task`` with the user's ``kwargs`` merged in.

    A local model that is served elsewhere (``use_api``) keeps nothing of its entry but the id.

    Raises:
        UserError: unknown, or only reachable the other way (API or local).
        CellFailure: what its entry says cannot be loaded; :class:`WrongTask`: it has none for ``task``.
    """
    registry = _registry("custom_models.load_model")
    entry = _entry(name, task)
    if use_api and (entry is None or entry.get("api") is None or name in registry.API_MODELS):
        entry = registry.api_setting(str(kwargs.get("model_path") or _served_as(name, entry)), task, name)
    if entry is None:
        known = model_tasks()
        if name in known:
            raise WrongTask(f"model '{name}' does {' and '.join(known[name])}, not {task}")
        raise UserError(
            f"unknown model '{name}'{suggest(name, known)}; bash eval.sh --list shows the names, "
            "--use_api true sends any name to an API"
        )
    if entry.get("api") and not use_api:
        raise UserError(f"model '{name}' is reached through an API: add --use_api true")
    merged = {**entry.get("model_kwargs", {}), **kwargs}
    if "model_path" in kwargs and "revision" not in kwargs:
        merged.pop("revision", None)  # the commit of the entry's own repository
    generic = entry["module"] == registry.API_SETTINGS[task]["module"]
    if generic and merged.get("endpoint") == registry.API_ENDPOINT:
        del merged["endpoint"]  # said or not, the images are the same
    return {**entry, "model_path": merged.pop("model_path", entry["model_path"]), "model_kwargs": merged}


def _served_as(name: str, entry: Mapping[str, Any] | None) -> str:
    """The id that servers of open models (vLLM-Omni, SGLang) give a registered one: that of its weights."""
    path = str(entry["model_path"]) if entry else ""
    return path if may_be_hub_id(path) else name
