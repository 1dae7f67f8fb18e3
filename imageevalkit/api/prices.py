"""What API images and judges cost: list prices (``infer/custom_models/prices.json``), local ones, and the user's word.

Which of them counts for one reply, first that is known:

1. the user's ``price`` (a model kwarg): it is a contract we cannot see;
2. the cost that the gateway reports with the reply: it is who sends the bill;
3. ``prices.local.json``, then ``prices.json``.

What none of them knows is unknown (None), never 0.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from imageevalkit.api.usage import Tokens, billed_tokens
from imageevalkit.errors import UserError

PRICES = Path(__file__).resolve().parents[2] / "infer" / "custom_models" / "prices.json"
LOCAL_PRICES = PRICES.with_name("prices.local.json")

KINDS = (
    "text_input",
    "cached_text_input",
    "image_input",
    "cached_image_input",
    "text_output",
    "image_output",
)
# A snapshot of a listed model costs what the model costs: "-2025-12-16", "-12-2025", "-20251216", "-251128".
_SNAPSHOT = re.compile(
    r"-(20\d\d-(0[1-9]|1[0-2])-\d\d|(0[1-9]|1[0-2])-20\d\d|(20)?\d\d(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01]))$"
)
_DEFAULT = "default"
_EXAMPLES = 'price=0.04 (USD per image) or price={"text_input":5,"image_output":40} (USD per 1M tokens)'
_TEXT_EXAMPLE = 'price={"text_input":5,"text_output":15} (USD per 1M tokens)'


@dataclass(frozen=True)
class Price:
    """The price of one model in USD: ``rates`` per 1M tokens by kind (see ``KINDS``), or ``per_image``.

    ``estimates`` are USD of one 1024×1024 image by quality, for use before any reply is known. ``date`` is
    the day or month that the price is from, ``source`` its page; both are empty for a price of the user's.
    """

    rates: Mapping[str, float] = field(default_factory=dict)
    per_image: float | None = None
    estimates: Mapping[str, float] = field(default_factory=dict)
    source: str = ""
    date: str = ""

    @property
    def is_users(self) -> bool:
        """Whether the user gave it with the model."""
        return not self.source

    @property
    def basis(self) -> str:
        """Whose word it is, for a reader."""
        return (
            "the price given"
            if self.is_users
            else f"list prices{f' of {self.date[:7]}' if self.date else ''}"
        )

    def estimate(self, quality: Any = None) -> float | None:
        """USD of one image of that ``quality`` (a request parameter; None: not asked for), or None."""
        if self.per_image is not None:
            return self.per_image
        return self.estimates.get(str(quality), self.estimates.get(_DEFAULT))

    def cost(self, counts: Mapping[str, int]) -> float | None:
        """USD of one reply with these token counts (``usage``, nested names joined by dots), or None.

        A price per image needs no counts. A kind without a rate costs what the dearest kind of its side does.
        """
        if self.per_image is not None:
            return self.per_image
        tokens = billed_tokens(counts)
        return None if tokens is None else self._of(tokens)

    def _of(self, tokens: Tokens) -> float:
        output = max(self.rates.get("text_output", 0.0), self.rates.get("image_output", 0.0))
        inputs = max(self.rates.get("text_input", 0.0), self.rates.get("image_input", 0.0))
        text = self.rates.get("text_input", inputs)
        image = self.rates.get("image_input", inputs)
        parts = (
            (tokens.text_input, text),
            (tokens.image_input, image),
            (tokens.any_input, inputs),
            (tokens.cached_text_input, self.rates.get("cached_text_input", text)),
            (tokens.cached_image_input, self.rates.get("cached_image_input", image)),
            (tokens.text_output, self.rates.get("text_output", output)),
            (tokens.image_output, self.rates.get("image_output", output)),
        )
        return sum(count * rate for count, rate in parts) / 1e6


def cost_of_reply(price: Price | None, counts: Mapping[str, int], reported: float | None) -> float | None:
    """USD of one reply, in the order above; ``reported`` is the gateway's own (see ``usage.reported_cost``)."""
    if reported is not None and not (price and price.is_users):
        return reported
    return price.cost(counts) if price else None


