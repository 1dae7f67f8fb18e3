"""Prices of models, and the cost of a reply."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from imageevalkit.api.endpoint import place_of
from imageevalkit.common.errors import UserError
from imageevalkit.common.network import is_on_this_machine

PRICES = Path(__file__).resolve().parents[2] / "infer" / "custom_models" / "prices.json"
LOCAL_PRICES = PRICES.with_name("prices.local.json")


class Tokens(NamedTuple):
    """Billed tokens of a reply. Cached tokens are separate; input of an unknown kind is ``any_input``."""

    text_input: int = 0
    image_input: int = 0
    any_input: int = 0
    cached_text_input: int = 0
    cached_image_input: int = 0
    text_output: int = 0
    image_output: int = 0


KINDS = tuple(kind for kind in Tokens._fields if kind != "any_input")
# Date suffixes: a snapshot has the price of its model. "-2025-12-16", "-12-2025", "-20251216", "-251128".
_SNAPSHOT = re.compile(
    r"-(20\d\d-(0[1-9]|1[0-2])-\d\d|(0[1-9]|1[0-2])-20\d\d|(20)?\d\d(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01]))$"
)
_DEFAULT = "default"
_TOO_MUCH = 1e15  # USD; a reply may contain a number with hundreds of digits
_EXAMPLES = 'price=0.04 (USD per image) or price={"text_input":5,"image_output":40} (USD per 1M tokens)'
_TEXT_EXAMPLE = 'price={"text_input":5,"text_output":15} (USD per 1M tokens)'


@dataclass(frozen=True)
class Price:
    """The price of one model in USD: ``rates`` per 1M tokens by kind (see ``KINDS``), or ``per_image``.

    ``estimates`` are USD for one 1024×1024 image by quality, used before the first reply. ``date`` is the day
    or month of the price, and ``source`` its web page. Both are empty for a price that the user gave.
    """

    rates: Mapping[str, float] = field(default_factory=dict)
    per_image: float | None = None
    estimates: Mapping[str, float] = field(default_factory=dict)
    source: str = ""
    date: str = ""
    provider: str = ""

    @property
    def is_users(self) -> bool:
        """True if the user gave the price with the model."""
        return not self.source

    @property
    def basis(self) -> str:
        """The origin of the price, for a message."""
        listed = f"list prices{f' of {self.date[:7]}' if self.date else ''}"
        return "the price given" if self.is_users else listed

    def at(self, share: float) -> Price:
        """Returns ``share`` of this price."""
        rates = {kind: rate * share for kind, rate in self.rates.items()}
        per_image = None if self.per_image is None else self.per_image * share
        estimates = {quality: usd * share for quality, usd in self.estimates.items()}
        return replace(self, rates=rates, per_image=per_image, estimates=estimates)

    def estimate(self, quality: Any = None) -> float | None:
        """Returns the USD of one image of ``quality`` (a request parameter, or None); None if unknown."""
        if self.per_image is not None:
            return self.per_image
        return self.estimates.get(str(quality), self.estimates.get(_DEFAULT))

    def cost(self, counts: Mapping[str, int]) -> float | None:
        """Returns the USD of one reply with these token counts, or None.

        The keys of ``counts`` are the keys of ``usage``, nested names joined by dots. A price per image needs
        no counts. A kind without a rate costs the highest rate of its side (input or output).
        """
        if self.per_image is not None:
            return self.per_image
        tokens = billed_tokens(counts)
        if tokens is None:
            return None
        dearest = {
            side: max(self.rates.get(f"text_{side}", 0.0), self.rates.get(f"image_{side}", 0.0))
            for side in ("input", "output")
        }
        rates = {"any_input": dearest["input"]}
        for kind in KINDS:
            plain = kind.removeprefix("cached_")
            rates[kind] = self.rates.get(kind, self.rates.get(plain, dearest[kind.rpartition("_")[2]]))
        return sum(count * rates[kind] for kind, count in tokens._asdict().items()) / 1e6


def cost_of_reply(price: Price | None, counts: Mapping[str, int], reported: float | None) -> float | None:
    """Returns the USD of one reply from the first known source; None if unknown, never 0.

    1. the user's ``price`` (a model kwarg): the user may have a contract with the provider;
    2. the cost that the gateway ``reported`` with the reply: the gateway sends the bill;
    3. ``prices.local.json``, then ``prices.json``.
    """
    if reported is not None and not (price and price.is_users):
        return reported
    return price.cost(counts) if price else None


def price_of(model_id: str, override: Any = None, makes: str = "image_output") -> Price | None:
    """Returns the price of ``model_id``. ``override`` is the user's price.

    A listed id matches exactly, as a dated snapshot, or with its provider's name before it
    (``openai/gpt-image-1.5``). Similar ids do not match: a wrong price is worse than none. An object of rates
    must contain the rate of the tokens that the model ``makes``.

    Raises UserError: the user's price or a price file is malformed.
    """
    if override is not None:
        return _of_user(override, makes)
    listed = _listed(PRICES, LOCAL_PRICES)
    for whole in (model_id, _SNAPSHOT.sub("", model_id)):
        provider, slash, name = whole.partition("/")
        if whole in listed:
            return listed[whole]
        if slash and name in listed and listed[name].provider == provider:
            return listed[name]
    return None


def quoted(price: Price | None, kwargs: Mapping[str, Any]) -> Price | None:
    """Returns ``price`` if a forecast for requests with ``kwargs`` may use it, else None.

    A list price does not apply to an endpoint on this machine: a local server is free, and a gateway has its
    own prices.
    """
    is_list_price = price is not None and not price.is_users
    return None if is_list_price and is_on_this_machine(place_of(kwargs).url) else price


def price_and_estimate(model_id: str, kwargs: Mapping[str, Any]) -> tuple[Price | None, float | None]:
    """Returns a model's price and the USD of one image, None if unknown. Raises as :func:`price_of`."""
    extra = kwargs.get("extra_body") or {}
    if not isinstance(extra, Mapping):
        raise UserError(f"extra_body must be an object of request parameters, not {extra!r}")
    parameters = {**kwargs, **extra}
    # /responses bills its image tool at the price of the tool's model
    price = price_of(parameters.get("image_model") or model_id, kwargs.get("price"))
    return price, price.estimate(parameters.get("quality")) if price else None


