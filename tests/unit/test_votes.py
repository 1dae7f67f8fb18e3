"""Votes on pairs of images: ratings that recover a known ranking, intervals that hold, judges against voters."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from imageevalkit.common.errors import UserError
from imageevalkit.extras.votes.ratings import ELO, MEAN, Rating, Vote, rate
from imageevalkit.extras.votes.report import FORMAT, take_votes, vote_report
from imageevalkit.report.collect import collect
from imageevalkit.store.cell import Cell, output_root
from tests.support.cells import QWEN, write_scored

MODELS = ("best", "good", "fair", "poor", "worst")
STRENGTHS = np.linspace(1.0, -1.0, 5)  # on the logistic scale: neighbours win 62 of 100 votes
RATINGS = dict(zip(MODELS, MEAN + ELO * STRENGTHS, strict=True))


def simulated(rng: np.random.Generator, count: int, items: int = 200, ties: float = 0.15) -> list[Vote]:
    """Votes with the known strengths, at most a share ``ties`` of any pair of them without a winner."""
    votes = []
    for _ in range(count):
        left, right = rng.choice(5, 2, replace=False)
        share = 1 / (1 + np.exp(STRENGTHS[right] - STRENGTHS[left]))
        tie = ties * 4 * share * (1 - share)
        drawn = rng.random()
        winner = "tie" if drawn < tie else "left" if drawn < tie / 2 + share else "right"
        votes.append(Vote("v", "text", f"i{rng.integers(items)}", MODELS[left], MODELS[right], winner))
    return votes


def test_a_thousand_votes_recover_a_known_ranking_and_intervals_cover() -> None:
    rng, hits, widths = np.random.default_rng(7), 0, []
    for _ in range(20):
        [table] = rate(simulated(rng, 1000))
        assert [row.model for row in table.rows] == list(MODELS)
        assert np.mean([row.rating for row in table.rows]) == pytest.approx(MEAN)
        hits += sum(row.low <= RATINGS[row.model] <= row.high for row in table.rows)
        widths += [row.high - row.low for row in table.rows]
    # 100 intervals of 95 %: 88 are 3 standard deviations below what is expected, of independent ones
    assert 88 <= hits < 100
    assert np.mean(widths) < 80


def row_of(rows: Sequence[Rating], model: str) -> Rating:
    return next(row for row in rows if row.model == model)


def test_votes_of_one_item_count_as_dependent() -> None:
    once = [vote._replace(item=f"i{n}") for n, vote in enumerate(simulated(np.random.default_rng(1), 400))]
    [alone], [repeated] = rate(once), rate(once * 5)
    for one, other in zip(alone.rows, repeated.rows, strict=True):
        assert one.rating == pytest.approx(other.rating)
        # five voters of one mind are one
        assert other.high - other.low == pytest.approx(one.high - one.low, rel=0.02)


def test_who_won_all_has_a_finite_rating_and_a_wide_interval() -> None:
    votes = simulated(np.random.default_rng(3), 300)
    votes += [Vote("v", "text", f"i{n}", "queen", MODELS[n % 5], "left") for n in range(30)]
    [table] = rate(votes)
    queen = table.rows[0]
    assert (queen.model, queen.wins, queen.losses, table.held) == ("queen", 30, 0, ["queen"])
    assert 300 < queen.high - queen.low < 1500
    assert row_of(table.rows, "best").high - row_of(table.rows, "best").low < 200


def glm_of(votes: Sequence[Vote], models: Sequence[str]) -> Any:
    """The same model by statsmodels, of votes without ties; the last strength is what the others leave."""
    from statsmodels.genmod.families import Binomial
    from statsmodels.genmod.generalized_linear_model import GLM

    basis = np.vstack([np.eye(len(models) - 1), -np.ones(len(models) - 1)])
    left, right = ([models.index(getattr(vote, side)) for vote in votes] for side in ("left", "right"))
    shares = [float(vote.winner == "left") for vote in votes]
    return GLM(shares, basis[left] - basis[right], family=Binomial()), ELO * basis


def test_ratings_and_intervals_are_those_of_statsmodels() -> None:
    votes = [
        vote._replace(voter=f"v{n % 7}")
        for n, vote in enumerate(simulated(np.random.default_rng(8), 500, 60, ties=0.0))
    ]
    items, voters = (
        np.unique([getattr(vote, name) for vote in votes], return_inverse=True)[1]
        for name in ("item", "voter")
    )
    [table] = rate(votes)
    model, contrasts = glm_of(votes, MODELS)
    half = np.zeros(len(MODELS))
    for groups in (items, np.array([items, voters]).T):
        fitted = model.fit(cov_type="cluster", cov_kwds={"groups": groups}, use_t=True).t_test(contrasts)
        half = np.fmax(half, fitted.conf_int()[:, 1] - fitted.effect)
    for name, strength, error in zip(MODELS, fitted.effect, half, strict=True):
        row = row_of(table.rows, name)
        assert (row.rating, row.high - row.rating) == pytest.approx((MEAN + strength, error), rel=1e-5)


@pytest.mark.parametrize("winners", [("left", "right", "left"), ("left", "left")])
def test_hundreds_of_chained_names_are_rated(winners: Sequence[str]) -> None:
    names = [f"m{n:04}" for n in range(300)]
    votes = [
        Vote("v", "text", f"{one}-{n}", one, other, winner)
        for one, other in pairwise(names)
        for n, winner in enumerate(winners)
    ]
    [table] = rate(votes)
    if "right" in winners:  # two of three votes are 120 points
        assert [row.model for row in table.rows] == names
        steps = [one.rating - other.rating for one, other in pairwise(table.rows)]
        assert steps == pytest.approx([ELO * np.log(2)] * 299, rel=1e-6)
    assert all(row.low < row.rating < row.high for row in table.rows)


# ---- files


def vote(item: str, left: str, right: str, winner: str, **more: Any) -> dict[str, Any]:
    return {"benchmark": "text", "item": item, "left": left, "right": right, "winner": winner, **more}


def write(name: str, votes: Sequence[dict[str, Any]], voter: str = "ann", folder: Path | None = None) -> Path:
    path = (folder or output_root() / "votes") / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"format": FORMAT, "voter": voter, "votes": list(votes)}))
    return path


def test_the_report_has_a_table_for_each_benchmark_and_for_all() -> None:
    write("one.json", [vote("i1", "a", "b", "left", time="2026-11-01T10:00:00Z", seconds=2.5)])
    write("two.json", [{**vote("i1", "b", "a", "tie"), "benchmark": "signs"}], voter="bo")
    found = vote_report([], pytest.fail)
    assert found and json.loads(json.dumps(found)) == found
    assert (found["votes"], found["files"]) == (2, ["one.json", "two.json"])
    assert [table["benchmark"] for table in found["tables"]] == ["", "signs", "text"]
    [first, second] = found["tables"][0]["rows"]
    assert (first["model"], first["wins"], first["losses"], first["ties"]) == ("a", 1, 0, 1)
    assert first["low"] < first["rating"] < first["high"]
    assert (second["model"], second["losses"]) == ("b", 1)
    alone = "the intervals hold for the {} alone: how voters differ shows with 5 or more"
    assert found["notes"] == [
        f"all benchmarks: {alone.format('2 voters')}",
        f"signs: {alone.format('1 voter')}",
        "text: a, b have won or lost all votes against the others: only a prior of one tie keeps such ratings finite",
        f"text: {alone.format('1 voter')}",
    ]


def test_groups_that_no_vote_connects_have_tables_of_their_own() -> None:
    both = [
        vote(f"i{n}", pair[0], pair[1], side)
        for n, side in enumerate(("left", "right"))
        for pair in ("ab", "xy", "bc")
    ]
    write("one.json", both)
    found = vote_report([], pytest.fail)
    assert found
    assert [{row["model"] for row in table["rows"]} for table in found["tables"]] == [{*"abc"}, {*"xy"}]
    note, _ = found["notes"]
    assert "no vote connects a model of one group with one of another (" in note


def test_a_file_saved_again_counts_once_and_a_later_vote_takes_the_earlier_back() -> None:
    first = vote("i1", "a", "b", "left", time="2026-11-01T10:00:00Z")
    write("one.json", [first])
    write("two.json", [first, vote("i1", "b", "a", "left", time="2026-11-01T10:05:00Z")])
    write("nameless.json", [first, vote("i2", "a", "b", "tie", time="2026-11-01T10:06:00Z")], voter="")
    write("nameless-again.json", [first], voter="")
    found = vote_report([], pytest.fail)
    assert found and found["votes"] == 3
    rows = {row["model"]: row for row in found["tables"][0]["rows"]}
    assert (rows["a"]["wins"], rows["a"]["losses"], rows["a"]["ties"]) == (1, 1, 1)


BROKEN = {
    "no json": ("{", "is no JSON"),
    "other format": ('{"format": "x", "votes": []}', "its format is 'x', expected 'imageevalkit-votes/1'"),
    "no winner": (
        json.dumps({"format": FORMAT, "votes": [vote("i", "a", "b", "lft")]}),
        "vote 1 is none: 'winner' is \"lft\"",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_malformed_file_is_one_line_and_takes_nothing_along(name: str, tmp_path: Path) -> None:
    content, says = BROKEN[name]
    write("good.json", [vote("i1", "a", "b", "left")])
    (output_root() / "votes" / "bad.json").write_text(content)
    told: list[str] = []
    found = vote_report([], told.append)
    assert found and found["votes"] == 1
    [line] = told
    assert "bad.json" in line and says in line and "\n" not in line
    with pytest.raises(UserError, match=r"--votes: .*bad\.json"):
        take_votes([output_root() / "votes" / "bad.json"])


def test_taken_votes_are_in_every_report(tmp_path: Path) -> None:
    path = write("mine.json", [vote("i1", "a", "b", "left")], folder=tmp_path / "downloads")
    assert take_votes([path]) == take_votes([path, path])[:1]
    found = vote_report([], pytest.fail)
    assert found and found["votes"] == 1 and len(found["files"]) == 1


# ---- judges


def test_judges_agree_with_votes_as_often_as_their_scores_prefer_the_same_model() -> None:
    items = [f"i{n:02}" for n in range(20)]
    write_scored(Cell("a", "text"), dict.fromkeys(items, 0.8))
    # the judge prefers a on ten items, b on five, neither on five
    write_scored(Cell("b", "text"), {item: (0.2, 0.2, 0.9, 0.8)[n % 4] for n, item in enumerate(items)})
    for model in "ab":
        cell = Cell(model, "text")
        write_scored(
            cell,
            {item: float(model == "b") for item in items},
            evaluator=QWEN,
            folder=cell.folder / "evaluators" / "q",
        )
    votes = [
        vote(item, *(("a", "b", "left") if n % 2 else ("b", "a", "right"))) for n, item in enumerate(items)
    ]
    write("one.json", [*votes, vote("i00", "a", "unknown", "left")])
    write("two.json", [vote("elsewhere", "a", "b", "left"), vote("i00", "a", "b", "tie")], voter="bo")
    found = vote_report(collect(), pytest.fail)
    assert found
    by_judge = {one["evaluator"]: one for one in found["judges"]}
    assert by_judge["ppocr-v4"]["n"] == 20
    assert by_judge["ppocr-v4"]["agreement"] == pytest.approx((10 + 5 / 2) / 20)
    assert 0.3 < by_judge["ppocr-v4"]["low"] < 0.625 < by_judge["ppocr-v4"]["high"] < 0.85
    assert by_judge[QWEN.id]["agreement"] == 0.0
    assert (by_judge[QWEN.id]["benchmark"], by_judge[QWEN.id]["metric"]) == ("text", "accuracy")
    write("one.json", votes[:3])
    few = vote_report(collect(), pytest.fail)
    assert few and {(one["low"], one["high"]) for one in few["judges"]} == {(0.0, 1.0)}
