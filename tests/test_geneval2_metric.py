"""GenEval 2's answers, means and metrics: the worked examples and quirks of its specification as data."""

from __future__ import annotations

import random
import time

import pytest

from benchmarks.geneval2.analysis import SKILLS, geometric_mean
from benchmarks.geneval2.answers import YES, accepted, soft_score, without_bare_space
from benchmarks.geneval2.metric import Scored, metrics
from benchmarks.geneval2.token_ids import official_ids

HOW_MANY = "How many croissants are in the image?"
# first-token ids of w, W, ␣w, ␣W, d, ␣d: the specification's table, made from Qwen's rank file
COUNT_IDS = {
    "one": (603, 3966, 825, 3776, 16, 220),
    "two": (19789, 11613, 1378, 9043, 17, 220),
    "three": (27856, 19641, 2326, 14513, 18, 220),
    "four": (34024, 26972, 3040, 13322, 19, 220),
    "five": (52670, 37020, 4236, 20924, 20, 220),
    "six": (50364, 41460, 4743, 18680, 21, 220),
    "seven": (80185, 59528, 8094, 29948, 22, 220),
    "ten": (1960, 32687, 5779, 17695, 16, 220),
}
YES_IDS = (9454, 9693, 9834, 7414)


def test_accepted_answers_of_the_spec() -> None:
    assert accepted(HOW_MANY, "seven") == ("seven", "Seven", " seven", " Seven", "7", " 7")
    assert accepted("Are the croissants green?", "Yes") == ("Yes", "yes", " yes", " Yes")
    assert accepted(HOW_MANY, "ten")[4:] == ("10", " 10")
    assert accepted(HOW_MANY, "eleven")[4:] == ("other", " other")


def test_only_how_many_looks_at_the_answer() -> None:
    assert accepted("Are the croissants green?", "No") == YES
    assert accepted("how many croissants?", "seven") == YES
    assert accepted("How many", "Yes") == ("Yes", "Yes", " Yes", " Yes", "other", " other")


def test_the_official_judge_is_asked_by_the_ids_of_the_spec() -> None:
    assert official_ids(YES) == YES_IDS
    words = [word for word in COUNT_IDS if word != "ten"]
    assert [official_ids(accepted(HOW_MANY, word)) for word in words] == [COUNT_IDS[word] for word in words]
    assert official_ids(accepted(HOW_MANY, "eleven")) == ()


def test_ids_of_a_row_are_distinct_so_that_a_soft_score_stays_below_1() -> None:
    assert len(set(YES_IDS)) == len(YES)
    for word, ids in COUNT_IDS.items():
        assert len(set(ids)) == len(ids) == len(set(accepted(HOW_MANY, word)))


def test_space_and_digit_is_the_bare_space_token_and_ten_shares_its_digit_with_one() -> None:
    assert {ids[-1] for ids in COUNT_IDS.values()} == {220}
    assert COUNT_IDS["ten"][4] == COUNT_IDS["one"][4]


def by_first_token(word: str, of_token: dict[int, float]) -> dict[str, float]:
    """What a backend that sees all tokens says of the accepted answers."""
    return {s: of_token.get(i, 0.0) for s, i in zip(accepted(HOW_MANY, word), COUNT_IDS[word], strict=True)}


def test_worked_example_of_a_soft_score() -> None:
    tokens = {22: 0.60, 80185: 0.10, 59528: 0.05, 220: 0.02, 23: 0.20}
    said, strings = by_first_token("seven", tokens), accepted(HOW_MANY, "seven")
    assert soft_score(said, strings) == pytest.approx(0.77, abs=1e-12)
    assert soft_score(said, without_bare_space(strings)) == pytest.approx(0.75, abs=1e-12)


def test_quirk_1_credits_a_bare_space_to_every_count_answer() -> None:
    for word in COUNT_IDS:
        strings = accepted(HOW_MANY, word)
        assert soft_score(by_first_token(word, {220: 0.3}), strings) == 0.3
        assert soft_score(by_first_token(word, {220: 0.3}), without_bare_space(strings)) == 0
    assert without_bare_space(YES) == YES


def test_a_string_that_stands_twice_counts_twice() -> None:
    assert soft_score({"Yes": 0.25, " Yes": 0.1}, ("Yes", "Yes", " Yes")) == pytest.approx(0.6)


# (scores, what scipy.stats.gmean 1.17.1 gives)
GMEANS = [
    ([0.25, 1, 1], 0.6299605249474366),
    ([0.9, 0.8, 0.95, 0.5], 0.7647271805608441),
    ([0.9, 0.8, 0.0], 0.0),
    ([1e-300, 1e-300, 1e-20], 2.1544346900319327e-207),
    ([0.3], 0.3),
    ([1.0, 1.0000001], 1.0000000499999987),
]


