"""OneIG-Bench's alignment: what counts as yes, and what a parent's no takes away."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from benchmarks.oneig import scores
from benchmarks.oneig.data import CHINESE, ENGLISH, Edition, Prompt
from benchmarks.oneig.scores import ScoredPrompt, filtered, parsed_answer
from imageevalkit.benchmark.contract import Answers, Rules, ScoredItem
from tests.support.oneig_scored import BLACK, GONE, RULES, image, real_prompts

CHAIN = {1: [], 2: [1], 3: [2]}


def prompt(parents: Mapping[int, Sequence[int]]) -> Prompt:
    return Prompt("object", "000", "a cat", questions=dict.fromkeys(parents, "Is there?"), parents=parents)


def aligned(*given: str) -> ScoredItem:
    return image(alignment=dict(enumerate(given, 1)))


def answers(*given: str) -> Answers:
    return aligned(*given).answers


def image_score(prompt: Prompt, answers: Answers, rules: Rules) -> float:
    return scores.image_score(prompt, answers, rules, "en").values["alignment"]


def score(prompt: Prompt, images: Sequence[ScoredItem], rules: Rules) -> float | None:
    return ScoredPrompt(prompt, images, rules, "en").score.values.get("alignment")


@pytest.mark.parametrize(("rules", "expected"), [("official", 1 / 3), ("corrected", 1 / 6)])
def test_worked_example(rules: Rules, expected: float) -> None:
    images = [aligned("Yes", "No", "Yes"), aligned("No", "Yes", "Yes")]
    assert score(prompt(CHAIN), images, rules) == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize(
    ("answer", "official", "corrected"),
    [
        ("Yes", True, True),
        ("Yes.", False, True),
        ("yes", False, True),
        (" YES!\n", False, True),
        ("是", False, True),
        ("是的。", False, True),
        ("Yes, it is", False, False),
        ("不是", False, False),
        ("No", False, False),
        ("Yesterday", False, False),
        ("", False, False),
        ("...", False, False),
    ],
)
def test_what_counts_as_yes(answer: str, official: bool, corrected: bool) -> None:
    assert (parsed_answer(answer, "official") == "Yes") is official
    assert (parsed_answer(answer, "corrected") == "Yes") is corrected


@pytest.mark.parametrize("rules", RULES)
def test_a_question_with_two_parents_needs_both(rules: Rules) -> None:
    parents = {1: [], 2: [], 3: [1, 2], 4: [5], 5: []}
    yes = {1: True, 2: False, 3: True, 4: True, 5: True}
    assert filtered(yes, parents, rules) == {1: True, 2: False, 3: False, 4: True, 5: True}


def test_a_chain_is_followed_to_its_root_by_the_corrected_rules_only() -> None:
    parents = {1: [2], 2: [3], 3: [4], 4: []}
    yes = {1: True, 2: True, 3: True, 4: False}
    assert filtered(yes, parents, "official") == {1: True, 2: True, 3: False, 4: False}
    assert not any(filtered(yes, parents, "corrected").values())


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("parents", [{1: [1], 2: []}, {1: [2], 2: [1]}, {1: [3], 2: []}])
def test_own_ancestors_and_unknown_parents_take_nothing_away(
    parents: Mapping[int, Sequence[int]], rules: Rules
) -> None:
    assert filtered({1: True, 2: True}, parents, rules) == {1: True, 2: True}


@pytest.mark.parametrize("rules", RULES)
def test_all_questions_are_in_the_denominator(rules: Rules) -> None:
    assert image_score(prompt({1: [], 2: [1], 3: [1]}), answers("No", "Yes", "Yes"), rules) == 0
    assert image_score(prompt({1: [], 2: [1], 3: [1]}), answers("Yes", "No", "Yes"), rules) == 2 / 3


def test_images_that_do_not_count() -> None:
    one, unanswered = prompt({1: []}), image()
    assert score(one, [aligned("Yes"), BLACK, GONE, unanswered], "official") == 1
    assert score(one, [aligned("Yes"), aligned("No"), GONE, unanswered], "corrected") == 0.5
    assert score(one, [BLACK, GONE], "official") is None


@pytest.mark.parametrize(("edition", "count"), [(ENGLISH, 11231), (CHINESE, 13822)])
def test_the_real_questions(edition: Edition, count: int) -> None:
    asked = [one for one in real_prompts(edition) if one.questions]
    assert sum(len(one.questions) for one in asked) == count
    own = [(one.class_item, one.id) for one in asked if any(n in p for n, p in one.parents.items())]
    assert own == ([("anime", "192"), ("object", "038")] if edition is ENGLISH else [])
    for one in asked:
        every = dict.fromkeys(one.questions, "Yes")
        assert [image_score(one, image(alignment=every).answers, rules) for rules in RULES] == [
            1,
            1,
        ]
        # without a root nothing that hangs on it is left
        roots = {n for n, parents in one.parents.items() if not set(parents) - {n}}
        uprooted = image(alignment=every | dict.fromkeys(roots, "No")).answers
        official, corrected = (image_score(one, uprooted, rules) for rules in RULES)
        assert corrected <= official
