"""The settings that produced an image, as a hash (the fingerprint) and in full, to explain a change."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NotRequired, TypedDict
from urllib.parse import urlsplit

from imageevalkit.api.endpoint import place_of
from imageevalkit.common.hashes import weights_of
from imageevalkit.common.text import to_bytes
from imageevalkit.store.jsonl import JsonlWriter, Reader, Tell, read_jsonl, tell_nobody
from imageevalkit.store.shards import parts_of

# Settings that cannot change a pixel: images stay valid when these change.
_RUNTIME_KWARGS = frozenset(
    {"device", "device_map", "offload", "timeout", "max_attempts", "max_elapsed", "max_outage", "backoff"}
    | {"api_key_env", "price"}
    | {"client"}  # an earlier setting: images made with it stay valid
    # settings_of() records only the host of an API
    | {"base_url", "azure_endpoint"}
)

# Classes that were moved after images were recorded: new module → class → old module. Records keep the old
# module, or all these images would become stale. Model entries may name either module.
_MOVED = {
    "diffusers_models": {
        "DiffusersT2I": "diffusers_t2i",
        "DiffusersEdit": "diffusers_edit",
        "DiffusersSubject": "diffusers_subject",
    },
    "diffusers_special": {
        "QwenImage": "qwen_image",
        "QwenImage2512": "qwen_image",
        "FluxIPAdapter": "flux_ip_adapter",
        "OmniGenEdit": "omnigen",
        "OmniGenSubject": "omnigen",
        "HQEdit": "hq_edit",
        "BlipDiffusion": "blip_diffusion",
    },
    "transformers_models": {"JanusT2I": "janus", "Emu3T2I": "emu3"},
    "janus_authors": {"JanusFlowT2I": "janusflow"},
    "controlled": {
        "OminiControlSubject": "ominicontrol",
        "SSREncoderSubject": "ssr_encoder",
        "FreeDiffEdit": "freediff",
    },
    "reference": {
        "ReferenceBlank": "reference_blank",
        "ReferenceBlankEdit": "reference_blank",
        "ReferenceBlankSubject": "reference_blank",
        "ReferenceIdentity": "reference_blank",
        "ReferenceNoise": "reference_noise",
        "ReferenceNoiseEdit": "reference_noise",
        "ReferenceNoiseSubject": "reference_noise",
        "ReferenceTypeset": "reference_typeset",
        "ReferenceTypesetEdit": "reference_typeset",
        "ReferenceTypesetSubject": "reference_typeset",
    },
}
_FOLDER = ".model_utils."


def module_now(module: str, class_name: str) -> str:
    """Returns the present module of a class for which a model entry names ``module``."""
    old = module.removeprefix(_FOLDER)
    moved = (f"{_FOLDER}{new}" for new, names in _MOVED.items() if names.get(class_name) == old)
    return next(moved, module)


def _class_on_record(module: str, class_name: str) -> str:
    new = module.removeprefix(_FOLDER)
    old = _MOVED.get(new, {}).get(class_name) if module.startswith(_FOLDER) else None
    return f"{_FOLDER}{old}:{class_name}" if old else f"{module}:{class_name}"


def settings_of(task: str, setting: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the part of a resolved model setting that decides its images, as flat name → value.

    Local weights are recorded by name and content (:func:`weights_of`), authors' code by commit, an API by
    host. The batch size is recorded too: a GPU computes batches of another size with other kernels.
    """
    given = setting.get("model_kwargs", {})
    kwargs = {k: v for k, v in given.items() if k not in _RUNTIME_KWARGS}
    if kwargs.get("batch_size") == 1:
        del kwargs["batch_size"]  # an explicit 1 is the default
    settings: dict[str, Any] = {"task": task, "class": _class_on_record(setting["module"], setting["class"])}
    settings |= _identity("model_path", setting["model_path"])
    if setting.get("api"):
        settings["host"] = _host(place_of(given).url)
    settings |= setting.get("rewriting", {})
    for key, value in sorted(kwargs.items()):
        settings |= _identity(f"kwargs.{key}", value)
    for asset in setting.get("assets", ()):  # authors' code and additional weights
        name = asset.get("to") or asset.get("hub") or asset.get("path", "")
        if pin := asset.get("commit") or asset.get("revision") or asset.get("sha256"):
            settings[f"asset {name}"] = str(pin)
    return settings


def _host(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:  # the model class reports a wrong address
        return None


def maker_of(setting: Mapping[str, Any]) -> str:
    """Returns the model class of a resolved setting in words: ``my_model.MyModel``, an API with its host."""
    made_by = f"{setting['module'].rpartition('.')[2]}.{setting['class']}"
    host = _host(place_of(setting.get("model_kwargs", {})).url) if setting.get("api") else None
    return f"{made_by} at {host}" if host else made_by


def _identity(name: str, value: Any) -> dict[str, Any]:
    """Returns a setting; a local file or folder is identified by name and content, not by location."""
    is_place = isinstance(value, str) and (name == "model_path" or Path(value).is_absolute())
    weights = weights_of(value) if is_place else {}
    if not weights:
        return {name: value}
    what = "weights" if name == "model_path" else f"weights of {name}"
    return {name: Path(value).resolve().name, what: weights["weights"]}


def fingerprint(settings: Mapping[str, Any]) -> str:
    """Returns 16 hex digits, a hash of ``settings``."""
    canonical = json.dumps(settings, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(to_bytes(canonical)).hexdigest()[:16]


class _Kept(TypedDict):
    fingerprint: str
    settings: dict[str, Any]
    packages: NotRequired[dict[str, Any]]


KEPT = Reader(_Kept)


def remember(path: Path, settings: Mapping[str, Any], packages: Mapping[str, str]) -> str:
    """Append ``settings`` and the versions of ``packages`` to ``path`` if new. Returns the fingerprint."""
    line = _Kept(fingerprint=fingerprint(settings), settings=dict(settings), packages=dict(packages))
    if line not in read_jsonl(path, KEPT):
        with contextlib.closing(JsonlWriter(path)) as writer:
            writer.append(line)
    return fingerprint(settings)


def packages_of(path: Path) -> list[dict[str, str]]:
    """Returns every set of package versions in ``path``."""
    return [record["packages"] for record in _all(path) if "packages" in record]


def known(path: Path, tell: Tell = tell_nobody) -> dict[str, dict[str, Any]]:
    """Returns all settings in ``path`` by fingerprint; ``tell`` receives a line for each invalid record."""
    return {record["fingerprint"]: record["settings"] for record in _all(path, tell)}


def _all(path: Path, tell: Tell = tell_nobody) -> Iterator[_Kept]:
    return itertools.chain.from_iterable(read_jsonl(file, KEPT, tell) for file in (path, *parts_of(path)))


def explain(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Returns the differences in words: ``"guidance_scale 4.0 → 5.0, width (unset) → 512"``."""
    both = {key: (old.get(key, "(unset)"), new.get(key, "(unset)")) for key in sorted({*old, *new})}
    changed = {key: pair for key, pair in both.items() if pair[0] != pair[1]}
    return ", ".join(
        f"{key.removeprefix('kwargs.')} {before} → {now}" for key, (before, now) in changed.items()
    )