def price_of(model_id: str, override: Any = None, makes: str = "image_output") -> Price | None:
    """The price of ``model_id``; ``override`` is the model's ``price`` kwarg, if the user gave one.

    ``makes`` is the kind of token that the model is asked for, whose rate an object of rates must have.

    A listed id is found as it is, as a dated snapshot of it, and behind the name of its own provider
    (``openai/gpt-image-1.5``): nothing else is near enough, a wrong price is worse than none.

    Raises:
        UserError: a malformed ``override`` or price file, on one line.
    """
    if override is not None:
        return _of_user(override, makes)
    listed = _listed(PRICES, LOCAL_PRICES)
    for whole in (model_id, _SNAPSHOT.sub("", model_id)):
        provider, slash, name = whole.partition("/")
        if whole in listed:
            return listed[whole].price
        if slash and name in listed and listed[name].provider == provider:
            return listed[name].price
    return None


def price_and_estimate(model_id: str, kwargs: Mapping[str, Any]) -> tuple[Price | None, float | None]:
    """The price of a model with these ``kwargs`` and the USD that one image of it may cost; None if not known.

    Raises:
        UserError: a malformed ``price`` among ``kwargs`` or price file.
    """
    parameters = {**kwargs, **(kwargs.get("extra_body") or {})}
    # the image tool of /responses is billed by its own model
    price = price_of(parameters.get("image_model") or model_id, kwargs.get("price"))
    return price, price.estimate(parameters.get("quality")) if price else None


class _Listed(NamedTuple):
    provider: str
    price: Price


def _of_user(given: Any, makes: str) -> Price:
    if makes == "text_output" and not isinstance(given, Mapping):
        raise UserError(f"price must be an object of rates, not {given!r}: give {_TEXT_EXAMPLE}")
    if _is_amount(given):
        return Price(per_image=float(given))
    if not isinstance(given, Mapping):
        raise UserError(f"price must be an amount or an object of rates, not {given!r}: give {_EXAMPLES}")
    rates = dict(given)
    estimate = rates.pop("estimate", None)
    _check_rates(rates, "price", makes)
    if estimate is not None and not _is_amount(estimate):
        raise UserError(f"price: estimate must be USD per image, not {estimate!r}")
    return Price(rates=rates, estimates={} if estimate is None else {_DEFAULT: float(estimate)})


@functools.cache
def _listed(table: Path, local: Path) -> dict[str, _Listed]:
    """The entries of both files by model id."""
    return {**_read(table), **(_read(local) if local.exists() else {})}


def _read(path: Path) -> dict[str, _Listed]:
    try:
        models = json.loads(path.read_text(encoding="utf-8"))["models"]
        entries = {name: _entry(name, entry, path) for name, entry in models.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path.name} is no price table ({error}): it needs the form of {PRICES.name}"
        ) from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    aliases = {alias: entries[name] for name in models for alias in models[name].get("aliases", [])}
    return {**aliases, **entries}


def _entry(name: str, entry: Mapping[str, Any], path: Path) -> _Listed:
    where = f"{path.name}: {name}"
    per_image, rates = entry.get("per_image"), entry.get("per_million_tokens")
    if (per_image is None) == (rates is None):
        raise UserError(f"{where}: needs either per_image or per_million_tokens")
    if rates is not None:
        # a model that answers in words has no rate for images
        _check_rates(rates, where, "text_output" if entry.get("makes") == "text" else "image_output")
    elif not _is_amount(per_image):
        raise UserError(f"{where}: per_image must be USD, not {per_image!r}")
    estimate = entry.get("image_estimate", {})
    estimates = estimate if isinstance(estimate, Mapping) else {_DEFAULT: estimate}
    if not all(map(_is_amount, estimates.values())):
        raise UserError(f"{where}: image_estimate must be USD, alone or by quality")
    price = Price(rates or {}, per_image, estimates, entry.get("source", path.name), entry.get("date", ""))
    return _Listed(entry.get("provider", ""), price)


def _check_rates(rates: Mapping[str, Any], where: str, makes: str) -> None:
    for kind, rate in rates.items():
        if kind not in KINDS:
            raise UserError(f"{where}: unknown kind of token '{kind}', known are {', '.join(KINDS)}")
        if not _is_amount(rate):
            raise UserError(f"{where}: {kind} must be USD per 1M tokens, not {rate!r}")
    if makes not in rates:
        raise UserError(f"{where}: {makes} is missing (USD per 1M tokens)")


def _is_amount(value: Any) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and value >= 0
