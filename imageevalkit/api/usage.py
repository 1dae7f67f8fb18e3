"""What the token counts of a reply mean: one reading of the shapes in which servers give them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple


class Tokens(NamedTuple):
    """The tokens of one reply by what they are billed as; cached ones are not in ``text_input`` or ``image_input``.

    A count whose kind the reply does not tell is in ``any_input``.
    """

    text_input: int = 0
    image_input: int = 0
    any_input: int = 0
    cached_text_input: int = 0
    cached_image_input: int = 0
    text_output: int = 0
    image_output: int = 0


_TOOL = "tool_usage.image_gen."  # of /responses, beside the text model's own usage


def billed_tokens(counts: Mapping[str, int]) -> Tokens | None:
    """Read ``counts`` (a reply's ``usage``, nested names joined by dots); None when they tell of no output.

    ===============================  ==================================  =====================================
    server                           totals                              kinds
    ===============================  ==================================  =====================================
    OpenAI ``/images/*`` and the     ``input_tokens``,                   ``input_tokens_details.*``,
    image tool of ``/responses``     ``output_tokens``                   ``output_tokens_details.*`` (not all
                                                                         models)
    chat completions                 ``prompt_tokens``,                  ``prompt_tokens_details.*``,
                                     ``completion_tokens``               ``completion_tokens_details.*``
    Gemini as it is                  ``promptTokenCount``,               lists, which counts do not hold
                                     ``candidatesTokenCount``,
                                     ``thoughtsTokenCount``
    ===============================  ==================================  =====================================

    Gateways fill two of them at once, one with zeros, so each side takes the larger. Output beyond the image
    tokens is text, thinking included. Where output is not split at all, what is not thinking is the image:
    thousands of tokens beside a few words, and a bill is rather estimated too high than too low.
    """
    tool = {name.removeprefix(_TOOL): n for name, n in counts.items() if name.startswith(_TOOL)}
    counts = tool or counts
    prompt = _most(counts, "input_tokens", "prompt_tokens", "promptTokenCount")
    output = _most(counts, "output_tokens", "completion_tokens", "candidatesTokenCount")
    # Gemini, and Google's own chat endpoint, count thinking beside the output
    beside = _most(counts, "total_tokens", "totalTokenCount") - prompt - output if prompt else 0
    if "candidatesTokenCount" in counts:
        beside = max(beside, counts.get("thoughtsTokenCount", 0))
    if output <= 0:
        return None
    image_output = _image_output(counts, output, thinking_is_in_it=beside <= 0)
    return _with_input(counts, prompt)._replace(
        text_output=output - image_output + max(0, beside), image_output=image_output
    )


def _image_output(counts: Mapping[str, int], output: int, thinking_is_in_it: bool) -> int:
    image = _most(counts, *_details("output", "image_tokens"))
    if image:
        return min(image, output)
    text = _most(counts, *_details("output", "text_tokens"))
    thinking = _most(counts, *_details("output", "reasoning_tokens")) if thinking_is_in_it else 0
    return max(0, output - text - thinking)


def _with_input(counts: Mapping[str, int], prompt: int) -> Tokens:
    text = min(_most(counts, *_details("input", "text_tokens")), prompt)
    image = min(_most(counts, *_details("input", "image_tokens")), prompt - text)
    if image and not text:
        text = prompt - image
    cached = min(_most(counts, *_details("input", "cached_tokens"), "cachedContentTokenCount"), prompt)
    cached_image = min(_most(counts, *_details("input", "cached_tokens_details.image_tokens")), image, cached)
    # text first: an image token saves more, and which of the two were cached is told by few
    cached_text = min(cached - cached_image, text)
    cached_image = min(cached - cached_text, image)
    return Tokens(
        text_input=text - cached_text,
        image_input=image - cached_image,
        any_input=prompt - text - image,
        cached_text_input=cached_text,
        cached_image_input=cached_image,
    )


def _details(side: str, name: str) -> tuple[str, str]:
    chat = {"input": "prompt", "output": "completion"}[side]
    return f"{side}_tokens_details.{name}", f"{chat}_tokens_details.{name}"


def _most(counts: Mapping[str, int], *names: str) -> int:
    return max(0, *(counts.get(name, 0) for name in names))


def reported_cost(usage: Any) -> float | None:
    """USD that a gateway says the reply cost (``usage.cost``, as OpenRouter sends it), or None.

    With the user's own key at the provider (``is_byok``) ``cost`` is the gateway's fee alone and
    ``cost_details.upstream_inference_cost`` the provider's bill beside it. 0 says nothing: it is what is sent
    where the gateway does not know.

    Source: https://openrouter.ai/docs/use-cases/usage-accounting
    """
    if not isinstance(usage, Mapping):
        return None
    cost = _amount(usage.get("cost"))
    if usage.get("is_byok") is True:
        details = usage.get("cost_details")
        bill = _amount(details.get("upstream_inference_cost")) if isinstance(details, Mapping) else 0.0
        cost = cost + bill if bill else 0.0
    return cost or None


def _amount(value: Any) -> float:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) and value > 0 else 0.0
