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
from imageevalkit.benchmark.thoughts import answer_in
from imageevalkit.cell import Cell
from imageevalkit.cell.items import Item
from imageevalkit.judges.choice import ChatSettings
from imageevalkit.secrets import one_line

_HASH_DIGITS = 8
# Models that will not rewrite a prompt say so in words, which must not become the prompt of an image. A prompt may
# begin alike ("Sorry, no vacancy: a neon sign"), so that there must also be what they will not do.
_NOT = r"""(?:can['’]?t|can\ ?not|could\ not|couldn['’]t|won['’]t|will\ not|unable\ to
    |not\ (?:be\ )?(?:able|allowed|permitted|comfortable)(?:\ to)?)"""
_OPENING = re.compile(
    rf"""[\W_]*(?:
    (?:(?:i|we)(?:['’](?:m|re)|\ am|\ are)?(?:\ \w+)?\ )?(?:sorry|afraid)\b
    |(?:i|we)(?:['’](?:m|re|ll)|\ am|\ are)?(?:\ \w+)?\ (?:{_NOT}|must|have\ to|apologi[sz]e)\b
    |(?:my\ |our\ )?(?:\w+\ )?apologies|unfortunately|regrettably
    |as\ an?\ (?:ai|artificial\ intelligence|(?:large\ )?language\ model)\b
    |(?:很|非常|十分|真的)?(?:抱歉|对不起|不好意思|遗憾)|我(?:无法|不能|不会|没办法)
    |作为(?:一个|一名|一款)?(?:AI|人工智能|语言模型|大语言模型)
    |(?:大変|誠に)?申し訳|ごめん|すみません|恐れ入りますが|残念ながら)""",
    re.IGNORECASE | re.VERBOSE,
)
_REFUSED = re.compile(
    rf"""{_NOT}(?:\s+[\w'’]+){{0,3}}?\s+(?:help(?!\ but|\ \w+ing)|assist|aid|rewrit|rephras|reword|revis|modify
        |compl[yie]|creat|generat|produc|provid|fulfil|support|proceed|process|respond|accommodat
        |(?:do|discuss|engage\ in|continue\ with)\ (?:that|this|it|so)\b)
    |{_NOT}[\s.!]*$|(?:must|have\ to)(?:\ \w+)?\ (?:decline|refuse)|your\ request
    |as\ an\ ai\ (?:language\ )?(?:model|assistant)|sorry,?\ but\ i\b|apologi(?:[sz]e|es),?\ but
    |(?:violat|against)\w*(?:\ \w+){{0,4}}\ (?:polic|guideline|rule)
    |(?:无法|不能|不会|没办法|不便|拒绝).{{0,12}}?(?:帮|协助|提供|改写|重写|生成|创建|创作|满足|完成|处理|回答|执行|做|配合|支持)
    |(?:无法|不能|没办法)[\s。！]*$|(?:抱歉|对不起|遗憾|sorry|apologi[sz]e|apologies|ごめんなさい)[\s.。！!]*$
    |ません|かね(?:ます|る)|できない""",
    re.IGNORECASE | re.VERBOSE,
)
_REFUSES_WITHIN = 300  # characters


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
    reply is drawn. ``judged``: the judge reads the rewritten prompts, too, in place of the benchmark's own.
    """

    name: ClassVar[str]
    model: ClassVar[str] = "gpt-4o"
    sampling: ClassVar[Sampling] = Sampling(max_tokens=500, temperature=None)
    assets: ClassVar[Sequence[FileAsset | PromptsAsset]] = ()
    judged: ClassVar[bool] = False
    settings_class: ClassVar[type[RewriterSettings]] = RewriterSettings

    def __init__(self, settings: RewriterSettings | None = None) -> None:
        self.settings = settings or self.settings_class()

    @abstractmethod
    def messages(self, item: Item, text: str, raw: Cell, task: str) -> Sequence[Message]:
        """What is asked about ``text``, one of those of ``item``; ``raw`` is the cell of the model's own prompts.

        Raises NotRewritten: there is nothing to ask; CellFailure: these are no prompts that it can rewrite.
        """

    def check(self, raw: Cell, limit: int | None) -> None:  # noqa: B027  # most need nothing
        """Whether what it goes by is there, told before anything starts; ``limit`` is the run's. Raises CellFailure."""

    def basis(self, raw: Cell) -> str:
        """What it goes by, in words for the cell's line; empty: nothing but the prompts."""
        return ""

    @property
    def words(self) -> Mapping[str, str]:
        """The texts of its own that it asks with."""
        return {}

    def prompt_in(self, reply: str) -> str:
        """The new prompt: the whole ``reply`` but for thoughts before it. Raises NotRewritten: there is none in it."""
        text = answer_in(reply)
        if text is None:
            raise NotRewritten("the reply holds thoughts and no prompt")
        text = text.strip()
        # half an emoji, which tokenizers do not take
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "ignore")
        if not text:
            raise NotRewritten("the reply is empty")
        if _OPENING.match(text) and _REFUSED.search(text[:_REFUSES_WITHIN]):
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
