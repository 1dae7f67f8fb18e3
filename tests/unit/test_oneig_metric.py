"""OneIG-Bench's metrics: worked examples, what failed and black images do to them, groups and intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from benchmarks.oneig.data import ENGLISH, TASKS, Prompt, Task
from benchmarks.oneig.scores import ScoredPrompt, metrics
from imageevalkit.benchmark.contract import Rules, ScoredItem
from imageevalkit.store.results import Metric
from tests.support.oneig_scored import (
    BLACK,
    GONE,
    PromptImages,
    image,
    run_of,
)


def aligned(*answers: str) -> ScoredItem:
    return image(alignment=dict(enumerate(answers, 1)))


def read(text: str) -> ScoredItem:
    return image(text=text)


def similar(official: float) -> ScoredItem:
    return image(reasoning=[official, 0.9])


def styled(csd: Sequence[float], se: Sequence[float], exact: Sequence[float] = (0.9,)) -> ScoredItem:
    return image(style=[csd, se, exact])


def at(degrees: float) -> ScoredItem:
    turn = math.radians(degrees)
    return image(diversity=(math.cos(turn), math.sin(turn)))


def apart(distance: float) -> list[ScoredItem]:
    """Two images ``distance`` apart."""
    return [at(0), at(math.degrees(math.acos(1 - distance)))]


def text_prompt(number: int, expected: str = "['SALE']") -> Prompt:
    return Prompt("text", f"{number:03d}", "a sign", "NP", "short", expected_text=expected)


def one_question(number: int, class_item: str = "object") -> Prompt:
    words = (class_item, f"{number:03d}", "a cat", "NP", "short")
    return Prompt(*words, questions={1: "A cat?"}, parents={1: []})


def reasoning(number: int) -> Prompt:
    return Prompt("reasoning", f"{number:03d}", "why", "NP", "short", "physics", answer="because")


def anime(number: int, label: str) -> Prompt:
    return Prompt("anime", f"{number:03d}", "a cat", "NP", "short", label)


def of(prompts: Sequence[PromptImages], task: Task, rules: Rules = "official") -> dict[str, Metric]:
    return metrics(run_of(prompts, [task], rules, ENGLISH))


def value(found: dict[str, Metric], name: str) -> float:
    number = found[name].value
    assert number is not None
    return number


def test_worked_example_of_style() -> None:
    scored = PromptImages(
        anime(0, "3D rendering"),
        [styled([0.6, 0.1, -0.4], [0.4, 0.3, 0.2]), styled([-0.1, -0.2, -0.3], [0.2, -0.1, 0])],
    )
    found = of([scored, PromptImages(anime(1, ""), [styled([1], [1])])], "style")
    assert value(found, "style") == pytest.approx(0.3)
    assert value(found, "style/3d_rendering") == pytest.approx(0.3)
    assert found["style"].n == 1
    assert value(of([scored], "style", "corrected"), "style") == pytest.approx((0.75 + 0.45) / 2)


def test_worked_example_of_diversity() -> None:
    turns = [0.0, 40.0, 100.0]
    expected = [1 - math.cos(math.radians(turn)) for turn in (40, 100, 60)]
    three = PromptImages(one_question(0), [at(turn) for turn in turns])
    scored = ScoredPrompt(*three, "official", "en")
    # the record holds an embedding in float32
    assert [distance for _, _, distance in scored.pairs] == pytest.approx(expected, abs=1e-7)
    assert scored.score.values["diversity"] == pytest.approx(sum(expected) / 3, abs=1e-7)

    prompts = [
        PromptImages(one_question(number, class_item=name), apart(distance))
        for number, name, distance in ((0, "anime", 0.4), (1, "anime", 0.2), (0, "human", 0.6))
    ]
    found = of(prompts, "diversity")
    assert {name: round(metric.value or 0, 6) for name, metric in found.items()} == {
        "diversity": 0.4,
        "diversity/anime": 0.3,
        "diversity/human": 0.6,
        "diversity/NP": 0.4,
        "diversity/short": 0.4,
    }


def test_total_is_the_mean_of_five_tasks() -> None:
    everything = [
        PromptImages(one_question(0), [aligned("Yes"), aligned("No")]),
        PromptImages(text_prompt(0), [read("SALE"), read("SAIL")]),
        PromptImages(reasoning(0), [similar(0.2984)]),
        PromptImages(anime(0, "lego"), [styled([0.3585], [0.3585]), *apart(0.1828)]),
    ]
    found = metrics(run_of(everything, TASKS, "official", ENGLISH))
    assert value(found, "oneig_total") == pytest.approx(sum(value(found, task) for task in TASKS) / 5)
    assert metrics(run_of(everything[:3], TASKS, "official", ENGLISH))["oneig_total"].value is None


def test_black_images_count_under_corrected_rules_only() -> None:
    prompt = one_question(0)

    def with_black(black: ScoredItem) -> list[PromptImages]:
        return [
            PromptImages(prompt, [aligned("Yes"), black, GONE]),
            PromptImages(one_question(1), [black, image()]),
        ]

    official = of(with_black(BLACK), "alignment")
    corrected = of(with_black(aligned("No")), "alignment", "corrected")
    assert (official["alignment"].value, official["alignment"].n) == (1, 1)
    assert (corrected["alignment"].value, corrected["alignment"].n) == (0.25, 2)
    assert of([PromptImages(prompt, [at(0), BLACK])], "diversity")["diversity"].value is None


def test_style_groups_are_means_of_styles() -> None:
    prompts = [
        *(PromptImages(anime(number, "Lego"), [styled([0.2], [0.2], [0.2])]) for number in range(3)),
        PromptImages(anime(3, "clay"), [styled([0.6], [0.6], [0.6])]),
        PromptImages(anime(4, "comic"), [GONE]),
        PromptImages(anime(5, "pixel art"), [styled([0.5], [0.5], [0.5])]),
    ]
    corrected = of(prompts, "style", "corrected")
    assert value(corrected, "style") == pytest.approx((3 * 0.2 + 0.6 + 0.5) / 5)
    assert value(corrected, "style/media") == pytest.approx(0.4)
    assert corrected["style/media"].n == 4
    assert value(corrected, "style/anime") == pytest.approx(0.5)
    assert "style/traditional" not in corrected
    assert corrected["style/comic"] == Metric(None, 0)
    official = of(prompts, "style")
    assert (official["style/media"].value, official["style/anime"].value) == (None, None)
    assert value(official, "style/lego") == pytest.approx(0.2)


def test_the_text_program_scores_a_black_grid_with_the_readings_before_it() -> None:
    first = PromptImages(text_prompt(0, "['SALE']"), [read("SALE"), read("SAIL")])
    failed = [PromptImages(text_prompt(n, "['SAIL']"), [GONE, BLACK]) for n in (1, 2)]
    # given in another order than that of the text file
    found = of([*failed[::-1], first], "text")
    assert value(found, "text/WAC") == 0.5
    assert found["text"].n == 1
    assert found["text_official"].n == 3
    # against either text one reading is right and the other has two wrong letters
    ed, cr, wac = 2 * 3 / 6, 3 / 6, 3 / 6
    assert value(found, "text_official") == 1 - ed * (1 - cr) * (1 - wac) / 100
    assert found["text/short_ED"].value is None
    assert of([first], "text")["text_official"] == of([first], "text")["text"]


def test_the_text_program_stops_when_the_first_grid_is_black() -> None:
    failed = PromptImages(text_prompt(0), [GONE])
    scored = [failed, PromptImages(text_prompt(1), [read("SALE")])]
    assert (of(scored, "text")["text"].value, of(scored, "text")["text_official"].value) == (1, None)
    no_file = [PromptImages(text_prompt(0), ()), *scored[1:]]
    assert of(no_file, "text")["text_official"].value == 1
    assert of(no_file, "text")["text/short_ED"].value is None
    assert of(no_file, "text", "corrected")["text/short_ED"].value == 0


def test_the_reasoning_program_stops_at_a_black_grid() -> None:
    scored = [
        PromptImages(reasoning(0), [similar(0.5), GONE]),
        PromptImages(reasoning(1), [similar(-0.25)]),
    ]
    found = of(scored, "reasoning")
    assert (found["reasoning"].value, found["reasoning_official"].value) == (0.125, 0.125)
    assert value(of(scored, "reasoning", "corrected"), "reasoning") == 0.9
    found = of([*scored, PromptImages(reasoning(2), [BLACK])], "reasoning")
    assert (found["reasoning"].value, found["reasoning_official"].value) == (0.125, None)
