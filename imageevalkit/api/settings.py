"""The user's settings for requests to an endpoint, for image models and judges."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from imageevalkit.api.failures import LONGEST_WAIT
from imageevalkit.common.errors import UserError

_LONGEST_BACKOFF = 60.0
_MOST_DOUBLINGS = 16
# A separate generator: else a model's random numbers would depend on the number of failed requests.
_jitter = random.Random()


def positive(name: str, value: Any, whole: bool = False) -> float:
    """Returns ``value`` of the setting ``name``. Raises UserError: not a finite (``whole``) number > 0."""
    kinds = (int,) if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not 0 < value < float("inf"):
        raise UserError(f"{name} must be a positive {'whole ' * whole}number, not {value!r}")
    return value


def check_numbers(settings: Any) -> None:
    """Checks the numbers in a settings dataclass. Raises UserError: one is not > 0 (``gpus``: < 0)."""
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
    """Settings of a model or judge behind an API. Raises UserError: a value is malformed.

    Times are in seconds. ``timeout`` bounds one request including its reply; ``max_outage`` bounds an outage
    of the endpoint. ``max_elapsed`` and ``max_attempts`` bound the requests of one item, with the waits
    between them. Rate limits of the account, failures during an outage and waits for a slot do not count.
    ``backoff`` is the longest first wait. ``base_url`` and ``api_key_env`` replace the environment's endpoint
    and key. ``price``: see :mod:`imageevalkit.api.prices`. ``extra_body`` holds request parameters; None
    removes a parameter. ``azure_endpoint``, ``azure_deployment`` (None: the model's name) and ``api_version``
    are for Azure OpenAI.
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

    def __post_init__(self) -> None:
        check_numbers(self)
        if not isinstance(self.extra_body, Mapping):
            raise UserError(f"extra_body must be an object of request parameters, not {self.extra_body!r}")

    def delay(self, failures: int, asked: float | None, limited: bool = False) -> float:
        """Returns the seconds to wait after ``failures`` failures: ``asked`` (capped) plus a random time.

        The random time has full jitter: it is uniform in [0, min(cap, backoff · 2^(failures-1))]
        (https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/). If ``limited`` (429) and
        the server asked for a wait, it is at most 0.1 s: the limiter spreads these requests.
        """
        ceiling = min(_LONGEST_BACKOFF, self.backoff * 2 ** min(max(failures, 1) - 1, _MOST_DOUBLINGS))
        if limited and asked:
            ceiling = 0.1 * min(asked, 1.0)
        return min(asked or 0.0, LONGEST_WAIT) + _jitter.uniform(0.0, ceiling)
