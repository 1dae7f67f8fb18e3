"""Prices: the table, what a reply costs by its token counts, and whose word on it counts."""

from __future__ import annotations

import json
import re
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from imageevalkit.api import prices
from imageevalkit.api.prices import PRICES, cost_of_reply, price_of, reported_cost
from imageevalkit.api.replies import tokens_of
from imageevalkit.benchmark.question import Message, Picture, Question, Sampling
from imageevalkit.common.errors import UserError
from imageevalkit.common.text import dollars
from imageevalkit.evaluate.scoring import provenance
from imageevalkit.extras.dry_run.generation import money
from imageevalkit.extras.dry_run.questions import effort
from imageevalkit.judges.choice import JudgeOptions
from imageevalkit.store import fingerprint as fp
from imageevalkit.store.cell import Cell
from imageevalkit.store.items import items_of
from imageevalkit.store.jsonl import JsonlWriter
from imageevalkit.store.states import survey
from tests.support.generation import FakeDataset

# (model, usage as the server sent it, USD, where the three are from)
WORKED: list[tuple[str, dict[str, Any], float, str]] = [
    (
        "gpt-image-1.5",  # a real reply; the guide lists this size and quality at $0.034 without the prompt
        {
            "completion_tokens": 0,
            "prompt_tokens": 0,
            "total_tokens": 1079,
            "completion_tokens_details": None,
            "input_tokens": 23,
            "input_tokens_details": {"image_tokens": 0, "text_tokens": 23},
            "output_tokens": 1056,
            "output_tokens_details": None,
        },
        (23 * 5 + 1056 * 32) / 1e6,
        "https://github.com/BerriAI/litellm/issues/18541",
    ),
    (
        "gemini-3-pro-image",  # thinking is within completion_tokens
        {
            "completion_tokens": 1337,
            "prompt_tokens": 533,
            "total_tokens": 1870,
            "completion_tokens_details": {"reasoning_tokens": 217, "text_tokens": 0, "image_tokens": 1120},
            "prompt_tokens_details": {"text_tokens": 6},
        },
        (533 * 2 + 1120 * 120 + 217 * 12) / 1e6,
        "https://github.com/BerriAI/litellm/issues/18182",
    ),
    (
        "gemini-3-pro-image",  # the same reply as Gemini itself words it: thinking is beside the candidates
        {
            "promptTokenCount": 533,
            "candidatesTokenCount": 1120,
            "totalTokenCount": 1870,
            "candidatesTokensDetails": [{"modality": "IMAGE", "tokenCount": 1120}],
        },
        (533 * 2 + 1120 * 120 + 217 * 12) / 1e6,
        "https://github.com/BerriAI/litellm/issues/18182",
    ),
    (
        "gpt-image-2",  # the image tool of /responses, counted apart from the text model
        {
            "input_tokens": 7918,
            "input_tokens_details": {"image_tokens": 7620, "text_tokens": 298},
            "output_tokens": 186,
            "output_tokens_details": {"image_tokens": 186, "text_tokens": 0},
            "total_tokens": 8104,
        },
        (7620 * 8 + 298 * 5 + 186 * 30) / 1e6,
        "a reply of OpenAI's /responses, tool_usage.image_gen",
    ),
]


@pytest.mark.parametrize(("model", "usage", "usd", "source"), WORKED)
def test_a_reply_costs_what_the_provider_bills(
    model: str, usage: dict[str, Any], usd: float, source: str
) -> None:
    price = price_of(model)
    assert price
    assert price.cost(tokens_of(usage)) == pytest.approx(usd, abs=1e-9), source


@pytest.mark.parametrize(
    ("model", "tokens", "usd"),
    [
        ("gpt-image-1.5", 1056, 0.034),
        ("gpt-image-1", 1056, 0.042),
        ("gemini-3.1-flash-image", 1120, 0.067),
        ("gemini-3-pro-image", 2000, 0.24),
    ],
)
def test_documented_tokens_cost_the_documented_price(model: str, tokens: int, usd: float) -> None:
    price = price_of(model)
    assert price
    assert round(price.cost({"output_tokens": tokens}) or 0, 3) == usd


