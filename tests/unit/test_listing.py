"""--list: how large a benchmark is, who evaluates it, and what is missing, as the configuration has it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from imageevalkit import assets, registry
from imageevalkit.assets import BenchmarkFiles, FileAsset
from imageevalkit.extras.listing.listing import listing
from imageevalkit.plan.benchmarks import BenchmarkChoice, choose_benchmark
from imageevalkit.plan.config import Config
from imageevalkit.store.cell import REPO
from tests.support import gedit_data, krisbench_data, omnicontext_data, prefer_data, rise_data, wiseedit_data
from tests.support.mirror import shared_mirror


@pytest.fixture(autouse=True)
def nothing_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONDA_BASE", str(tmp_path))
    monkeypatch.setattr(BenchmarkFiles, "problems", lambda files: [])
    monkeypatch.setattr(BenchmarkChoice, "check_dataset", lambda benchmark: 1000)


COLUMNS = {
    "Models": ("task", "environment", "weights", "key"),
    "Benchmarks": ("task", "items", "environment", "data", "weights", "key", "evaluator"),
}


def rows(listed: str) -> dict[str, dict[str, str]]:
    """The columns of each row by the name in the first; "problem" is on the line below."""
    found: dict[str, dict[str, str]] = {}
    columns: Sequence[str] = ()
    for line in listed.splitlines():
        name, *cells = re.split(" {2,}", line.strip())
        if name in COLUMNS:
            columns = COLUMNS[name]
        elif not name:
            columns = ()
        elif columns and line.startswith("      "):
            found[[*found][-1]]["problem"] = line.strip()
        elif columns:
            found[name] = dict(zip(columns, cells, strict=True))
    return found


def listed_with(maps: Mapping[str, Mapping[str, str]]) -> tuple[dict[str, dict[str, str]], str]:
    """The rows, and what gets what is missing."""
    listed = listing(Config(maps={name: dict(one) for name, one in maps.items()}))
    return rows(listed), listed.partition("To get what is missing")[2]


def wise(
    judge: str, kwargs: str = "", environments: Mapping[str, str] | None = None
) -> tuple[dict[str, str], str]:
    found, how = listed_with(
        {
            "JUDGE_MAP": {"wise": judge},
            "JUDGE_KWARGS_MAP": {judge: kwargs},
            "EVAL_ENV_MAP": environments or {},
        }
    )
    return found["wise"], how


def test_an_api_needs_its_own_key(monkeypatch: pytest.MonkeyPatch) -> None:
    assert wise("openai:m")[0]["key"] == "no"
    row, how = wise("openai:m", "api_key_env=LAB_API_KEY")
    assert row["key"] == "no"
    assert "set LAB_API_KEY in config.local.sh or the environment (wise)" in how
    assert "set API_KEY in config.local.sh or the environment (gpt-image-1.5," in how
    monkeypatch.setenv("LAB_API_KEY", "sk-0815-4711")
    assert wise("openai:m", "api_key_env=LAB_API_KEY")[0]["key"] == "yes"
    row, _ = wise("openai:m", "api_key_env=LAB_API_KEY,base_url=gpu1")
    assert "must look like https://host/v1" in row["problem"]


def test_weights_are_looked_for_beside_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model with its environment, and without its weights, was listed as ready."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    (tmp_path / "envs/diffusers/bin").mkdir(parents=True)
    (tmp_path / "envs/diffusers/bin/python").symlink_to(sys.executable)
    environments = {"INFER_ENV_MAP": {"flux.1-dev": "diffusers", "diffusers": "diffusers", "bagel": "absent"}}

    def shown(name: str) -> tuple[str, str]:
        row = listed_with(environments)[0][name]
        return row["environment"], row["weights"]

    assert shown("flux.1-dev") == ("yes", "1st run")
    assert shown("diffusers") == ("yes", "no"), "the folder of its entry is not there"
    assert shown("bagel") == ("no", "no"), "nobody but prefetch gets its authors' code"
    assert shown("reference-noise") == ("yes", "-")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert shown("flux.1-dev") == ("yes", "no")
    how = listed_with(environments)[1]
    assert re.search(r"environment of a model +bash utils/make_env\.sh --model NAME\n", how)
    assert re.search(r"weights of a model +bash eval\.sh prefetch --model_names NAME\n", how)


def test_data_that_is_not_here_is_a_column(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (listed_with({})[0]["wise"]["data"], listed_with({})[0]["quicktext"]["data"]) == ("yes", "-")
    monkeypatch.setattr(BenchmarkFiles, "problems", lambda files: ["no data"])
    found, how = listed_with({})
    assert found["wise"]["data"] == "no"
    assert "bash eval.sh prefetch --ds_names NAME" in how


@pytest.mark.parametrize(
    ("maps", "name", "items", "evaluator"),
    [
        ({}, "geneval", "553 × 4", "mask2former-mmdet"),
        ({"JUDGE_MAP": {"wise": "vllm:gpt-4o-2024-05-13"}}, "wise", "1000", "vllm:gpt-4o-2024-05-13"),
        ({"JUDGE_MAP": {"dpgbench": "openai:m"}}, "dpgbench", "1065 × 4", "openai:m"),
        ({}, "oneig", "1120 × 4", "qwen2.5-vl-7b, llm2clip, csd+se, dreamsim"),
        ({"DS_KWARGS_MAP": {"oneig": "tasks=style,images_per_prompt=2"}}, "oneig", "-", "csd+se"),
        ({"DS_KWARGS_MAP": {"genai": "prompts=528"}}, "genai", "-", "-"),
    ],
)
def test_items_and_evaluators_are_those_of_the_configuration(
    monkeypatch: pytest.MonkeyPatch, maps: dict[str, dict[str, str]], name: str, items: str, evaluator: str
) -> None:
    monkeypatch.setattr(BenchmarkFiles, "problems", lambda files: ["no data"])
    row = listed_with(maps)[0][name]
    assert (row["items"], row["evaluator"]) == (items, evaluator)


SETTINGS: list[tuple[str, dict[str, Any]]] = [
    # of TRIG, whose data nobody keeps, test_trig.py knows it
    *((name, {}) for name in registry.benchmark_tasks() if not name.startswith("trig-")),
    ("gedit", {"language": "zh", "edits": 604}),
    ("genai", {"prompts": 527}),
    ("genexam", {"subset": "mini"}),
    ("oneig", {"images_per_prompt": 2}),
    ("oneig-zh", {"tasks": "diversity"}),
    ("t2icorebench", {"edition": 2026}),
    ("tiff", {"split": "test"}),
    ("tiff", {"wording": "long"}),
    ("unigenbench", {"language": "zh"}),
]


@pytest.mark.parametrize(("name", "settings"), SETTINGS)
def test_what_a_class_says_of_its_items_is_true_of_its_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, settings: Mapping[str, Any]
) -> None:
    mirror, files = shared_mirror(), registry.benchmark_files(name).local
    if files:
        monkeypatch.setattr(assets, "BENCHMARKS", tmp_path)
    for asset in files:
        if isinstance(asset, FileAsset):
            target = assets.data_folder(name) / asset.path
            target.parent.mkdir(parents=True, exist_ok=True)
            if (mirror / asset.source).exists():
                target.symlink_to(mirror / asset.source)
            elif target.suffix == ".jpg":  # one of ImgEdit's sources, which nobody keeps
                Image.new("RGB", (64, 64)).save(target)
    if name == "gedit":
        gedit_data.write(assets.data_folder(name))
    if name == "omnicontext":
        omnicontext_data.write(assets.data_folder(name))
    if name == "prefer":
        (assets.data_folder(name) / "dataset/pickscore/test.txt").write_text(prefer_data.PROMPTS)
    if name == "wiseedit":
        wiseedit_data.write(tmp_path / "hub")
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    if name == "krisbench":
        krisbench_data.write(assets.data_folder(name))
    if name == "rise":
        rise_data.write(tmp_path / name)
    benchmark = registry.make_benchmark(name, settings, "")
    assert benchmark.prompt_count
    assert benchmark.prompt_count * benchmark.images_per_prompt == len([*benchmark.samples()])


@pytest.mark.parametrize("end", [".md", ".zh.md"])
def test_the_page_of_api_models_has_the_list_prices(end: str) -> None:
    text = (REPO / f"docs/models/api{end}").read_text(encoding="utf-8")
    prices = json.loads((REPO / "infer/custom_models/prices.json").read_text(encoding="utf-8"))["models"]
    rows = re.findall(r"^\| `([^`]+)` \| ([\d.]+(?: \| [\d.]+){4}) \| ([\d-]+) \|$", text, re.MULTILINE)
    assert len(rows) == 4
    for name, numbers, date in rows:
        tokens, image = prices[name]["per_million_tokens"], prices[name]["image_estimate"]
        kinds = ("text_input", "image_input", "text_output", "image_output")
        expected = [*(tokens[kind] for kind in kinds), image["default"] if isinstance(image, dict) else image]
        assert ([*map(float, numbers.split(" | "))], date) == (expected, prices[name]["date"])


@pytest.mark.parametrize(
    ("document", "none"), [("docs/benchmarks/index.md", "none"), ("docs/benchmarks/index.zh.md", "不需要")]
)
def test_the_table_of_benchmarks_is_that_of_the_code(document: str, none: str) -> None:
    text = (REPO / document).read_text(encoding="utf-8")
    row = r"^\| `([\w-]+)`[^|]*\| (t2i|edit|subject) \| (.*) \|$"
    of_table = re.findall(row, text, re.MULTILINE)
    table = {name: [task, *rest.split(" | ")] for name, task, rest in of_table}
    assert table.keys() == registry.benchmark_tasks().keys()
    for name, (task, items, images, evaluators, _, gpus, licence) in table.items():
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
