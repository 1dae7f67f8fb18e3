"""Builds ``/chat/completions`` requests from questions, encodes their pictures, and reads the replies."""

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

from imageevalkit.api.client import Request
from imageevalkit.api.failures import LONGEST_MESSAGE, Failure, Kind
from imageevalkit.api.prices import Price, billed_tokens, cost_of_reply, reported_cost
from imageevalkit.api.replies import (
    failure_in,
    finish_reasons,
    list_of,
    objects_in,
    read_json,
    stopped_by_policy,
    tokens_of,
)
from imageevalkit.benchmark.question import TRANSFORMERS, Answer, Encoding, Picture, PixelRule, Question
from imageevalkit.benchmark.thoughts import NO_ANSWER, REMEDY, answer_in, has_think_tag
from imageevalkit.common.images import CorruptImage, decode, in_turn, opened
from imageevalkit.common.machine import on_cpu, when_one_is_free
from imageevalkit.common.redaction import one_line
from imageevalkit.common.text import dollars
from imageevalkit.judges.choice import ApiSettings
from imageevalkit.judges.thoughts import has_thoughts, text_of

# Questions about one picture usually follow each other. If not, a second read is cheaper than the memory.
_MOST_KEPT = 16
_ROUNDING = 1e-4  # rounding error of a sum of probabilities that are sent as logarithms

# qwen-vl-utils 0.0.14: an image has 4 to 16384 visual tokens, and no side is longer than 200 times the other.
_LEAST, _MOST, _LONGEST = 4, 16384, 200


def request_parameters(question: Question, settings: ApiSettings) -> dict[str, Any]:
    """Returns the request parameters besides model and messages. The user's replace the benchmark's."""
    sampling, asks = question.sampling, question.of_first_token
    parameters = {
        settings.max_tokens_parameter: sampling.max_tokens,
        "temperature": sampling.temperature,
        "seed": sampling.seed,
        **({"logprobs": True, "top_logprobs": question.likeliest or settings.top_logprobs} if asks else {}),
        **sampling.extra,
        **settings.extra_body,
    }
    return {name: value for name, value in parameters.items() if value is not None}


def chat_request(
    model_id: str, question: Question, parameters: Mapping[str, Any], pictures: Mapping[Picture, DataUrl]
) -> Request:
    """Returns the request. Each picture's base64 is a separate piece: no megabytes are copied.

    Every content is a list of parts, also in a system message. WISE's program sends the system message this
    way. The programs of TIIF-Bench and TRIG send it as a plain string, which endpoints treat alike.
    """
    mark = uuid.uuid4().hex  # placeholder for a picture

    def content(part: str | Picture) -> dict[str, Any]:
        if isinstance(part, Picture):
            detail = {"detail": part.detail} if part.detail else {}
            return {"type": "image_url", "image_url": {"url": mark, **detail}}
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


# Text tokens are easy to estimate. Image tokens depend on the provider: 1024 px are about a thousand tokens
# for Qwen-VL (spec of GenEval 2, section 9) and for GPT-4o.
_CHARACTERS_PER_TOKEN = 4
_TOKENS_PER_IMAGE = 1000
# A verdict of a few words. Protocols allow many more tokens, and a judge that thinks first writes more.
_TOKENS_PER_REPLY = 50


def _tokens_sent(questions: Sequence[Question]) -> int:
    return round(
        sum(len(q.text) / _CHARACTERS_PER_TOKEN + _TOKENS_PER_IMAGE * len(q.pictures) for q in questions)
    )


def tokens_in_words(questions: Sequence[Question]) -> str:
    """Returns about how many tokens ``questions`` send, as text: n characters are n / 4, an image is 1000."""
    return f"about {_tokens_sent(questions) / 1e6:.2f} million tokens"


def cost_of_asking(questions: Sequence[Question], price: Price | None) -> float | None:
    """Returns the USD of ``questions``; None if the price is unknown.

    Each reply counts as 50 tokens, or as its maximum if that is lower.
    """
    if not price:
        return None
    written = sum(
        min(question.sampling.max_tokens or _TOKENS_PER_REPLY, _TOKENS_PER_REPLY) for question in questions
    )
    return price.cost({"prompt_tokens": _tokens_sent(questions), "completion_tokens": written})


