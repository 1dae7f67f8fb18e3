"""LongText-Bench's score: worked examples and official numbers are data here, not re-derived."""

from __future__ import annotations

import math
import random
import time

import pytest

from benchmarks.longtext.metric import (
    Language,
    Match,
    Scored,
    clean_reading,
    interval,
    match_count,
    metrics,
    precision,
    text_score,
    units,
)

EN_A = match_count(
    ["FRESH BREWS, EVERY MORNING, EVERY DAY", "Don't stop!"],
    "Fresh brews every morning\nday – dont stop now",
    "en",
)
EN_B = match_count(["CENTRAL PARK - 2 BLOCKS"], "No text recognized", "en")


def test_worked_examples_of_the_spec() -> None:
    assert Match(match=7, total=8, read=8) == EN_A
    assert Match(match=0, total=4, read=3) == EN_B
    assert match_count(["本地烘焙，始于1998"], "本地烘培 始于1989", "zh") == Match(9, 10, 10)
    assert match_count(["开放 Wi-Fi"], "开放 WIFI", "zh") == Match(4, 6, 6)


def test_the_average_is_micro_not_macro() -> None:
    assert text_score([EN_A, EN_B]) == pytest.approx(7 / 12)
    assert text_score([]) is None


# (expected, read, language, match, total): match and total as the official summary script printed them
OFFICIAL = [
    (["Café Noël", "crème brûlée"], "CAFÉ NOËL creme brulee", "en", 2, 4),
    (["9-5 daily", "two-block walk"], "9 5 daily twoblock walk", "en", 3, 4),
    (["the the the cat"], "the cat the dog the the", "en", 4, 4),
    (["a  b\tc\nd"], "d\u00a0c\u3000b\u2003a", "en", 4, 4),
    (["Hello World"], "", "en", 0, 2),
    (["Hello World"], "No text recognized.", "en", 0, 2),
    (["No Entry"], "No text recognized", "en", 1, 2),
    (["Ｆull width １２"], "Full width 12", "en", 1, 2),
    (["zero\u200bwidth"], "zero width", "en", 0, 1),
    (["naïve Über straße"], "NAÏVE über strasse", "en", 2, 3),
    (["欢迎光临"], "欢迎 光临", "zh", 4, 4),
    (["欢迎光临"], "歡迎光臨", "zh", 2, 4),
    (["二〇二五年 〇"], "二零二五年〇", "zh", 4, 4),
    (["全场8折"], "全场８折", "zh", 3, 4),
    (["好好学习"], "好学习习习", "zh", 3, 4),
    (["Wi-Fi密码abc"], "wifi密码ABC", "zh", 4, 9),
    (["新品上市，敬请期待！"], "新品上市。敬请期待", "zh", 8, 8),
    (["不含文字"], "No text recognized", "zh", 0, 4),
    (["关于Note"], "No text recognized", "zh", 4, 6),
    (["\u3400\u9fa6龥一"], "一龥\u9fa6", "zh", 2, 2),
    (["你好"], "No text recognized.你好", "zh", 2, 2),
]


@pytest.mark.parametrize(("expected", "read", "language", "match", "total"), OFFICIAL)
def test_counts_equal_the_official_script(
    expected: list[str], read: str, language: Language, match: int, total: int
) -> None:
    assert match_count(expected, read, language)[:2] == (match, total)


def test_only_the_whole_sentence_is_cleaned_away() -> None:
    assert clean_reading("No text recognized.") == ""
    assert clean_reading("a\nNo text recognized.\nb") == "a\n\nb"
    for kept in ("No text recognized", "addCriterion", "no text recognized."):
        assert clean_reading(kept) == kept


def test_white_list_is_exact() -> None:
    accented = "àâäéèêëîïôöùûüç"
    inside = "一龥azAZ09" + accented + accented.upper()
    outside = "\u4dff\u9fa6〇áñõøßœÿ_@-'’.０Ａあ한я"
    assert "".join(units(inside + outside, "zh")) == inside
    assert units(inside + outside, "en") == [inside.lower()]


def test_composed_accents_only() -> None:
    assert units("cafe\u0301", "en") == ["cafe"]


