"""Floor and ceiling of every benchmark, on any machine."""

from __future__ import annotations

from typing import Any

_CLASSES = {
    "reference-typeset": (".model_utils.reference_typeset", "ReferenceTypeset"),
    "reference-blank": (".model_utils.reference_blank", "ReferenceBlank"),
    "reference-noise": (".model_utils.reference_noise", "ReferenceNoise"),
}


def _entries(suffix: str) -> dict[str, dict[str, Any]]:
    return {
        name: {"model_path": "", "module": module, "class": f"{cls}{suffix}", "gpus": 0, "api": False}
        for name, (module, cls) in _CLASSES.items()
    }


_IDENTITY = {
    "model_path": "",
    "module": ".model_utils.reference_blank",
    "class": "ReferenceIdentity",
    "gpus": 0,
    "api": False,
}

SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "t2i": _entries(""),
    "edit": {**_entries("Edit"), "reference-identity": _IDENTITY},
    "subject": _entries("Subject"),
}
