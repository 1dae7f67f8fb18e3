"""OneIG-Bench's alignment task: what a judge's yes and no to the questions about an image are worth."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence

from benchmarks.oneig.scored import Prompt
from imageevalkit.benchmark.contract import Rules

YES = "Yes"
_ALSO_YES = frozenset({"yes", "是", "是的"})


def parsed_answer(answer: str, rules: Rules) -> str:
    """The answer as it is compared with :data:`YES`.

    Official: as it came. Corrected: "Yes" in any case, with space around or punctuation behind it, or in Chinese.
    """
    if rules == "official":
        return answer
    stripped = answer.strip()
    while stripped and unicodedata.category(stripped[-1]).startswith(("P", "Z")):
        stripped = stripped[:-1]
    return YES if stripped.lower() in _ALSO_YES else stripped


def filtered(yes: Mapping[int, bool], parents: Mapping[int, Sequence[int]], rules: Rules) -> dict[int, bool]:
    """Which questions count: those answered yes whose parents all are.

    Quirk: officially a parent that a parent of its own takes away still counts as answered, so a chain is followed one
    level only. Corrected: to its root. A question that is its own ancestor takes nothing away by that.
    """
    lost = {number for number, answer in yes.items() if not answer}
    while True:
        children = {number for number in yes if not lost.isdisjoint(parents.get(number, ()))}
        if rules == "official" or children <= lost:
            return {number: number not in lost and number not in children for number in yes}
        lost |= children


def image_score(prompt: Prompt, answers: Mapping[int, str], rules: Rules) -> float:
    """The share of all questions of ``prompt`` that count, 0-1; ``answers`` has an answer to each."""
    yes = {number: parsed_answer(answers[number], rules) == YES for number in prompt.questions}
    return sum(filtered(yes, prompt.parents, rules).values()) / len(yes)
