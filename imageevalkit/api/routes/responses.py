"""``/responses`` with the image tool."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from imageevalkit.api.failures import LONGEST_MESSAGE, Failure, Kind
from imageevalkit.api.image_reply import ImageReply, found_in, no_image, refusal_in_words, replied
from imageevalkit.api.json_reply import error_in, list_of, refusal, strings_of
from imageevalkit.api.routes.base import Route
from imageevalkit.api.uploads import Inputs
from imageevalkit.secrets import one_line

# settings of the tool (openai 3: ImageGeneration in tool_param.py); `model` is its image model there
_OF_TOOL = frozenset(
    {
        "action",
        "background",
        "complexity",
        "input_fidelity",
        "moderation",
        "output_compression",
        "output_format",
        "quality",
        "size",
    }
)
_IMAGE_MODEL = "image_model"
_SAID_ABOUT_IMAGE = ("revised_prompt", "size", "quality", "background", "output_format", "action")
# codes of a failed response (openai 3: ResponseError) that are about policy, and about the item
_POLICY_CODE = re.compile(r"_policy(_violation)?$")
_ITEM_CODE = re.compile(
    r"^(invalid_prompt$|(invalid|empty|unsupported|failed_to_download)_(base64_)?image|image_(too|parse|file))"
)


class Responses(Route):
    """A text model of OpenAI's that is made to call its image tool; ``image_model`` names the tool's model."""

    name = "responses"
    path = "/responses"
    takes_seed = False
    defaults = MappingProxyType({"tool_choice": {"type": "image_generation"}})
    reserved = MappingProxyType({"tools": "the settings of the image tool are given by name (quality=high)"})

    def body(self, model_id: str, inputs: Inputs, parameters: Mapping[str, Any]) -> dict[str, Any]:
        tool: dict[str, Any] = {"type": "image_generation"}
        tool.update((name, value) for name, value in parameters.items() if name in _OF_TOOL)
        if _IMAGE_MODEL in parameters:
            tool["model"] = parameters[_IMAGE_MODEL]
        if inputs.mask:
            tool["input_image_mask"] = {"image_url": inputs.mask.data_url()}
        asked: str | list[dict[str, Any]] = inputs.prompt
        if inputs.images:
            images = [{"type": "input_image", "image_url": image.data_url()} for image in inputs.images]
            asked = [
                {"role": "user", "content": [{"type": "input_text", "text": inputs.prompt}, *images]},
            ]
        rest = {n: v for n, v in parameters.items() if n not in _OF_TOOL and n != _IMAGE_MODEL}
        return {"model": model_id, "input": asked, "tools": [tool], **rest}

    def image_in(self, reply: Mapping[str, Any]) -> ImageReply | Failure:
        output = [item for item in list_of(reply.get("output")) if isinstance(item, dict)]
        calls = [item for item in output if item.get("type") == "image_generation_call"]
        parts = [part for item in output for part in list_of(item.get("content")) if isinstance(part, dict)]
        texts = [part["text"] for part in parts if isinstance(part.get("text"), str)]
        words = one_line(" ".join(texts), LONGEST_MESSAGE)
        done = [call for call in calls if call.get("result") and call.get("status") != "failed"]
        if done:
            return _image(reply, done[-1], words)
        for holder in (*calls, reply):
            if failure := _error(holder):
                return failure
        for part in parts:
            if failure := refusal(part.get("refusal")):
                return failure
        cut = reply.get("incomplete_details")
        reason = str(cut.get("reason") or "") if isinstance(cut, dict) else ""
        if reason == "content_filter":
            return Failure(Kind.REFUSAL, words or reason)
        status = reply.get("status")
        because = ": ".join(filter(None, (str(status), reason))) if status not in (None, "completed") else ""
        return refusal_in_words(output) or no_image(words, because and f"status {because}")


def _image(reply: Mapping[str, Any], call: Mapping[str, Any], words: str) -> ImageReply | Failure:
    result = call["result"]
    is_link = isinstance(result, str) and result.startswith(("http://", "https://", "data:"))
    found = found_in(result if is_link else {"b64_json": result})
    assert found
    extra = strings_of(reply, "model", "id") | strings_of(call, *_SAID_ABOUT_IMAGE)
    return replied(found, reply, extra | ({"text": words} if words else {}))


def _error(holder: Mapping[str, Any]) -> Failure | None:
    failure = error_in(holder)
    error = holder.get("error")
    code = str(error.get("code") or "") if isinstance(error, dict) else ""
    if failure is None or failure.kind not in (Kind.TRANSIENT, Kind.ITEM):
        return failure
    words = one_line(str(error.get("message") or code), LONGEST_MESSAGE) if isinstance(error, dict) else ""
    if _POLICY_CODE.search(code):
        return Failure(Kind.REFUSAL, words)
    return failure._replace(kind=Kind.ITEM) if _ITEM_CODE.search(code) else failure
