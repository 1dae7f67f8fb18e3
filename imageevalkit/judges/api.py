"""A question as a request to ``/chat/completions``, and what the reply to it means."""

from __future__ import annotations

import asyncio
import json
import math
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from imageevalkit.api.clients import Request
from imageevalkit.api.failures import LONGEST_MESSAGE, Failure, Kind
from imageevalkit.api.money import Price, billed_tokens, cost_of_reply, reported_cost
from imageevalkit.api.replies import (
    error_in,
    finish_reasons,
    json_object,
    list_of,
    refusal,
    stopped_by_policy,
    tokens_of,
)
from imageevalkit.benchmark.question import Answer, Picture, Question
from imageevalkit.judges.pictures import sent_picture
from imageevalkit.judges.settings import ApiSettings
from imageevalkit.machine import on_cpu
from imageevalkit.secrets import one_line

# The questions about one picture come together; where they do not, reading it again is cheaper than the memory.
_MOST_KEPT = 16
_ROUNDING = 1e-4  # of a sum of probabilities that are sent as logarithms


def request_parameters(question: Question, settings: ApiSettings) -> dict[str, Any]:
    """What is sent besides model and messages: the benchmark's sampling, then what the user gave over it."""
    sampling = question.sampling
    parameters = {
        settings.max_tokens_parameter: sampling.max_tokens,
        "temperature": sampling.temperature,
        "seed": sampling.seed,
        **({"logprobs": True, "top_logprobs": settings.top_logprobs} if question.choices else {}),
        **sampling.extra,
        **settings.extra_body,
    }
    return {name: value for name, value in parameters.items() if value is not None}


def chat_request(
    model_id: str, question: Question, parameters: Mapping[str, Any], pictures: Mapping[Picture, DataUrl]
) -> Request:
    """The request, its body in pieces of which the base64 of each picture is one: megabytes are not copied.

    All contents are lists of parts, also those of one text: that is how the official evaluators send them.
    """
    mark = uuid.uuid4().hex  # stands where a picture goes

    def content(part: str | Picture) -> dict[str, Any]:
        if isinstance(part, Picture):
            return {"type": "image_url", "image_url": {"url": mark}}
        return {"type": "text", "text": part}

    messages = [
        {"role": message.role, "content": [content(part) for part in message.parts]}
        for message in question.messages
    ]
    body = json.dumps({"model": model_id, "messages": messages, **parameters}, separators=(",", ":"))
    start, *others = body.split(f'"{mark}"')
    pieces = [start.encode()]
    for picture, rest in zip(question.pictures, others, strict=True):
        pieces += [*pictures[picture], f'"{rest}'.encode()]
    return Request("/chat/completions", tuple(pieces), "application/json")


NO_LOGPROBS = Failure(
    Kind.PERMANENT,
    "the endpoint returns no log-probabilities: choose another judge or the transformers backend",
)
FEW_LOGPROBS = Failure(
    Kind.PERMANENT,
    "the endpoint lists fewer of the likeliest tokens than the judge's top_logprobs asks for: set it to what the "
    "endpoint gives, or choose another judge or the transformers backend",
)


def read_reply(question: Question, content: bytes, top: int, price: Price | None) -> Answer | Failure:
    """The answer to ``question`` in the body of a 200, or what the body means without one.

    ``top`` is how many of the likeliest first tokens were asked for, where probabilities were.
    """
    try:
        reply = json_object(content)
        return reply if isinstance(reply, Failure) else _answer(question, reply, top, price)
    except RecursionError:
        return Failure(Kind.TRANSIENT, "the reply is JSON nested too deep to be read")


