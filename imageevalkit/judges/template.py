"""What a vLLM server says about the chat template of its model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from imageevalkit.benchmark.thoughts import opened_by
from imageevalkit.requests.endpoint import Endpoint

if TYPE_CHECKING:
    import httpx2

_TIMEOUT = 30.0  # seconds
_LONGEST_TAG = 8  # tokens of an opening think tag and a line end


async def opens_thoughts(
    client: httpx2.AsyncClient, endpoint: Endpoint, model: str, parameters: Mapping[str, Any]
) -> bool | None:
    """Whether the chat template of ``model`` ends a prompt with an opening think tag; None if the server is away.

    False if the server has no ``/tokenize`` and ``/detokenize``, which vLLM has outside of ``/v1``.
    """
    import httpx2

    async def posted(path: str, body: Mapping[str, Any]) -> Any:
        url = endpoint.base_url.removesuffix("/v1") + path
        headers = {"Authorization": f"Bearer {endpoint.key}"}
        reply = await client.post(url, json={"model": model, **body}, headers=headers, timeout=_TIMEOUT)
        return reply.json()

    variables = parameters.get("chat_template_kwargs")
    asked = {"chat_template_kwargs": variables} if variables else {}
    try:
        prompt = await posted("/tokenize", {"messages": [{"role": "user", "content": "?"}], **asked})
        end = await posted("/detokenize", {"tokens": prompt["tokens"][-_LONGEST_TAG:]})
        return bool(opened_by(end["prompt"]))
    except httpx2.ConnectError:
        return None
    except (httpx2.HTTPError, ValueError, KeyError, TypeError):
        return False
