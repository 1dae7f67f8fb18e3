"""OneIG-Bench's text metric: the official definitions on the real references, and their quirks mended."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.oneig.data import CHINESE, ENGLISH, Edition, Language, Prompt
from benchmarks.oneig.scores import (
    clean_reading,
    compare,
    max_tokens,
    preprocess,
    preprocess_expected,
    text_score,
)
from imageevalkit.benchmark.contract import Rules
from tests.support.official_oneig import official_source
from tests.support.oneig_scored import NOTHING, RULES, real_prompts, transcriptions

RAW = "['HELLO WORLD', 'SALE 50%']"
EDITIONS = pytest.mark.parametrize("edition", [ENGLISH, CHINESE], ids=lambda edition: edition.name)

# tokens that Qwen2.5's tokenizer needs for the longest texts as they are, and with a line break for every space
TOKENS_NEEDED = {
    "oneig": {
        "195": (336, 525),
        "196": (263, 458),
        "197": (252, 447),
        "198": (257, 422),
        "199": (237, 406),
        "035": (157, 265),
        "036": (135, 214),
        "006": (115, 180),
        "003": (91, 148),
        "005": (86, 138),
        "065": (71, 123),
    },
    "oneig-zh": {
        "195": (324, 326),
        "197": (254, 256),
        "196": (249, 249),
        "198": (248, 262),
        "199": (226, 231),
        "035": (163, 166),
        "036": (123, 123),
        "004": (101, 100),
        "005": (84, 82),
    },
}


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


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("reading", NOTHING)
def test_the_nothing_there_sentence_against_a_text(rules: Rules, reading: str) -> None:
    assert compared(RAW, reading, rules, "en") == (19, 0, 0, 0, 4)


@pytest.mark.parametrize(
    ("reading", "official", "corrected"),
    [
        ("No text recognized", "No text recognized", ""),
        ("No text recognized.", "", ""),
        ("SALE\naddCriterion\naddCriterion", "SALE\n\n", "SALE\n\n"),
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
        ("Crème Brûlée — 8", "official", "en", "Crème Brûlée 8"),
        ("新年 2025 快乐!", "official", "zh", "新年2025快乐"),
        ("新年 2025", "official", "en", "新年2025"),
        ("OPEN 24 H", "official", "zh", "OPEN 24 H"),
        ("OPEN 24 H", "corrected", "zh", "OPEN24H"),
        ("OPEN 24 H", "corrected", "en", "OPEN 24 H"),
        ("龦龥", "official", "zh", "龥"),
        ("！？", "official", "en", ""),
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


@pytest.mark.parametrize(("ed", "language", "score"), [(250, "en", 0.5), (75, "zh", 0.5), (50, "en", 0.75)])
def test_ed_counts_up_to_a_ceiling(ed: float, language: Language, score: float) -> None:
    assert text_score(ed, 0, 0.5, language) == score


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


def test_prompts_compared_by_words_in_chinese() -> None:
    by_words = [
        prompt.id
        for prompt in texts(CHINESE)
        if compare(prompt.expected_text, "", "official", "zh")["total"]
        != compare(prompt.expected_text.replace("\\n", " "), "", "corrected", "zh")["total"]
        and "\\n" not in prompt.expected_text
    ]
    assert by_words == ["112", "119", "120"]


def test_tokens_of_the_official_rule() -> None:
    long = [prompt.id for prompt in texts(ENGLISH) if max_tokens(prompt, "official", "en") == 256]
    assert long == ["004", "006", "007", "035", "036", "195", "196", "197", "198", "199"]
    assert {max_tokens(prompt, "official", "en") for prompt in texts(ENGLISH)} == {128, 256}
    assert {max_tokens(prompt, "official", "zh") for prompt in texts(CHINESE)} == {128}


@EDITIONS
def test_tokens_of_the_corrected_rule_cut_no_text(edition: Edition) -> None:
    needed = TOKENS_NEEDED[edition.name]
    rest = min(max(pair) for pair in needed.values())
    official_cuts = 0
    for prompt in texts(edition):
        official_cuts += needed.get(prompt.id, (0,))[0] > max_tokens(prompt, "official", edition.language)
        allowed = max_tokens(prompt, "corrected", edition.language)
        assert allowed >= max(needed.get(prompt.id, (rest,)))
        assert allowed % 128 == 0
    assert official_cuts == (3 if edition is ENGLISH else 6)


class _Rows:
    """The part of numpy that the official edit distance uses; its own matrix would take a minute here."""

    @staticmethod
    def zeros(shape: tuple[int, int]) -> list[list[float]]:
        return [[0.0] * shape[1] for _ in range(shape[0])]


@EDITIONS
def test_every_part_equals_the_official_functions_on_the_real_references(edition: Edition) -> None:
    namespace: dict[str, Any] = {}
    exec(compile(official_source("scripts/text/text_utils.py"), "text_utils.py", "exec"), namespace)
    namespace["np"] = _Rows
    official = SimpleNamespace(**namespace)
    officially = 0
    for number, prompt in enumerate(texts(edition)):
        raw = prompt.expected_text
        expected = official.preprocess_string(raw)
        assert preprocess_expected(raw, "official", edition.language) == expected
        for kind, reading in enumerate(transcriptions(raw, seed=number)):
            [cleaned] = official.clean_and_remove_hallucinations([reading])
            assert clean_reading(reading, "official") == cleaned
            read = official.preprocess_string(cleaned)
            assert preprocess(cleaned, "official", edition.language) == read
            ours = compare(raw, reading, "official", edition.language)
            match, ratio, total = official.calculate_char_match_ratio(expected, read)
            assert (ours["match"], ours["WAC"], ours["total"]) == (match, ratio, total)
            # the official distance is quadratic, in Python: most texts go through the same recurrence by rows
            is_short = len(expected) * len(read) < 40_000 and (number + kind) % 2 == 0
            distance = official.levenshtein_distance if is_short else distance_by_rows
            assert distance(read, expected) == ours["ED"], (prompt.id, reading)
            officially += is_short
    assert officially > 1100


def distance_by_rows(one: str, other: str) -> int:
    """Unit costs; a row of the official matrix at once, its insertions as a running minimum."""
    import numpy as np

    places = np.arange(len(other) + 1)
    letters = np.array(list(other))
    row = places
    for number, letter in enumerate(one, 1):
        entered = np.minimum(row[1:] + 1, row[:-1] + (letters != letter))
        row = np.minimum.accumulate(np.concatenate([[number], entered]) - places) + places
    return int(row[-1])
