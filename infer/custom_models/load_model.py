"""The registry of models. Adding a model costs one entry here, and a class file if no generic class fits."""

from __future__ import annotations

import importlib
import re
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
    },
}

# A name the registry does not know is sent to the API as it is when USE_API is true.
API_SETTINGS: dict[str, dict[str, Any]] = {
    "t2i": {"module": ".model_utils.openai_images", "class": "OpenAIImagesT2I", "api": True},
    "edit": {"module": ".model_utils.openai_images", "class": "OpenAIImagesEdit", "api": True},
}

API_ENDPOINT = "images"  # the default of the classes above
# Gateways serve Gemini's image models as chat (OpenRouter, LiteLLM, Vercel, new-api), because its own API
# answers with words and images in one message; only some offer /images too. endpoint=images takes this back.
_GEMINI = {"endpoint": "chat"}
_GEMINI_ID = re.compile(r"gemini-.*image", re.IGNORECASE)

# API models of both tasks that --list shows: id -> model_kwargs. Dates are those of the providers' deprecation
# pages as of November 2026; a gateway may serve a model longer.
API_MODELS: dict[str, dict[str, Any]] = {
    "gpt-image-1.5": {},  # OpenAI shuts it down on 2026-12-01, and names gpt-image-2.6-* as its successors
    "gpt-image-2": {},
    "gpt-image-2.6-sunburst": {},
    "gpt-image-2.6-flare": {},
    "gemini-3-pro-image-preview": _GEMINI,  # at Google itself gemini-3-pro-image since 2026-06-25
    "gemini-3-pro-image": _GEMINI,
    "gemini-3.1-flash-image": _GEMINI,
}


def api_setting(model_id: str, task: str, name: str = "") -> dict[str, Any]:
    """The entry of any model behind an API; ``name`` decides its kwargs where ``model_id`` is an unknown one."""
    kwargs = next((known for known in map(_api_kwargs, (model_id, name)) if known is not None), {})
    return {"model_path": model_id, **API_SETTINGS[task], "model_kwargs": kwargs}


def _api_kwargs(model_id: str) -> dict[str, Any] | None:
    bare = model_id.rpartition("/")[2]  # a provider's name may stand before it: google/…
    return API_MODELS.get(bare, _GEMINI if _GEMINI_ID.match(bare) else None)


for _task in API_SETTINGS:
    for _id in API_MODELS:
        MODEL_SETTINGS[_task][_id] = api_setting(_id, _task)


def load_model(setting: Mapping[str, Any]) -> Any:
    """Import the class of a resolved ``setting`` (an entry with the user's kwargs merged in) and build it."""
    module = importlib.import_module(setting["module"], package=__package__)
    return getattr(module, setting["class"])(
        model_path=setting["model_path"], **setting.get("model_kwargs", {})
    )
