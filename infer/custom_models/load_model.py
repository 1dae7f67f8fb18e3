"""The registry of models. Adding a model costs one entry here, and a class file if no generic class fits."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CHECKPOINTS = Path(__file__).resolve().parent / "checkpoints"

# task -> model name -> entry:
#   model_path    folder below checkpoints/, hub id, or the API's model id
#   module        import path, relative to this package
#   class         class name; built as cls(model_path=..., **model_kwargs)
#   model_kwargs  defaults that --custom_model_kwargses overrides by name (optional)
#   gpus          GPUs of one replica (optional; 1 unless the entry is an API or a reference model)
#   api           True: only reachable through an API; False: never is; absent: follows USE_API (optional)
MODEL_SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "t2i": {
        # floor and ceiling of every benchmark, on any machine
        "reference-typeset": {
            "model_path": "",
            "module": ".model_utils.reference_typeset",
            "class": "ReferenceTypeset",
            "gpus": 0,
            "api": False,
        },
        "reference-blank": {
            "model_path": "",
            "module": ".model_utils.reference_blank",
            "class": "ReferenceBlank",
            "gpus": 0,
            "api": False,
        },
        "reference-noise": {
            "model_path": "",
            "module": ".model_utils.reference_noise",
            "class": "ReferenceNoise",
            "gpus": 0,
            "api": False,
        },
        # any diffusers checkpoint: --custom_model_kwargses "model_path=/path/or/hub-id,num_inference_steps=28"
        "diffusers": {
            "model_path": str(CHECKPOINTS / "diffusers"),
            "module": ".model_utils.diffusers_t2i",
            "class": "DiffusersT2I",
        },
        "gpt-image-1.5": {
            "model_path": "gpt-image-1.5",
            "module": ".model_utils.openai_images",
            "class": "OpenAIImagesT2I",
            "api": True,
        },
        "gemini-3-pro-image-preview": {
            "model_path": "gemini-3-pro-image-preview",
            "module": ".model_utils.openai_images",
            "class": "OpenAIImagesT2I",
            "api": True,
        },
    },
    "edit": {
        "reference-typeset": {
            "model_path": "",
            "module": ".model_utils.reference_typeset",
            "class": "ReferenceTypesetEdit",
            "gpus": 0,
            "api": False,
        },
        "reference-blank": {
            "model_path": "",
            "module": ".model_utils.reference_blank",
            "class": "ReferenceBlankEdit",
            "gpus": 0,
            "api": False,
        },
        "reference-noise": {
            "model_path": "",
            "module": ".model_utils.reference_noise",
            "class": "ReferenceNoiseEdit",
            "gpus": 0,
            "api": False,
        },
        "diffusers": {
            "model_path": str(CHECKPOINTS / "diffusers"),
            "module": ".model_utils.diffusers_edit",
            "class": "DiffusersEdit",
        },
        "gpt-image-1.5": {
            "model_path": "gpt-image-1.5",
            "module": ".model_utils.openai_images",
            "class": "OpenAIImagesEdit",
            "api": True,
        },
        "gemini-3-pro-image-preview": {
            "model_path": "gemini-3-pro-image-preview",
            "module": ".model_utils.openai_images",
            "class": "OpenAIImagesEdit",
            "api": True,
        },
    },
}

# A name the registry does not know is sent to the API as it is when USE_API is true.
API_SETTINGS: dict[str, dict[str, Any]] = {
    "t2i": {"module": ".model_utils.openai_images", "class": "OpenAIImagesT2I", "api": True},
    "edit": {"module": ".model_utils.openai_images", "class": "OpenAIImagesEdit", "api": True},
}


def load_model(setting: Mapping[str, Any]) -> Any:
    """Import the class of a resolved ``setting`` (an entry with the user's kwargs merged in) and build it."""
    module = importlib.import_module(setting["module"], package=__package__)
    return getattr(module, setting["class"])(
        model_path=setting["model_path"], **setting.get("model_kwargs", {})
    )