def test_surplus_text_is_free_but_costs_precision() -> None:
    once = match_count(["one two"], "one two", "en")
    thrice = match_count(["one two"], "two one " * 3, "en")
    assert text_score([once]) == text_score([thrice]) == 1.0
    assert precision([once]) == 1.0
    assert precision([thrice]) == pytest.approx(1 / 3)
    assert precision([match_count(["one"], "", "en")]) is None


def test_match_is_bounded_and_order_free() -> None:
    rng = random.Random(1)
    alphabet = "ab ,，好 的é\n1-"
    for _ in range(300):
        expected = "x" + "".join(rng.choices(alphabet, k=rng.randrange(20)))
        read = "".join(rng.choices(alphabet, k=rng.randrange(30)))
        for language in ("en", "zh"):
            one = match_count([expected], read, language)
            assert 0 <= one.match <= min(one.total, one.read)
            again = match_count([expected], " ".join(reversed(units(read, language))), language)
            assert again == one
            assert match_count([expected], expected, language).match == one.total


def test_nothing_to_compare_is_an_error() -> None:
    with pytest.raises(ValueError, match="nothing that can be compared"):
        match_count(["!?", "——"], "text", "en")


def _run(prompts: int, images: int = 4, spread: float = 0.5) -> list[Scored]:
    rng = random.Random(7)
    scored = []
    for language in ("en", "zh"):
        for prompt_id in range(prompts):
            mean = 1 - spread * rng.random()
            for _ in range(images):
                total = 10 + prompt_id % 7
                match = min(total, round(total * mean))
                category, length = f"c{prompt_id % 8}", "short" if prompt_id % 2 else "long"
                scored.append(Scored(language, prompt_id, category, length, Match(match, total, total)))
    return scored


def test_interval_counts_prompts_not_images() -> None:
    english = [one for one in _run(160) if one.language == "en"]
    low, high = interval(english) or (0, 0)
    score = text_score(one.match for one in english)
    assert score is not None and low < score < high
    # identical images of a prompt say nothing new: 4 per prompt give the interval of 1 per prompt
    assert interval(english[::4]) == pytest.approx((low, high))
    # against the closed form: ± 1.96 standard errors of the ratio over prompts
    clusters = [(one.match.match, one.match.total) for one in english[::4]]
    mean_total = sum(t for _, t in clusters) / len(clusters)
    variance = sum((m - score * t) ** 2 for m, t in clusters) / (len(clusters) - 1) / len(clusters)
    assert high - low == pytest.approx(2 * 1.96 * math.sqrt(variance) / mean_total, rel=0.1)


def test_interval_does_not_depend_on_the_order_of_images() -> None:
    scored = _run(20)
    shuffled = random.Random(3).sample(scored, len(scored))
    assert interval(scored) == interval(shuffled)


def test_few_prompts_have_no_interval_and_perfect_ones_are_no_certainty() -> None:
    english = [one for one in _run(10) if one.language == "en"]
    assert interval(english) is not None
    assert interval([one for one in english if one.prompt_id < 9]) is None
    perfect = [one._replace(match=Match(one.match.total, one.match.total, 0)) for one in english]
    assert text_score(one.match for one in perfect) == 1
    low, high = interval(perfect) or (0, 0)
    assert 0.6 < low < 0.7 and high == 1


def test_metrics_of_a_full_run() -> None:
    scored = _run(160)
    start = time.perf_counter()
    result = metrics(scored)
    assert time.perf_counter() - start < 3  # under 1 s on an idle machine
    assert len(scored) == 1280
    assert result["en"].n == result["zh"].n == 640
    groups = {name.removeprefix("en/") for name in result if name.startswith("en/")}
    assert groups == {"precision", "short", "long", *(f"c{k}" for k in range(8))}
    assert sum(result[f"en/c{k}"].n for k in range(8)) == 640
    assert result["en/c0"].value == text_score(
        one.match for one in scored if one.language == "en" and one.category == "c0"
    )
    for metric in result.values():
        assert metric.value is not None and 0 <= metric.value <= 1


def test_metrics_lists_only_what_occurs() -> None:
    result = metrics([Scored("zh", 1, "sign", "short", Match(1, 2, 4))])
    assert {name: metric.value for name, metric in result.items()} == {
        "zh": 0.5,
        "zh/precision": 0.25,
        "zh/sign": 0.5,
        "zh/short": 0.5,
    }
    assert metrics([]) == {}
