"""Any diffusers checkpoint: --custom_model_kwargses "model_path=/path/or/hub-id,num_inference_steps=28"."""

from __future__ import annotations

from pathlib import Path
from typing import Any

_FOLDER = str(Path(__file__).resolve().parents[1] / "checkpoints" / "diffusers")

SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "t2i": {
        "diffusers": {
            "model_path": _FOLDER,
            "module": ".model_utils.diffusers_t2i",
            "class": "DiffusersT2I",
        }
    },
    "edit": {
        "diffusers": {
            "model_path": _FOLDER,
            "module": ".model_utils.diffusers_edit",
            "class": "DiffusersEdit",
        }
    },
    "subject": {
        "diffusers": {
            "model_path": _FOLDER,
            "module": ".model_utils.diffusers_subject",
            "class": "DiffusersSubject",
        }
    },
}
