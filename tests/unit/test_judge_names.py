"""How judges are called: by a user, and in the name of their scores, which two never share."""

from __future__ import annotations

from typing import Any

import pytest

from imageevalkit import registry
from imageevalkit.common.errors import UserError
from imageevalkit.judges.choice import JudgeOptions
from imageevalkit.registry import choose_judge
from imageevalkit.store.results import Evaluator

OFFICIAL = ("openai:gpt-4o-2024-05-13",)


def evaluator(
    judge: str = "gpt-4o-2024-05-13",
    prompt: str = "Is it good?",
    served: dict[str, str] | None = None,
    **kwargs: Any,
) -> Evaluator:
    options = JudgeOptions(kwargs, served=served or {})
    return registry.judge(judge, {"prompt": prompt}, OFFICIAL, options=options).evaluator


def test_the_official_judge_is_official_as_it_is_and_not_with_other_settings() -> None:
    plain = evaluator()
    assert plain.official
    changed = evaluator(extra_body={"temperature": 2})
    assert not changed.official
    assert changed.id != plain.id


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({}, "gpt-4o-2024-05-13/openai/1188d55a"),
        ({"extra_body": {"temperature": 2}}, "gpt-4o-2024-05-13/openai/f62af154"),
        ({"judge": "openai:qwen3-vl-8b"}, "qwen3-vl-8b/openai/e0e4a4e0"),
        ({"judge": "vllm:org/judge", "served": {"serve_args": "--dtype half"}}, "org/judge/vllm/3db53062"),
    ],
)
def test_names_stay_what_they_are_so_that_answers_on_record_are_found(
    given: dict[str, Any], name: str
) -> None:
    assert evaluator(**given).id == name


@pytest.mark.parametrize(
    "kwargs", [{"timeout": 3.0}, {"base_url": "https://elsewhere.example/v1"}, {"api_key_env": "MY_API_KEY"}]
)
def test_how_a_judge_is_reached_is_not_in_its_name(kwargs: dict[str, Any]) -> None:
    assert evaluator(**kwargs) == evaluator()


def test_a_judge_has_one_name_however_it_is_written() -> None:
    assert choose_judge("qwen3-vl-8b").full_name == choose_judge("transformers:qwen3-vl-8b").full_name
    assert choose_judge("openai:qwen3-vl-8b").setting.model_path == "Qwen/Qwen3-VL-8B-Instruct"
    with pytest.raises(UserError, match="did you mean 'qwen3-vl-8b'"):
        choose_judge("qwen3-vl-8")
    with pytest.raises(UserError, match=r"no backend 'opnai' \(did you mean 'openai'"):
        choose_judge("opnai:gpt-4o")


def test_the_weights_of_every_official_judge_are_known_or_named() -> None:
    for name in registry.benchmark_tasks():
        benchmark = registry.make_benchmark(name, {}, "")
        for judge in {benchmark.judge, *benchmark.official_judges}:
            backend, _, model = judge.partition(":")
            if backend in ("transformers", "vllm"):  # else it would be taken for a folder
                assert model in registry.judges() or "/" in model, f"{name}: {judge}"
