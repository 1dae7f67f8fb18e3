"""The kwargs of a judge behind an API, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from imageevalkit.api.positive import positive
from imageevalkit.api.prices import Price, price_of
from imageevalkit.api.retry import RetryPolicy
from imageevalkit.errors import UserError, suggest

_NOT_PARAMETERS = {
    "model": "the judge is chosen by its name",
    "messages": "the questions come from the benchmark",
    "n": "every question has one reply",
    "stream": "streamed replies are not read",
    "logprobs": "the questions decide it",
    "top_logprobs": "give it beside extra_body, not in it",
}
_MAX_TOKENS = ("max_tokens", "max_completion_tokens")


@dataclass(frozen=True)
class ApiSettings:
    """``timeout`` (seconds) bounds one request, ``max_outage`` (seconds) how long the endpoint may be down.

    ``base_url`` and ``api_key_env`` name another endpoint than the environment does. ``max_tokens_parameter``
    is the name that the endpoint has for the length of a reply; ``extra_body`` are request parameters over
    those of the benchmark, None taking one back. ``price`` is None where it is not known.
    """

    base_url: str = ""
    api_key_env: str = ""
    timeout: float = 300.0
    max_attempts: int = 6
    max_elapsed: float = 600.0
    backoff: float = 2.0
    max_outage: float = 1800.0
    top_logprobs: int = 20
    max_tokens_parameter: str = _MAX_TOKENS[0]
    price: Price | None = None
    extra_body: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, model_id: str, kwargs: Mapping[str, Any]) -> ApiSettings:
        """Those that ``kwargs`` give, the others at their defaults; the price from the table if there is one.

        Raises:
            UserError: an unknown name or a malformed value.
        """
        known = [each.name for each in fields(cls)]
        for name in kwargs:
            if name not in known:
                raise UserError(
                    f"the judge takes no '{name}'{suggest(name, known)}; known: {', '.join(known)} "
                    "(request parameters go into extra_body)"
                )
        for name in ("timeout", "max_elapsed", "backoff", "max_outage"):
            if name in kwargs:
                positive(name, kwargs[name])
        for name in ("max_attempts", "top_logprobs"):
            if name in kwargs:
                positive(name, kwargs[name], whole=True)
        extra_body = kwargs.get("extra_body") or {}
        if not isinstance(extra_body, Mapping):
            raise UserError(f"extra_body must be an object of request parameters, not {extra_body!r}")
        for name in extra_body.keys() & _NOT_PARAMETERS.keys():
            raise UserError(f"extra_body: '{name}' cannot be given: {_NOT_PARAMETERS[name]}")
        if kwargs.get("max_tokens_parameter", _MAX_TOKENS[0]) not in _MAX_TOKENS:
            raise UserError(
                f"max_tokens_parameter must be {' or '.join(_MAX_TOKENS)}, not {kwargs['max_tokens_parameter']!r}"
            )
        price = price_of(model_id, kwargs.get("price"), makes="text_output")
        return cls(**{**kwargs, "extra_body": dict(extra_body), "price": price})

    @property
    def policy(self) -> RetryPolicy:
        """How often and how long one question is asked again."""
        return RetryPolicy(self.max_attempts, self.max_elapsed, self.backoff)
