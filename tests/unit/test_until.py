"""--until "a vs b": how often its verdict is right, what it takes, and what files and options say."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy.stats import beta, norm

from imageevalkit.cli.command_line import parse
from imageevalkit.common.errors import UserError
from imageevalkit.extras.until.check import check_until
from imageevalkit.extras.until.rounds import first_round, next_round
from imageevalkit.extras.until.sequential import log_capital, verdict
from imageevalkit.extras.until.settling import Look, look
from imageevalkit.plan.config import Config
from imageevalkit.plan.options import Options, resolve
from imageevalkit.report.collect import collect
from imageevalkit.report.leaderboard import Ranks, grid
from imageevalkit.store.cell import Cell
from imageevalkit.store.items import Item, drawn
from tests.support.cells import write_scored

# ---- the test, by simulation

_GRADES = 5.0  # a + b of the Beta distribution: standard deviation 0.2, mean 0.6
_QUANTILES = np.linspace(0, 1, 1001)


class Setting(NamedTuple):
    """Two models on ``prompts`` prompts, with scores of 0 and 1 (``binary``) or grades.

    The means differ by ``difference``; the two scores of one prompt have this ``correlation`` (Gaussian copula).
    With ``groups`` the metric is the mean of six groups.
    """

    binary: bool
    prompts: int
    difference: float
    correlation: float
    groups: bool = False

    def __str__(self) -> str:
        kind = "right or wrong" if self.binary else "grades"
        words = (
            f"{kind}, {self.prompts:,} prompts, {self.difference:.0%} apart, correlation {self.correlation}"
        )
        return words + ", in groups" * self.groups


class Found(NamedTuple):
    """Shares over all draws: images used, winners that agree with a full run, runs with a verdict."""

    used: float
    agree: float
    told: float


_SHARES = [1 / 6] * 6
_SIZES_OF_GROUPS = np.array([0.145, 0.18, 0.145, 0.17, 0.18, 0.18])  # the tasks of GenEval


def draw(setting: Setting, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Returns the differences of all prompts in random order, and the group of each."""
    common, mine, theirs = rng.standard_normal((3, setting.prompts))
    shared, own = math.sqrt(setting.correlation), math.sqrt(1 - setting.correlation)
    ranks = [norm.cdf(shared * common + own * each) for each in (mine, theirs)]
    groups: np.ndarray = np.zeros(setting.prompts, int)
    shift = np.full(setting.prompts, setting.difference / 2)
    if setting.groups:
        groups = rng.choice(6, setting.prompts, p=_SIZES_OF_GROUPS / _SIZES_OF_GROUPS.sum())
        shift += np.where(groups % 2, 0.05, -0.05)
    given = [_score(setting.binary, u, sign * shift) for u, sign in zip(ranks, (1, -1), strict=True)]
    return given[0] - given[1], groups


def _score(binary: bool, ranks: np.ndarray, shift: np.ndarray) -> np.ndarray:
    if binary:
        return (ranks < 0.5 + shift).astype(float)
    found: np.ndarray = np.zeros(len(ranks))
    for step in np.unique(shift):
        mean = 0.6 + step
        # Interpolated quantiles: exact ones take a hundred times as long.
        table = beta.ppf(_QUANTILES, mean * _GRADES, (1 - mean) * _GRADES)
        found[shift == step] = np.interp(ranks[shift == step], _QUANTILES, table)
    return found


def try_out(setting: Setting, draws: int) -> Found:
    """Returns the outcome of ``draws`` simulated runs, each in rounds."""
    rng, used, agree, told = np.random.default_rng(1), 0.0, 0, 0
    shares = _SHARES if setting.groups else [1.0]
    for _ in range(draws):
        given, groups = draw(setting, rng)
        found = verdict(given, setting.prompts, groups, shares)
        asked = first_round(setting.prompts)
        while asked < setting.prompts and (found.first_is_better is None or asked < found.items):
            asked = next_round(asked, setting.prompts)
        settled = found.first_is_better if asked < setting.prompts else None
        whole = sum(
            share * float(given[groups == n].mean()) for n, share in enumerate(shares) if (groups == n).any()
        )
        used += asked / setting.prompts
        agree += settled is None or settled == (whole > 0)
        told += settled is not None
    return Found(used / draws, agree / draws, told / draws)


@pytest.mark.parametrize(
    "setting", [Setting(False, 553, 0.0, 0.5), Setting(True, 553, 0.0, 0.5, groups=True)], ids=str
)
def test_of_equal_models_at_most_5_percent_get_a_verdict(setting: Setting) -> None:
    found = try_out(setting, 60)
    assert found.told <= 0.05 and found.agree >= 0.95


@pytest.mark.parametrize("setting", [Setting(False, 1000, 0.05, 0.3), Setting(True, 2000, 0.1, 0.5)], ids=str)
def test_5_percent_apart_the_winner_is_known_after_40_percent_of_the_images(setting: Setting) -> None:
    found = try_out(setting, 20)
    assert found.used <= 0.4 and found.agree >= 0.95 and found.told >= 0.9


def test_what_is_settled_stays_settled_however_often_one_looks() -> None:
    rng = np.random.default_rng(3)
    given = rng.normal(0.1, 0.3, 400).clip(-1, 1)
    looks = [verdict(given[:n], 400) for n in range(1, 401)]
    first = next(n for n, one in enumerate(looks, 1) if one.first_is_better is not None)
    assert {(one.first_is_better, one.items) for one in looks[first - 1 :]} == {(True, first)}
    assert all(one.evidence < one.needed for one in looks[: first - 1])
    other = verdict(-given, 400)
    assert (other.first_is_better, other.items) == (False, first)


