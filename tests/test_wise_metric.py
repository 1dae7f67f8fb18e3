"""WISE's metrics: published figures, what the official calculators printed, and what missing scores do to them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.wise.categories import LEGACY, VERIFIED, Category
from benchmarks.wise.metric import Scored, metrics
from benchmarks.wise.protocol import legacy_wiscore
from benchmarks.wise.replies import PARTS
from imageevalkit.cell.results import Metric
from tests.support.wise import judged, make_wise

NAMES = [category.name for category in LEGACY]
FLUX = {  # FLUX.1-dev in the paper's tables 3-5: sums by category, and their overall
    "consistency": ([298, 161, 155, 48, 77, 41], 183.30),
    "realism": ([585, 269, 181, 179, 161, 146], 351.60),
    "aesthetic_quality": ([582, 275, 190, 154, 156, 127], 347.69),
}
FLUX_REWRITE = {  # tables 6-8
    "consistency": ([586, 214, 204, 125, 134, 133], 336.47),
    "realism": ([637, 285, 197, 167, 160, 148], 376.10),
    "aesthetic_quality": ([640, 282, 194, 162, 159, 133], 374.30),
}


def scored_with_sums(sums: dict[str, tuple[list[int], float]]) -> list[Scored]:
    """Scores of 0-2 for every prompt that add up to ``sums``."""
    scored = []
    for n, category in enumerate(LEGACY):
        for k, prompt_id in enumerate(category.ids):
            parts = {
                part: float(_share(totals[n], k, len(category.ids))) for part, (totals, _) in sums.items()
            }
            scored.append(Scored(prompt_id, category.name, category.name, legacy_wiscore(parts), parts))
    return scored


def _share(total: int, k: int, n: int) -> int:
    return (k + 1) * total // n - k * total // n


def of_all(
    scored: Sequence[Scored], categories: Sequence[Category], parts: Sequence[str]
) -> dict[str, Metric]:
    return metrics(scored, {c.name: len(c.ids) for c in categories}, categories, parts)


def rounded(found: dict[str, Metric], names: Sequence[str], digits: int) -> list[float]:
    return [round(value, digits) for name in names if (value := found[name].value) is not None]


def test_paper_flux_dev() -> None:
    found = of_all(scored_with_sums(FLUX), LEGACY, PARTS)
    assert rounded(found, NAMES, 5) == [0.47975, 0.58084, 0.61541, 0.424, 0.5085, 0.353]
    assert rounded(found, ["overall", "overall_official", "overall_missing_as_0"], 5) == [0.4993] * 3
    assert found["overall"].n == 1000


@pytest.mark.parametrize(("sums", "overall"), [(FLUX, 0.50), (FLUX_REWRITE, 0.73)])
def test_paper_sums(sums: dict[str, tuple[list[int], float]], overall: float) -> None:
    found = of_all(scored_with_sums(sums), LEGACY, PARTS)
    assert rounded(found, ["overall"], 2) == [overall]
    for part, (totals, weighted) in sums.items():
        assert rounded(found, [f"{part}_sum/{name}" for name in NAMES], 2) == totals
        assert rounded(found, [f"{part}_sum"], 2) == [weighted]
        assert found[f"{part}_sum/culture"].scale == 800
        assert found[f"{part}/culture"] == Metric(totals[0] / 400, 400, None, 2.0)
        assert found[part].value == pytest.approx(sum(totals) / 1000), "weights are the categories' shares"


def correct_of(counts: Sequence[int]) -> list[Scored]:
    """Verified scores with ``counts`` correct per category."""
    return [
        Scored(prompt_id, category.name, f"{category.name} {k % 2}", float(k < count), {})
        for category, count in zip(VERIFIED, counts, strict=True)
        for k, prompt_id in enumerate(category.ids)
    ]


def test_leaderboard_nanobanana_pro() -> None:
    found = of_all(correct_of([359, 98, 112, 98, 104, 105]), VERIFIED, ())
    assert rounded(found, NAMES, 4) == [0.8975, 0.8167, 0.9333, 0.8167, 0.8667, 0.8750]
    assert rounded(found, ["overall"], 4) == [0.8760]
    assert found["subcategory/space 0"].n == 60
    assert not [name for name in found if "sum" in name or "consistency" in name]


def digit(prompt_id: int, of: int) -> int:
    return (prompt_id * prompt_id * 31 + prompt_id * 7 + prompt_id // 90) % of


def legacy_reply(prompt_id: int) -> str:
    consistency = min(2, digit(prompt_id, 11) * (prompt_id // 150 + 1) // 12)
    return (
        f"Consistency: {consistency}\nRealism: {digit(prompt_id + 1, 3)}\n"
        f"Aesthetic Quality: {digit(prompt_id + 2, 3)}"
    )


def verified_reply(prompt_id: int) -> str:
    return f"Score: {int(digit(prompt_id, 11) < 2 + prompt_id // 130)}"


# printed by calculate_verified.py and WISE_legacy/Calculate.py (eb51174) for the files that these replies leave
PRINTED = {
    "wise-verified": (verified_reply, "0.18 0.36 0.56 0.60 0.78 0.84 0.45"),
    "wise": (legacy_reply, "0.33 0.56 0.45 0.62 0.56 0.68 0.47"),
    "wise-rewrite": (legacy_reply, "0.33 0.56 0.45 0.62 0.56 0.68 0.47"),
}


@pytest.mark.parametrize("name", PRINTED)
def test_what_the_official_calculators_print(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    benchmark, _ = make_wise(name, tmp_path, monkeypatch)
    reply, printed = PRINTED[name]
    found = benchmark.aggregate(judged(benchmark, reply))
    assert " ".join(f"{found[key].value:.2f}" for key in [*NAMES, "overall_official"]) == printed


def test_without_one_score_the_official_program_gives_none() -> None:
    scored = correct_of([359, 98, 112, 98, 104, 105])
    lost = scored.pop()  # a wrong one
    found = of_all(scored, VERIFIED, ())
    assert lost.wiscore == 0 and found["overall_official"] == Metric(None, 999)
    assert found["chemistry"].value == pytest.approx(105 / 119)
    overall = found["overall"].value
    assert overall == pytest.approx(0.876 - 0.12 * 105 / 120 + 0.12 * 105 / 119), "weights stay"
    assert found["overall_missing_as_0"].value == pytest.approx(0.876)
    assert found["overall_missing_as_0"].n == 1000


def test_category_without_scores_leaves_no_overall() -> None:
    scored = [one for one in scored_with_sums(FLUX) if one.category != "space"]
    found = of_all(scored, LEGACY, PARTS)
    assert found["overall"] == Metric(None, 867)
    assert "space" not in found and "consistency_sum" not in found and "consistency_sum/space" not in found
    assert found["consistency"].value is None
    assert found["consistency_sum/time"].value == 161
    missing_as_0 = found["overall_missing_as_0"].value
    assert missing_as_0 == pytest.approx(0.4993 - 0.133 * 0.61541, abs=1e-5)


def test_sums_of_a_part_of_a_category_are_not_given() -> None:
    found = of_all(scored_with_sums(FLUX)[1:], LEGACY, PARTS)
    assert "realism_sum/culture" not in found and "realism_sum" not in found
    assert found["realism/culture"].n == 399


def test_nothing_scored_still_has_the_headlines() -> None:
    found = metrics([], {"culture": 3}, LEGACY, PARTS)
    assert found["overall"] == found["overall_official"] == Metric(None, 0)
    assert found["overall_missing_as_0"].value is None, "five categories are not in the run"


def test_intervals() -> None:
    scored = correct_of([200, 60, 60, 60, 60, 60])
    found = of_all(scored, VERIFIED, ())
    low, high = found["overall"].interval or (0, 0)
    # of 1000 tosses of a coin: 1.96 · 0.5 / √1000 = 0.031
    assert (low, high) == (pytest.approx(0.469, abs=0.004), pytest.approx(0.531, abs=0.004))
    low, high = found["time"].interval or (0, 0)
    assert (low, high) == (pytest.approx(0.41, abs=0.015), pytest.approx(0.59, abs=0.015))
    assert of_all(scored[::-1], VERIFIED, ()) == found, "the order of the run does not matter"


def test_the_ceiling_is_no_certainty_and_few_prompts_have_no_interval() -> None:
    found = of_all(correct_of([400, 120, 120, 120, 120, 120]), VERIFIED, ())
    for name, lowest in (("time", 0.968), ("culture", 0.990), ("overall", 0.996)):
        low, high = found[name].interval or (0, 0)
        assert (low, high) == (pytest.approx(lowest, abs=0.001), 1.0), name
    few = [one for one in correct_of([200, 5, 60, 60, 60, 60]) if one.prompt_id not in range(410, 521)]
    found = of_all(few, VERIFIED, ())
    assert found["time"].n == 9 and found["time"].interval is None
    assert found["overall"].interval is None and found["culture"].interval is not None
