"""What is asked about an item and what is answered: the same words for judges, text readers and other measurers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple


class Encoding(NamedTuple):
    """How an image is encoded anew before it is sent: ``format`` is Pillow's name ("JPEG", "PNG"), ``quality`` its own
    1-95 scale (None: the format's default); ``longest_side`` in pixels shrinks larger images to it (None: never).
    """

    format: str
    quality: int | None = None
    longest_side: int | None = None


class PixelRule(NamedTuple):
    """Which RGB pixels a protocol's own program makes of an image file.

    ``turned``: as the EXIF data of the file say. ``on_white``: the modes, by Pillow's names, whose transparency is laid
    on white; that of others is dropped, as Pillow's ``convert("RGB")`` does. ``multiple``: before the processor of a
    local judge takes the image, both sides become multiples of so many pixels (see
    :func:`imageevalkit.judges.api.fitted_size`); None: the processor gets the image as it is. ``limits``: and then
    width × height becomes no less and no more than so many, also of what a server is sent.
    """

    name: str
    turned: bool
    on_white: tuple[str, ...] = ()
    multiple: int | None = None
    limits: tuple[int, int] | None = None


TRANSFORMERS = PixelRule("transformers", turned=True)
"""What a processor of transformers makes of a path: ``load_image`` of 4.57.0 and of 5.23.0 in ``image_utils.py``."""
PILLOW = PixelRule("pillow", turned=False)
"""What Pillow alone makes of a file: its ``open`` and ``convert("RGB")``."""
QWEN_VL_UTILS = PixelRule("qwen_vl_utils", turned=False, on_white=("RGBA",), multiple=28)
"""``process_vision_info`` of qwen-vl-utils 0.0.14 (and 0.0.11) with a path and no limits: ``vision_process.py``."""


class Picture(NamedTuple):
    """An image of a message: the bytes of the file ``path`` (or ``data``, where it is no file), or another
    ``encoding``.

    ``media_type`` is what a protocol declares the bytes to be, whatever they are; None: what they really are.
    ``sha256`` is that of the file. ``pixels``: how the protocol's program decodes the file; None: it does not, but
    sends it as it is. ``plain``: every program sees the same pixels in the file (``imageevalkit.images.is_plain``).
    ``flat``: every pixel has the same colour.
    """

    path: Path
    sha256: str
    media_type: str | None = None
    encoding: Encoding | None = None
    pixels: PixelRule | None = None
    plain: bool = True
    flat: bool = False
    data: bytes | None = None

    def read(self) -> bytes:
        """The bytes as they are, before any ``encoding``. Raises OSError: the file cannot be read."""
        return self.path.read_bytes() if self.data is None else self.data

    @property
    def request(self) -> list[Any]:
        """What of it decides an answer: the rule only where it decides about the pixels.

        The last element of a plain one is what stood there before there were rules: answers on record stay known.
        """
        rule: str | bool = False
        if self.pixels is not None:
            is_as_filed = self.plain and not self.pixels.limits
            rule = bool(self.pixels.on_white) if is_as_filed else self.pixels.name
        return [self.sha256, self.media_type, self.encoding, rule]


Accepts = Literal["ended", "text", "any"]
"""Which replies of an endpoint count as answers.

* "ended": those that the judge ended by itself, with all tokens that were asked for.
* "text": also every content that is a text, even an empty one, whatever the finish reason or a refusal says.
* "any": also a reply without content, as an empty text, and every list of the likeliest tokens as it is.

The last two are those of official programs that look at nothing else in a reply.
"""


class Message(NamedTuple):
    """``role`` is "system", "user" or "assistant"; ``parts`` are texts and pictures in their order."""

    role: str
    parts: tuple[str | Picture, ...]


@dataclass(frozen=True)
class Sampling:
    """How a reply is drawn. A value of None is not sent: the server's or the checkpoint's own applies. A local judge
    writes 4,096 tokens then.

    ``extra`` are further request parameters in the words of vLLM's chat endpoint (``repetition_penalty``,
    ``chat_template_kwargs``); a backend that cannot honour one says so instead of dropping it.
    """

    max_tokens: int | None
    temperature: float | None = 0.0
    seed: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


def of_checkpoint(backend: str, max_tokens: int) -> Sampling:
    """That of official programs that leave all to the checkpoint of a Qwen2.5-VL: greedy in effect, with a repetition
    penalty of 1.05. A server is told so, since what it would do by itself is its own business; only vLLM knows the
    penalty. ``backend`` is that of the judge.
    """
    penalty = {"repetition_penalty": 1.05} if backend == "vllm" else {}
    return Sampling(max_tokens, None if backend == "transformers" else 0.0, extra=penalty)


@dataclass(frozen=True)
class Question:
    """One call of a judge or of another measurer; :func:`ask` and :func:`measure` make the usual ones.

    ``name`` tells the questions about one item apart ("score", "vqa/3"); what stands before the first slash is its
    group, by which a benchmark says who answers (``Benchmark.measurers``). ``item`` is set by the engine.

    ``choices``: strings for each of which the probability is asked that the reply's first token is the first token of
    that string. Such a question has ``sampling.max_tokens == 1``, and its text is the most probable token.
    ``choice_ids`` are the ids of those tokens where the protocol fixes them: who has the tokenizer takes no others.
    ``likeliest``: in place of choices, the probabilities of so many of the likeliest first tokens are asked for.
    ``data`` is what ``parse`` needs to know besides; nobody is told. ``variant`` says in which of several wordings,
    drawn at random, it is asked: on record beside its answer. ``accepts`` says which replies of an endpoint count.
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

    def of_item(self, item: str) -> Question:
        """The same about that item."""
        # dataclasses.replace takes three times as long for each of 50,000
        return Question(
            self.name,
            self.messages,
            self.sampling,
            self.choices,
            self.choice_ids,
            self.data,
            item,
            self.variant,
            self.likeliest,
            self.accepts,
        )

    @property
    def of_first_token(self) -> bool:
        """Whether probabilities of the first token are asked for, and no reply."""
        return bool(self.choices or self.likeliest)

    @property
    def group(self) -> str:
        """What stands before the first slash of the name."""
        return self.name.partition("/")[0]

    @property
    def pictures(self) -> tuple[Picture, ...]:
        """All pictures, in the order in which they are sent."""
        return tuple(part for message in self.messages for part in message.parts if isinstance(part, Picture))

    @property
    def text(self) -> str:
        """All texts, for a reader."""
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
    """A question to the judge, in one message of texts and pictures; see :class:`Question`."""
    message = Message("user", parts)
    messages = (Message("system", (system,)), message) if system else (message,)
    sampling = Sampling(1 if choices else max_tokens, temperature)
    return Question(name, messages, sampling, choices, data=data, variant=variant, accepts=accepts)


