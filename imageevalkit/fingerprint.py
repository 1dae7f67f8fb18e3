"""What made an image: the model's settings, hashed, and kept in full so that a change can be explained."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from imageevalkit.jsonl import JsonlWriter, read_jsonl

# Settings that cannot change a pixel: changing them keeps images valid.
_RUNTIME_KWARGS = frozenset({"device", "timeout", "max_attempts", "max_elapsed", "backoff"})


def settings_of(task: str, setting: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a resolved model setting that decides its images, flat, by name."""
    kwargs = {k: v for k, v in setting.get("model_kwargs", {}).items() if k not in _RUNTIME_KWARGS}
    return {
        "task": task,
        "class": f"{setting['module']}:{setting['class']}",
        "model_path": setting["model_path"],
        **{f"kwargs.{key}": value for key, value in sorted(kwargs.items())},
    }


def fingerprint(settings: Mapping[str, Any]) -> str:
    """16 hex digits of the SHA-256 of ``settings`` as canonical JSON."""
    canonical = json.dumps(settings, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def remember(path: Path, settings: Mapping[str, Any]) -> str:
    """Keep ``settings`` under their fingerprint in ``path`` (once) and return the fingerprint."""
    key = fingerprint(settings)
    if key not in known(path):
        with JsonlWriter(path) as writer:
            writer.append({"fingerprint": key, "settings": dict(settings)})
    return key


def known(path: Path) -> dict[str, dict[str, Any]]:
    """All settings kept in ``path``, by fingerprint."""
    return {r["fingerprint"]: r["settings"] for r in read_jsonl(path) if "settings" in r}


def explain(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """The differences in words: ``"guidance_scale 4.0 → 5.0, width (unset) → 512"``."""
    changes = [
        f"{key.removeprefix('kwargs.')} {_show(old, key)} → {_show(new, key)}"
        for key in sorted({*old, *new})
        if old.get(key, _UNSET) != new.get(key, _UNSET)
    ]
    return ", ".join(changes)


_UNSET = object()


def _show(settings: Mapping[str, Any], key: str) -> str:
    value = settings.get(key, _UNSET)
    return "(unset)" if value is _UNSET else str(value)
