"""Reads and checks the entries of models in MODEL_SETTINGS and plug-ins; imports no class of a model."""

from __future__ import annotations

import ast
import difflib
import functools
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from importlib.util import resolve_name
from pathlib import Path
from typing import TYPE_CHECKING, Any

from imageevalkit import registry
from imageevalkit.api.endpoint import Endpoint
from imageevalkit.api.prices import price_and_estimate
from imageevalkit.api.settings import RequestSettings
from imageevalkit.assets import Needed, Needs, UrlAsset, parse_entries
from imageevalkit.assets.check import missing_path, weights_at, why_missing
from imageevalkit.assets.weights import may_be_hub_id, without_cache_layout
from imageevalkit.common.errors import CellFailure, UserError, suggest
from imageevalkit.common.text import some
from imageevalkit.extension_points import connected
from imageevalkit.store.cell import REPO, checkpoint_of
from imageevalkit.store.fingerprint import maker_of, module_now

if TYPE_CHECKING:
    from imageevalkit.plan.options import Options

MODELS, DATASETS = "custom_models", "custom_datasets"
"""Packages in ``infer/``: relative module names in registry entries start from them."""
_KEYS: dict[str, tuple[Any, str]] = {
    "model_path": (str, "a string"),
    "module": (str, "a string"),
    "class": (str, "a string"),
    "model_kwargs": (Mapping, "a dict"),
    "gpus": (int | None, "a whole number"),
    "api": (object, ""),
    "patterns": (list | tuple, "a list"),
    "assets": (list | tuple, "a list"),
}
"""Keys of an entry: the type of the value, and the words for it in messages."""
_GENERATES = re.compile(r"\b(generate|generate_async|__getattr__)\b")
_GUIDE = "docs/how-to/own-model.md shows one"


class WrongTask(CellFailure):
    """The model is registered, but not for the task."""


def model_tasks() -> dict[str, list[str]]:
    """Returns the tasks of every model of the tree. Raises UserError: MODEL_SETTINGS has an unknown task."""
    tasks: dict[str, list[str]] = {}
    for task, models in registry.models().MODEL_SETTINGS.items():
        if task not in registry.TASKS:
            raise UserError(
                f"MODEL_SETTINGS['{task}'] in infer/custom_models/load_model.py is no task: a model's entry goes into "
                f"MODEL_SETTINGS['t2i'] (or {', '.join(registry.TASKS[1:])})"
            )
        for name in models:
            tasks.setdefault(name, []).append(task)
    return tasks


def models_of(options: Options) -> dict[str, dict[str, Any]]:
    """Returns the models of a run and their settings, as extras expand them (a folder of checkpoints).

    Raises UserError: the settings of a model do not fit its files.
    """
    models = options.models
    for expand in connected("models").values():
        models = expand(replace(options, models=models))
    return models


def entry_name(model: str) -> str:
    """Returns the name of ``model`` in MODEL_SETTINGS and config.sh: ``run`` if it is ``run@1000``."""
    run = checkpoint.run if (checkpoint := checkpoint_of(model)) else ""
    return run if run and not registry.is_model(model) and registry.is_model(run) else model


