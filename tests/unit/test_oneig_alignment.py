"""OneIG-Bench's alignment: what counts as yes, and what a parent's no takes away."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from benchmarks.oneig.data import CHINESE, ENGLISH, Edition, Prompt
from benchmarks.oneig.scores import ScoredPrompt, filtered, parsed_answer
from imageevalkit.benchmark.contract import Rules, ScoredItem
from tests.support.oneig_scored import RULES, image, real_prompts

CHAIN = {1: [], 2: [1], 3: [2]}


def prompt(parents: Mapping[int, Sequence[int]]) -> Prompt:
    return Prompt("object", "000", "a cat", questions=dict.fromkeys(parents, "Is there?"), parents=parents)


def aligned(*given: str) -> ScoredItem:
    return image(alignment=dict(enumerate(given, 1)))


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
        (" YES!\n", False, True),
        ("是的。", False, True),
        ("Yes, it is", False, False),
        ("No", False, False),
        ("", False, False),
    ],
)
def test_what_counts_as_yes(answer: str, official: bool, corrected: bool) -> None:
    assert (parsed_answer(answer, "official") == "Yes") is official
    assert (parsed_answer(answer, "corrected") == "Yes") is corrected


def test_a_chain_is_followed_to_its_root_by_the_corrected_rules_only() -> None:
    parents = {1: [2], 2: [3], 3: [4, 5], 4: [], 5: []}
    yes = {1: True, 2: True, 3: True, 4: False, 5: True}
    assert filtered(yes, parents, "official") == {1: True, 2: True, 3: False, 4: False, 5: True}
    assert filtered(yes, parents, "corrected") == {1: False, 2: False, 3: False, 4: False, 5: True}


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("parents", [{1: [1], 2: []}, {1: [2], 2: [1]}, {1: [3], 2: []}])
def test_own_ancestors_and_unknown_parents_take_nothing_away(
    parents: Mapping[int, Sequence[int]], rules: Rules
) -> None:
    assert filtered({1: True, 2: True}, parents, rules) == {1: True, 2: True}


@pytest.mark.parametrize(("edition", "count"), [(ENGLISH, 11231), (CHINESE, 13822)])
def test_the_real_questions(edition: Edition, count: int) -> None:
    asked = [one for one in real_prompts(edition) if one.questions]
    assert sum(len(one.questions) for one in asked) == count
    own = [(one.class_item, one.id) for one in asked if any(n in p for n, p in one.parents.items())]
    assert own == ([("anime", "192"), ("object", "038")] if edition is ENGLISH else [])
