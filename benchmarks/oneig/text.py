"""OneIG-Bench's text task: how a reading of an image compares with the text that was asked for.

Under the rules "official" these are the official definitions, quirks included; "corrected" mends what ``quirk``
comments name.
"""

from __future__ import annotations

import functools
import importlib.util
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from benchmarks.oneig.data import Language, Prompt
from imageevalkit.benchmark.contract import Rules
from imageevalkit.errors import CellFailure

_ACCENTED = "àâäéèêëîïôöùûüç"
_IGNORED = re.compile(rf"[^\u4e00-\u9fa5a-zA-Z0-9\s{_ACCENTED}{_ACCENTED.upper()}]")
_CHINESE = re.compile("[\u4e00-\u9fa5]")
_HALLUCINATION = "addCriterion"
_NOTHING: Mapping[Rules, re.Pattern[str]] = {
    # quirk T2: judges are told to answer without the full stop, and that answer counts as read text
    "official": re.compile(r"No text recognized\."),
    "corrected": re.compile(r"No text recognized\.?"),
}

LARGEST_DISTANCE: Mapping[Language, int] = {"en": 100, "zh": 50}
"""The mean ED at and above which neither completed nor matching text is worth anything."""

_OFFICIAL_LONG, _OFFICIAL_TOKENS, _OFFICIAL_LONG_TOKENS = 60, 128, 256
_TOKEN_STEP = 128
# Qwen2.5's tokenizer needs at most 1.9 tokens a word on the English texts of more than 35 words and 2.9 with every
# word on a line of its own, and 1.2 a character on the Chinese ones of more than 35
_TOKENS_PER_UNIT: Mapping[Language, int] = {"en": 3, "zh": 2}


class Comparison(NamedTuple):
    """One reading against the expected text: ``distance`` (ED) in characters, ``match`` of ``total`` units."""

    distance: int
    match: int
    total: int

    @property
    def complete(self) -> int:
        """CR: 1 when every character is right, else 0."""
        return int(self.distance == 0)

    @property
    def ratio(self) -> float:
        """WAC of this reading, 0-1."""
        return self.match / self.total if self.total else 0.0


class TextScores(NamedTuple):
    """Means: ``ed`` in characters (lower is better), ``cr`` and ``wac`` 0-1."""

    ed: float
    cr: float
    wac: float

    def score(self, language: Language) -> float:
        """The text score, 0-1."""
        top = LARGEST_DISTANCE[language]
        # in the official order of operations, for the same last digit
        return 1 - min(top, self.ed) * (1 - self.cr) * (1 - self.wac) / top


@functools.cache
def check_package(benchmark: str) -> None:
    """Before a reading is paid for. Raises CellFailure: rapidfuzz, which compares them, is not there."""
    if not importlib.util.find_spec("rapidfuzz"):
        raise CellFailure(
            f"{benchmark}: package rapidfuzz is missing in this environment; bring it up to date with "
            "bash utils/make_env.sh"
        )


def clean_reading(reading: str, rules: Rules) -> str:
    """What the judge read, without its "nothing here" sentence and a word it is known to make up."""
    return _NOTHING[rules].sub("", reading.replace(_HALLUCINATION, ""))


def preprocess(text: str, rules: Rules, language: Language) -> str:
    """What is compared of a text: letters, digits and Chinese characters, case kept.

    Words are one space apart; a text with a Chinese character has no spaces. Quirk T5: in Chinese, some expected texts
    have no Chinese character, and are compared by words. Corrected: Chinese texts never have spaces.
    """
    kept = _IGNORED.sub("", text)
    characters = bool(_CHINESE.search(kept)) or _never_words(rules, language)
    return ("" if characters else " ").join(kept.split())


def preprocess_expected(raw: str, rules: Rules, language: Language) -> str:
    """The expected text as it is compared, of the raw column of the text file.

    That column is a Python list as it is printed. Quirk T1: of a printed line break ``\\n`` only the backslash
    vanishes, and the letter is glued to the text. Reading the list back would break its ``\\times`` and ``\\frac``.
    """
    return preprocess(raw if rules == "official" else raw.replace("\\n", " "), rules, language)


def compare(expected: str, read: str, rules: Rules, language: Language) -> Comparison:
    """Both texts preprocessed. Units are words, or characters where the expected text has a Chinese one; order is
    ignored and surplus units cost nothing."""
    from rapidfuzz.distance import Levenshtein

    wanted = Counter(_units(expected, expected, rules, language))
    found = Counter(_units(read, expected, rules, language))
    return Comparison(Levenshtein.distance(read, expected), (wanted & found).total(), wanted.total())


def compare_all(raw: str, readings: Sequence[str], rules: Rules, language: Language) -> list[Comparison]:
    """Each of the judge's ``readings`` against the ``raw`` expected text."""
    expected = preprocess_expected(raw, rules, language)
    return [
        compare(expected, preprocess(clean_reading(one, rules), rules, language), rules, language)
        for one in readings
    ]


def _units(text: str, expected: str, rules: Rules, language: Language) -> Sequence[str]:
    return text if _CHINESE.search(expected) or _never_words(rules, language) else text.split()


def _never_words(rules: Rules, language: Language) -> bool:
    return rules == "corrected" and language == "zh"


def of_model(comparisons: Sequence[Comparison]) -> TextScores | None:
    """Over all images of all prompts (micro: long texts weigh more in WAC); None when nothing was compared."""
    total = sum(one.total for one in comparisons)
    return _means(comparisons, sum(one.match for one in comparisons) / total) if total else None


def of_prompt(comparisons: Sequence[Comparison]) -> TextScores | None:
    """Over one prompt's images; None when nothing was compared."""
    if not comparisons:
        return None
    return _means(comparisons, sum(one.ratio for one in comparisons) / len(comparisons))


def _means(comparisons: Sequence[Comparison], wac: float) -> TextScores:
    count = len(comparisons)
    return TextScores(
        sum(one.distance for one in comparisons) / count,
        sum(one.complete for one in comparisons) / count,
        wac,
    )


def max_tokens(prompt: Prompt, rules: Rules, language: Language) -> int:
    """How many tokens the judge may need to write down what it reads in an image of ``prompt``.

    Official: 256 if the raw text has more than 60 words by its spaces, else 128; that cuts three English texts and, as
    Chinese has no spaces, six Chinese ones. Corrected: 3 for a word or 2 for a Chinese character, rounded up to a
    multiple of 128, which cuts none.
    """
    raw = prompt.expected_text
    if rules == "official":
        return _OFFICIAL_LONG_TOKENS if len(raw.split()) > _OFFICIAL_LONG else _OFFICIAL_TOKENS
    expected = preprocess_expected(raw, rules, language)
    needed = len(_units(expected, expected, rules, language)) * _TOKENS_PER_UNIT[language]
    return max(1, math.ceil(needed / _TOKEN_STEP)) * _TOKEN_STEP
