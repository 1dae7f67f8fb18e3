"""A judge: which one a user means, what may be set of it, what an evaluate job is told about it, and the name under
which it gives scores.

Types of settings are checked at planning (:mod:`imageevalkit.launch.config`), the rest when they are made (UserError).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import PurePath
from typing import Any, Literal, NamedTuple

from imageevalkit.assets.weights import WeightsUser
from imageevalkit.benchmark.answerer import Answerer, digest, without_packages
from imageevalkit.benchmark.question import TRANSFORMERS, PixelRule
from imageevalkit.cell.results import Evaluator
from imageevalkit.errors import UserError
from imageevalkit.requests.prices import Price, price_of
from imageevalkit.requests.settings import RequestSettings, check_numbers

BACKENDS = ("openai", "transformers", "vllm")
"""What runs a judge: an API, this process, or a server that a job of the run starts."""


class JudgeSetting(NamedTuple):
    """``model_path`` is the id an API knows, a hub id, or a local folder; ``kwargs`` are the backend's."""

    backend: str
    model_path: str
    kwargs: Mapping[str, Any] = {}


class JudgeChoice(NamedTuple):
    """A judge as a user chose it: ``name`` (of the registry, or a model id or path, as written) and its setting."""

    name: str
    setting: JudgeSetting

    @property
    def full_name(self) -> str:
        """The same however it was written: ``transformers:qwen3-vl-8b``."""
        return f"{self.setting.backend}:{self.name}"


def is_judge(full_name: str) -> bool:
    """Whether that is the full name of a judge, and of no other evaluator (a text reader)."""
    return full_name.partition(":")[0] in BACKENDS


@dataclass(frozen=True)
class JudgeOptions:
    """What the launcher decided about the judge of an evaluate job; the defaults where one is run by hand. No secret.

    ``kwargs`` are the user's. ``workers`` and ``requests_per_minute`` bound requests to an API, ``max_cost`` (USD) what
    they cost, with all processes that are given the same folder ``shared`` (empty: this one alone). ``address_file``
    is that of ``server.py`` (empty: no job serves the judge), ``served`` what decides the answers of such a server.
    ``batch``: requests go as batches, on record in the file ``batches`` (empty: nowhere, and none can). ``keeps``: a
    judge that runs in the process itself stays in memory for the next cell.
    """

    kwargs: Mapping[str, Any] = field(default_factory=dict)
    workers: int = 4
    requests_per_minute: float | None = None
    address_file: str = ""
    served: Mapping[str, str] = field(default_factory=dict)
    max_cost: float | None = None
    shared: str = ""
    batch: bool = False
    batches: str = ""
    keeps: bool = False


_NOT_PARAMETERS = {
    "model": "it is chosen by its name",
    "messages": "what is asked is no setting",
    "n": "every question has one reply",
    "stream": "streamed replies are not read",
    "logprobs": "the questions decide it",
    "top_logprobs": "give it beside extra_body, not in it",
}


@dataclass(frozen=True)
class ChatSettings(RequestSettings):
    """``max_tokens_parameter``: the endpoint's name for a reply's length.

    Raises UserError also for a request parameter that is not the user's, and a malformed price.
    """

    max_tokens_parameter: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.extra_body.keys() & _NOT_PARAMETERS.keys():
            raise UserError(f"extra_body: '{name}' cannot be given: {_NOT_PARAMETERS[name]}")
        self.price_of("")

    def price_of(self, model_id: str) -> Price | None:
        """What the replies of ``model_id`` cost: the user's word, else the table's; None where neither knows."""
        return price_of(model_id, self.price, makes="text_output")


@dataclass(frozen=True)
class ApiSettings(ChatSettings):
    """``top_logprobs``: how many of the likeliest tokens the endpoint lists. Raises as :class:`ChatSettings`."""

    top_logprobs: int = 20


@dataclass(frozen=True)
class TransformersSettings:
    """``revision``: branch, tag or commit of a hub repository. ``dtype``: "auto" is the checkpoint's own.

    ``device_map``: a torch device, or one of accelerate's ways over several GPUs ("auto"); None takes all GPUs
    there are, else mps, else the CPU. ``attn_implementation``: as transformers names it ("sdpa", "eager",
    "flash_attention_2"); None is transformers' choice. ``min_pixels`` and ``max_pixels`` bound width × height
    to which an image is resized. ``batch_size``: the most questions in one forward pass. ``gpus`` (None: one, where
    there is one) and ``environment`` (as in EVAL_ENV_MAP) are those of the job.
    """

    revision: str | None = None
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    device_map: str | None = None
    attn_implementation: str | None = None
    min_pixels: int | None = None
    max_pixels: int | None = None
    batch_size: int = 16
    gpus: int | None = None
    environment: str | None = None

    def __post_init__(self) -> None:
        check_numbers(self)

    @property
    def identity(self) -> dict[str, Any]:
        """The settings that may move a score by more than last bits, those left to the checkpoint omitted."""
        names = ("dtype", "attn_implementation", "min_pixels", "max_pixels")
        return {name: value for name, value in asdict(self).items() if name in names and value is not None}


WEIGHTS_USER = WeightsUser(
    "judge", "it needs an environment made by bash utils/make_env.sh --judge transformers"
)


class Judge(Answerer):
    """The judge ``choice``, asked in the words of ``prompts`` (templates by name), with ``options`` of this job.

    ``official`` are the judges, by full name, that the official evaluator uses; ``pixels`` those of its pictures.
    """

    def __init__(
        self,
        choice: JudgeChoice,
        options: JudgeOptions,
        prompts: Mapping[str, str],
        official: Collection[str] = (),
        pixels: PixelRule | None = None,
    ) -> None:
        self.choice = choice
        self.options = options
        self.backend = choice.setting.backend
        self.kwargs = {**choice.setting.kwargs, **options.kwargs}  # the user's over those of the registry
        self._prompts = dict(prompts)
        self._official = official
        self._pixels = pixels or TRANSFORMERS

    @property
    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """All that decides what it answers, as JSON values. Raises CellFailure: the model is not there."""

    @property
    def host(self) -> str:
        """Whose machines it runs on, by name; empty: they are those of the run."""
        return ""

    def ready(self) -> None:
        """Wait until it can be asked, as long as its start may take. Raises JudgeUnusable: it never will."""

    @property
    def label(self) -> str:
        """Judge and backend; a local folder is named by its last part: where it lies says nothing."""
        name = self.choice.name
        short = PurePath(name).name if name.startswith(("/", ".", "~")) else name
        return f"{short}/{self.backend}"

    @cached_property
    def evaluator(self) -> Evaluator:
        """Named by the judge, what runs it, and a hash of the prompts, the weights, the settings and the pixels.

        Versions of packages are among its details and part of every request's hash, but not of its name. What pixels
        a server makes of the bytes it is sent is its own business; the bytes are part of the request's hash.
        """
        pixels = {"pixels": self._pixels.name} if self.backend == "transformers" else {}
        details = self.identity | pixels
        # what it is without the user's settings
        plain = type(self)(self.choice, JudgeOptions(), self._prompts)
        changed = self.options.kwargs or self.options.served
        return Evaluator(
            id=f"{self.label}/{digest([self._prompts, without_packages(details)])[:8]}",
            official=self.choice.full_name in self._official
            and not (changed and self.identity != plain.identity),
            details={"judge": details, "prompts_sha256": digest(self._prompts)},
        )