def resolve_model(name: str, task: str, use_api: bool, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the setting of model ``name`` for ``task``, with the user's ``kwargs`` merged in.

    With ``use_api``, a local model keeps only the id of its weights: a server runs it.

    Raises:
        UserError: The model is unknown, or is reached through an API and ``use_api`` is False.
        CellFailure: Its entry is malformed. :class:`WrongTask`: it has no entry for ``task``.
    """
    models = registry.models()
    # A server may call its model anything, also like a checkpoint: the name is not shortened.
    entry = _entry(name if use_api else entry_name(name), task)
    if use_api and (entry is None or entry.get("api") is None or name in models.API_MODELS):
        # Servers of open models (vLLM-Omni, SGLang) call a model by the hub id of its weights.
        weights = str(entry["model_path"]) if entry else ""
        served_as = str(kwargs.get("model_path") or (weights if may_be_hub_id(weights) else name))
        entry = models.api_setting(served_as, task, name)
    if entry is None:
        if does := registry.model_entries(entry_name(name)):
            raise WrongTask(f"model '{name}' does {' and '.join(does)}, not {task}")
        known = [*model_tasks(), *registry.plugin_names("models")]
        raise UserError(
            f"unknown model '{name}'{suggest(name, known)}; bash eval.sh --list shows the names, "
            "--use_api true sends any name to an API"
        )
    if entry.get("api") and not use_api:
        raise UserError(f"model '{name}' is reached through an API: add --use_api true")
    merged = {**entry.get("model_kwargs", {}), **kwargs}
    if "model_path" in kwargs and "revision" not in kwargs:
        merged.pop("revision", None)  # it is a commit of the entry's own repository
    generic = entry["module"] == models.API_SETTINGS[task]["module"]
    if generic and merged.get("endpoint") == models.API_ENDPOINT:
        del merged["endpoint"]  # it is the default: given or not, the images are the same
    path = merged.pop("model_path", entry["model_path"])
    if not entry.get("api") and isinstance(path, str):
        path = without_cache_layout(path)
    return {**entry, "model_path": path, "model_kwargs": merged}


def check_kwargs(model: str, setting: Mapping[str, Any], options: Options) -> None:
    """Raises UserError: a resolved ``setting`` has a wrong batch_size, endpoint, key or price."""
    kwargs = setting["model_kwargs"]
    if not setting.get("api"):
        size = kwargs.get("batch_size", 1)  # the engine uses it before a class could check it
        if type(size) is not int or size < 1:
            raise UserError(f"model '{model}': batch_size is '{size}': use a whole number of at least 1")
        return
    try:
        Endpoint.of(kwargs, needs_key=options.needs_keys)
        _, estimate = price_and_estimate(setting["model_path"], kwargs)
    except UserError as error:
        raise UserError(f"model '{model}' is reached through an API: {error}") from None
    if options.max_cost is not None and estimate is None:
        raise UserError(
            f"--max_cost needs the price of an image, which is unknown for '{model}': add price=USD to its kwargs "
            '(--custom_model_kwargses "price=0.04")'
        )


def is_of_our_class(setting: Mapping[str, Any]) -> bool:
    """Returns True if the toolkit's own class sends the requests of a resolved ``setting`` to an API."""
    return setting["module"] in {one["module"] for one in registry.models().API_SETTINGS.values()}


# Request parameters of image endpoints, of OpenAI and of gateways to other models.
_PARAMETERS = """
    size endpoint send_seed image_model quality background moderation output_format output_compression style
    user response_format input_fidelity partial_images modalities image_config generation_config aspect_ratio
    resolution image_size width height steps num_inference_steps guidance_scale true_cfg_scale cfg_scale
    negative_prompt strength scheduler sampler lora loras prompt_extend prompt_upsampling watermark
    safety_tolerance safety_identifier temperature top_p top_k max_tokens max_completion_tokens
    max_output_tokens reasoning reasoning_effort presence_penalty frequency_penalty service_tier metadata store
    provider plugins instructions text
"""
_RESEMBLES = 0.75


def notes_of_setting(model: str, setting: Mapping[str, Any]) -> list[str]:
    """Returns notes for the user about a resolved ``setting``, before the run starts.

    A note names a local path that does not exist, or a request parameter that looks misspelt. Such a
    parameter is sent all the same, because an endpoint may have parameters that this list lacks.
    """
    path = str(setting["model_path"])
    if not setting.get("api") and path:
        problem = missing_path([weights_at(path, None)])
        return [f"model '{model}': model_path: {problem}"] if problem else []
    if not is_of_our_class(setting):
        return []
    kwargs = setting["model_kwargs"]
    extra = kwargs.get("extra_body") or {}
    known = {*_PARAMETERS.split(), *(each.name for each in fields(RequestSettings))}
    notes = []
    for name in dict.fromkeys([*kwargs, *extra]):
        near = difflib.get_close_matches(name.lower(), known - {name}, n=1, cutoff=_RESEMBLES)
        if name not in known and near:
            notes.append(
                f"model '{model}': the request parameter '{name}' is sent as it is; if you mean '{near[0]}', "
                "correct its kwargs (--custom_model_kwargses)"
            )
    return notes


def makers(settings: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[str]:
    """Returns a line for each class that generates images, with its models.

    ``settings`` holds resolved settings by model and task.
    """
    models: dict[str, dict[str, None]] = {}
    for model, by_task in settings.items():
        for setting in by_task.values():
            models.setdefault(maker_of(setting), {})[model] = None
    return [f"images by {maker}: {some([*names], ', ')}" for maker, names in models.items()]


def check_model(name: str, task: str) -> None:
    """Raises CellFailure: the entry of a registered model is malformed, or its class is not in its file."""
    if entry := _entry(name, task):
        check_class(entry["module"], entry["class"], _place(name, task))


def model_needs(
    name: str, use_api: bool, kwargs: Mapping[str, Any], tasks: Iterable[str] | None = None
) -> Needs:
    """Returns the files that model ``name`` with the user's ``kwargs`` needs for ``tasks`` (None: for all).

    Raises:
        UserError: The model is unknown.
        CellFailure: The model does none of the tasks, or its entry or one of its assets is malformed.
    """
    found: dict[Needed, None] = {}
    runs_here, does_some, lacks = False, False, None
    for task in tasks or list(registry.model_entries(entry_name(name))) or ["t2i"]:
        entry = _entry(entry_name(name), task)
        by_api = use_api or bool(entry and entry.get("api"))
        try:
            setting = resolve_model(name, task, by_api, kwargs)
        except WrongTask as failure:
            lacks = failure
            continue
        does_some = True
        if setting.get("api"):
            continue
        runs_here = True
        listed = parse_entries(list(setting.get("assets", ())), f"the assets of model {name} in the registry")
        # Assets inside the entry's model_path are its weights: another model_path does not need them.
        shipped = resolve_model(name, task, by_api, {})["model_path"]
        own = [
            asset
            for asset in listed
            if shipped and isinstance(asset, UrlAsset) and Path(shipped) in (REPO / asset.path).parents
        ]
        other = "model_path" in kwargs
        if setting["model_path"] and (other or not own):
            # The file patterns fit the entry's own repository only: another one may have other names.
            patterns = () if other else tuple(setting.get("patterns", ()))
            revision = setting.get("model_kwargs", {}).get("revision")
            found[weights_at(setting["model_path"], revision, patterns)] = None
        found |= dict.fromkeys(asset for asset in listed if not (other and asset in own))
    if lacks and not does_some:
        raise lacks
    if not runs_here:
        return Needs(remark="is reached through an API: nothing to fetch")
    return Needs(tuple(found), "" if found else "needs no files")


def missing_of_model(
    model: str, task: str, use_api: bool, kwargs: Mapping[str, Any], runs_here: bool = True
) -> str:
    """Returns one line on files that ``model`` lacks for ``task``; empty if none is known to be missing.

    If ``runs_here`` is False, local paths are not checked: they are on another machine, or do not exist yet.

    Raises UserError: the model is unknown.
    """
    try:
        setting = resolve_model(model, task, use_api, kwargs)
        check_class(setting["module"], setting["class"], _place(model, task))
        options = f"--model_names {model}"
        if own := [f"{name}={kwargs[name]}" for name in ("model_path", "revision") if name in kwargs]:
            options += f' --custom_model_kwargses "{",".join(own)}"'
        assets = model_needs(model, use_api, kwargs, [task]).assets
        # A class may ignore the path in its entry. A path that the user gives must exist.
        if runs_here and "model_path" in kwargs and (problem := missing_path(assets)):
            return f"model {model}: model_path: {problem}"
        missing = why_missing(assets, options)
    except CellFailure as failure:
        return str(failure)
    return missing and f"model {model}: {missing}"


def _place(name: str, task: str) -> str:
    own = entry_name(name)
    if own not in registry.models().MODEL_SETTINGS.get(task, {}) and own in registry.plugin_names("models"):
        return f"{registry.plugin_place('models', own)}: ['{task}']"
    return f"model '{name}': MODEL_SETTINGS['{task}']['{own}']"


def _entry(name: str, task: str) -> Mapping[str, Any] | None:
    """Returns the entry of a model for ``task``, or None. Raises CellFailure: the entry is malformed."""
    entries = registry.model_entries(name)
    if task not in entries:
        return None
    entry: Mapping[str, Any] = entries[task]
    _check_entry(entry, _place(name, task))
    return {**entry, "module": module_now(entry["module"], entry["class"])}


def _check_entry(entry: Any, where: str) -> None:
    """Raises CellFailure: ``entry``, which is at ``where``, lacks a key or has a wrong key or value."""
    if not isinstance(entry, Mapping):
        raise CellFailure(f"{where} is {entry!r}, and must be a dict ({_GUIDE})")
    for key in ("model_path", "module", "class"):
        if key not in entry:
            raise CellFailure(f"{where} lacks '{key}' ({_GUIDE})")
    for key, value in entry.items():
        if key not in _KEYS:
            raise CellFailure(
                f"{where}: '{key}' is unknown{suggest(str(key), _KEYS)}; an entry has {', '.join(_KEYS)}"
            )
        kind, words = _KEYS[key]
        is_empty = key in ("module", "class") and not value
        if not isinstance(value, kind) or is_empty or (key == "gpus" and value is not None and value < 0):
            raise CellFailure(f"{where}: '{key}' is {value!r}, and must be {words} ({_GUIDE})")
    kwargs = entry.get("model_kwargs", {})
    try:
        json.dumps(dict(kwargs))
    except (TypeError, ValueError) as error:
        raise CellFailure(f"{where}: 'model_kwargs' holds what is no JSON value: {error}") from None
    size = kwargs.get("batch_size", 1)
    if not entry.get("api") and (type(size) is not int or size < 1):
        raise CellFailure(f"{where}: 'batch_size' is {size!r}, and must be a whole number of at least 1")
    if not all(isinstance(pattern, str) for pattern in entry.get("patterns", ())):
        raise CellFailure(f"{where}: 'patterns' is {entry['patterns']!r}, and must be a list of strings")
    parse_entries(list(entry.get("assets", ())), f"{where}: 'assets'")


def check_class(module: str, name: str, where: str, package: str = MODELS) -> None:
    """Raises CellFailure: a relative ``module`` has no file, or its file has no usable class ``name``."""
    if not module.startswith("."):
        return  # an absolute module is part of the model's environment
    try:
        folder = REPO / "infer" / resolve_name(module, package).replace(".", "/")
    except ImportError:
        raise CellFailure(f"{where}: module '{module}' is outside of infer/{package}") from None
    path = folder / "__init__.py" if folder.is_dir() else folder.with_name(f"{folder.name}.py")
    shown = path.relative_to(REPO)
    if not path.is_file():
        near = suggest(path.stem, [p.stem for p in path.parent.glob("*.py")])
        raise CellFailure(f"{where}: there is no file {shown} for its module '{module}'{near}")
    names, mute = _names_in(path)
    if names is not None and name not in names:
        raise CellFailure(f"{where}: {shown} has no class '{name}'{suggest(name, names)}")
    if name in mute and package == MODELS:
        raise CellFailure(
            f"{where}: class '{name}' in {shown} has no method generate(prompt, seed=42) ({_GUIDE})"
        )


@functools.cache  # many models share one file
def _names_in(path: Path) -> tuple[set[str] | None, set[str]]:
    """Returns the names that a module defines, and the names of its classes that cannot generate images.

    The first set is None if the names cannot be known from the source.
    """
    names: set[str] = set()
    mute: set[str] = set()
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None, mute  # the model's Python may be newer; otherwise the import reports the error
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
            if _is_mute(node):
                mute.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Name) and node.id in {"globals", "exec", "setattr"}:
            return None, mute
    return None if names & {"*", "__getattr__"} else names, mute


def _is_mute(node: ast.ClassDef | ast.FunctionDef) -> bool:
    """Returns True for a class without a method ``generate``. A class with a foreign base may inherit one."""
    if not isinstance(node, ast.ClassDef) or node.keywords or node.decorator_list:
        return False
    bases = {ast.unparse(base) for base in node.bases}
    return bases <= {"ImageModel", "object"} and not _GENERATES.search(ast.unparse(node))
