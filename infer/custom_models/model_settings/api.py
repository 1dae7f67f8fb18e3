"""Models behind an API: the known ones, and the entry for any other model id."""

from __future__ import annotations

import re
from typing import Any

# With USE_API=true a name that the registry does not have is sent to the API unchanged.
API_SETTINGS: dict[str, dict[str, Any]] = {
    "t2i": {"module": ".model_utils.openai_images", "class": "OpenAIImagesT2I", "api": True},
    "edit": {"module": ".model_utils.openai_images", "class": "OpenAIImagesEdit", "api": True},
    "subject": {"module": ".model_utils.openai_images", "class": "OpenAIImagesSubject", "api": True},
}

API_ENDPOINT = "images"  # the default of the classes above
# Gateways serve Gemini's image models as chat (OpenRouter, LiteLLM, Vercel, new-api), because Gemini's own
# API returns text and images in one message. Only some offer /images too; endpoint=images selects it.
_GEMINI = {"endpoint": "chat"}
_GEMINI_ID = re.compile(r"gemini-.*image", re.IGNORECASE)

# The API models that --list shows for all tasks: id -> model_kwargs. Dates come from the providers'
# deprecation pages as of November 2026; a gateway may serve a model longer.
API_MODELS: dict[str, dict[str, Any]] = {
    "gpt-image-1.5": {},  # OpenAI shuts it down on 2026-12-01 and names gpt-image-2.6-* as successors
    "gpt-image-2": {},
    "gpt-image-2.6-sunburst": {},
    "gpt-image-2.6-flare": {},
    "gemini-3-pro-image-preview": _GEMINI,  # Google's own name since 2026-06-25: gemini-3-pro-image
    "gemini-3-pro-image": _GEMINI,
    "gemini-3.1-flash-image": _GEMINI,
}


def api_setting(model_id: str, task: str, name: str = "") -> dict[str, Any]:
    """Returns the entry of any API model. If ``model_id`` is unknown, ``name`` decides its kwargs."""
    kwargs = next((known for known in map(_api_kwargs, (model_id, name)) if known is not None), {})
    return {"model_path": model_id, **API_SETTINGS[task], "model_kwargs": kwargs}


def _api_kwargs(model_id: str) -> dict[str, Any] | None:
    bare = model_id.rpartition("/")[2]  # the id may begin with a provider: google/…
    return API_MODELS.get(bare, _GEMINI if _GEMINI_ID.match(bare) else None)


SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    task: {model_id: api_setting(model_id, task) for model_id in API_MODELS} for task in API_SETTINGS
}
