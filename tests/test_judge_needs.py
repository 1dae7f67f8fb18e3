"""What an evaluate job needs for its judge, and is told of it, before anything starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from imageevalkit.errors import UserError
from imageevalkit.judges.choice import VARIABLE, JudgeOptions
from imageevalkit.launch.benchmarks import choose_benchmark
from imageevalkit.launch.config import Config
from imageevalkit.launch.evaluate_jobs import JudgeNeeds, judge_needs
from imageevalkit.launch.generate_jobs import Run
from imageevalkit.launch.options import Options
from tests.support.fake_vllm import install


@pytest.fixture(autouse=True)
def vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "envs/vllm")
    monkeypatch.setenv("CONDA_BASE", str(tmp_path))


def needs(tmp_path: Path, judge: str, **kwargs: Any) -> JudgeNeeds:
    wise = choose_benchmark(Config(), "wise", judge, kwargs)
    return judge_needs(
        Run(Options(judge_kwargs=kwargs), Config(), tmp_path, "now", 1, {}, {"wise": wise}), wise
    )


def told(needs: JudgeNeeds) -> JudgeOptions:
    return JudgeOptions(**json.loads(needs.environ[VARIABLE]))


def test_the_settings_of_our_server_say_nothing_of_one_that_runs_already(tmp_path: Path) -> None:
    settings = {"revision": "abc", "serve_args": "--dtype half", "gpus": 0}
    ours = needs(tmp_path, "vllm:org/judge", **settings)
    assert told(ours).served == {"revision": "abc", "serve_args": "--dtype half"}
    running = needs(tmp_path, "vllm:org/judge", base_url="http://gpu1:8000/v1", **settings)
    assert told(running).served == {} and running.server is None


def test_a_wrong_setting_of_a_judge_is_told_before_anything_starts(tmp_path: Path) -> None:
    for judge, settings, words in (
        (
            "openai:m",
            {"temperature": 0},
            r"judge 'm' of wise: .*'temperature'.*request parameters go into extra_body",
        ),
        ("transformers:org/judge", {"batch_size": "8"}, "batch_size must be a whole number, not '8'"),
        ("transformers:org/judge", {"gpus": -1}, "gpus must be a whole number from 0"),
        (f"transformers:{tmp_path}", {"revision": "main"}, "revision is for hub repositories"),
        ("vllm:org/judge", {"max_model_len": 0}, "max_model_len must be a positive whole number"),
        ("vllm:org/judge", {"start_timeout": "soon"}, "start_timeout must be a number, not 'soon'"),
    ):
        with pytest.raises(UserError, match=words):
            needs(tmp_path, judge, **settings)