def test_an_item_without_a_score_counts_as_the_worst_for_either_verdict() -> None:
    given = np.full(100, 0.2)
    lost = given.copy()
    lost[5:10] = np.nan
    for sign in (1, -1):
        worst = np.where(np.isnan(lost), -1.0, sign * lost)
        plain: tuple[np.ndarray, np.ndarray] = np.zeros(100, int), np.ones(1)
        found = log_capital(sign * lost, 1000, *plain)
        assert found == pytest.approx(log_capital(worst, 1000, *plain))
    assert verdict(given, 1000).first_is_better and verdict(lost, 1000).items > verdict(given, 1000).items
    assert verdict(np.full(100, np.nan), 1000).first_is_better is None


def test_images_of_one_prompt_are_drawn_together_and_the_same_for_every_model(tmp_path: Path) -> None:
    def items(model: str) -> list[Item]:
        names = [f"{prompt}_{n}" for n in range(2) for prompt in range(20)]
        return [
            Item(name, tmp_path / model / f"{name}.png", 1, name.split("_")[0], None, {}) for name in names
        ]

    order = [item.id for item in drawn(items("a"), "x", 40)]
    assert [item.id for item in drawn(items("b"), "x", 40)] == order
    assert [item.id for item in drawn(items("a"), "x", 7)] == order[:7]
    assert all(a.split("_")[0] == b.split("_")[0] for a, b in zip(order[::2], order[1::2], strict=True))
    assert order != sorted(order) and drawn(items("a"), "x", None) == items("a")
    assert order != [item.id for item in drawn(items("a"), "y", 40)]


# ---- what files say


TOTAL = 400


def write_partial(
    model: str,
    values: Mapping[str, float],
    asked: int,
    **more: Any,
) -> None:
    """As a run that asked for so many of 400 items leaves it; what has no value was refused."""
    judged = len(values)
    counts = {"expected": TOTAL, "generated": judged, "judged": judged, "refused": asked - judged}
    none = dict.fromkeys(("failed", "blank", "corrupt", "unparsed", "judge_failed"), 0)
    fields = {"coverage": {**none, **counts, "unasked": TOTAL - asked}, "state": "partial", **more}
    write_scored(Cell(model, "x"), values, more=fields)


def of_two(better: float, asked: int) -> tuple[dict[str, float], dict[str, float]]:
    first = {f"p/{n:03}": float(n % 10 < 5 + 5 * better) for n in range(asked)}
    return first, {f"p/{n:03}": float(n % 10 < 5) for n in range(asked)}


def seen() -> Look:
    found = look(Cell("a", "x"), Cell("b", "x"), print)
    assert found
    return found


def test_a_look_settles_each_metric_by_the_items_that_both_have() -> None:
    for model, values in zip(("a", "b"), of_two(0.4, 100), strict=True):
        write_partial(model, values, 100)
    found = seen()
    assert (found.asked, found.total, found.both, found.is_settled) == (100, TOTAL, 100, True)
    [(winner, items)] = found.better(("a", "b")).values()
    assert winner == "a" and 10 < items <= 100
    assert f"100 of 400 items: accuracy: a > b, settled after {items}" in found.summary(("a", "b"))


def test_refused_items_hold_a_verdict_back() -> None:
    first, second = of_two(0.4, 100)
    write_partial("a", first, 100)
    write_partial("b", {item: value for n, (item, value) in enumerate(second.items()) if n % 2}, 100)
    records = [json.loads(line) for line in Cell("b", "x").scores.read_text().splitlines()]
    judged = {record["item"] for record in records}
    lost = [{"item": item, "status": "not_generated"} for item in first if item not in judged]
    Cell("b", "x").scores.write_text("".join(f"{json.dumps(one)}\n" for one in [*records, *lost]))
    found = seen()
    assert found.both == 50 and not found.is_settled


def test_a_partial_result_ranks_with_no_other() -> None:
    for model, values in zip(("a", "b"), of_two(0.4, 100), strict=True):
        write_partial(model, values, 100)
    for model, values in zip(("c", "d"), of_two(0.4, TOTAL), strict=True):
        write_scored(Cell(model, "x"), values)
    board = grid([one.result for one in collect() if one.result], Ranks())
    full, partial = board.labels
    assert partial == f"{full} (stopped after 100 items)"
    shown = dict(zip(board.models, board.rows, strict=True))
    assert {model: [one is not None for one in row] for model, row in shown.items()} == {
        "a": [False, True],
        "b": [False, True],
        "c": [True, False],
        "d": [True, False],
    }
    for row in (shown["a"], shown["b"]):
        assert row[1] and (row[1].group, row[1].best, row[1].remark) == ("", False, "100/400, stopped early")
    assert shown["c"][0] and shown["c"][0].best


# ---- options


def options(*words: str) -> Options:
    return resolve(parse(["--model_names", "a;b", "--ds_names", "x", *words]), Config())


def test_the_two_models_are_named_with_vs() -> None:
    assert options("--until", " a  vs b ").extra["until"]["until"] == ("a", "b")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["a"], "'a' names no two models"),
        (["a vs a"], "names 'a' twice"),
        (["a vs c"], "'c', which is no model of this run"),
        (["a vs b", "--model_names", "a;b;c"], "this run has 'c' too"),
        (["a vs b", "--launcher", "slurm"], "does not go with --launcher slurm"),
        (["a vs b", "--infer", "false"], "leave out --infer false"),
    ],
)
def test_what_cannot_be_is_told_in_one_line(words: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said.replace("(", r"\(")) as error:
        check_until(options("--until", *words), {})
    assert "\n" not in str(error.value)
