"""GenAI-Bench: the tags, the question, the means and the official table."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.genai.benchmark import TAGS, GenAI, GenAISettings
from imageevalkit.benchmark.contract import Answers, ScoredItem, Scores, Unparsed
from imageevalkit.benchmark.question import Answer, Picture, ask, measure
from imageevalkit.common.errors import CellFailure
from imageevalkit.extras.adopt.sources import find_images
from imageevalkit.store.cell import Cell
from imageevalkit.store.items import Item
from tests.support.function_judge import items
from tests.support.mirror import KIT, official_source, use_official_data


def scored(benchmark: GenAI, values: list[tuple[float, list[str]]]) -> Scores:
    found = []
    for n, (value, tags) in enumerate(values):
        id, data = f"images/{n:09d}", {"id": f"{n:05d}", "tags": tags}
        item = Item(id, Cell("m", "genai").folder / f"{id}.jpg", 42, "a cup", None, data)
        answers = Answers({"vqascore": Answer(measure("vqascore", "?"), str(value), value=value)})
        found.append(ScoredItem(item, item.path, answers, {}, benchmark.score(item, answers).of_item(id)))
    return Scores(found)


TOY = [(0.9, ["basic"]), (0.6, ["basic"]), (0.3, ["advanced"]), (0.0, list[str]())]


def test_the_whole_is_that_of_images_with_a_tag() -> None:
    metrics = GenAI().metrics(scored(GenAI(), TOY))
    assert [f"{metrics[name].value:.6f}" for name in ("basic", "advanced", "all")] == [
        "0.750000",
        "0.300000",
        "0.600000",
    ]
    assert metrics["basic_official"].value is None  # of so few images
    corrected = GenAI(GenAISettings(rules="corrected"))
    assert corrected.metrics(scored(corrected, TOY))["all"].value == pytest.approx(0.45)


def test_the_official_program_prints_our_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import json
    import random

    torch = pytest.importorskip("torch")
    source = official_source(*KIT, "benchmarks/genai/step2_run_model.py")
    begin, end = source.index("tag_groups = {"), source.index("def get_args")
    space: dict[str, Any] = {"json": json, "torch": torch}
    exec(compile(source[begin:end], "official", "exec"), space)
    draw = random.Random(6)
    values = [(draw.random(), draw.sample(TAGS, draw.randint(0, 4))) for _ in range(100)]
    skills = {tag: [n for n, (_, tags) in enumerate(values) if tag in tags] for tag in TAGS}
    (tmp_path / "genai_skills.json").write_text(json.dumps(skills), encoding="utf-8")

    images = SimpleNamespace(
        meta_dir=str(tmp_path),
        images=[{"model": "m"}] * len(values),
        prompt_to_images={f"{n:05d}": [n] for n in range(len(values))},
    )
    scores = torch.tensor([value for value, _ in values], dtype=torch.float64)
    space["show_performance_per_skill"](scores, images, print_std=True)
    ours = GenAI().official_files(scored(GenAI(), values))["results.txt"]
    assert ours.split() == capsys.readouterr().out.split()


def test_both_sets_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_official_data("genai", tmp_path, monkeypatch)
    large, small = items(GenAI()), items(GenAI(GenAISettings(prompts=527)))
    counts = {tag: sum(tag in one.data["tags"] for one in large) for tag in TAGS}
    assert (len(large), len(small)) == (1600, 527)
    assert (counts["basic"], counts["advanced"], counts["counting"]) == (722, 871, 340)
    assert sum(bool(one.data["tags"]) for one in large) == 1593
    assert {one.path.name for one in large} >= {"000000000.jpg", "000001599.jpg"}
    assert not {one.id for one in large} & {one.id for one in small}
    # the first ones have their share of each skill
    for tag in TAGS:
        of_tag = [tag in one.data["tags"] for one in large]
        assert sum(of_tag) / 32 < sum(of_tag[:100]) < sum(of_tag) / 8, tag
    # whom it is asked of: CLIP-FlanT5, or a judge whose probabilities are known
    item = next(one for one in large if one.data["id"] == "00000")
    for judge, choices in (("", ()), ("openai:gpt-4o", ("Yes",))):
        benchmark = GenAI(judge=judge)
        [asked] = benchmark.questions(item, Picture(item.path, "ab" * 32), Answers({}))
        assert asked.choices == choices
        assert asked.text == f'Does this figure show "{item.prompt}"? Please answer yes or no.'


def test_what_is_no_probability_is_no_score() -> None:
    asked = measure("vqascore", "?")
    assert GenAI().parse(asked, Answer(asked, "0.899955")) == 0.899955
    for text in ("null", "NaN", "true", "1e999"):
        with pytest.raises(Unparsed):
            GenAI().parse(asked, Answer(asked, text))
    judged = ask("vqascore", "?", choices=("Yes",))
    benchmark = GenAI(judge="openai:gpt-4o")
    assert benchmark.parse(judged, Answer(judged, "Yes", probabilities={"Yes": 0.75})) == 0.75
    for said in (None, {}, {"Yes": float("nan")}):
        with pytest.raises(Unparsed):
            benchmark.parse(judged, Answer(judged, "Yes", probabilities=said))


def test_images_named_by_number_are_adopted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_official_data("genai", tmp_path, monkeypatch)
    folder = tmp_path / "theirs/images"
    folder.mkdir(parents=True)
    for number in range(1, 5):
        (folder / f"{number:09d}.jpg").write_bytes(b"")
    for settings in (GenAISettings(), GenAISettings(prompts=527)):
        benchmark = GenAI(settings)
        made = items(benchmark)
        found = find_images(tmp_path / "theirs", made, [], benchmark.find_images)
        paths = {one.data["id"]: found[one.id].path for one in made if one.id in found}
        assert paths == {f"{n:05d}": folder / f"{n:09d}.jpg" for n in range(1, 5)}
    (folder / "4.png").write_bytes(b"")
    found = find_images(tmp_path / "theirs", made, [], benchmark.find_images)
    assert "2 files in" in found["images_527/000000004"].reason
    (folder / f"{0:09d}.jpg").write_bytes(b"")
    with pytest.raises(CellFailure, match=r"^benchmark genai: .* belongs to the 1,600 prompts"):
        benchmark.find_images(tmp_path / "theirs", made)


def test_without_an_image_the_official_program_gives_no_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_official_data("genai", tmp_path, monkeypatch)
    benchmark = GenAI()
    assert benchmark.official_headline == ("basic_official", "advanced_official", "all_official")
    values = [(n % 10 / 10, one.data["tags"]) for n, one in enumerate(items(benchmark))]
    whole, short = (benchmark.metrics(scored(benchmark, some)) for some in (values, values[1:]))
    for name in benchmark.headline:
        assert whole[f"{name}_official"] == whole[name] and whole[name].value is not None
        assert short[f"{name}_official"].value is None and short[name].value is not None
    assert whole["all"].n == 1593