def _answer(question: Question, reply: Mapping[str, Any], top: int, price: Price | None) -> Answer | Failure:
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
    if not question.choices:
        finish = finish_reasons(reply, choice)[0]
        if not text.strip() and (lost := _without_answer(finish, message)):
            return lost
        return Answer(question, text, tokens=_sums(counts), usd=usd, cut=finish == "length")
    logprobs = choice.get("logprobs")
    tokens = list_of(logprobs.get("content")) if isinstance(logprobs, dict) else []
    first = tokens[0] if tokens and isinstance(tokens[0], dict) else {}
    likeliest = _probabilities(list_of(first.get("top_logprobs")))
    # the sampled token is listed twice, or once where it is not among the most probable ones
    listed = dict(reversed([*likeliest, *_probabilities([first])]))
    if not listed:
        return NO_LOGPROBS
    outside = max(0.0, 1.0 - math.fsum(listed.values()))
    if len(likeliest) < top and outside > _ROUNDING:  # else what is not listed is surely less probable
        return FEW_LOGPROBS
    return Answer(
        question,
        # a token that ends the reply is special, and no text
        _bytes(first).decode(errors="replace") if text else "",
        # 0 where none is listed, so up to ``outside`` too low
        probabilities={
            string: next((listed[token] for token in _first_tokens(string) if token in listed), 0.0)
            for string in question.choices
        },
        outside=outside,
        tokens=_sums(counts),
        usd=usd,
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


def _probabilities(entries: Iterable[Any]) -> list[tuple[bytes, float]]:
    """The probability (0-1) of each token in ``logprobs`` of a chat completion that has one.

    Source: https://platform.openai.com/docs/api-reference/chat/object (vLLM and SGLang answer in the same shape).
    """
    found = []
    for entry in entries:
        logprob = entry.get("logprob") if isinstance(entry, dict) else None
        if isinstance(logprob, bool) or not isinstance(logprob, (int, float)) or math.isnan(logprob):
            continue
        # an integer of hundreds of digits is no float; 0 is sometimes passed by a rounding error
        found.append((_bytes(entry), 0.0 if logprob < -1e6 else math.exp(min(logprob, 0.0))))
    return found


def _bytes(entry: Mapping[str, Any]) -> bytes:
    """The bytes of a token; its text is a guess where the token ends within a character."""
    text, raw = entry.get("token"), entry.get("bytes")
    text = text if isinstance(text, str) else ""
    if ("\N{REPLACEMENT CHARACTER}" in text or not text) and isinstance(raw, list):
        try:
            return bytes(raw)
        except (TypeError, ValueError):
            pass
    return text.encode(errors="surrogatepass")


def _first_tokens(string: str) -> Iterator[bytes]:
    """What the first token of ``string`` may be, the longest first; there is no tokenizer to ask.

    Words that benchmarks ask for are one token. Digits are not: Qwen's tokenizers split them off one by one, so that
    of " 7" the first token is the bare space, and of "10" the "1".
    """
    yield string.encode()
    if len(string) > 1 and string.removeprefix(" ").isdecimal():
        yield string[0].encode()


DataUrl = tuple[bytes, bytes]
"""A data URL inside a JSON string: the opening quote and what stands before the base64, then the base64."""


class PictureCache:
    """Keeps a picture for as long as further ``questions`` need it. Belongs to one event loop."""

    def __init__(self, questions: Iterable[Question]) -> None:
        self._uses = Counter(picture for question in questions for picture in question.pictures)
        self._kept: dict[Picture, asyncio.Task[DataUrl]] = {}

    async def get(self, picture: Picture) -> DataUrl:
        """``picture`` as it is sent, made off the event loop. Raises as ``sent_picture`` does."""
        if picture not in self._kept:
            if self._uses[picture] < 2:
                return await on_cpu(_data_url, picture)
            self._kept[picture] = asyncio.create_task(on_cpu(_data_url, picture))
            if len(self._kept) > _MOST_KEPT:
                del self._kept[next(iter(self._kept))]
        return await asyncio.shield(self._kept[picture])

    def answered(self, question: Question) -> None:
        """``question`` needs its pictures no more."""
        for picture in question.pictures:
            self._uses[picture] -= 1
            if not self._uses[picture]:
                self._kept.pop(picture, None)


def _data_url(picture: Picture) -> DataUrl:
    import pybase64  # base64 of the standard library takes ten times as long and holds the interpreter lock

    data, media_type = sent_picture(picture)
    head = json.dumps(f"data:{media_type};base64,")[:-1]
    return head.encode(), pybase64.b64encode(data)
