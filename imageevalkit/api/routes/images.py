"""``/images/generations`` and ``/images/edits``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from imageevalkit.api.failures import Failure
from imageevalkit.api.image_reply import ImageReply, found_in, no_image, refusal_in_words, replied
from imageevalkit.api.json_reply import error_in, refusal, strings_of
from imageevalkit.api.request import Request
from imageevalkit.api.routes.base import Route
from imageevalkit.api.routes.form import form
from imageevalkit.api.uploads import Inputs

_EDITS = "/images/edits"
_SAID_ABOUT_REPLY = ("model", "size", "quality", "background", "output_format", "id")


class Images(Route):
    """OpenAI's image API, and what servers of open models offer under its name."""

    name = "images"
    path = "/images/generations"

    def body(self, model_id: str, inputs: Inputs, parameters: Mapping[str, Any]) -> dict[str, Any]:
        return {"model": model_id, "prompt": inputs.prompt, **parameters}

    def prepare(self, model_id: str, inputs: Inputs, parameters: Mapping[str, Any]) -> Request:
        if not inputs.images:
            return super().prepare(model_id, inputs, parameters)
        # one image goes as `image`, several as `image[]`: servers other than OpenAI's know only these
        name = "image" if len(inputs.images) == 1 else "image[]"
        files = [(name, upload) for upload in inputs.images]
        if inputs.mask:
            files.append(("mask", inputs.mask))
        return form(_EDITS, self.body(model_id, inputs, parameters), files)

    def image_in(self, reply: Mapping[str, Any]) -> ImageReply | Failure:
        data = reply.get("data")
        entry = data[0] if isinstance(data, list) and data and isinstance(data[0], dict) else {}
        if found := found_in(entry):
            extra = strings_of(reply, *_SAID_ABOUT_REPLY) | strings_of(entry, "revised_prompt")
            return replied(found, reply, extra)
        return (
            error_in(reply)
            or refusal(reply.get("refusal"))
            or refusal(entry.get("refusal"))
            or refusal_in_words(reply)
            or no_image()
        )
