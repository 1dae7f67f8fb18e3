"""Questions about an item and their answers, in one form for judges, OCR models and other metric models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple


class Encoding(NamedTuple):
    """The encoding of an image that is sent in another format than its file.

    ``format`` is Pillow's name ("JPEG", "PNG"). ``quality`` is Pillow's, 1 to 95; None: the format's default.
    If an image is larger than ``longest_side`` pixels, it shrinks to that size; None: never. The other side
    is rounded, or with ``floor`` cut to whole pixels.
    """

    format: str
    quality: int | None = None
    longest_side: int | None = None
    floor: bool = False


class PixelRule(NamedTuple):
    """The way in which the official program of a benchmark decodes an image file to RGB pixels.

    * ``turned``: the program rotates the image as its EXIF data say.
    * ``on_white``: the Pillow modes whose transparency becomes white. All other transparency is dropped, as
      Pillow's ``convert("RGB")`` does.
    * ``multiple``: both sides are resized to multiples of this many pixels before the processor of a local
      judge (:func:`imageevalkit.judges.api.fitted_size`). None: the processor gets the image unchanged.
    * ``limits``: the smallest and largest width × height after this resize, also for images sent to a server.
    * ``size``: the width and height to which the program first resizes the image; the ``name`` must tell it.
    * ``thumbnail``: an image with a side longer than this shrinks as by Pillow's ``thumbnail``; the ``name``
      must tell it.
    """

    name: str
    turned: bool
    on_white: tuple[str, ...] = ()
    multiple: int | None = None
    limits: tuple[int, int] | None = None
    size: tuple[int, int] | None = None
    thumbnail: int | None = None


TRANSFORMERS = PixelRule("transformers", turned=True)
"""The decoding of transformers: ``load_image`` in ``image_utils.py`` of 4.57.0 and of 5.23.0."""
PILLOW = PixelRule("pillow", turned=False)
"""The decoding of Pillow alone: ``open`` and ``convert("RGB")``."""
QWEN_VL_UTILS = PixelRule("qwen_vl_utils", turned=False, on_white=("RGBA",), multiple=28)
"""``process_vision_info`` of qwen-vl-utils 0.0.14 (and 0.0.11) with a path and no limits: ``vision_process.py``."""


class Picture(NamedTuple):
    """An image in a message: the bytes of the file ``path`` (or ``data``, if there is no file), or another
    ``encoding`` of them.

    ``sha256`` is the hash of the bytes. ``media_type`` is the type that the request declares, even if it is
    wrong; None: the real type. ``pixels`` is the official program's decoding; None: the program sends the
    file unchanged. ``plain``: every program decodes the file to the same pixels
    (``imageevalkit.common.images.is_plain``). ``flat``: all pixels have the same colour. ``detail`` is
    OpenAI's parameter of an image ("low", "high"); empty: not sent.
    """

    path: Path
    sha256: str
    media_type: str | None = None
    encoding: Encoding | None = None
    pixels: PixelRule | None = None
    plain: bool = True
    flat: bool = False
    data: bytes | None = None
    detail: str = ""

    def read(self) -> bytes:
        """Returns the bytes before any ``encoding``. Raises OSError if the file cannot be read."""
        return self.path.read_bytes() if self.data is None else self.data

    @property
    def request(self) -> list[Any]:
        """The parts of the image that a request hash covers. The pixel rule is one only if it can change the
        pixels.

        For a plain image the rule is a bool, and an empty ``detail`` and an encoding's ``floor`` of False are
        left out, as in older versions: their recorded answers stay valid.
        """
        rule: str | bool = False
        if self.pixels is not None:
            resizes = self.pixels.limits or self.pixels.size or self.pixels.thumbnail
            is_as_filed = self.plain and not resizes
            rule = bool(self.pixels.on_white) if is_as_filed else self.pixels.name
        encoding = self.encoding and [*self.encoding[:3], *(["floor"] if self.encoding.floor else [])]
        return [self.sha256, self.media_type, encoding, rule, *([self.detail] if self.detail else [])]


Accepts = Literal["ended", "text", "any"]
"""The replies of an endpoint that count as answers.

* "ended": the judge ended the reply by itself, and all requested token probabilities are there.
* "text": also any text, even an empty one, with any finish reason or refusal.
* "any": also a reply without content (an empty text), and any list of the likeliest tokens.