@pytest.mark.parametrize(("scores", "expected"), GMEANS)
def test_geometric_mean_is_that_of_scipy(scores: list[float], expected: float) -> None:
    assert geometric_mean(scores) == pytest.approx(expected, rel=1e-12, abs=0)


def prompt(
    line: int, atomicity: int, skills: str, soft: list[float], outside: float = 0.0, whole: float = 0.0
) -> Scored:
    right, unseen = [q > 0.5 for q in soft], [outside] * len(soft)
    return Scored(line, atomicity, skills.split(), soft, soft, right, 0.5, unseen, whole)


P1 = prompt(0, 3, "count attribute object", [0.25, 1, 1])
P2 = prompt(1, 4, "count object position verb", [0.9, 0.8, 0.95, 0.5])


def test_worked_example_of_a_benchmark() -> None:
    result = metrics([P1, P2])
    value = {name: metric.value for name, metric in result.items()}
    assert value["soft_tifa_am"] == pytest.approx(76.875, abs=1e-9)
    assert value["soft_tifa_gm"] == pytest.approx(69.7343853, abs=5e-8)
    shown = {name: f"{v:.2f}" for name, v in value.items() if v is not None}
    assert {name: text for name, text in shown.items() if name.startswith("skill/")} == {
        "skill/object": "90.00",
        "skill/attribute": "100.00",
        "skill/count": "57.50",
        "skill/position": "95.00",
        "skill/verb": "50.00",
    }
    assert {name: text for name, text in shown.items() if name.startswith("atomicity/")} == {
        "atomicity/3": "63.00",
        "atomicity/4": "76.47",
    }
    assert value["tifa"] == pytest.approx(100 * (2 / 3 + 3 / 4) / 2)
    assert value["vqascore"] == 50
    assert all(metric.scale == 100 for metric in result.values())


def test_a_zero_takes_the_whole_geometric_mean_of_its_prompt() -> None:
    value = metrics([prompt(0, 3, "count object object", [0.9, 0.8, 0.0])])["soft_tifa_gm"].value
    assert value == 0


def test_a_subset_lists_only_what_occurs_and_has_no_official_score() -> None:
    result = metrics([P1])
    groups = {name for name in result if "/" in name}
    assert groups == {"skill/count", "skill/attribute", "skill/object", "atomicity/3"}
    for method in ("soft_tifa_gm", "soft_tifa_am", "tifa", "vqascore"):
        assert result[method].value is not None
        assert result[f"{method}_official"].value is None


def test_without_scores_the_headline_is_there_and_empty() -> None:
    result = metrics([])
    assert result["soft_tifa_gm"].value is None
    assert result["soft_tifa_gm_official"].value is None
    assert not [name for name in result if "/" in name]


def many(n: int = 800) -> list[Scored]:
    rng = random.Random(5)
    scored = []
    for line in range(n):
        atoms = rng.randrange(3, 12)
        skills = " ".join(rng.choice(SKILLS) for _ in range(atoms))
        scored.append(prompt(line, 3 + line * 8 // n, skills, [rng.random() for _ in range(atoms)]))
    return scored


def test_a_full_run_has_the_official_scores() -> None:
    scored = many()
    start = time.perf_counter()
    result = metrics(scored)
    assert time.perf_counter() - start < 8  # about 2 s on an idle machine
    for method in ("soft_tifa_gm", "soft_tifa_am", "tifa", "vqascore"):
        assert result[f"{method}_official"] == result[method]
        assert result[method].n == 800
    assert [result[f"atomicity/{k}"].n for k in range(3, 11)] == [100] * 8
    assert metrics(scored[1:])["soft_tifa_gm_official"].value is None


def test_the_order_of_the_images_changes_no_digit() -> None:
    scored = many(80)
    assert metrics(random.Random(1).sample(scored, 80)) == metrics(scored)


def test_unseen_probability_is_told_and_bounds_the_score() -> None:
    unseen = prompt(0, 3, "count object object", [0.0, 1.0, 0.9], outside=0.05, whole=0.12)
    result = metrics([unseen, P2])
    assert result["soft_tifa_gm"].value == pytest.approx(100 * geometric_mean(P2.soft) / 2)
    upper = (geometric_mean([0.05, 1.0, 0.95]) + geometric_mean(P2.soft)) / 2
    assert result["soft_tifa_gm_upper"].value == pytest.approx(100 * upper)
    assert result["soft_tifa_am_upper"].value == pytest.approx(100 * (2.0 / 3 + 0.7875) / 2)
    assert result["vqascore_upper"].value == pytest.approx(100 * (0.62 + 0.5) / 2)
    assert result["outside_mass"].value == pytest.approx((3 * 0.05 + 0.12) / 9)
    assert (result["outside_mass_max"].value, result["outside_mass_max"].scale) == (0.12, 1.0)


def test_a_backend_that_sees_everything_leaves_nothing_to_tell() -> None:
    names = metrics([P1, P2])
    assert not [name for name in names if name.startswith("outside") or name.endswith("_upper")]
