"""--list: how large a benchmark is, who evaluates it, and what is missing, as the configuration has it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from imageevalkit import assets, registry
from imageevalkit.assets import BenchmarkFiles, FileAsset, TableAsset
from imageevalkit.cell import REPO
from imageevalkit.launch.benchmarks import BenchmarkChoice, choose_benchmark
from imageevalkit.launch.config import Config
from imageevalkit.launch.models import model_tasks
from imageevalkit.launch.workload import listing
from tests.support.fake_vllm import install
from tests.support.mirror import shared_mirror
from tests.support.trig_data import write_rows


@pytest.fixture(autouse=True)
def nothing_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONDA_BASE", str(tmp_path))
    monkeypatch.setattr(BenchmarkFiles, "problems", lambda files: [])
    monkeypatch.setattr(BenchmarkChoice, "check_dataset", lambda benchmark: 1000)


def rows(listed: str) -> dict[str, list[str]]:
    """The columns of each row by the name in the first."""
    cells = [re.split(" {2,}", line.strip()) for line in listed.splitlines() if line.startswith("  ")]
    return {name: columns for name, *columns in cells}


def state_of_wise(judge: str, kwargs: str = "", environments: dict[str, str] | None = None) -> str:
    maps = {
        "JUDGE_MAP": {"wise": judge},
        "JUDGE_KWARGS_MAP": {judge: kwargs},
        "EVAL_ENV_MAP": environments or {},
    }
    return rows(listing(Config(maps=maps)))["wise"][-1]


def test_an_api_needs_its_own_key(monkeypatch: pytest.MonkeyPatch) -> None:
    assert state_of_wise("openai:m").startswith("its judge: API_KEY is not set")
    assert "LAB_API_KEY is not set" in state_of_wise("openai:m", "api_key_env=LAB_API_KEY")
    monkeypatch.setenv("LAB_API_KEY", "sk-0815-4711")
    assert state_of_wise("openai:m", "api_key_env=LAB_API_KEY") == "ready"
    assert "must look like https://host/v1" in state_of_wise(
        "openai:m", "api_key_env=LAB_API_KEY,base_url=gpu1"
    )


def test_a_server_that_runs_already_needs_nothing_here() -> None:
    build = "needs its environment: bash utils/make_env.sh --judge vllm"
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
    models = lines[1 : lines.index("")]
    start = next(row.index("ready") for row in models if row.split()[0] == "reference-typeset")
    assert {(row[start - 2 : start], row[start] == " ") for row in models} == {("  ", False)}


def test_a_row_longer_than_the_terminal_has_two_lines() -> None:
    whole = listing(Config())
    lines = listing(Config(), 80).splitlines()
    assert re.findall(r"^  wise-verified +t2i +1000 +qwen3.5-35b-a3b$", "\n".join(lines), re.MULTILINE)
    assert max(len(line) for line in lines if not line.startswith("      ")) <= 80
    assert listing(Config(), 1000) == whole
    assert " ".join(lines).split() == whole.split()


@pytest.mark.parametrize(
    ("maps", "name", "items", "evaluator"),
    [
        ({}, "geneval", "553 × 4", "mask2former"),
        ({}, "wise", "1000", "gpt-4o-2024-05-13"),
        ({"JUDGE_MAP": {"wise": "vllm:gpt-4o-2024-05-13"}}, "wise", "1000", "vllm:gpt-4o-2024-05-13"),
        ({"JUDGE_MAP": {"dpgbench": "openai:m"}}, "dpgbench", "1065 × 4", "openai:m"),
        ({}, "oneig", "1120 × 4", "qwen2.5-vl-7b, llm2clip, csd+se, dreamsim"),
        ({"DS_KWARGS_MAP": {"oneig": "tasks=style,images_per_prompt=2"}}, "oneig", "-", "csd+se"),
        ({"DS_KWARGS_MAP": {"genai": "prompts=527"}}, "genai", "527", "clip-flant5-xxl"),
        ({"DS_KWARGS_MAP": {"genai": "prompts=528"}}, "genai", "-", "-"),
        ({"DS_KWARGS_MAP": {"tiff": "split=test"}}, "tiff", "2538 × 2", "openai:gpt-5"),
    ],
)
def test_items_and_evaluators_are_those_of_the_configuration(
    monkeypatch: pytest.MonkeyPatch, maps: dict[str, dict[str, str]], name: str, items: str, evaluator: str
) -> None:
    monkeypatch.setattr(BenchmarkFiles, "problems", lambda files: ["no data"])
    assert rows(listing(Config(maps=maps)))[name][1:3] == [items, evaluator]


SETTINGS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in registry.benchmark_tasks()),
    ("genai", {"prompts": 527}),
    ("oneig", {"images_per_prompt": 2}),
    ("oneig-zh", {"tasks": "diversity"}),
    ("tiff", {"split": "test"}),
    ("tiff", {"wording": "long"}),
    ("unigenbench", {"language": "zh"}),
    ("trig-t2i", {"pairs": "IQ-R_TA-C,D-K_R-B", "per_pair": 300}),
    ("trig-s2p", {"per_pair": {"IQ-R_TA-C": 1}}),
]


@pytest.mark.parametrize(("name", "settings"), SETTINGS)
def test_what_a_class_says_of_its_items_is_true_of_its_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, settings: Mapping[str, Any]
) -> None:
    mirror, files = shared_mirror(), registry.benchmark_files(name).local
    if files:
        monkeypatch.setattr(assets, "BENCHMARKS", tmp_path)
    for asset in files:
        if isinstance(asset, TableAsset):  # which nobody keeps
            write_rows(assets.data_folder(name), name.removeprefix("trig-"))
        if isinstance(asset, FileAsset):
            target = assets.data_folder(name) / asset.path
            target.parent.mkdir(parents=True, exist_ok=True)
            if (mirror / asset.source).exists():
                target.symlink_to(mirror / asset.source)
            elif target.suffix == ".jpg":  # one of ImgEdit's sources, which nobody keeps
                Image.new("RGB", (64, 64)).save(target)
    benchmark = registry.make_benchmark(name, settings, "")
    assert benchmark.prompt_count
    assert benchmark.prompt_count * benchmark.images_per_prompt == len([*benchmark.samples()])


@pytest.mark.parametrize("document", ["README.md", "README_zh.md"])
def test_the_readme_has_the_tasks_of_models_behind_an_api(document: str) -> None:
    text = (REPO / document).read_text(encoding="utf-8")
    table = {
        name: re.split("、|, ", tasks)
        for names, tasks in re.findall(r"^\| ([^|]*) \| ([^|]*) \| API[,，]", text, re.MULTILINE)
        for name in re.findall("`([^`]*)`", names)
    }
    assert "gpt-image-2" in table
    assert table == {name: model_tasks()[name] for name in table}


@pytest.mark.parametrize(("document", "none"), [("README.md", "none"), ("README_zh.md", "不需要")])
def test_the_table_of_the_readme_is_that_of_the_code(document: str, none: str) -> None:
    text = (REPO / document).read_text(encoding="utf-8")
    row = r"^\| `([\w-]+)`[^|]*\| (t2i|edit|subject) \| (.* \| .* \| .*) \|$"
    of_table = re.findall(row, text, re.MULTILINE)
    table = {name: [task, *rest.split(" | ")] for name, task, rest in of_table}
    assert table.keys() == registry.benchmark_tasks().keys()
    for name, (task, items, images, evaluators, _, gpus, licence, _) in table.items():
        choice = choose_benchmark(Config(), name)
        ours = choice.benchmark
        assert ours and choice.task == task
        assert images == f"{ours.prompt_count * ours.images_per_prompt:,}", name
        numbers = [int(number.replace(",", "")) for number in re.findall(r"\d+(?:,\d{3})*", items)]
        assert sum(numbers) in (ours.prompt_count, ours.prompt_count * ours.images_per_prompt), name
        default = re.split("[;；]", evaluators)[0]
        assert re.findall(r"`([^`]+)`", default) == choice.evaluators, name
        runs_here = choice.uses_encoders or bool(choice.judge and not choice.judge.runs_elsewhere)
        assert (gpus != none) == runs_here, name
        ids = {re.sub("none stated.*", "", asset.licence).partition(" ")[0] for asset in choice.files.local}
        assert ids <= {"", *re.split("[;；] ?", licence)}, name
