"""Separates the thoughts of a reasoning judge from its answer."""

from __future__ import annotations

import re
from dataclasses import replace

from imageevalkit.benchmark.question import Answer

REMEDY = (
    'turn thinking off (extra_body={"chat_template_kwargs":{"enable_thinking":false}}, or '
    '{"reasoning_effort":"none"}), start the server with a reasoning parser and raise max_tokens, or choose another '
    "judge"
)
"""The remedies for a judge whose thoughts take the place of its answer."""
NO_ANSWER = f"the reply holds thoughts and no answer: {REMEDY}"

# the tags of Qwen, GLM, DeepSeek and most others; Seed; Kimi; Magistral
_TAG = re.compile(r"(?i:</?(?:seed:)?think(?:ing)?>)|◁/?think▷|\[/?THINK\]")
_OPENING = ("<think>", "<thinking>", "<seed:think>", "◁think▷", "[THINK]")
LONGEST_TAG = 8
"""Tokens of an opening think tag and a line end, at most."""
# Even an empty reply has an end token. If it has many more tokens, its text is in hidden thoughts.
_MOST_TOKENS_OF_NOTHING = 16


def answer_in(reply: str, tokens: float = 0, is_first_token: bool = False) -> str | None:
    """Returns the text after the last closing think tag, or None if the reply has thoughts but no answer.

    The opening tag may be missing: chat templates write it into the prompt.

    Args:
        reply: The whole reply, or its first token.
        tokens: The length of the reply, 0 if unknown. An empty reply of many tokens holds hidden thoughts.
        is_first_token: If true, the beginning of an opening tag counts: a tag may have several tokens.
    """
    tags = list(_TAG.finditer(reply))
    if tags:
        answer = reply[tags[-1].end() :].lstrip()
        return answer if answer and is_closing(tags[-1][0]) else None
    begins = reply.strip()
    if not begins:
        return None if tokens > _MOST_TOKENS_OF_NOTHING else reply
    return None if is_first_token and any(tag.startswith(begins) for tag in _OPENING) else reply


def opened_by(prompt: str) -> str:
    """Returns the opening think tag at the end of ``prompt``, or "" if the reply does not begin inside
    thoughts."""
    tags = list(_TAG.finditer(prompt))
    is_last = bool(tags) and not prompt[tags[-1].end() :].strip() and not is_closing(tags[-1][0])
    return tags[-1][0] if is_last else ""


def begins_inside(reply: str) -> bool:
    """Whether the first think tag in ``reply`` is a closing tag, so that the chat template wrote the opening
    tag."""
    first = _TAG.search(reply)
    return first is not None and is_closing(first[0])


def has_think_tag(reply: str) -> bool:
    """Whether ``reply`` contains a think tag."""
    return bool(_TAG.search(reply))


def is_think_tag(token: str) -> bool:
    """Whether ``token`` is an opening or closing think tag and nothing else."""
    return bool(_TAG.fullmatch(token))


def is_closing(tag: str) -> bool:
    """Whether a think ``tag`` is a closing tag."""
    return tag[1] == "/"


def without_thoughts(answer: Answer) -> Answer:
    """Returns ``answer`` with only the text after the thoughts; a failed answer if there is no such text."""
    if answer.text is None:
        return answer
    # the rules "text" and "any" accept an empty reply of any length
    tokens = (answer.tokens or {}).get("output", 0) if answer.question.accepts == "ended" else 0
    text = answer_in(answer.text, tokens, answer.probabilities is not None)
    return replace(answer, text=text, error=answer.error if text is not None else NO_ANSWER)
