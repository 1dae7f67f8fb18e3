"""CVTG-2K: the words of a prompt, their match with the words read, and the means."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest

from benchmarks.cvtg2k.benchmark import CELLS, CVTG2K, CVTGSettings
from benchmarks.cvtg2k.words import quoted_words
from imageevalkit.benchmark.contract import Answers, Rules, Score, ScoredItem, Scores, Unparsed
from imageevalkit.benchmark.question import Answer, Picture, measure
from imageevalkit.common.errors import UserError
from imageevalkit.plan.benchmarks import choose_benchmark
from imageevalkit.plan.config import Config
from imageevalkit.store.cell import Cell
from imageevalkit.store.items import Item
from tests.support.function_judge import items, scores_of
from tests.support.mirror import use_official_data


def item(prompt: str, number: int = 0, subset: str = "CVTG", regions: int = 2) -> Item:
    id = f"images/{subset}/{regions}/{number}"
    data = {"subset": subset, "regions": regions, "prompt": prompt, "index": number}
    return Item(id, Cell("m", "cvtg2k").folder / f"{id}.png", 42, prompt, None, data)


def scored(benchmark: CVTG2K, *images: tuple[Item, str | None, float]) -> Scores:
    """Returns the scores of images, each with the text that was read in it (None: a failure), and its CLIPScore."""
    said = {
        one.id: {"text": text or "", "clipscore": f"{clip}", "aesthetic": "5"} for one, text, clip in images
    }
    found = scores_of(benchmark, [one for one, _, _ in images], lambda asked: said[asked.item][asked.name])
    failed = {one.id for one, text, _ in images if text is None}
    return Scores([_unread(one) if one.item.id in failed else one for one in found.items])


def _unread(one: ScoredItem) -> ScoredItem:
    answers = {name: answer for name, answer in one.answers.items() if name != "text"}
    return one._replace(answers=Answers(answers), score=None)


def score(prompt: str, text: str, rules: Rules = "official") -> Score:
    [found] = scored(CVTG2K(CVTGSettings(rules=rules)), (item(prompt), text, 0.8))
    return found


@pytest.mark.parametrize(
    ("prompt", "text", "correct", "similar"),
    [
        ("'READ' on a sign, 'MORNING'", "READ\nMORNIN6", 1, [1, 0.857143]),
        ("'Night Sale', a car’s door has 'Carpooling'", "NIGHT SALE\nCARPOOLING", 3, [1, 1, 1]),
        ("'Grand Opening' and 'Sale'", "GrandOpening\nSALE!", 0, [0.416667, 0.583334, 0.8]),
        ("'Today’s Special'", "Today's Special", 1, [0.857143, 1]),
        ("'Now Now' and 'Now'", "now", 3, [1, 1, 1]),
        ("'Stop'", "", 0, [2e-6]),
        # an edit distance would take "required"
        ("'service'", "time: required", 0, [0.1429]),
        ("the dog's bowl says 'Max' and the cat's bowl says 'Tom'", "Max\nTom", 1, 0.261907),
        ("a clock '5:00' and 'Happy Hour: 4 PM - 6 PM'", "5:00\nHappy Hour: 4 PM-6 PM", 6, 0.8125),
    ],
)
def test_worked_examples(prompt: str, text: str, correct: int, similar: list[float] | float) -> None:
    found = score(prompt, text)
    assert found.values["correct"] == correct
    assert found.values["total"] == len(each := found.detail["similarity"])
    assert (each if isinstance(similar, list) else fmean(each)) == pytest.approx(similar, abs=5e-5)
    assert found.values["ned"] == sum(each)


@pytest.mark.parametrize(
    ("prompt", "text", "values"),
    [
        ("'Today’s Special'", "Today's Special", {"correct": 2, "read": 2}),
        ("'Now Now' and 'Now'", "now", {"correct": 1, "read": 1}),
        ("'Grand Opening' and 'Sale'", "SALE!", {"correct": 0, "correct_stripped": 1}),
        ("'Stop'", "", {"correct": 0, "read": 0}),
        ("'Café – 72°F'", "cafe - 72f", {"correct": 3}),
    ],
)
def test_corrected_rules(prompt: str, text: str, values: dict[str, int]) -> None:
    found = score(prompt, text, "corrected").values
    assert {name: found[name] for name in values} == values
    assert score("'service'", "time: required", "corrected").values["ned"] == pytest.approx(0.375, abs=1e-4)


def pooled(benchmark: CVTG2K) -> Scores:
    return scored(
        benchmark,
        (item("'READ' and 'MORNING'"), "READ\nMORNIN6", 0.8),
        (item("'Grand Opening' and 'Sale'", 1), "GrandOpening\nSALE", 0.7),
        (item("'One Two Three' 'Four' 'Five Six'", 0, "CVTG-Style", 3), "one two\nfour\nfive six", 0.9),
        (item("'Stop'", 2), None, 0.5),
    )


def test_means_are_over_words_or_images() -> None:
    benchmark = CVTG2K()
    scores = pooled(benchmark)
    metrics = {name: metric.value for name, metric in benchmark.metrics(scores).items()}
    expected = {"word_accuracy/CVTG/2": 2 / 5, "ned/CVTG": 0.771429, "clipscore/2": 0.75, "ned/3": 0.866667}
    expected |= {"word_accuracy": 7 / 11, "ned": 0.823377, "clipscore": 0.8, "aesthetic": 5.0}
    # the official program counts the failure to read as a wrong word
    expected |= {"word_accuracy_official": 7 / 12, "ned_official": 0.823377 * 11 / 12}
    expected["clipscore_official"] = 2.9 / 4
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, abs=1e-6)
    [official] = map(json.loads, benchmark.official_files(scores).values())
    overall, areas = official["overall_results"], official["area_results"]
    assert overall["clipscore"] == pytest.approx(2.9 / 4) and overall["total_images"] == 4
    assert [(one["benchmark_type"], one["area"], one["total_words"]) for one in areas] == [
        ("CVTG", 2, 6),
        ("CVTG-Style", 3, 6),
    ]
    assert len(areas[0]["ned_word_data"]) == 6 and areas[0]["ned_word_data"][-1] == 0
    corrected = CVTG2K(CVTGSettings(rules="corrected"))
    found = corrected.metrics(pooled(corrected))
    assert found["word_accuracy"].value == pytest.approx(7 / 11) and "ned_official" not in found
    assert found["word_precision"].value == pytest.approx(7 / 9) and not corrected.official_headline


def test_the_published_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_official_data("cvtg2k", tmp_path, monkeypatch)
    made = items(CVTG2K())
    words = {one.id.removeprefix("images/"): quoted_words(one.data["prompt"]) for one in made}
    assert len(words) == 2000 and sum(map(len, words.values())) == 16_206
    assert {(one.data["subset"], one.data["regions"]) for one in made[:8]} == {*CELLS}
    assert words["CVTG/2/149"] == ["chef’s", "choice", "today’s", "offer"]
    assert " ".join(words["CVTG-Style/4/233"]) == "class of 2025 upcoming events girls boys math 101"
    assert " ".join(words["CVTG/5/92"]) == "adventure awaits epic journey 8.5/10 release 2025 nextgen films"


def test_the_questions_and_what_is_no_answer() -> None:
    one = replace(item("a sign 'READ'"), prompt="rewritten")
    image = Picture(one.path, "ab" * 32)
    text, clip, aesthetic = CVTG2K().questions(one, image, Answers({}))
    assert text == measure("text", image)
    assert (clip.text, aesthetic.text) == ("a sign 'READ'", "")
    assert {asked.pictures[0].pixels.turned for asked in (clip, aesthetic) if asked.pictures[0].pixels} == {
        False
    }
    for said in ("", "null", "NaN", "[1]", '"1"'):
        with pytest.raises(Unparsed):
            CVTG2K().parse(clip, Answer(clip, said))
    with pytest.raises(UserError, match="an OCR model reads its images"):
        choose_benchmark(Config(), "cvtg2k", judge="openai:gpt-4o")
