"""OneIG-Bench's text task: how a reading of an image compares with the text that was asked for."""

from __future__ import annotations

import functools
import importlib.util
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.oneig.data import Language, Prompt
from imageevalkit.benchmark.contract import Rules
from imageevalkit.errors import CellFailure

_ACCENTED = "àâäéèêëîïôöùûüç"
_IGNORED = re.compile(rf"[^\u4e00-\u9fa5a-zA-Z0-9\s{_ACCENTED}{_ACCENTED.upper()}]")
_CHINESE = re.compile("[\u4e00-\u9fa5]")
_NOTHING: Mapping[Rules, re.Pattern[str]] = {
    # quirk T2: judges are told to answer without the full stop, and that answer counts as read text
    "official": re.compile(r"No text recognized\."),
    "corrected": re.compile(r"No text recognized\.?"),
}

LARGEST_DISTANCE: Mapping[Language, float] = {"en": 100.0, "zh": 50.0}
"""The mean ED at and above which neither completed nor matching text is worth anything."""

# Qwen2.5's tokenizer needs at most 1.9 tokens a word on the English texts of more than 35 words and 2.9 with every
# word on a line of its own, and 1.2 a character on the Chinese ones of more than 35
_TOKENS_PER_UNIT: Mapping[Language, int] = {"en": 3, "zh": 2}


def text_score(ed: float, cr: float, wac: float, language: Language) -> float:
    """0-1, of the means over all images: ``ed`` in characters (lower is better), ``cr`` and ``wac`` 0-1."""
    top = LARGEST_DISTANCE[language]
    # in the official order of operations, for the same last digit
    return 1 - min(top, ed) * (1 - cr) * (1 - wac) / top


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
    return _NOTHING[rules].sub("", reading.replace("addCriterion", ""))


def preprocess(text: str, rules: Rules, language: Language) -> str:
    """What is compared of a text: letters, digits and Chinese characters, case kept.

    Words are one space apart; a text with a Chinese character has no spaces. Quirk T5: in Chinese, some expected texts
    have no Chinese character, and are compared by words. Corrected: Chinese texts never have spaces.
    """
    kept = _IGNORED.sub("", text)
    return ("" if _has_characters(kept, rules, language) else " ").join(kept.split())


def preprocess_expected(raw: str, rules: Rules, language: Language) -> str:
    """The expected text as it is compared, of the raw column of the text file.

    That column is a Python list as it is printed. Quirk T1: of a printed line break ``\\n`` only the backslash
    vanishes, and the letter is glued to the text. Reading the list back would break its ``\\times`` and ``\\frac``.
    """
    return preprocess(raw if rules == "official" else raw.replace("\\n", " "), rules, language)


def compare(raw: str, reading: str, rules: Rules, language: Language) -> dict[str, Any]:
    """What the judge read against the ``raw`` expected text, in AISBench's fields.

    ED is the edit distance in characters, CR 1 when it is 0 (else 0), and WAC the share, 0-1, of the expected units
    that were read: ``match`` of ``total``. Units are words, or characters where the expected text has a Chinese one;
    order is ignored and surplus units cost nothing.
    """
    from rapidfuzz.distance import Levenshtein

    cleaned, expected = clean_reading(reading, rules), preprocess_expected(raw, rules, language)
    read = preprocess(cleaned, rules, language)
    wanted, found = (Counter(_units(one, expected, rules, language)) for one in (expected, read))
    distance, match, total = Levenshtein.distance(read, expected), (wanted & found).total(), wanted.total()
    texts = {"ocr_raw": reading, "ocr_cleaned": cleaned, "ocr_preprocessed": read}
    ratios = {"CR": int(distance == 0), "WAC": match / total if total else 0.0}
    return {**texts, "ED": distance, **ratios, "match": match, "total": total}


def _units(text: str, expected: str, rules: Rules, language: Language) -> Sequence[str]:
    return text if _has_characters(expected, rules, language) else text.split()


def _has_characters(text: str, rules: Rules, language: Language) -> bool:
    return bool(_CHINESE.search(text)) or (rules == "corrected" and language == "zh")


def max_tokens(prompt: Prompt, rules: Rules, language: Language) -> int:
    """How many tokens the judge may need to write down what it reads in an image of ``prompt``.

    Official: 256 if the raw text has more than 60 words by its spaces, else 128; that cuts three English texts and, as
    Chinese has no spaces, six Chinese ones. Corrected: 3 for a word or 2 for a Chinese character, rounded up to a
    multiple of 128, which cuts none.
    """
    raw = prompt.expected_text
    if rules == "official":
        return 256 if len(raw.split()) > 60 else 128
    expected = preprocess_expected(raw, rules, language)
    needed = len(_units(expected, expected, rules, language)) * _TOKENS_PER_UNIT[language]
    return max(1, math.ceil(needed / 128)) * 128
