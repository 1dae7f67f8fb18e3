"""What a chat endpoint's reply to a question means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from eval_models.judge.api.top_logprobs import first_token
from imageevalkit.api.failures import LONGEST_MESSAGE, Failure, Kind
from imageevalkit.api.json_reply import (
    error_in,
    finish_reasons,
    json_object,
    list_of,
    refusal,
    stopped_by_policy,
    tokens_of,
)
from imageevalkit.api.prices import Price, cost_of_reply
from imageevalkit.api.usage import billed_tokens, reported_cost
from imageevalkit.evaluation.question import Reply
from imageevalkit.secrets import one_line

NO_LOGPROBS = Failure(
    Kind.PERMANENT,
    "the endpoint returns no log-probabilities: choose another judge or the transformers backend",
)
FEW_LOGPROBS = Failure(
    Kind.PERMANENT,
    "the endpoint lists fewer of the likeliest tokens than the judge's top_logprobs asks for: set it to what the "
    "endpoint gives, or choose another judge or the transformers backend",
)


def read_reply(content: bytes, wanted: Sequence[str], asked: int, price: Price | None) -> Reply | Failure:
    """The judge's reply in the body of a 200, or what the body means without one.

    ``wanted`` are the strings whose probabilities were asked for, by the ``asked`` likeliest first tokens; their
    lack is :data:`NO_LOGPROBS` or :data:`FEW_LOGPROBS`.
    """
    try:
        reply = json_object(content)
        return reply if isinstance(reply, Failure) else _read(reply, wanted, asked, price)
    except RecursionError:
        return Failure(Kind.TRANSIENT, "the reply is JSON nested too deep to be read")


def _read(
    reply: Mapping[str, Any], wanted: Sequence[str], asked: int, price: Price | None
) -> Reply | Failure:
    choice = next((each for each in list_of(reply.get("choices")) if isinstance(each, dict)), None)
    if choice is None or not isinstance(choice.get("message"), dict):
        return error_in(reply) or Failure(Kind.TRANSIENT, "the reply (HTTP 200) holds no message")
    message = choice["message"]
    text = _text(message.get("content"))
    failure = (
        error_in(reply)
        or error_in(choice)
        or refusal(message.get("refusal"))
        or stopped_by_policy(reply, choice, one_line(text, LONGEST_MESSAGE))
    )
    if failure:
        return failure
    counts = tokens_of(reply.get("usage"))
    usd = cost_of_reply(price, counts, reported_cost(reply.get("usage")))
    if not wanted:
        finish = finish_reasons(reply, choice)[0]
        if not text.strip() and (lost := _without_answer(finish, message)):
            return lost
        return Reply(text, tokens=_sums(counts), usd=usd, cut=finish == "length")
    first = first_token(choice)
    if first is None:
        return NO_LOGPROBS
    if not first.is_enough(asked):
        return FEW_LOGPROBS
    return Reply(
        # a token that ends the reply is special, and no text
        first.sampled.decode(errors="replace") if text else "",
        first.probabilities(wanted),
        first.outside,
        _sums(counts),
        usd,
    )


def _text(content: Any) -> str:
    """The words of a message: a string, or the texts among its parts."""
    if isinstance(content, list):
        texts = (part.get("text") if isinstance(part, dict) else part for part in content)
        return "".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""


def _without_answer(finish: str, message: Mapping[str, Any]) -> Failure | None:
    """Why ``message``, which has no words, is no answer; None: the judge ended it there, it has nothing to say."""
    if finish == "length":
        # it would be so again: the sampling is the same
        thought = any(message.get(name) for name in ("reasoning_content", "reasoning"))
        spent = "spent on thinking" if thought else "spent without a word"
        return Failure(Kind.ITEM, f"the reply is empty: all tokens allowed were {spent}")
    if finish == "stop":
        return None
    return Failure(Kind.LOST, f"the reply is empty (finish reason {finish or 'not told'})")


def _sums(counts: Mapping[str, int]) -> dict[str, int] | None:
    tokens = billed_tokens(counts)
    if tokens is None:
        return None
    output = tokens.text_output + tokens.image_output
    return {"input": sum(tokens) - output, "output": output}
