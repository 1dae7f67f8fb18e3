"""Mistakes of a command line are told in one line before anything starts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from imageevalkit.cli.command_line import parse
from imageevalkit.common.errors import UserError
from imageevalkit.plan.config import Config
from imageevalkit.plan.options import resolve
from imageevalkit.plan.planner import make_plan
from tests.support.extras import needs_extra

NOISE = ["--model_names", "reference-noise", "--ds_names", "quicktext"]
GENEVAL = ["--ds_names", "geneval", "--ds_kwargs"]


def mistake(*words: str) -> str:
    """The message about ``words``. Fails if planning them writes a file."""
    maps = {"INFER_ENV_MAP": {"diffusers": "diffusers"}, "EVAL_ENV_MAP": {"transformers": "transformers"}}
    config = Config(maps=maps)
    with pytest.raises(UserError) as told:
        make_plan(resolve(parse(words), config), config)
    for name in ("IMAGEEVALKIT_OUTPUT", "IMAGEEVALKIT_LOG"):
        assert not Path(os.environ[name]).exists()
    message = str(told.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--no_such_option"], "unknown option '--no_such_option'"),
        ([*NOISE, "--eval", "perhaps"], "use true or false"),
        pytest.param(
            [*NOISE[:3], "wise", "--relations", "wise=realism/2,consistancy/2"],
            "--relations: wise: there is no metric 'consistancy/2' of items (did you mean 'consistency'?)",
            marks=needs_extra("relations"),
        ),
        (
            ["--model_names", "comparisons", "--ds_names", "quicktext", "--use_api", "true"],
            "'comparisons' cannot be a name: output/comparisons is for other files of the runs",
        ),
        pytest.param(
            [*NOISE, "--judge_repeats", "some"],
            "--judge_repeats: 'some' is no number of questions",
            marks=needs_extra("noise"),
        ),
        (
            ["--model_names", "reference-noise;reference-blank", *GENEVAL, f"detections={__file__}"],
            "--ds_kwargs: the setting detections of geneval is a path of one model's, but this run has several: "
            "write <MODEL_NAME> where it has their names",
        ),
        pytest.param(
            [*NOISE, "--prompt_rewriter", "dtn"],
            "unknown prompt rewriter 'dtn' (did you mean 'dtm'?)",
            marks=needs_extra("rewrite"),
        ),
        pytest.param(
            [*NOISE, "--rewriter_kwargs", "model=x"],
            "--rewriter_kwargs is given, but no --prompt_rewriter",
            marks=needs_extra("rewrite"),
        ),
        pytest.param(
            [*NOISE, "--prompt_rewriter", "wise", "--rewriter_kwargs", "api_key_env=REWRITER_API_KEY"],
            "prompt rewriter 'wise' is reached through an API: REWRITER_API_KEY is not set",
            marks=needs_extra("rewrite"),
        ),
    ],
)
def test_mistakes_are_one_line_before_anything_starts(words: list[str], says: str) -> None:
    assert says in mistake(*words)


def test_a_missing_environment_names_the_path_and_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--model_names", "diffusers", "--ds_names", "quicktext"]
    monkeypatch.delenv("CONDA_BASE", raising=False)
    assert "CONDA_BASE is empty" in mistake(*words)
    monkeypatch.setenv("CONDA_BASE", "/opt/none")
    message = mistake(*words)
    assert "/opt/none/envs/diffusers/bin/python" in message
    assert "bash utils/make_env.sh --model diffusers" in message


def test_a_model_path_that_does_not_exist_blocks_its_cells(tmp_path: Path) -> None:
    gone = str(tmp_path / "none")
    for path in (gone, "s3://bucket/none", "owner/none"):
        words = [*NOISE, "--custom_model_kwargses", f"model_path={path}"]
        blocked = make_plan(resolve(parse(words), Config()), Config()).blocked
        says = f"model reference-noise: model_path: {gone} is missing"
        assert [says in reason for reason in blocked.values()] == [True] * (path == gone)


@pytest.mark.parametrize(
    ("words", "env", "says"),
    [
        ([], {"SSL_CERT_FILE": "/nowhere/ca.pem"}, "SSL_CERT_FILE: /nowhere/ca.pem does not exist"),
        ([], {"API_KEY": ""}, "API_KEY is not set: set it in config.local.sh"),
        ([], {"API_KEY": "", "OPENAI_API_KEY": "sk-other-0815-key"}, "API_KEY is not set: OPENAI_API_KEY is"),
        (["--max_cost", "1"], {}, "--max_cost needs the price of an image, which is unknown for 'model-a'"),
    ],
)
def test_a_model_behind_an_api_that_cannot_be_asked_or_bounded_is_told(
    monkeypatch: pytest.MonkeyPatch, words: list[str], env: dict[str, str], says: str
) -> None:
    for name, value in ({"API_KEY": "sk-first-4711-key", "BASE_URL": "http://127.0.0.1:9/v1"} | env).items():
        monkeypatch.setenv(name, value)
    told = mistake("--model_names", "model-a", "--ds_names", "quicktext", "--use_api", "true", *words)
    assert says in told and "sk-" not in told
