"""What a user may set of the requests to an endpoint, for image models and judges alike."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from imageevalkit.errors import UserError
from imageevalkit.requests.failures import LONGEST_WAIT

_LONGEST_BACKOFF = 60.0
_MOST_DOUBLINGS = 16
# its own generator: a model's seed must not depend on how often a server failed, nor the other way round
_jitter = random.Random()


def positive(name: str, value: Any, whole: bool = False) -> float:
    """``value`` of the setting ``name``. Raises UserError: it is no finite (``whole``) number above 0."""
    kinds = (int,) if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not 0 < value < float("inf"):
        raise UserError(f"{name} must be a positive {'whole ' * whole}number, not {value!r}")
    return value


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


@dataclass(frozen=True)
class RequestSettings:
    """What a user may set of a model or judge behind an API. Raises UserError for a malformed value.

    ``timeout`` (seconds) bounds one request, its reply included, ``max_outage`` (seconds) how long the endpoint may
    be down, ``max_elapsed`` (seconds) the requests of one item and the waits between; ``backoff`` (seconds) is the
    longest first wait. What says nothing about the item counts neither there nor as one of its ``max_attempts``:
    rate limits of the account, failures during an outage, waiting for a slot. ``base_url`` and ``api_key_env`` name
    another endpoint than the environment does. ``price`` is the user's word (see :mod:`imageevalkit.requests.prices`).
    ``extra_body``: request parameters, None taking one back. ``azure_endpoint``, ``azure_deployment`` (None: called as
    the model) and ``api_version`` are those of Azure OpenAI. ``client``: what sends the requests; None: as is best.
    """

    timeout: float = 300.0
    max_attempts: int = 6
    max_elapsed: float = 600.0
    backoff: float = 2.0
    max_outage: float = 1800.0
    base_url: str | None = None
    api_key_env: str | None = None
    price: Any = None
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    azure_endpoint: str | None = None
    azure_deployment: str | None = None
    api_version: str | None = None
    client: Literal["openai", "plain"] | None = None

    def __post_init__(self) -> None:
        check_numbers(self)
        if self.client not in (None, "openai", "plain"):
            raise UserError(f"client must be openai or plain, not {self.client!r}")
        if not isinstance(self.extra_body, Mapping):
            raise UserError(f"extra_body must be an object of request parameters, not {self.extra_body!r}")

    def delay(self, failures: int, asked: float | None, limited: bool = False) -> float:
        """Seconds to wait after that many failures (429s, where ``limited``): never less than ``asked`` (capped).

        Full jitter: uniform in [0, min(cap, backoff · 2^(failures-1))]
        (https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/); the limiter sees to it that those
        who were told when do not come back at once.
        """
        ceiling = min(_LONGEST_BACKOFF, self.backoff * 2 ** min(max(failures, 1) - 1, _MOST_DOUBLINGS))
        if limited and asked:
            ceiling = 0.1 * min(asked, 1.0)
        return min(asked or 0.0, LONGEST_WAIT) + _jitter.uniform(0.0, ceiling)
