"""What a user may set of a judge that is asked through an API, and of one that runs in transformers.

Types are checked at planning (:mod:`imageevalkit.launch.kwargs`), the rest whenever settings are made: UserError.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from imageevalkit.api.engine import RequestSettings
from imageevalkit.api.money import Price, check_numbers, price_of
from imageevalkit.errors import UserError

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
