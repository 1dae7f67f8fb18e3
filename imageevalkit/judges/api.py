"""A question as a request to ``/chat/completions``, the pixels and bytes of its pictures, and what a reply means."""

from __future__ import annotations

import asyncio
import io
import json
import math
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from PIL import Image, ImageOps

from imageevalkit.benchmark.question import TRANSFORMERS, Answer, Encoding, Picture, PixelRule, Question
from imageevalkit.benchmark.thoughts import NO_ANSWER, REMEDY, answer_in, has_think_tag
from imageevalkit.images import CorruptImage, decode, in_turn, opened
from imageevalkit.judges.choice import ApiSettings
from imageevalkit.judges.thoughts import has_thoughts, text_of
from imageevalkit.machine import on_cpu, when_one_is_free
from imageevalkit.requests.client import Request
from imageevalkit.requests.failures import LONGEST_MESSAGE, Failure, Kind
from imageevalkit.requests.prices import Price, billed_tokens, cost_of_reply, reported_cost
from imageevalkit.requests.replies import (
    failure_in,
    finish_reasons,
    list_of,
    objects_in,
    read_json,
    stopped_by_policy,
    tokens_of,
)
from imageevalkit.secrets import one_line
from imageevalkit.text import dollars

# The questions about one picture come together; where they do not, reading it again is cheaper than the memory.
_MOST_KEPT = 16
_ROUNDING = 1e-4  # of a sum of probabilities that are sent as logarithms

# qwen-vl-utils 0.0.14: an image has 4 to 16384 visual tokens, and no side is longer than 200 times the other.
_LEAST, _MOST, _LONGEST = 4, 16384, 200


def request_parameters(question: Question, settings: ApiSettings) -> dict[str, Any]:
    """What is sent besides model and messages: the benchmark's sampling, then what the user gave over it."""
    sampling, asks = question.sampling, question.of_first_token
    parameters = {
        settings.max_tokens_parameter: sampling.max_tokens,
        "temperature": sampling.temperature,
        "seed": sampling.seed,
        **({"logprobs": True, "top_logprobs": listed_tokens(question, settings)} if asks else {}),
        **sampling.extra,
        **settings.extra_body,
    }
    return {name: value for name, value in parameters.items() if value is not None}


def listed_tokens(question: Question, settings: ApiSettings) -> int:
    """How many of the likeliest first tokens are asked for: all that the protocol looks at, or to find its choices."""
    return question.likeliest or settings.top_logprobs


