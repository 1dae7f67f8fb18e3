"""The contract of a prompt rewriter: the language model, the messages to it, and the parsing of its reply.

A rewriter is a class with a ``name`` in ``infer/custom_rewriters/<name>.py`` (``--prompt_rewriter <name>``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any, ClassVar

from imageevalkit.assets import FileAsset, PromptsAsset, RewriterFiles
from imageevalkit.benchmark.answerer import digest
from imageevalkit.benchmark.question import Message, Question, Sampling
from imageevalkit.benchmark.thoughts import answer_in
from imageevalkit.judges.choice import ChatSettings
from imageevalkit.store.cell import Cell
from imageevalkit.store.items import Item

_HASH_DIGITS = 8


class NotRewritten(Exception):
    """The prompt stays as it is. The text of the exception is the reason."""


@dataclass(frozen=True)
class RewriterSettings(ChatSettings):
    """The settings of a rewriter. ``model`` is a language model's id; empty: the rewriter's default."""

    model: str = ""

    @property
    def of_chat(self) -> dict[str, Any]:
        """The settings of the requests to the model."""
        return {each.name: getattr(self, each.name) for each in fields(ChatSettings)}


class Rewriter(ABC):
    """The base class of prompt rewriters. The engine asks, caches and handles failures.

    ``assets`` are official texts that prefetch downloads; :attr:`texts` has them by key. ``sampling`` has the
    sampling parameters of a reply. ``judged``: the judge, too, gets the rewritten prompts.
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
        """Returns the messages that ask for a new version of ``text``, one of the texts of ``item``.

        ``raw`` is the cell of the same model and benchmark without rewriting. Raises NotRewritten if ``text``
        stays as it is, CellFailure if the rewriter cannot rewrite such prompts.
        """

    def check(self, raw: Cell, limit: int | None) -> None:  # noqa: B027  # most need nothing
        """Raises CellFailure if an input of the rewriter is missing. Called before any request."""

    def basis(self, raw: Cell) -> str:
        """Returns the rewriter's inputs besides the prompts, in words for the cell's outcome; "" if none."""
        return ""

    @property
    def words(self) -> Mapping[str, str]:
        """The rewriter's own texts in its messages. They are part of :attr:`id`."""
        return {}

    def prompt_in(self, reply: str) -> str:
        """Returns the new prompt: the ``reply`` without thoughts. Raises NotRewritten if there is none."""
        text = answer_in(reply)
        if text is None:
            raise NotRewritten("the reply holds thoughts and no prompt")
        text = text.strip()
        # removes half of a surrogate pair (a cut emoji): tokenizers fail on it
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "ignore")
        if not text:
            raise NotRewritten("the reply is empty")
        return text

    @classmethod
    def files(cls) -> RewriterFiles:
        """Returns the rewriter's files, which prefetch downloads."""
        return RewriterFiles(cls.name, cls.assets)

    @cached_property
    def texts(self) -> Mapping[str, str]:
        """The verified official texts by key. Raises CellFailure if a text is missing or wrong."""
        return self.files().prompts()

    @property
    def model_id(self) -> str:
        """The id of the language model."""
        return self.settings.model or self.model

    @cached_property
    def id(self) -> str:
        """The name with a hash of the texts, the model and the sampling, such as ``dtm-1a2b3c4d``."""
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
        """Returns the question with ``messages``. Its name is a hash: equal questions share one reply."""
        name = digest([self.id, [[message.role, message.parts] for message in messages]])
        return Question(name, tuple(messages), self.sampling)
