"""What a user may set of a judge that is asked through an API, and of one that runs in transformers.

Types are checked at planning (:mod:`imageevalkit.launch.kwargs`), the rest whenever settings are made: UserError.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from imageevalkit.api.clients import RetryPolicy
from imageevalkit.api.money import Price, positive, price_of
from imageevalkit.errors import UserError

_NOT_PARAMETERS = {
    "model": "the judge is chosen by its name",
    "messages": "the questions come from the benchmark",
    "n": "every question has one reply",
    "stream": "streamed replies are not read",
    "logprobs": "the questions decide it",
    "top_logprobs": "give it beside extra_body, not in it",
}


@dataclass(frozen=True)
class ApiSettings:
    """``timeout`` (seconds) bounds one request, ``max_outage`` (seconds) how long the endpoint may be down.

    ``base_url`` and ``api_key_env`` name another endpoint than the environment does. ``max_tokens_parameter``
    is the name that the endpoint has for the length of a reply; ``extra_body`` are request parameters over
    those of the benchmark, None taking one back. ``price`` is the user's word (see :mod:`imageevalkit.api.money`).
    """

    base_url: str = ""
    api_key_env: str = ""
    timeout: float = 300.0
    max_attempts: int = 6
    max_elapsed: float = 600.0
    backoff: float = 2.0
    max_outage: float = 1800.0
    top_logprobs: int = 20
    max_tokens_parameter: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    price: Any = None
    extra_body: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_numbers(self)
        for name in self.extra_body.keys() & _NOT_PARAMETERS.keys():
            raise UserError(f"extra_body: '{name}' cannot be given: {_NOT_PARAMETERS[name]}")
        self.price_of("")

    @property
    def policy(self) -> RetryPolicy:
        """How often and how long one question is asked again."""
        return RetryPolicy(self.max_attempts, self.max_elapsed, self.backoff)

    def price_of(self, model_id: str) -> Price | None:
        """What the replies of ``model_id`` cost: the user's word, else the table's; None where neither knows."""
        return price_of(model_id, self.price, makes="text_output")


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


def check_numbers(settings: Any) -> None:
    """Raises UserError: one of the numbers in a dataclass of settings is not above 0, or ``gpus`` is below."""
    for each in fields(settings):
        value, kind = getattr(settings, each.name), str(each.type).removesuffix(" | None")
        if value is None or kind not in ("int", "float"):
            continue
        if each.name != "gpus":
            positive(each.name, value, whole=kind == "int")
        elif value < 0:
            raise UserError(f"gpus must be a whole number from 0, not {value}")