def money_in_words(questions: Sequence[Question], price: Price | None) -> str:
    """Returns :func:`tokens_in_words` and the cost from :func:`cost_of_asking`, as text."""
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
    """Returns the answer in the body of a 200, or the Failure that the body means.

    ``top`` is the number of requested likeliest first tokens. ``begins_inside``: the chat template opens
    thoughts, so the reply begins inside them.
    """

    def read(reply: Mapping[str, Any]) -> Answer | Failure:
        counts, reported = tokens_of(reply.get("usage")), reported_cost(reply.get("usage"))
        found = _answer(question, reply, top, begins_inside)
        if isinstance(found, Failure):  # a failed reply is billed, too
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
        # thoughts alone are no answer, even if the benchmark accepts empty replies
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
    # the sampled token is added: it may be missing among the most probable ones
    sampled = [] if question.likeliest else _probabilities([first])
    listed = dict(reversed([*likeliest, *sampled]))
    if not (listed or is_list):
        return NO_LOGPROBS
    outside = max(0.0, 1.0 - math.fsum(listed.values()))
    # if the list is full, unlisted tokens are less probable than the listed ones
    if len(likeliest) < top and outside > _ROUNDING and not is_list:
        return FEWER_THAN_SCORED if question.likeliest else FEW_LOGPROBS
    if question.likeliest:
        largest = sorted(listed.items(), key=lambda one: -one[1])[: question.likeliest]
        probabilities = by_text(
            (token.decode(errors="replace"), probability)
            for token, probability in (likeliest if is_list else largest)
        )
    else:
        # 0 if no token of a choice is listed: at most ``outside`` too low
        probabilities = {
            string: next((listed[token] for token in _first_tokens(string) if token in listed), 0.0)
            for string in question.choices
        }
    return Answer(
        question,
        # if the text is empty, the token is the special end token
        token if text else "",
        probabilities=probabilities,
        outside=outside,
    )