def measure(name: str, *parts: str | Picture) -> Question:
    """A measurement of pictures (and texts) without words: its answer is the JSON value that the measurer gives."""
    return Question(name, (Message("user", parts),), Sampling(0))


@dataclass(frozen=True)
class Answer:
    """What was answered to one ``question``: a ``text``, or None and a one-line ``error``.

    ``refused``: whoever was asked would not answer. ``cut``: the reply ends where it may have no more tokens.
    ``text`` is the whole reply, special tokens left out; of a measurement it is JSON. ``probabilities`` (0-1) are
    those of ``Question.choices``, or of the ``Question.likeliest`` tokens by their text, the likeliest first;
    ``outside`` (0-1) is the probability of all first tokens that the backend could not see: 0 where it sees the
    whole vocabulary, else the true value of a choice may be larger by up to this much. ``tokens`` are counts by
    kind ("input", "output"). ``seconds`` are those of all ``attempts``, ``batch`` is the provider's that it came with.
    ``value`` is what the benchmark reads in it (:meth:`Benchmark.parse`), a JSON value.
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
    """The evaluator cannot answer anything any more (key rejected, model unknown, endpoint down): one line why."""


class JudgeOnHold(JudgeUnusable):
    """The same for this run: its money is used up, and a later one goes on."""
