"""Preference models: the sets of prompts, the questions, the means of each model."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import stdev
from typing import Any

import pytest

from benchmarks.prefer.benchmark import KINDS, Prefer, PreferSettings
from benchmarks.prefer.models import DEFAULT
from imageevalkit import assets, registry
from imageevalkit.benchmark.contract import Answers, Unparsed
from imageevalkit.benchmark.question import Answer, Picture, Question, measure
from imageevalkit.common.errors import CellFailure, UserError
from imageevalkit.plan.benchmarks import choose_benchmark
from imageevalkit.plan.config import Config
from tests.support.function_judge import items, scores_of
from tests.support.mirror import official_source
from tests.support.prefer_data import use_texts


def of_file(folder: Path, text: str, name: str = "mine.txt", **settings: Any) -> Prefer:
    (folder / name).write_text(text, encoding="utf-8", newline="")
    return Prefer(PreferSettings(prompts=str(folder / name), **settings))


def test_a_file_has_a_prompt_per_line_or_a_list_of_texts(tmp_path: Path) -> None:
    made = items(of_file(tmp_path, "a red cup\r\n\r\n two dogs \n", images_per_prompt=2))
    assert [(one.prompt, one.id, one.seed) for one in made] == [
        ("a red cup", "images/00000_0", 42),
        ("a red cup", "images/00000_1", 43),
        ("two dogs", "images/00001_0", 42),
        ("two dogs", "images/00001_1", 43),
    ]
    of_lines = of_file(tmp_path, '["of two\\nlines"]', "mine.json")
    assert [one.prompt for one in items(of_lines)] == ["of two\nlines"]
    for text in ("[]", "[1]", "{}"):
        with pytest.raises(CellFailure, match="must hold prompts"):
            items(of_file(tmp_path, text, "mine.json"))


def test_the_published_sets_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assets, "BENCHMARKS", tmp_path)
    for name, count in (("pickscore", 2048), ("t2i-compbench", 2400)):
        benchmark = Prefer(PreferSettings(prompts=name, models="clipscore"))
        assert "prefetch --ds_names prefer with the --ds_kwargs of this run" in benchmark.files().explain(
            ["x"]
        )
        for asset in benchmark.files().local:
            assert isinstance(asset, assets.FileAsset)
            text = official_source(asset.repo, asset.commit, asset.source_path)
            target = benchmark.data / asset.path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
        made = items(benchmark)
        assert len(made) == len({one.id for one in made}) == benchmark.prompt_count == count
    groups = [one.data["group"] for one in made]
    assert set(groups[:8]) == set(KINDS) and {groups.count(kind) for kind in KINDS} == {300}


def test_another_benchmark_lends_its_prompts_and_layout(tmp_path: Path) -> None:
    benchmark, other = (
        Prefer(PreferSettings(prompts="quicktext", models="clipscore,hpsv2.1")),
        registry.make_benchmark("quicktext", {}, ""),
    )
    assert [(one.id, one.prompt) for one in items(benchmark)] == [
        (one.id, one.prompt) for one in items(other)
    ]
    assert benchmark.prompt_count == other.prompt_count and not benchmark.assets
    scores = scores_of(benchmark, items(benchmark)[:2], lambda asked: '{"v2.1": 1}' if asked.text else "1")
    assert {name for name in benchmark.metrics(scores) if "deviation" not in name} == {*benchmark.models}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"prompts": "pickscor"}, "is no file .did you mean 'pickscore'"),
        ({"prompts": "gedit"}, "a text-to-image benchmark is needed"),
        ({"prompts": "wise", "images_per_prompt": 2}, "leave out images_per_prompt"),
        ({"models": "clipscore,hpsv2"}, "models has no 'hpsv2'"),
        ({"models": ""}, "at least one model"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        choose_benchmark(Config(), "prefer", ds_kwargs=settings)


def test_each_model_is_asked_about_the_image_and_the_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    use_texts(monkeypatch)
    benchmark = Prefer(PreferSettings(prompts="quicktext"))
    [item, *_] = items(benchmark)
    image = Picture(item.path, "ab" * 32)
    asked = {one.name: one for one in benchmark.questions(item, image, Answers({}))}
    assert [*asked] == DEFAULT == [*benchmark.measurers] and not benchmark.judge and not benchmark.prompts
    told = {name: one.text for name, one in asked.items()}
    assert told.pop("aesthetic") == ""
    assert told.pop("hpsv3") == (
        f"\nRate it.\nTextual prompt - {item.prompt}\n\n\n\nThe rating: <|Reward|>\n\nEND\n"
    )
    assert {*told.values()} == {item.prompt}
    assert {one.pictures[0].pixels.name for one in asked.values() if one.pictures[0].pixels} == {"pillow"}
    corrected = Prefer(PreferSettings(rules="corrected", prompts="quicktext", models="clipscore"))
    [one] = corrected.questions(item, image, Answers({}))
    rule = one.pictures[0].pixels
    assert rule and rule.turned and "RGBA" in rule.on_white
    assert benchmark.identity["prompts"] != Prefer().identity["prompts"]


@pytest.mark.parametrize("text", ["", "null", '{"v2.0": 27.5}', "NaN", "[1]", '"1"'])
def test_what_is_no_number_is_no_score(text: str) -> None:
    asked = measure("hpsv2.1", "a cup")
    with pytest.raises(Unparsed):
        Prefer().parse(asked, Answer(asked, text))


def test_no_metric_is_over_several_models(tmp_path: Path) -> None:
    benchmark = of_file(tmp_path, "first\nsecond\n", images_per_prompt=2, models="pickscore,hpsv2.1")
    values = {"images/00000_0": 20.0, "images/00000_1": 22.0, "images/00001_0": 18.0}

    def said(asked: Question) -> str | None:
        if (value := values.get(asked.item)) is None:
            return None
        return json.dumps({"v2.1": value + 8, "v2.0": 1.0} if asked.name == "hpsv2.1" else value)

    metrics = benchmark.metrics(scores_of(benchmark, items(benchmark), said))
    assert {name: metric.value for name, metric in metrics.items()} == {
        "pickscore": 20.0,
        "pickscore/deviation": stdev([20.0, 22.0, 18.0]),
        # an image of the second prompt failed
        "pickscore/of_prompts": 19.5,
        "hpsv2.1": 28.0,
        "hpsv2.1/deviation": stdev([28.0, 30.0, 26.0]),
        "hpsv2.1/of_prompts": 27.5,
    }
    assert metrics["pickscore"].n == 3 and benchmark.headline == ["pickscore", "hpsv2.1"]
