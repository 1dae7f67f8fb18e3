"""Mistakes of a command line are told in one line before anything starts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from imageevalkit.assets import BenchmarkFiles
from imageevalkit.cli.command_line import parse
from imageevalkit.common.errors import UserError
from imageevalkit.plan.config import Config
from imageevalkit.plan.options import resolve
from imageevalkit.plan.planner import make_plan

NOISE = ["--model_names", "reference-noise", "--ds_names", "quicktext"]
GENEVAL = ["--ds_names", "geneval", "--ds_kwargs"]


def mistake(*words: str) -> str:
    """The message about ``words``. Fails if planning them writes a file."""
    maps = {
        "INFER_ENV_MAP": {"diffusers": "diffusers"},
        "EVAL_ENV_MAP": {"transformers": "transformers"},
    }
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
        (["--model_names"], "--model_names: expected one argument"),
        (
            ["--model_names", "reference-typset", "--ds_names", "quicktext"],
            "did you mean 'reference-typeset'?",
        ),
        (["--model_names", "reference-noise", "--ds_names", "quicktxt"], "did you mean 'quicktext'?"),
        ([*NOISE, "--eval", "perhaps"], "use true or false"),
        (["--model_names", "gpt-image-1.5", "--ds_names", "quicktext"], "add --use_api true"),
        ([*NOISE, "--custom_model_kwargses", "x"], "'x' is no name=value"),
        ([*NOISE, "--judges", "quicktext=ppocrr"], "did you mean 'ppocr'?"),
        (
            [*NOISE, "--judges", "quicktxt=ppocr"],
            "--judges names unknown benchmark 'quicktxt' (did you mean 'quicktext'?)",
        ),
        (
            [*NOISE[:3], "wise", "--relations", "wise=realism/2,consistancy/2"],
            "--relations: wise: there is no metric 'consistancy/2' of items (did you mean 'consistency'?)",
        ),
        ([*NOISE, "--relations", "quicktxt=en,zh"], "did you mean 'quicktext'?"),
        ([*NOISE, "--relations", "quicktext=en"], "names no two metrics of a benchmark"),
        ([*NOISE, "--relations", "quicktext:en,zh"], "names no two metrics of a benchmark"),
        ([*NOISE, "--relations_kwargs", "preset=papr"], "did you mean 'paper'?"),
        (["--model_names", "../escaped", "--ds_names", "quicktext", "--use_api", "true"], "cannot be a name"),
        (
            ["--model_names", "comparisons", "--ds_names", "quicktext", "--use_api", "true"],
            "'comparisons' cannot be a name: output/comparisons is for other files of the runs",
        ),
        (
            [*NOISE[:3], "oneig", "--ds_kwargs", 'grid="2,2"', "--eval", "false"],
            "the setting grid of oneig is about images made elsewhere (--images)",
        ),
        ([*NOISE, "--judge_repeats", "some"], "--judge_repeats: 'some' is no number of questions"),
        (
            ["--model_names", "reference-noise;reference-blank", *GENEVAL, f"detections={__file__}"],
            "--ds_kwargs: the setting detections of geneval is a path of one model's, but this run has several: "
            "write <MODEL_NAME> where it has their names",
        ),
        ([], "no models given"),
        ([*NOISE, "--prompt_rewriter", "dtn"], "unknown prompt rewriter 'dtn' (did you mean 'dtm'?)"),
        (
            [*NOISE, "--prompt_rewriter", "wise", "--rewriter_kwargs", "modl=x"],
            "there is no setting 'modl'",
        ),
        ([*NOISE, "--rewriter_kwargs", "model=x"], "--rewriter_kwargs is given, but no --prompt_rewriter"),
        (
            [*NOISE, "--prompt_rewriter", "wise", "--images", "/tmp"],
            "--images makes no images: leave out --prompt_rewriter",
        ),
        (
            ["--model_names", "reference-noise+wise-1a2b3c4d", *NOISE[2:]],
            "--model_names reference-noise --prompt_rewriter wise",
        ),
        (
            [
                "--model_names",
                "reference-noise+wise-1a2b3c4d",
                *NOISE[2:],
                *["--infer", "false", "--prompt_rewriter", "wise"],
            ],
            "has its rewriter in its name, and this run has one, too",
        ),
        (
            [*NOISE, "--prompt_rewriter", "wise", "--rewriter_kwargs", "instruction=/nowhere/at/all"],
            "instruction=/nowhere/at/all cannot be read",
        ),
        (
            [*NOISE, "--prompt_rewriter", "wise", "--rewriter_kwargs", "api_key_env=REWRITER_API_KEY"],
            "prompt rewriter 'wise' is reached through an API: REWRITER_API_KEY is not set",
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


def test_a_missing_environment_of_a_judge_is_named_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BenchmarkFiles, "problems", lambda files, hashes=False: [])
    monkeypatch.setenv("CONDA_BASE", "/opt/none")
    message = mistake(*NOISE[:3], "geneval2")
    assert "environment 'transformers' of geneval2's judge is missing" in message
    assert "bash utils/make_env.sh --judge transformers" in message


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
        (
            ["--max_cost", "1"],
            {},
            "--max_cost needs the price of an image, which is unknown for 'model-a'",
        ),
        (
            ["--max_cost", "1", "--custom_model_kwargses", 'price={"image_output":40}'],
            {},
            "--max_cost needs the price of an image, which is unknown for 'model-a'",
        ),
        (
            [
                *("--batch", "--custom_model_kwargses"),
                "azure_endpoint=https://name.openai.azure.com,api_version=2025-04-01-preview",
            ],
            {},
            "leave out --batch",
        ),
    ],
)
def test_a_model_behind_an_api_that_cannot_be_asked_or_bounded_is_told(
    monkeypatch: pytest.MonkeyPatch, words: list[str], env: dict[str, str], says: str
) -> None:
    for name, value in ({"API_KEY": "sk-first-4711-key", "BASE_URL": "http://127.0.0.1:9/v1"} | env).items():
        monkeypatch.setenv(name, value)
    told = mistake("--model_names", "model-a", "--ds_names", "quicktext", "--use_api", "true", *words)
    assert says in told and "sk-" not in told
