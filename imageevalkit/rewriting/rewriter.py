"""What a rewriter of prompts is: whom it asks, with which words, and what is read in the reply.

One is a class with a ``name`` in ``infer/custom_rewriters/<name>.py``, found there (``--prompt_rewriter <name>``).
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any, ClassVar

from imageevalkit.assets import FileAsset, PromptsAsset, RewriterFiles
from imageevalkit.benchmark.answerer import digest
from imageevalkit.benchmark.question import Message, Question, Sampling
from imageevalkit.cell import Cell
from imageevalkit.cell.items import Item
from imageevalkit.judges.settings import ChatSettings
from imageevalkit.secrets import one_line

_HASH_DIGITS = 8
_THOUGHT = re.compile(r"\s*<think>.*?</think>", re.DOTALL)
# models that will not rewrite a prompt say so in words, which must not become the prompt of an image
_REFUSAL = re.compile(
    r"(i['’]m|i am) (\w+ )?(sorry|unable)\b|sorry,|i (can['’]t|cannot|can not|won['’]t)\b"
    r"|(很|非常)?抱歉|对不起|我(无法|不能)",
    re.IGNORECASE,
)


class NotRewritten(Exception):
    """The prompt stays as it is; the text says why."""


@dataclass(frozen=True)
class RewriterSettings(ChatSettings):
    """``model``: the id of the language model; empty: the rewriter's own default. Raises as ChatSettings."""

    model: str = ""

    @property
    def of_chat(self) -> dict[str, Any]:
        """Those of the requests to the model."""
        return {each.name: getattr(self, each.name) for each in fields(ChatSettings)}


class Rewriter(ABC):
    """Says how prompts are rewritten; asking, caching and failures are the engine's.

    ``assets`` are official texts, which prefetch gets; :attr:`texts` has them by their keys. ``sampling`` is how a
    reply is drawn.
    """

    name: ClassVar[str]
    model: ClassVar[str] = "gpt-4o"
    sampling: ClassVar[Sampling] = Sampling(max_tokens=500, temperature=None)
    assets: ClassVar[Sequence[FileAsset | PromptsAsset]] = ()
    settings_class: ClassVar[type[RewriterSettings]] = RewriterSettings

    def __init__(self, settings: RewriterSettings | None = None) -> None:
        self.settings = settings or self.settings_class()

    @abstractmethod
    def messages(self, item: Item, text: str, raw: Cell, task: str) -> Sequence[Message]:
        """What is asked about ``text``, one of those of ``item``; ``raw`` is the cell of the model's own prompts.

        Raises NotRewritten: there is nothing to ask; CellFailure: these are no prompts that it can rewrite.
        """

    def check(self, raw: Cell) -> None:  # noqa: B027  # most need nothing
        """Whether what it goes by is there, told before anything starts. Raises CellFailure."""

    @property
    def words(self) -> Mapping[str, str]:
        """The texts of its own that it asks with."""
        return {}

    def prompt_in(self, reply: str) -> str:
        """The new prompt: the whole ``reply`` but for thoughts before it. Raises NotRewritten: there is none in it."""
        text = _THOUGHT.sub("", reply, count=1).strip()
        # half an emoji, which tokenizers do not take
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "ignore")
        if not text:
            raise NotRewritten("the reply is empty")
        if _REFUSAL.match(text):
            raise NotRewritten(f"the reply refuses: {one_line(text, 100)}")
        return text

    @classmethod
    def files(cls) -> RewriterFiles:
        """What prefetch gets for it."""
        return RewriterFiles(cls.name, cls.assets)

    @cached_property
    def texts(self) -> Mapping[str, str]:
        """The official texts by key, each verified. Raises CellFailure: they are not there."""
        return self.files().prompts()

    @property
    def model_id(self) -> str:
        """The language model that is asked."""
        return self.settings.model or self.model

    @cached_property
    def id(self) -> str:
        """``dtm-1a2b3c4d``: its name, and a hash of all that decides what is asked: words, model, sampling."""
        pinned: dict[str, str] = {}
        for asset in self.assets:
            pinned |= asset.texts if isinstance(asset, PromptsAsset) else {asset.path: asset.digest}
        decides = {
            "model": self.model_id,
            "texts": pinned,
            "words": dict(self.words),
            "sampling": asdict(self.sampling),
            "extra_body": dict(self.settings.extra_body),
        }
        return f"{self.name}-{digest(decides)[:_HASH_DIGITS]}"

    def question(self, messages: Sequence[Message]) -> Question:
        """What is sent, named by its hash: what is asked about two items alike has one reply."""
        name = digest([self.id, [[message.role, message.parts] for message in messages]])
        return Question(name, tuple(messages), self.sampling)
