"""--list: what of a benchmark's judge is missing, as the configuration has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from imageevalkit.assets import BenchmarkFiles
from imageevalkit.launch.benchmarks import BenchmarkChoice
from imageevalkit.launch.config import Config
from imageevalkit.launch.listing import listing
from tests.support.fake_vllm import install


@pytest.fixture(autouse=True)
def nothing_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONDA_BASE", str(tmp_path))
    monkeypatch.setattr(BenchmarkFiles, "problems", lambda files: [])
    monkeypatch.setattr(BenchmarkChoice, "check_dataset", lambda benchmark: None)


def state_of_wise(judge: str, kwargs: str = "", environments: dict[str, str] | None = None) -> str:
    maps = {
        "JUDGE_MAP": {"wise": judge},
        "JUDGE_KWARGS_MAP": {judge: kwargs},
        "EVAL_ENV_MAP": environments or {},
    }
    [line] = [line for line in listing(Config(maps=maps)).splitlines() if line.split()[:1] == ["wise"]]
    return line.split(maxsplit=2)[2]


def test_an_api_needs_its_own_key(monkeypatch: pytest.MonkeyPatch) -> None:
    assert state_of_wise("openai:m").startswith("its judge m: API_KEY is not set")
    assert "LAB_API_KEY is not set" in state_of_wise("openai:m", "api_key_env=LAB_API_KEY")
    monkeypatch.setenv("LAB_API_KEY", "sk-0815-4711")
    assert state_of_wise("openai:m", "api_key_env=LAB_API_KEY") == "ready"
    assert "must look like https://host/v1" in state_of_wise(
        "openai:m", "api_key_env=LAB_API_KEY,base_url=gpu1"
    )


def test_a_server_that_runs_already_needs_nothing_here() -> None:
    build = "needs its environment: bash utils/make_env.sh --judge vllm (its judge is org/q)"
    assert state_of_wise("vllm:org/q") == build
    assert state_of_wise("vllm:org/q", "base_url=http://gpu1:8000/v1") == "ready"
    assert "base_url must hold a URL" in state_of_wise("vllm:org/q", "base_url=gpu1:8000")


def test_a_judge_of_this_machine_needs_its_environment(tmp_path: Path) -> None:
    install(tmp_path / "envs/mine")
    assert state_of_wise("vllm:org/q", "environment=mine") == "ready"
    assert state_of_wise("vllm:org/q", environments={"vllm": "mine"}) == "ready"
    assert "--judge transformers" in state_of_wise("transformers:org/q")
    assert "--judge transformers" in state_of_wise("transformers:org/q", "environment=mine"), (
        "no Python in it"
    )


@pytest.mark.parametrize("key", ["encoders", "oneig"])
def test_an_environment_is_built_by_the_entry_that_names_it(key: str) -> None:
    lines = listing(Config(maps={"EVAL_ENV_MAP": {key: "absent"}})).splitlines()
    [line] = [line for line in lines if line.split()[:1] == ["oneig"]]
    assert line.endswith(f"needs its environment: bash utils/make_env.sh --benchmark {key}")


def test_encoders_keep_their_environment_where_a_map_of_the_user_s_own_does_not_name_it() -> None:
    lines = listing(Config(maps={"EVAL_ENV_MAP": {"transformers": "judges"}})).splitlines()
    [line] = [line for line in lines if line.split()[:1] == ["oneig"]]
    assert line.endswith("needs its environment: bash utils/make_env.sh --benchmark encoders")


def test_wrong_settings_are_told() -> None:
    assert "'steps' is no name=value" in state_of_wise("openai:m", "steps")


def test_the_states_of_models_stand_below_each_other() -> None:
    lines = listing(Config()).splitlines()
    rows = lines[1 : lines.index("")]
    start = next(row.index("ready") for row in rows if row.split()[0] == "reference-typeset")
    assert {(row[start - 2 : start], row[start] == " ") for row in rows} == {("  ", False)}
