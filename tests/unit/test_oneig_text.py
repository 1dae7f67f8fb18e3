"""OneIG-Bench's text metric: the official definitions on the real references, and their quirks mended."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.oneig.data import CHINESE, ENGLISH, Edition, Language, Prompt
from benchmarks.oneig.scores import (
    clean_reading,
    compare,
    preprocess,
    preprocess_expected,
    text_score,
)
from imageevalkit.benchmark.contract import Rules
from tests.support.official_oneig import official_source
from tests.support.oneig_scored import real_prompts, transcriptions

RAW = "['HELLO WORLD', 'SALE 50%']"
EDITIONS = pytest.mark.parametrize("edition", [ENGLISH, CHINESE], ids=lambda edition: edition.name)


def compared(raw: str, reading: str, rules: Rules, language: Language) -> tuple[float, ...]:
    found = compare(raw, reading, rules, language)
    return tuple(found[name] for name in ("ED", "CR", "WAC", "match", "total"))


def texts(edition: Edition) -> list[Prompt]:
    return [prompt for prompt in real_prompts(edition) if prompt.class_item == "text"]


def test_worked_example() -> None:
    assert preprocess_expected(RAW, "official", "en") == "HELLO WORLD SALE 50"
    assert compared(RAW, "HELLO WORLD\nSALE 50%", "official", "en") == (0, 1, 1, 4, 4)
    assert compared(RAW, "HELO WORLD", "official", "en") == (9, 0, 0.25, 1, 4)
    assert text_score(4.5, 0.5, 0.625, "en") == pytest.approx(0.9915625, abs=1e-15)
    assert text_score(4.5, 0.5, 0.625, "zh") == pytest.approx(0.983125, abs=1e-15)


@pytest.mark.parametrize(
    ("reading", "official", "corrected"),
    [
        ("No text recognized", "No text recognized", ""),
        ("addCriterionNo text recognized.x", "x", "x"),
        ("No text recognized yet", "No text recognized yet", " yet"),
    ],
)
def test_what_is_cleaned_away(reading: str, official: str, corrected: str) -> None:
    assert clean_reading(reading, "official") == official
    assert clean_reading(reading, "corrected") == corrected


@pytest.mark.parametrize(
    ("text", "rules", "language", "expected"),
    [
        (" Don't  stop-now ", "official", "en", "Dont stopnow"),
        ("新年 2025 快乐!", "official", "zh", "新年2025快乐"),
        ("OPEN 24 H", "official", "zh", "OPEN 24 H"),
        ("OPEN 24 H", "corrected", "zh", "OPEN24H"),
    ],
)
def test_what_is_compared_of_a_text(text: str, rules: Rules, language: Language, expected: str) -> None:
    assert preprocess(text, rules, language) == expected


def test_quirk_1_glues_the_n_of_a_printed_line_break() -> None:
    raw = r"['Detection\nAuthor: A', 'a \times b']"
    assert preprocess_expected(raw, "official", "en") == "DetectionnAuthor A a times b"
    assert preprocess_expected(raw, "corrected", "en") == "Detection Author A a times b"


def test_quirk_5_compares_chinese_prompts_without_a_chinese_character_by_words() -> None:
    assert compared("['OPEN NOW']", "OPEN NOVV", "official", "zh") == (2, 0, 1 / 2, 1, 2)
    assert compared("['OPEN NOW']", "OPEN NOVV", "corrected", "zh") == (2, 0, 6 / 7, 6, 7)
    assert compared("['OPEN NOW']", "OPENNOW", "corrected", "zh") == (0, 1, 1, 7, 7)


@pytest.mark.parametrize(
    ("edition", "rules", "total"),
    [
        (ENGLISH, "official", 3506),
        (CHINESE, "official", 7608),
        (ENGLISH, "corrected", 3518),
        (CHINESE, "corrected", 7628),
    ],
)
def test_units_of_all_references(edition: Edition, rules: Rules, total: int) -> None:
    found = [compare(prompt.expected_text, "", rules, edition.language) for prompt in texts(edition)]
    assert (len(found), sum(one["total"] for one in found)) == (200, total)


class _Rows:
    """What the official edit distance needs of numpy."""

    @staticmethod
    def zeros(shape: tuple[int, int]) -> list[list[float]]:
        return [[0.0] * shape[1] for _ in range(shape[0])]


@EDITIONS
def test_every_part_equals_the_official_functions_on_real_references(edition: Edition) -> None:
    namespace: dict[str, Any] = {}
    exec(compile(official_source("scripts/text/text_utils.py"), "text_utils.py", "exec"), namespace)
    namespace["np"] = _Rows
    official = SimpleNamespace(**namespace)
    # short ones: the official distance is quadratic, in Python
    short = [prompt.expected_text for prompt in texts(edition) if len(prompt.expected_text) < 100]
    for number, raw in enumerate(short[::6]):
        expected = official.preprocess_string(raw)
        assert preprocess_expected(raw, "official", edition.language) == expected
        for reading in transcriptions(raw, seed=number):
            [cleaned] = official.clean_and_remove_hallucinations([reading])
            assert clean_reading(reading, "official") == cleaned
            read = official.preprocess_string(cleaned)
            assert preprocess(cleaned, "official", edition.language) == read
            ours = compare(raw, reading, "official", edition.language)
            match, ratio, total = official.calculate_char_match_ratio(expected, read)
            assert (ours["match"], ours["WAC"], ours["total"]) == (match, ratio, total)
            assert official.levenshtein_distance(read, expected) == ours["ED"], (raw, reading)
