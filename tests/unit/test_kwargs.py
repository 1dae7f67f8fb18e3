"""--custom_model_kwargses: the parsing rules users rely on."""

from __future__ import annotations

from typing import Any

import pytest

from imageevalkit.common.errors import UserError, note_once
from imageevalkit.plan.config import parse_kwargs, parse_kwargses


@pytest.mark.parametrize(
    ("text", "models", "expected"),
    [
        ("", 2, [{}, {}]),
        ("a=1;", 2, [{"a": 1}, {}]),
        ("p1=v1,p2=v2;p3=v3", 2, [{"p1": "v1", "p2": "v2"}, {"p3": "v3"}]),
        (' a = 1 , b = "x;y" ; ', 2, [{"a": 1, "b": "x;y"}, {}]),
    ],
)
def test_sets(text: str, models: int, expected: list[dict[str, Any]]) -> None:
    assert parse_kwargses(text, models) == expected


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("v=1", 1),
        ("v=1.0", 1.0),
        ("v=true", True),
        ("v=null", None),
        ("v=[1, 2, 3]", [1, 2, 3]),
        ('v="a, b"', "a, b"),
        ("v=don't", "don't"),
        ("v=", ""),
        ("v=NaN", "NaN"),
    ],
)
def test_values(text: str, value: object) -> None:
    parsed = parse_kwargs(text)["v"]
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("text", "models", "says"),
    [
        ("a=1", 2, "1 set for 2 models"),
        ("a=1;b=2;c=3", 1, "3 sets for 1 model"),
        ("steps", 1, "'steps' is no name=value"),
        ("a=1,a=2", 1, "given twice"),
        ('a="x', 1, "stays open"),
        ("api_key=sk-123", 1, "looks like a secret"),
    ],
)
def test_errors_are_one_line(text: str, models: int, says: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_kwargses(text, models)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("size=1024x1024，quality=low", "the value of 'size' is '1024x1024，quality=low'; '，' is not ','"),
        ("size=“1024x1024”", "the value of 'size' is '“1024x1024”'; '“' is not '\"'"),
    ],
)
def test_punctuation_of_an_input_method_is_named(
    capsys: pytest.CaptureFixture[str], text: str, says: str
) -> None:
    note_once.cache_clear()
    parse_kwargs(text)
    assert capsys.readouterr().err == f"note: custom_model_kwargses: {says}\n"


@pytest.mark.parametrize(
    "value",
    [
        "http://user:hunter22@gpu1:8000/v1",
        '["a", "http://user:hunter22@gpu1"]',
        '"--config http://user:hunter22@gpu1/x.yaml"',
    ],
)
def test_a_url_with_a_password_is_refused_without_repeating_it(value: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_kwargs(f"base_url={value}", "--judge_kwargs")
    text = str(caught.value)
    assert text.startswith("--judge_kwargs: '") and "holds a URL with a user name or password" in text
    assert "API_KEY" in text and "hunter22" not in text and "\n" not in text