def chat_request(
    model_id: str, question: Question, parameters: Mapping[str, Any], pictures: Mapping[Picture, DataUrl]
) -> Request:
    """The request. The base64 of each picture is a piece of its own: megabytes are not copied.

    Every content is a list of parts, a system message too. WISE's program sends the system message so; those of
    TIIF-Bench and TRIG send it as a plain string, which endpoints read alike.
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
    return Request("/chat/completions", tuple(pieces))


# What a judge's text costs is known well enough, what an image costs is up to the provider: 1024 px are about a
# thousand tokens for Qwen-VL (spec of GenEval 2, section 9) and for GPT-4o.
_CHARACTERS_PER_TOKEN = 4
_TOKENS_PER_IMAGE = 1000
# A verdict in a few words; protocols allow for many more. A judge that thinks before it answers writes more.
_TOKENS_PER_REPLY = 50


def _tokens_sent(questions: Sequence[Question]) -> int:
    return round(
        sum(len(q.text) / _CHARACTERS_PER_TOKEN + _TOKENS_PER_IMAGE * len(q.pictures) for q in questions)
    )


def tokens_in_words(questions: Sequence[Question]) -> str:
    """About how many tokens ``questions`` send, in words: n characters count as n / 4, an image as 1000."""
    return f"about {_tokens_sent(questions) / 1e6:.2f} million tokens"


def cost_of_asking(questions: Sequence[Question], price: Price | None) -> float | None:
    """USD of ``questions``, each with a reply of 50 tokens or what it may have at most; None: the price is unknown."""
    if not price:
        return None
    written = sum(
        min(question.sampling.max_tokens or _TOKENS_PER_REPLY, _TOKENS_PER_REPLY) for question in questions
    )
    return price.cost({"prompt_tokens": _tokens_sent(questions), "completion_tokens": written})


def money_in_words(questions: Sequence[Question], price: Price | None) -> str:
    """:func:`tokens_in_words`, and :func:`cost_of_asking`."""
    cost = cost_of_asking(questions, price)
    if price is None or cost is None:
        return f"{tokens_in_words(questions)}, price unknown"
    basis = f"{price.basis} (up to {_TOKENS_PER_REPLY} tokens a reply)"
    return f"{tokens_in_words(questions)}, about {dollars(cost)} at {basis}"


def _unusable(text: str) -> Failure:
    return Failure(Kind.PERMANENT, text, maybe_billed=True)


NO_LOGPROBS = _unusable(
    "the endpoint returns no log-probabilities: choose another judge or the transformers backend",
)
FEW_LOGPROBS = _unusable(
    "the endpoint lists fewer of the likeliest tokens than the judge's top_logprobs asks for: set top_logprobs to what "
    "the endpoint gives, or choose another judge or the transformers backend",
)
FEWER_THAN_SCORED = _unusable(
    "the endpoint lists fewer of the likeliest tokens than the benchmark scores, whatever top_logprobs is: choose "
    "another endpoint (of a server of your own, --max-logprobs raises it), another judge or the transformers backend",
)
THOUGHTS_ONLY = Failure(Kind.ITEM, NO_ANSWER, maybe_billed=True)
WITHOUT_LOGPROBS = frozenset(failure.text for failure in (NO_LOGPROBS, FEW_LOGPROBS, FEWER_THAN_SCORED))


def read_reply(
    question: Question, content: bytes, top: int, price: Price | None, begins_inside: bool = False
) -> Answer | Failure:
    """The answer in the body of a 200, or the failure that the body means.

    ``top`` is the number of likeliest first tokens that were asked for. ``begins_inside``: the chat template opens
    thoughts, so that a reply begins inside of them.
    """

    def read(reply: Mapping[str, Any]) -> Answer | Failure:
        counts, reported = tokens_of(reply.get("usage")), reported_cost(reply.get("usage"))
        found = _answer(question, reply, top, begins_inside)
        if isinstance(found, Failure):  # it has its price too
            return found._replace(tokens=counts, reported_cost=reported)
        billed = billed_tokens(counts)
        tokens = billed and {"input": sum(billed[:5]), "output": sum(billed[5:])}
        return replace(found, tokens=tokens, usd=cost_of_reply(price, counts, reported))

    return read_json(content, read)


def _answer(question: Question, reply: Mapping[str, Any], top: int, begins_inside: bool) -> Answer | Failure:
    choice = next(iter(objects_in(reply.get("choices"))), None)
    if choice is None or not isinstance(choice.get("message"), dict):
        return failure_in(reply) or Failure(Kind.TRANSIENT, "the reply (HTTP 200) holds no message")
    message = choice["message"]
    text = text_of(message.get("content"))
    words = one_line(text, LONGEST_MESSAGE)
    failure = failure_in(reply, choice, message) or stopped_by_policy(reply, choice, words)
    is_text = question.accepts == "text" and isinstance(message.get("content"), str)
    counts = (is_text or question.accepts == "any") and not question.of_first_token
    if failure and not (counts and failure.kind is Kind.REFUSAL):
        return failure
    thinks = has_thoughts(reply, message)
    if not question.of_first_token:
        finish = finish_reasons(reply, choice)[0]
        # a judge that only thought has not answered, whatever the benchmark accepts
        is_answer = text.strip() or (counts and not thinks and (failure or finish == "length"))
        if not is_answer and (lost := _without_answer(finish, thinks)):
            return lost
        if begins_inside and finish == "length" and not thinks and not has_think_tag(text):
            return THOUGHTS_ONLY
        return Answer(question, text, cut=finish == "length")
    if begins_inside or (not text.strip() and thinks):
        return THOUGHTS_ONLY
    logprobs = choice.get("logprobs")
    tokens = list_of(logprobs.get("content")) if isinstance(logprobs, dict) else []
    first = tokens[0] if tokens and isinstance(tokens[0], dict) else {}
    token = _bytes(first).decode(errors="replace")
    if answer_in(token, is_first_token=True) is None:
        return THOUGHTS_ONLY
    likeliest = _probabilities(list_of(first.get("top_logprobs")))
    is_list = question.accepts == "any" and isinstance(first.get("top_logprobs"), list)
    # the sampled token is listed twice, or once where it is not among the most probable ones
    sampled = [] if question.likeliest else _probabilities([first])
    listed = dict(reversed([*likeliest, *sampled]))
    if not (listed or is_list):
        return NO_LOGPROBS
    outside = max(0.0, 1.0 - math.fsum(listed.values()))
    # else what is not listed is surely less probable
    if len(likeliest) < top and outside > _ROUNDING and not is_list:
        return FEWER_THAN_SCORED if question.likeliest else FEW_LOGPROBS
    if question.likeliest:
        largest = sorted(listed.items(), key=lambda one: -one[1])[: question.likeliest]
        probabilities = by_text(
            (token.decode(errors="replace"), probability)
            for token, probability in (likeliest if is_list else largest)
        )
    else:
        # 0 where none is listed, so up to ``outside`` too low
        probabilities = {
            string: next((listed[token] for token in _first_tokens(string) if token in listed), 0.0)
            for string in question.choices
        }
    return Answer(
        question,
        # a token that ends the reply is special, and no text
        token if text else "",
        probabilities=probabilities,
        outside=outside,
    )


def by_text(tokens: Iterable[tuple[str, float]]) -> dict[str, float]:
    """The probabilities of ``tokens`` by their texts, which those that are parts of characters may share."""
    sums = dict[str, float]()
    for text, probability in tokens:
        sums[text] = sums.get(text, 0.0) + probability
    return sums


def _without_answer(finish: str, thinks: bool) -> Failure | None:
    """The failure that a message without text means. None if the judge stopped by itself and has nothing to say."""
    if finish == "length":
        # it would be so again: the sampling is the same
        spent = f"spent on thinking: {REMEDY}" if thinks else "spent without a word"
        return Failure(Kind.ITEM, f"the reply is empty: all tokens allowed were {spent}", maybe_billed=True)
    if thinks:
        return THOUGHTS_ONLY
    if finish == "stop":
        return None
    return Failure(Kind.LOST, f"the reply is empty (finish reason {finish or 'not told'})", maybe_billed=True)


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
    """Keeps the latest pictures, for further questions about them. Belongs to one event loop."""

    def __init__(self) -> None:
        self._kept: dict[Picture, asyncio.Task[DataUrl]] = {}

    async def get(self, picture: Picture) -> DataUrl:
        """``picture`` as it is sent, made off the event loop. Raises CorruptImage: it cannot be sent."""
        made = self._kept.pop(picture, None) or asyncio.create_task(on_cpu(_data_url, picture))
        self._kept[picture] = made
        if len(self._kept) > _MOST_KEPT:
            del self._kept[next(iter(self._kept))]
        try:
            return await asyncio.shield(made)
        except (OSError, CorruptImage, ValueError) as error:  # ValueError: its sides differ too much
            raise CorruptImage(f"the image {picture.path} cannot be sent: {one_line(error)}") from None


def _data_url(picture: Picture) -> DataUrl:
    import pybase64  # base64 of the standard library takes ten times as long and holds the interpreter lock

    data, media_type = sent_picture(picture)
    head = json.dumps(f"data:{media_type};base64,")[:-1]
    return head.encode(), pybase64.b64encode(data)


def rgb(picture: Picture, data: bytes) -> Image.Image:
    """The pixels that the picture's rule makes of ``data``, as RGB. Raises CorruptImage: nobody can tell them.

    Neither a colour that meant transparency nor a rotation is left in its ``info``: transformers would act on it again.
    """
    rule = picture.pixels or TRANSFORMERS
    image = decode(data)
    try:
        if rule.turned:
            image = ImageOps.exif_transpose(image)
        if image.mode in rule.on_white:
            paper = Image.new("RGB", image.size, "white")
            paper.paste(image, mask=image.getchannel("A"))
            return paper
        image = image.convert("RGB")
    except Exception as error:  # damaged Exif data, a mode that has no RGB
        raise CorruptImage(f"{type(error).__name__}: {error}") from error
    image.info.clear()
    return image


def fitted_size(
    size: tuple[int, int], multiple: int, limits: tuple[int, int] | None = None
) -> tuple[int, int]:
    """Width and height of an image of ``size`` when both are multiples of ``multiple`` pixels.

    The nearest ones; where the area would be less or more than the ``limits`` (pixels; None: 4 and 16384 squares of
    ``multiple``), both sides are scaled alike to that area and rounded up or down. Half a multiple goes to the even
    one, as Python rounds. Raises ValueError: one side is more than 200 times the other.

    Source: ``smart_resize`` of qwen-vl-utils 0.0.14 and of transformers' Qwen2-VL image processor.
    """
    if max(size) > _LONGEST * min(size):
        raise ValueError(f"one side of {size[0]}×{size[1]} px is more than {_LONGEST} times the other")
    width, height = (max(1, round(side / multiple)) * multiple for side in size)
    area, (least, most) = size[0] * size[1], limits or (_LEAST * multiple**2, _MOST * multiple**2)
    if width * height > most:
        shrink = math.sqrt(area / most)
        width, height = (math.floor(side / shrink / multiple) * multiple for side in size)
    elif width * height < least:
        grow = math.sqrt(least / area)
        width, height = (math.ceil(side * grow / multiple) * multiple for side in size)
    return width, height


def encoded(image: Image.Image, encoding: Encoding, **options: Any) -> bytes:
    """The bytes of ``image`` in ``encoding``, shrunk with Lanczos where it is larger; ``options`` are Pillow's own."""
    if encoding.longest_side is not None and max(image.size) > encoding.longest_side:
        scale = encoding.longest_side / max(image.size)
        width, height = (max(1, round(side * scale)) for side in image.size)
        image = image.resize((width, height), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    quality = {} if encoding.quality is None else {"quality": encoding.quality}
    image.save(buffer, encoding.format, **quality, **options)
    return buffer.getvalue()


def open_picture(picture: Picture) -> Image.Image:
    """The picture as RGB, with the losses of its ``encoding``. Raises CorruptImage, OSError."""
    image = rgb(picture, picture.read())
    if picture.encoding is None:
        return image
    return decode(encoded(image, picture.encoding)).convert("RGB")


def judge_picture(picture: Picture) -> Image.Image:
    """:func:`open_picture`, resized as a processor gets it. Raises ValueError too: its sides differ too much."""
    image, rule = open_picture(picture), picture.pixels
    return _resized(image, rule) if rule else image


def _resized(image: Image.Image, rule: PixelRule) -> Image.Image:
    # as qwen-vl-utils does it, and then a processor with limits
    for limits in (None, rule.limits) if rule.limits else (None,):
        if rule.multiple:
            image = image.resize(fitted_size(image.size, rule.multiple, limits), Image.Resampling.BICUBIC)
    return image


def sent_picture(picture: Picture) -> tuple[bytes, str]:
    """The bytes to send, and what they are declared to be. Takes CPU time. Raises CorruptImage, OSError, ValueError.

    A server decodes by rules of its own: where it could see other pixels than the protocol means, it gets those as PNG,
    compressed the fastest way.
    """
    data = when_one_is_free(picture.read)
    encoding, rule = picture.encoding, picture.pixels
    options: dict[str, Any] = {}
    if encoding is None and rule and (rule.limits or not picture.plain):
        encoding, options = Encoding("PNG"), {"compress_level": 1}
    with opened(data) as header:
        if encoding is not None:
            with in_turn(header):
                image = rgb(picture, data)
                shown = _resized(image, rule) if rule and rule.limits else image
                data = encoded(shown, encoding, **options)
        format = encoding.format if encoding else header.format or ""
        return data, picture.media_type or Image.MIME.get(format, f"image/{format.lower()}")