Some official programs check nothing else in a reply; "text" and "any" copy them.
"""


class Message(NamedTuple):
    """A chat message. ``role`` is "system", "user" or "assistant"; ``parts`` are texts and pictures in
    order."""

    role: str
    parts: tuple[str | Picture, ...]


@dataclass(frozen=True)
class Sampling:
    """The sampling parameters of a reply. A parameter of None is not sent, so the default of the server or
    checkpoint applies. If ``max_tokens`` is None, a local judge writes at most 4,096 tokens.

    ``extra`` holds further parameters with the names of vLLM's chat endpoint (``repetition_penalty``,
    ``chat_template_kwargs``). If a backend does not support one of these, it raises an error.
    """

    max_tokens: int | None
    temperature: float | None = 0.0
    seed: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


def of_checkpoint(backend: str, max_tokens: int) -> Sampling:
    """Returns the sampling of official programs that use the defaults of a Qwen2.5-VL checkpoint.

    These defaults are greedy in effect, with a repetition penalty of 1.05. The defaults of a server may
    differ, so a server gets the values explicitly; only vLLM supports the penalty. ``backend`` is the judge's
    backend.
    """
    penalty = {"repetition_penalty": 1.05} if backend == "vllm" else {}
    return Sampling(max_tokens, None if backend == "transformers" else 0.0, extra=penalty)


@dataclass(frozen=True)
class Question:
    """One call of a judge or a metric model; :func:`ask` and :func:`measure` make the usual questions.

    * ``name`` is unique among the questions about an item ("score", "vqa/3"). The part before the first slash
      is the group, which decides who answers (``Benchmark.measurers``). The engine sets ``item``.
    * ``choices`` are strings. For each string the judge returns the probability that the reply's first token
      is the first token of that string. ``sampling.max_tokens`` is then 1, and the text of the answer is the
      likeliest token.
    * ``choice_ids`` are the ids of these tokens if the protocol fixes them. A backend with a tokenizer uses
      these ids.
    * ``likeliest`` replaces ``choices``: the judge returns the probabilities of this many likeliest first
      tokens.
    * ``data`` is for ``parse`` and is never sent. ``variant`` names the randomly drawn wording, for the
      record. ``accepts`` says which replies of an endpoint count.
    * ``repeat``: questions that differ in this number alone each get a reply of their own.
    """

    name: str
    messages: tuple[Message, ...]
    sampling: Sampling
    choices: tuple[str, ...] = ()
    choice_ids: tuple[int, ...] = ()
    data: Any = field(default=None, compare=False)
    item: str = ""
    variant: str = field(default="", compare=False)
    likeliest: int = 0
    accepts: Accepts = field(default="ended", compare=False)
    repeat: int = 0

    def of_item(self, item: str) -> Question:
        """Returns the same question about another item."""
        return replace(self, item=item)

    @property
    def of_first_token(self) -> bool:
        """Whether the question asks for probabilities of the first token instead of a reply."""
        return bool(self.choices or self.likeliest)

    @property
    def group(self) -> str:
        """The part of the name before the first slash."""
        return self.name.partition("/")[0]

    @property
    def pictures(self) -> tuple[Picture, ...]:
        """All pictures, in the order in which they are sent."""
        return tuple(part for message in self.messages for part in message.parts if isinstance(part, Picture))

    @property
    def text(self) -> str:
        """All texts of the messages, one per line."""
        return "\n".join(part for message in self.messages for part in message.parts if isinstance(part, str))


def ask(
    name: str,
    *parts: str | Picture,
    system: str = "",
    max_tokens: int | None = 1024,
    temperature: float | None = 0.0,
    choices: tuple[str, ...] = (),
    data: Any = None,
    variant: str = "",
    accepts: Accepts = "ended",
) -> Question:
    """Returns a question to the judge: one user message of texts and pictures. See :class:`Question`."""
    message = Message("user", parts)
    messages = (Message("system", (system,)), message) if system else (message,)
    sampling = Sampling(1 if choices else max_tokens, temperature)
    return Question(name, messages, sampling, choices, data=data, variant=variant, accepts=accepts)


def measure(name: str, *parts: str | Picture) -> Question:
    """Returns a question to a metric model about pictures and texts. The text of the answer is JSON."""
    return Question(name, (Message("user", parts),), Sampling(0))


@dataclass(frozen=True)
class Answer:
    """The answer to one ``question``: a ``text``, or None and a one-line ``error``.

    * ``text`` is the whole reply without special tokens; from a metric model it is JSON. ``value`` is the
      JSON value that :meth:`Benchmark.parse` reads in the text.
    * ``refused``: the judge refused to answer. ``cut``: the reply reached the token limit.
    * ``probabilities`` (0-1) belong to ``Question.choices``, or to the ``Question.likeliest`` tokens by their
      text, the likeliest first. ``outside`` (0-1) is the probability of all first tokens that the backend
      does not report. The true probability of a choice may be higher by up to this much.
    * ``tokens`` are counts by kind ("input", "output"). ``seconds`` is the time of all ``attempts``.
      ``batch`` is the provider's id of the batch.
    """

    question: Question
    text: str | None = None
    error: str = ""
    refused: bool = False
    cut: bool = False
    probabilities: Mapping[str, float] | None = None
    outside: float | None = None
    tokens: Mapping[str, int] | None = None
    usd: float | None = None
    seconds: float = 0.0
    attempts: int = 1
    batch: str = ""
    value: Any = None


class JudgeUnusable(Exception):
    """The evaluator can answer no further question (key rejected, model unknown, endpoint down). One line
    says why."""


class JudgeOnHold(JudgeUnusable):
    """The budget of this run is used up. A later run resumes the questions."""
