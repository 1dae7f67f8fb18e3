"""The user's choice of a judge, its settings, the options of its evaluate job, and its name for scores.

Planning checks the types of settings (:mod:`imageevalkit.plan.config`). The settings check the rest when
they are created (UserError).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import PurePath
from typing import Any, Literal, NamedTuple

from imageevalkit.api.prices import Price, price_of
from imageevalkit.api.settings import RequestSettings, check_numbers
from imageevalkit.assets.weights import WeightsUser
from imageevalkit.benchmark.answerer import Answerer, digest, without_packages
from imageevalkit.benchmark.question import TRANSFORMERS, PixelRule
from imageevalkit.common.errors import UserError
from imageevalkit.store.jsonl import Int, Number
from imageevalkit.store.results import Evaluator

BACKENDS = ("openai", "transformers", "vllm")
"""The backends of a judge: an API, this process, or a server that a job of the run starts."""


class JudgeSetting(NamedTuple):
    """``model_path`` is an API's model id, a hub id or a local folder. ``kwargs`` are for the backend.

    ``code`` is ``module:Class``, a subclass of :class:`Judge` that replaces the backend's class (empty:
    none). It runs in the environment of the evaluate job.
    """

    backend: str
    model_path: str
    kwargs: Mapping[str, Any] = {}
    code: str = ""


class JudgeChoice(NamedTuple):
    """A judge chosen by the user. ``name`` is a name of the registry, a model id or a path, as written."""

    name: str
    setting: JudgeSetting

    @property
    def full_name(self) -> str:
        """Backend and name, the same for every spelling: ``transformers:qwen3-vl-8b``."""
        return f"{self.setting.backend}:{self.name}"


def is_judge(full_name: str) -> bool:
    """Returns whether ``full_name`` is the full name of a judge and not of another evaluator (OCR)."""
    return full_name.partition(":")[0] in BACKENDS


@dataclass(frozen=True)
class JudgeOptions:
    """The launcher's options for the judge of an evaluate job. The defaults apply to a manual start.

    The options contain no secret. ``kwargs`` are the user's. ``workers`` and ``requests_per_minute`` limit
    requests to an API, ``max_cost`` (USD) limits their cost. All processes with the same folder ``shared``
    share these limits (empty: this process only). ``address_file`` is the file of ``server.py`` (empty: no
    job serves the judge). ``served`` holds the server settings that affect answers. ``sender`` is the extra
    that sends the requests, with its state in ``sender_folder`` (empty: requests are sent one by one).
    """

    kwargs: Mapping[str, Any] = field(default_factory=dict)
    workers: Int = 4
    requests_per_minute: Number | None = None
    address_file: str = ""
    served: Mapping[str, str] = field(default_factory=dict)
    max_cost: Number | None = None
    shared: str = ""
    sender: str = ""
    sender_folder: str = ""


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
    """Request settings of a chat model. ``max_tokens_parameter`` names the reply length in a request.

    Raises UserError: a setting is malformed, or ``extra_body`` has a parameter that users cannot set.
    """

    max_tokens_parameter: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.extra_body.keys() & _NOT_PARAMETERS.keys():
            raise UserError(f"extra_body: '{name}' cannot be given: {_NOT_PARAMETERS[name]}")
        self.price_of("")

    def price_of(self, model_id: str) -> Price | None:
        """Returns the price of ``model_id``: the user's, else the price table's, else None."""
        return price_of(model_id, self.price, makes="text_output")


@dataclass(frozen=True)
class ApiSettings(ChatSettings):
    """``top_logprobs``: the number of likeliest tokens to request. Raises as :class:`ChatSettings`."""

    top_logprobs: int = 20


@dataclass(frozen=True)
class TransformersSettings:
    """Settings of a judge that transformers runs. Raises UserError: a number is malformed.

    ``revision``: branch, tag or commit of a hub repository. ``dtype``: "auto" is the checkpoint's own.
    ``device_map``: a torch device, or accelerate's way to use several GPUs ("auto"); None takes all GPUs,
    else mps, else the CPU. ``attn_implementation``: transformers' name ("sdpa", "eager",
    "flash_attention_2"); None is transformers' choice. ``min_pixels`` and ``max_pixels`` bound width × height
    of a resized image. ``batch_size``: the most questions in one forward pass. The job gets ``gpus`` (None:
    one if there is one) and ``environment`` (as in EVAL_ENV_MAP).
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
        """The settings that may change scores beyond the last bits, without those left to the checkpoint."""
        names = ("dtype", "attn_implementation", "min_pixels", "max_pixels")
        return {name: value for name, value in asdict(self).items() if name in names and value is not None}


WEIGHTS_USER = WeightsUser(
    "judge", "it needs an environment made by bash utils/make_env.sh --judge transformers"
)


class Judge(Answerer):
    """The judge ``choice`` with ``options`` of this job. ``prompts`` are its prompt templates by name.

    ``official``: full names of the judges that the official evaluator uses. ``pixels``: the rule for
    pictures.
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
        self.kwargs = {**choice.setting.kwargs, **options.kwargs}  # the user's kwargs replace the registry's
        self._prompts = dict(prompts)
        self._official = official
        self._pixels = pixels or TRANSFORMERS

    @property
    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """Everything that affects its answers, as JSON values. Raises CellFailure: the model is missing."""

    @property
    def host(self) -> str:
        """The host name of the judge's server; empty if the judge runs on the machines of the run."""
        return ""

    def ready(self) -> None:
        """Waits until the judge can answer; it may have to start. Raises JudgeUnusable: it never will."""

    @property
    def label(self) -> str:
        """Judge and backend. A local folder is shortened to its last part: its location does not matter."""
        name = self.choice.name
        short = PurePath(name).name if name.startswith(("/", ".", "~")) else name
        return f"{short}/{self.backend}"

    @cached_property
    def evaluator(self) -> Evaluator:
        """The judge's name: label plus a hash of prompts, weights, settings and pixels; and its details.

        Package versions are part of the details and of each request's hash, but not of the name. A server
        decodes the bytes it gets by its own rules; the bytes are part of the request's hash.
        """
        pixels = {"pixels": self._pixels.name} if self.backend == "transformers" else {}
        details = self.identity | pixels
        # the same judge without the user's settings
        plain = type(self)(self.choice, JudgeOptions(), self._prompts)
        changed = self.options.kwargs or self.options.served
        return Evaluator(
            id=f"{self.label}/{digest([self._prompts, without_packages(details)])[:8]}",
            official=self.choice.full_name in self._official
            and not (changed and self.identity != plain.identity),
            details={"judge": details, "prompts_sha256": digest(self._prompts)},
        )
