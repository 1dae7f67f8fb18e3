"""Detects the thoughts of a judge behind a chat endpoint: in a message, or opened by a chat template."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from imageevalkit.api.client import Clients, Request, Unsuccessful, in_time, read_body
from imageevalkit.api.endpoint import Endpoint
from imageevalkit.api.failures import Failure, Kind
from imageevalkit.api.replies import list_of, tokens_of
from imageevalkit.benchmark.thoughts import LONGEST_TAG, opened_by

# vLLM and DeepSeek, vLLM since 0.11 and OpenRouter, OpenRouter, LiteLLM, Ollama
_THOUGHT_FIELDS = ("reasoning_content", "reasoning", "reasoning_details", "thinking_blocks", "thinking")
_THOUGHT_TYPE = re.compile(r"think|reasoning")
_TIMEOUT = 30.0  # seconds
_LONGEST_REPLY = 2**20  # bytes


def text_of(content: Any) -> str:
    """Returns the text of a message without the parts that contain thoughts."""
    if isinstance(content, list):
        texts = (
            part.get("text") if isinstance(part, dict) else part for part in content if not _is_thought(part)
        )
        return "".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""


def _is_thought(part: Any) -> bool:
    """Returns whether ``part`` is a thought: Mistral and Anthropic name a type, Gemini sets ``thought``."""
    if not isinstance(part, dict):
        return False
    return bool(_THOUGHT_TYPE.search(str(part.get("type")))) or part.get("thought") is True


def has_thoughts(reply: Mapping[str, Any], message: Mapping[str, Any]) -> bool:
    """Returns whether ``message`` has thoughts outside its text. Some endpoints only report their tokens."""
    hidden = (n for name, n in tokens_of(reply.get("usage")).items() if name.endswith("reasoning_tokens"))
    parts = list_of(message.get("content"))
    return any(hidden) or any(map(_is_thought, parts)) or any(message.get(name) for name in _THOUGHT_FIELDS)


async def opens_thoughts(
    clients: Clients, endpoint: Endpoint, model: str, parameters: Mapping[str, Any]
) -> bool | None:
    """Returns whether the chat template of ``model`` ends a prompt with an opening think tag.

    Returns None if the server is unreachable. Returns False if the server has no ``/tokenize`` and
    ``/detokenize``, which vLLM has outside of ``/v1``.
    """

    async def posted(path: str, body: Mapping[str, Any]) -> Any:
        url = endpoint.base_url.removesuffix("/v1") + path
        request = Request(url, (json.dumps({"model": model, **body}).encode(),))
        async with clients.post(request) as response:
            content, _ = await read_body(response, _LONGEST_REPLY)
        return json.loads(content)

    async def opens() -> bool:
        variables = parameters.get("chat_template_kwargs")
        asked = {"chat_template_kwargs": variables} if variables else {}
        prompt = await posted("/tokenize", {"messages": [{"role": "user", "content": "?"}], **asked})
        end = await posted("/detokenize", {"tokens": prompt["tokens"][-LONGEST_TAG:]})
        return bool(opened_by(end["prompt"]))

    try:
        result = await in_time(opens, _TIMEOUT)
    except (Unsuccessful, ValueError, KeyError, TypeError):
        return False
    if isinstance(result, Failure):
        return None if result.kind is Kind.UNREACHABLE else False
    return result