def _of_user(given: Any, makes: str) -> Price:
    in_words = makes == "text_output"
    if _is_amount(given) and not in_words:
        return Price(per_image=float(given))
    if not isinstance(given, Mapping):
        kinds, example = ("", _TEXT_EXAMPLE) if in_words else ("an amount or ", _EXAMPLES)
        raise UserError(f"price must be {kinds}an object of rates, not {given!r}: give {example}")
    rates = {kind: rate for kind, rate in given.items() if kind != "estimate"}
    return _price(None, rates, given.get("estimate"), "price", makes)


@functools.cache
def _listed(*tables: Path) -> dict[str, Price]:
    """Returns the prices of the existing price tables by name and alias. A later table has priority."""
    found: dict[str, Price] = {}
    for path in tables:
        if path != PRICES and not path.exists():
            continue
        try:
            models = json.loads(path.read_bytes())["models"]
            entries = {name: _entry(entry, path, name) for name, entry in models.items()}
            aliases = {a: entries[name] for name in models for a in models[name].get("aliases", [])}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            text = f"{path.name} is no price table ({error}): it needs the form of {PRICES.name}"
            raise UserError(text) from None
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror}") from None
        found |= {**aliases, **entries}
    return found


def _entry(entry: Mapping[str, Any], path: Path, name: str) -> Price:
    where, rates, per_image = f"{path.name}: {name}", entry.get("per_million_tokens"), entry.get("per_image")
    if (per_image is None) == (rates is None):
        raise UserError(f"{where}: needs either per_image or per_million_tokens")
    # a model that returns text has no rate for images
    makes = "text_output" if entry.get("makes") == "text" else "image_output"
    price = _price(per_image, rates or {}, entry.get("image_estimate"), where, makes)
    source, date, provider = entry.get("source", path.name), entry.get("date", ""), entry.get("provider", "")
    return replace(price, source=source, date=date, provider=provider)


def _price(per_image: Any, rates: Mapping[str, Any], estimate: Any, where: str, makes: str) -> Price:
    """Returns a Price with these numbers from a user or a file. Raises UserError: they are malformed."""
    if not isinstance(estimate, Mapping):
        estimate = {} if estimate is None else {_DEFAULT: estimate}
    amounts = [(kind, rate, "1M tokens") for kind, rate in rates.items()]
    amounts += [("estimate", amount, "image") for amount in estimate.values()]
    amounts += [("per_image", per_image, "image")] * (per_image is not None)
    for name, amount, unit in amounts:
        if not _is_amount(amount):
            raise UserError(f"{where}: {name} must be USD per {unit}, not {amount!r}")
    for kind in rates.keys() - set(KINDS):
        raise UserError(f"{where}: unknown kind of token '{kind}', known are {', '.join(KINDS)}")
    if per_image is None and makes not in rates:
        raise UserError(f"{where}: {makes} is missing (USD per 1M tokens)")
    return Price(rates, per_image, estimate)