def by_text(tokens: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Sums the probabilities of ``tokens`` by text: tokens that are parts of a character may share a text."""
    sums = dict[str, float]()
    for text, probability in tokens:
        sums[text] = sums.get(text, 0.0) + probability
    return sums


def _without_answer(finish: str, thinks: bool) -> Failure | None:
    """Returns the Failure for a message without text; None if the judge stopped by itself."""
    if finish == "length":
        # no retry: with the same sampling the reply would be empty again
        spent = f"spent on thinking: {REMEDY}" if thinks else "spent without a word"
        return Failure(Kind.ITEM, f"the reply is empty: all tokens allowed were {spent}", maybe_billed=True)
    if thinks:
        return THOUGHTS_ONLY
    if finish == "stop":
        return None
    reason = f"finish reason {finish}" if finish else "no finish reason"
    return Failure(Kind.LOST, f"the reply is empty ({reason})", maybe_billed=True)


def _probabilities(entries: Iterable[Any]) -> list[tuple[bytes, float]]:
    """Returns the probability (0-1) of each token in ``logprobs`` of a chat completion, if it has one.

    Source: https://platform.openai.com/docs/api-reference/chat/object (vLLM and SGLang use the same format).
    """
    found = []
    for entry in entries:
        logprob = entry.get("logprob") if isinstance(entry, dict) else None
        if isinstance(logprob, bool) or not isinstance(logprob, (int, float)) or math.isnan(logprob):
            continue
        # a huge integer fits no float; a rounding error may make a logarithm slightly positive
        found.append((_bytes(entry), 0.0 if logprob < -1e6 else math.exp(min(logprob, 0.0))))
    return found


def _bytes(entry: Mapping[str, Any]) -> bytes:
    """Returns the bytes of a token. Its text is unreliable if the token ends within a character."""
    text, raw = entry.get("token"), entry.get("bytes")
    text = text if isinstance(text, str) else ""
    if ("\N{REPLACEMENT CHARACTER}" in text or not text) and isinstance(raw, list):
        try:
            return bytes(raw)
        except (TypeError, ValueError):
            pass
    return text.encode(errors="surrogatepass")


def _first_tokens(string: str) -> Iterator[bytes]:
    """Yields the possible first tokens of ``string``, the longest first: no tokenizer is available here.

    The words that benchmarks ask for are one token. Digits are not: Qwen's tokenizers split them. The first
    token of " 7" is the space, the first token of "10" is "1".
    """
    yield string.encode()
    if len(string) > 1 and string.removeprefix(" ").isdecimal():
        yield string[0].encode()


DataUrl = tuple[bytes, bytes]
"""A data URL in a JSON string: first the opening quote and the text before the base64, then the base64."""


class PictureCache:
    """Keeps the latest encoded pictures for further questions about them. Belongs to one event loop."""

    def __init__(self) -> None:
        self._kept: dict[Picture, asyncio.Task[DataUrl]] = {}

    async def get(self, picture: Picture) -> DataUrl:
        """Encodes ``picture`` off the event loop. Raises CorruptImage: the picture cannot be sent."""
        made = self._kept.pop(picture, None) or asyncio.create_task(on_cpu(_data_url, picture))
        self._kept[picture] = made
        if len(self._kept) > _MOST_KEPT:
            del self._kept[next(iter(self._kept))]
        try:
            return await asyncio.shield(made)
        except (OSError, CorruptImage, ValueError) as error:  # ValueError: the sides differ too much
            raise CorruptImage(f"the image {picture.path} cannot be sent: {one_line(error)}") from None


def _data_url(picture: Picture) -> DataUrl:
    import pybase64  # the standard library's base64 takes ten times as long and holds the interpreter lock

    data, media_type = sent_picture(picture)
    head = json.dumps(f"data:{media_type};base64,")[:-1]
    return head.encode(), pybase64.b64encode(data)


def rgb(picture: Picture, data: bytes) -> Image.Image:
    """Returns the RGB pixels of ``data`` by the picture's rule. Raises CorruptImage: they cannot be decoded.

    The ``info`` of the result has no transparent colour and no rotation: transformers would apply them again.
    """
    rule = picture.pixels or TRANSFORMERS
    image = decode(data)
    try:
        if rule.turned:
            image = ImageOps.exif_transpose(image)
        if image.mode in rule.on_white:
            paper = Image.new("RGB", image.size, "white")
            paper.paste(image, mask=image.getchannel("A"))
            image = paper
        image = image.convert("RGB")
        if rule.size:
            image = image.resize(rule.size, Image.Resampling.BICUBIC)
        if rule.thumbnail:
            image.thumbnail((rule.thumbnail, rule.thumbnail))
    except Exception as error:  # damaged Exif data, or a mode without RGB
        raise CorruptImage(f"{type(error).__name__}: {error}") from error
    image.info.clear()
    return image


def fitted_size(
    size: tuple[int, int], multiple: int, limits: tuple[int, int] | None = None
) -> tuple[int, int]:
    """Returns the size nearest to ``size`` with width and height as multiples of ``multiple`` pixels.

    ``limits`` bound the area in pixels (None: 4 and 16384 squares of ``multiple``). Outside of them both
    sides are scaled by the same factor, and rounded up at the lower limit or down at the upper one. Half a
    multiple rounds to the even one, as in Python. Raises ValueError: one side is more than 200 times the
    other.

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
    """Returns ``image`` in ``encoding``, shrunk with Lanczos if too large. ``options`` are Pillow's own."""
    if encoding.longest_side is not None and max(image.size) > encoding.longest_side:
        longest, now = encoding.longest_side, max(image.size)
        scale = longest / now
        # whole numbers, because a product of floats may be just below the right side
        sides = (side * longest // now if encoding.floor else round(side * scale) for side in image.size)
        width, height = (max(1, side) for side in sides)
        image = image.resize((width, height), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    quality = {} if encoding.quality is None else {"quality": encoding.quality}
    image.save(buffer, encoding.format, **quality, **options)
    return buffer.getvalue()


def open_picture(picture: Picture) -> Image.Image:
    """Returns the picture as RGB, with the losses of its ``encoding``. Raises CorruptImage, OSError."""
    image = rgb(picture, picture.read())
    if picture.encoding is None:
        return image
    return decode(encoded(image, picture.encoding)).convert("RGB")


def judge_picture(picture: Picture) -> Image.Image:
    """Returns :func:`open_picture`, resized for a processor. Raises ValueError too: extreme aspect ratio."""
    image, rule = open_picture(picture), picture.pixels
    return _resized(image, rule) if rule else image


def _resized(image: Image.Image, rule: PixelRule) -> Image.Image:
    # first the resize of qwen-vl-utils, then the resize of a processor with limits
    for limits in (None, rule.limits) if rule.limits else (None,):
        if rule.multiple:
            image = image.resize(fitted_size(image.size, rule.multiple, limits), Image.Resampling.BICUBIC)
    return image


def sent_picture(picture: Picture) -> tuple[bytes, str]:
    """Returns the bytes to send and their MIME type. Takes CPU time.

    A server decodes images by its own rules. If its pixels could differ from the protocol's pixels, the bytes
    are a PNG with fast compression. Raises CorruptImage, OSError, ValueError.
    """
    data = when_one_is_free(picture.read)
    encoding, rule = picture.encoding, picture.pixels
    options: dict[str, Any] = {}
    if encoding is None and rule and (rule.limits or rule.size or rule.thumbnail or not picture.plain):
        encoding, options = Encoding("PNG"), {"compress_level": 1}
    with opened(data) as header:
        if encoding is not None:
            with in_turn(header):
                image = rgb(picture, data)
                shown = _resized(image, rule) if rule and rule.limits else image
                data = encoded(shown, encoding, **options)
        format = encoding.format if encoding else header.format or ""
        return data, picture.media_type or Image.MIME.get(format, f"image/{format.lower()}")