def test_cached_input_is_cheaper_and_no_kind_gains_by_doubt() -> None:
    price = price_of("gpt-image-1.5")
    assert price
    split = {
        "input_tokens": 1000,
        "output_tokens": 100,
        "input_tokens_details.text_tokens": 400,
        "input_tokens_details.image_tokens": 600,
        "input_tokens_details.cached_tokens": 500,
    }
    # untold: the 400 of the text, whose discount is the smaller one, and 100 of the image
    assert price.cost(split) == pytest.approx((400 * 1.25 + 500 * 8 + 100 * 2 + 100 * 32) / 1e6)
    told = {**split, "input_tokens_details.cached_tokens_details.image_tokens": 500}
    assert price.cost(told) == pytest.approx((400 * 5 + 100 * 8 + 500 * 2 + 100 * 32) / 1e6)
    unsplit = {"input_tokens": 1000, "output_tokens": 100}
    assert price.cost(unsplit) == pytest.approx((1000 * 8 + 100 * 32) / 1e6)


def test_snapshots_and_provider_names_are_the_listed_model() -> None:
    assert price_of("openai/gpt-image-1.5-2025-12-16") == price_of("gpt-image-1.5") is not None
    assert price_of("google/gemini-3-pro-image-preview") == price_of("gemini-3-pro-image") is not None


@pytest.mark.parametrize(
    "model",
    [
        "gpt-image-1.5-turbo",
        "gpt-image-1.5-2025-13-16",
        "reseller/gpt-image-1.5",
        "",
    ],
)
def test_what_is_only_like_a_listed_model_has_no_price(model: str) -> None:
    assert price_of(model) is None


def test_the_users_price_beats_the_gateway_and_the_gateway_the_list() -> None:
    counts = {"output_tokens": 1056}
    listed, users = price_of("gpt-image-1.5"), price_of("gpt-image-1.5", 0.04)
    assert cost_of_reply(listed, counts, None) == pytest.approx(0.033792)
    assert cost_of_reply(listed, counts, 0.05) == 0.05
    assert cost_of_reply(users, counts, 0.05) == 0.04
    assert cost_of_reply(None, counts, 0.05) == 0.05
    assert cost_of_reply(None, counts, None) is None


def test_a_price_object_of_the_user() -> None:
    price = price_of("mine", {"text_input": 5, "image_output": 40, "estimate": 0.06})
    assert price and price.is_users and price.estimate() == 0.06
    counts = {"prompt_tokens": 100, "completion_tokens": 1000, "completion_tokens_details.image_tokens": 900}
    # the kinds left out cost what the dearest of their side does
    assert price.cost(counts) == pytest.approx((100 * 5 + 1000 * 40) / 1e6)


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        (float("nan"), "must be an amount or an object"),
        ({}, "image_output is missing"),
        ({"image_output": "40"}, "image_output must be USD per 1M tokens"),
    ],
)
def test_a_malformed_price_is_one_clear_line(override: Any, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint) as error:
        price_of("gpt-image-1.5", override)
    assert "\n" not in str(error.value)


def test_a_local_entry_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local = tmp_path / "prices.local.json"
    monkeypatch.setattr(prices, "LOCAL_PRICES", local)
    models = {"gpt-image-1.5": {"per_image": 0.01}, "seller/some-model": {"per_image": 0.02}}
    local.write_text(json.dumps({"models": models}), encoding="utf-8-sig")  # as some editors write it
    mine, other, untouched = map(price_of, ("gpt-image-1.5", "seller/some-model", "gpt-image-2"))
    assert mine and mine.per_image == 0.01 and not mine.is_users
    assert other and other.per_image == 0.02
    assert untouched and untouched.rates["image_output"] == 30


def test_every_listed_price_tells_where_and_when() -> None:
    models = json.loads(PRICES.read_text())["models"]
    for name, entry in models.items():
        price = price_of(name)
        assert (
            price and price.source.startswith("https://") and re.fullmatch(r"20\d\d-\d\d(-\d\d)?", price.date)
        )
        assert entry["provider"]
        assert 0 < (price.estimate() or 0.01) < 1, "USD, not cents or tokens"