def _is_amount(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < _TOO_MUCH


_TOOL = "tool_usage.image_gen."  # prefix of the image tool's usage in /responses


def billed_tokens(counts: Mapping[str, int]) -> Tokens | None:
    """Returns the tokens in ``counts`` (``usage``, nested names joined by dots); None without output.

    ===============================  ==================================  =====================================
    server                           totals                              kinds
    ===============================  ==================================  =====================================
    OpenAI ``/images/*`` and the     ``input_tokens``,                   ``input_tokens_details.*``,
    image tool of ``/responses``     ``output_tokens``                   ``output_tokens_details.*`` (not all
                                                                         models)
    chat completions                 ``prompt_tokens``,                  ``prompt_tokens_details.*``,
                                     ``completion_tokens``               ``completion_tokens_details.*``
    Gemini's own API                 ``promptTokenCount``,               lists, which ``counts`` cannot hold
                                     ``candidatesTokenCount``,
                                     ``thoughtsTokenCount``
    ===============================  ==================================  =====================================

    Some gateways fill two formats at once, one with zeros, so each total is the larger one. Output beyond the
    image tokens is text, including thinking. If the output is not split, all output except thinking counts as
    image: an image has thousands of tokens, and a cost should rather be estimated too high than too low.
    """
    tool = {name.removeprefix(_TOOL): n for name, n in counts.items() if name.startswith(_TOOL)}
    counts = tool or counts

    def most(*names: str) -> int:
        return max(0, *(counts.get(name, 0) for name in names))

    def inputs(name: str) -> int:
        return most(f"input_tokens_details.{name}", f"prompt_tokens_details.{name}")

    def outputs(name: str) -> int:
        return most(f"output_tokens_details.{name}", f"completion_tokens_details.{name}")

    prompt = most("input_tokens", "prompt_tokens", "promptTokenCount")
    output = most("output_tokens", "completion_tokens", "candidatesTokenCount")
    if output <= 0:
        return None
    # Gemini and Google's chat endpoint count thinking separately from the output
    beside = most("total_tokens", "totalTokenCount") - prompt - output if prompt else 0
    if "candidatesTokenCount" in counts:
        beside = max(beside, counts.get("thoughtsTokenCount", 0))
    thinking = outputs("reasoning_tokens") if beside <= 0 else 0
    image_output = min(outputs("image_tokens"), output) or max(0, output - outputs("text_tokens") - thinking)
    text = min(inputs("text_tokens"), prompt)
    image = min(inputs("image_tokens"), prompt - text)
    if image and not text:
        text = prompt - image
    cached = min(max(inputs("cached_tokens"), most("cachedContentTokenCount")), prompt)
    cached_image = min(inputs("cached_tokens_details.image_tokens"), image, cached)
    # Text counts as cached first: few servers state which kind was cached, and cached image tokens save more,
    # so the cost is rather too high.
    cached_text = min(cached - cached_image, text)
    cached_image = min(cached - cached_text, image)
    return Tokens(
        text_input=text - cached_text,
        image_input=image - cached_image,
        any_input=prompt - text - image,
        cached_text_input=cached_text,
        cached_image_input=cached_image,
        text_output=output - image_output + max(0, beside),
        image_output=image_output,
    )


def reported_cost(usage: Any) -> float | None:
    """Returns the USD that a gateway reports for the reply (``usage.cost``, as OpenRouter does), or None.

    If the user has an own key at the provider (``is_byok``), ``cost`` is only the gateway's fee, and
    ``cost_details.upstream_inference_cost`` is the provider's bill. A cost of 0 means unknown: gateways send
    it if they do not know the cost.

    Source: https://openrouter.ai/docs/use-cases/usage-accounting
    """
    if not isinstance(usage, Mapping):
        return None
    details = usage.get("cost_details")
    bill = details.get("upstream_inference_cost") if isinstance(details, Mapping) else None
    cost = float(usage["cost"]) if _is_amount(usage.get("cost")) else 0.0
    if usage.get("is_byok") is True:
        cost = cost + float(bill) if bill and _is_amount(bill) else 0.0
    return cost or None
