"""``/chat/completions`` whose replies hold images: how gateways serve Gemini's image models."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from imageevalkit.api.failures import LONGEST_MESSAGE, Failure
from imageevalkit.api.image_reply import Found, ImageReply, found_in, no_image, refusal_in_words, replied
from imageevalkit.api.json_reply import (
    error_in,
    finish_reasons,
    list_of,
    refusal,
    stopped_by_policy,
    strings_of,
)
from imageevalkit.api.routes.base import Route
from imageevalkit.api.routes.content import read_content
from imageevalkit.api.uploads import Inputs
from imageevalkit.secrets import one_line

_MOST_CHOICES = 100  # that are looked at: one was asked for


class Chat(Route):
    """Images in ``message.images`` (OpenRouter, LiteLLM, Vercel), in ``content`` as Markdown, data URL or URL
    (new-api), or among its parts.

    Of several images the last one is the result: the earlier ones are drafts of a model that thinks
    (https://ai.google.dev/gemini-api/docs/image-generation#thinking-process).
    """

    name = "chat"
    path = "/chat/completions"
    takes_mask = False
    # OpenRouter, LiteLLM and Vercel want it, new-api ignores it; modalities=null where a server rejects it
    defaults = MappingProxyType({"modalities": ["image", "text"]})

    def body(self, model_id: str, inputs: Inputs, parameters: Mapping[str, Any]) -> dict[str, Any]:
        content: str | list[dict[str, Any]] = inputs.prompt
        if inputs.images:
            urls = [{"type": "image_url", "image_url": {"url": i.data_url()}} for i in inputs.images]
            content = [{"type": "text", "text": inputs.prompt}, *urls]
        return {"model": model_id, "messages": [{"role": "user", "content": content}], **parameters}

    def image_in(self, reply: Mapping[str, Any]) -> ImageReply | Failure:
        choices = [
            choice for choice in list_of(reply.get("choices"))[:_MOST_CHOICES] if isinstance(choice, dict)
        ]
        messages = [choice["message"] for choice in choices if isinstance(choice.get("message"), dict)]
        contents = [read_content(message.get("content")) for message in messages]
        words = one_line(" ".join(content.words for content in contents if content.words), LONGEST_MESSAGE)
        listed = (list_of(message.get("images")) or [message.get("image")] for message in messages)
        for images in (*map(_found, listed), *(content.images for content in contents), _found_beside(reply)):
            if images:
                extra = strings_of(reply, "model", "id", "provider") | ({"text": words} if words else {})
                return replied(images[-1], reply, extra)
        return (
            error_in(reply)
            or _first(error_in(choice) for choice in choices)
            or _first(refusal(message.get("refusal")) for message in messages)
            or _first(stopped_by_policy(reply, choice, words) for choice in choices)
            or refusal_in_words([*messages, {**reply, "choices": None}])
            or no_image(words, _why(reply, choices))
        )


def _found(values: Iterable[Any]) -> list[Found]:
    return [found for value in values if (found := found_in(value))]


def _found_beside(reply: Mapping[str, Any]) -> list[Found]:
    """The image of a gateway that answers a chat in the shape of the image API."""
    return _found(list_of(reply.get("data"))[:1])


def _first(failures: Iterator[Failure | None]) -> Failure | None:
    return next((failure for failure in failures if failure), None)


def _why(reply: Mapping[str, Any], choices: Iterable[Mapping[str, Any]]) -> str:
    said = (reason for choice in choices for reason in finish_reasons(reply, choice))
    reasons = dict.fromkeys(reason for reason in said if reason and reason.lower() != "stop")
    return f"finish reason {', '.join(reasons)}" if reasons else ""