@pytest.mark.parametrize(
    ("usage", "usd"),
    [
        ({"cost": 0.0387243}, 0.0387243),
        ({"cost": 0, "is_byok": True, "cost_details": {"upstream_inference_cost": 0.049662}}, 0.049662),
        ({"cost": 0.001, "is_byok": True}, None),
        ({"cost": 0}, None),
        ({"cost": float("nan")}, None),
    ],
)
def test_the_cost_that_a_gateway_reports(usage: Any, usd: float | None) -> None:
    assert reported_cost(usage) == (usd if usd is None else pytest.approx(usd))


API = {"api": True, "model_path": "gpt-image-1.5"}


@pytest.mark.parametrize(
    ("setting", "count", "text"),
    [
        (API, 800, "about $106.40 at list prices of 2026-10"),
        (
            API | {"model_kwargs": {"extra_body": {"quality": "low"}}},
            800,
            "about $7.20 at list prices of 2026-10",
        ),
        (API | {"model_kwargs": {"price": 0.04}}, 800, "about $32.00 at the price given"),
        *(
            (API | {"model_kwargs": {"base_url": url}}, 800, "price unknown: the endpoint is on this machine")
            for url in ("http://127.0.0.1:8000/v1", "http://localhost:8000/v1", "http://[::1]:8000/v1")
        ),
        (
            API | {"model_kwargs": {"base_url": "http://gateway.example/v1"}},
            800,
            "about $106.40 at list prices of 2026-10",
        ),
    ],
)
def test_a_forecast_tells_money(setting: dict[str, Any], count: int, text: str) -> None:
    usd, words = money(setting, count)
    assert words == text
    assert (usd is None) == ("unknown" in text)
    assert usd is None or text.startswith(f"about {dollars(usd)}" * bool(text))


@pytest.mark.parametrize(
    ("judge", "kwargs", "max_tokens", "text"),
    [
        # 1000 × (1100 · 5 + 50 · 15) / 10⁶
        (
            "openai:gpt-4o-2024-05-13",
            {},
            2000,
            ", about $6.25 at list prices of 2026-05 (up to 50 tokens a reply)",
        ),
        (
            "openai:my-judge",
            {"price": {"text_input": 1, "text_output": 10}},
            2000,
            ", about $1.60 at the price given (up to 50 tokens a reply)",
        ),
        ("openai:gpt-4o-2024-05-13", {"base_url": "http://127.0.0.1:8000/v1"}, 2000, ", price unknown"),
    ],
)
def test_a_forecast_tells_what_a_judge_costs(
    judge: str, kwargs: dict[str, Any], max_tokens: int, text: str
) -> None:
    messages = (Message("user", (Picture(Path("a.png"), "0"), "a" * 400)),)
    question = Question("score", messages, Sampling(max_tokens), item="item")
    usd, words = effort(judge, [question] * 1000, JudgeOptions(kwargs))
    assert words == "about 1.10 million tokens" + text
    assert (usd is None) == ("unknown" in text)


@pytest.mark.parametrize(
    ("api", "records", "money"),
    [
        (True, [("ok", 0.25), ("ok", 0.5), ("failed", 0.125)], {"generation_usd": 0.875}),
        (True, [("ok", 0.25), ("failed", None)], {"generation_usd": 0.25}),
        (True, [("ok", 0.25), ("ok", None)], {"generation_usd": None, "generation_usd_unpriced": 1}),
        (False, [("ok", None), ("ok", None)], {"generation_usd": None}),
    ],
)
def test_a_result_never_takes_an_unknown_price_for_nothing(
    api: bool, records: list[tuple[str, float | None]], money: dict[str, Any]
) -> None:
    cell = Cell("m", "fake")
    cell.folder.mkdir(parents=True)
    setting = {"module": "m", "class": "c", "model_path": "x", "api": api}
    key = fp.remember(cell.fingerprints, fp.settings_of("t2i", setting), {})
    items = items_of(FakeDataset(9), cell, limit=len(records))
    with closing(JsonlWriter(cell.generation)) as writer:
        for item, (status, price) in zip(items, records, strict=True):
            record = {"item": item.id, "status": status, "price": price, "fingerprint": key}
            writer.append({**record, "time": "2026-11-20T00:00:00.000+00:00"})
    told = provenance(cell, survey(cell, items), {})
    assert {name: told[name] for name in told if name.startswith("generation_usd")} == money
