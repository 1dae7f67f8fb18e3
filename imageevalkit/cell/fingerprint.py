"""What made an image: the model's settings, hashed, and kept in full so that a change can be explained."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from imageevalkit.api.endpoint import DEFAULT_BASE_URL
from imageevalkit.cell.jsonl import JsonlWriter, Shape, Tell, read_kept, tell_nobody
from imageevalkit.text import to_bytes

# Settings that cannot change a pixel: changing them keeps images valid.
_RUNTIME_KWARGS = frozenset(
    {"device", "device_map", "offload", "timeout", "max_attempts", "max_elapsed", "max_outage", "backoff"}
    | {"api_key_env", "price"}
)


def settings_of(task: str, setting: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a resolved model setting that decides its images, flat, by name.

    Local weights count by name and content (:func:`weights_of`), authors' code by its commit, an API by its host. The
    number of images made in one call counts too: a GPU computes batches of other sizes with other kernels.
    """
    kwargs = {k: v for k, v in setting.get("model_kwargs", {}).items() if k not in _RUNTIME_KWARGS}
    if kwargs.get("batch_size") == 1:
        del kwargs["batch_size"]  # said or not, images are made singly
    base_url = kwargs.pop("base_url", None) or os.environ.get("BASE_URL", "") or DEFAULT_BASE_URL
    settings: dict[str, Any] = {"task": task, "class": f"{setting['module']}:{setting['class']}"}
    settings |= _identity("model_path", setting["model_path"])
    if setting.get("api"):
        settings["host"] = None
        with contextlib.suppress(ValueError):  # the model itself says what is wrong with it
            settings["host"] = urlsplit(base_url).hostname
    settings |= setting.get("rewriting", {})
    for key, value in sorted(kwargs.items()):
        settings |= _identity(f"kwargs.{key}", value)
    for asset in setting.get("assets", ()):  # authors' code and further weights
        name = asset.get("to") or asset.get("hub") or asset.get("path", "")
        if pin := asset.get("commit") or asset.get("revision") or asset.get("sha256"):
            settings[f"asset {name}"] = str(pin)
    return settings


def _identity(name: str, value: Any) -> dict[str, Any]:
    """A setting; one that is a local file or folder is what lies there, wherever that is."""
    is_place = isinstance(value, str) and (name == "model_path" or Path(value).is_absolute())
    weights = weights_of(value) if is_place else {}
    if not weights:
        return {name: value}
    what = "weights" if name == "model_path" else f"weights of {name}"
    return {name: Path(value).resolve().name, what: weights["weights"]}


_SAMPLE = 1 << 20


def weights_of(model_path: str) -> dict[str, str]:
    """Identity of a local checkpoint: names, sizes, first and last MiB of its files; training changes all of them."""
    path = Path(model_path)
    if not model_path or not path.exists():
        return {}  # a hub id, an API's model id, or nothing at all
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    digest = hashlib.sha256()
    for file in files:
        if not file.name.startswith("."):
            size = file.stat().st_size
            digest.update(to_bytes(f"{file.relative_to(path)}:{size}:"))
            with file.open("rb") as opened:
                digest.update(opened.read(_SAMPLE))
                opened.seek(max(0, size - _SAMPLE))
                digest.update(opened.read(_SAMPLE))
    return {"weights": digest.hexdigest()[:16]}


def fingerprint(settings: Mapping[str, Any]) -> str:
    """16 hex digits that stand for ``settings``."""
    canonical = json.dumps(settings, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(to_bytes(canonical)).hexdigest()[:16]


KEPT = Shape[dict[str, Any]](
    must={"fingerprint": str, "settings": dict[str, Any]}, may={"packages": dict[str, Any]}
)


def remember(path: Path, settings: Mapping[str, Any], packages: Mapping[str, str]) -> str:
    """Keep ``settings`` in ``path``, with the versions of ``packages`` that make the images now; their fingerprint."""
    line = {"fingerprint": fingerprint(settings), "settings": dict(settings), "packages": dict(packages)}
    if line not in read_kept(path, KEPT):
        with contextlib.closing(JsonlWriter(path, KEPT)) as writer:
            writer.append(line)
    return fingerprint(settings)


def packages_of(path: Path) -> list[dict[str, str]]:
    """Every set of package versions in ``path``."""
    return [record["packages"] for record in read_kept(path, KEPT) if "packages" in record]


def known(path: Path, tell: Tell = tell_nobody) -> dict[str, dict[str, Any]]:
    """All settings kept in ``path``, by fingerprint; lines that hold none are told."""
    return {record["fingerprint"]: record["settings"] for record in read_kept(path, KEPT, tell)}


def explain(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """The differences in words: ``"guidance_scale 4.0 → 5.0, width (unset) → 512"``."""
    both = {key: (old.get(key, "(unset)"), new.get(key, "(unset)")) for key in sorted({*old, *new})}
    changed = {key: pair for key, pair in both.items() if pair[0] != pair[1]}
    return ", ".join(
        f"{key.removeprefix('kwargs.')} {before} → {now}" for key, (before, now) in changed.items()
    )
