"""Which replies to a question of GenEval 2 are right: the strings of the official evaluator, in its order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

YES = ("Yes", "yes", " yes", " Yes")
_COUNT_QUESTION = "How many"
_WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_DIGITS = {word: str(number) for number, word in enumerate(_WORDS, 1)}


def accepted(question: str, answer: str) -> tuple[str, ...]:
    """The strings that answer ``question`` rightly.

    Quirk: only a question that starts with "How many" looks at ``answer``; any other one wants a yes.
    """
    if not question.startswith(_COUNT_QUESTION):
        return YES
    digit = _DIGITS.get(answer, "other")  # quirk: what is no number word has the digit "other"
    word = answer.capitalize()
    return answer, word, f" {answer}", f" {word}", digit, f" {digit}"


def soft_score(probabilities: Mapping[str, float], strings: Sequence[str]) -> float:
    """Σ of the probabilities of ``strings``, each by its own first token.

    Neither clipped nor deduplicated (quirk): where two strings begin with one token, it counts twice.
    """
    return sum(probabilities[string] for string in strings)


def without_bare_space(strings: Sequence[str]) -> tuple[str, ...]:
    """``strings`` without space + digit.

    Quirk Q1: a tokenizer that splits digits off begins " 7" with the bare space, so that the official sum of
    *every* count answer holds the probability of a space.
    """
    return tuple(s for s in strings if not (s.startswith(" ") and s[1:].isdigit()))
