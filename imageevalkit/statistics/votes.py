"""Strengths of models by votes on pairs of their images: Bradley and Terry's model, on the scale of Elo's ratings.

A vote for the left image is 1, for the right one 0, a tie half of both, as arenas count it: a logistic regression on
the difference of two strengths, by quasi-likelihood (statsmodels' ``GLM``).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from typing import NamedTuple

LEFT, RIGHT, TIE = "left", "right", "tie"
MEAN = 1000.0
"""The mean rating of the models of a table."""
ELO = 400 / math.log(10)
"""Of Elo's scale to that of the logistic function: 400 more win 10 of 11 times."""
FEWEST_VOTERS = 5
"""So many let votes of one voter count as dependent: fewer do not show how voters differ."""
FEWEST_ITEMS = 20
_SHARE = {LEFT: 1.0, TIE: 0.5, RIGHT: 0.0}


class Vote(NamedTuple):
    """Of two models' images of one ``item``, a ``voter`` prefers the ``winner``: left, right, or neither (tie)."""

    voter: str
    benchmark: str
    item: str
    left: str
    right: str
    winner: str
    time: str = ""


class Rating(NamedTuple):
    """Where a model stands, with its 95 % interval; and how its votes went."""

    model: str
    rating: float
    low: float
    high: float
    wins: int
    losses: int
    ties: int


class Table(NamedTuple):
    """Models that votes compare, directly or through others, best first. ``held``: those among them that won or lost
    all against the others, which only a prior keeps from an endless rating. ``voters`` are so many: of fewer than
    :data:`FEWEST_VOTERS` the intervals hold for these voters only."""

    rows: list[Rating]
    held: list[str]
    voters: int


def rate(votes: Sequence[Vote]) -> list[Table]:
    """A table for each group of models that the ``votes`` connect, the largest first.

    The intervals are of the ratings about the mean of the table, by the sandwich estimate of variance, with votes on
    one item as dependent, and Student's t with one degree of freedom less than there are items. Of
    :data:`FEWEST_VOTERS` or more, votes of one voter are dependent too (Cameron, Gelbach and Miller 2011), with
    the t of voters where they are fewer than the items; the wider of both intervals counts, since few voters may happen
    to be of one mind.

    The estimate exists where no set of models won all its votes against the rest (Ford 1957). Else each model has one
    more vote, a tie with the mean of all: the prior log-F(1, 1) (Greenland and Mansournia 2015, Statistics in Medicine
    34). Then, and where a model has ties only, an interval is no shorter than that of independent votes without ties,
    and of fewer than :data:`FEWEST_ITEMS` items it is that one: such votes do not show how they vary.
    """
    import numpy as np
    from scipy.sparse.csgraph import connected_components

    models = sorted({model for vote in votes for model in (vote.left, vote.right)})
    number = {model: n for n, model in enumerate(models)}
    won = np.zeros((len(models), len(models)))
    for vote in votes:
        left, right, share = number[vote.left], number[vote.right], _SHARE[vote.winner]
        won[left, right] += share
        won[right, left] += 1 - share
    _, group_of = connected_components(won, directed=True, connection="weak")
    _, firm_of = connected_components(won, directed=True, connection="strong")
    tables = []
    for group in dict.fromkeys(group_of.tolist()):
        members = [model for model, own in zip(models, group_of, strict=True) if own == group]
        among = [vote for vote in votes if group_of[number[vote.left]] == group]
        firm = [int(firm_of[number[model]]) for model in members]
        most = max(firm, key=firm.count)
        held = [
            model for model, own in zip(members, firm, strict=True) if own != most or firm.count(most) == 1
        ]
        rows = sorted(_ratings(members, among, bool(held)), key=lambda row: -row.rating)
        tables.append(Table(rows, held, len({vote.voter for vote in among})))
    return sorted(tables, key=lambda table: -len(table.rows))


def _ratings(models: Sequence[str], votes: Sequence[Vote], with_prior: bool) -> Iterator[Rating]:
    import numpy as np
    from statsmodels.genmod.families import Binomial
    from statsmodels.genmod.generalized_linear_model import GLM

    number = {model: n for n, model in enumerate(models)}
    # strengths add up to 0: the last one is what the others leave
    basis = np.vstack([np.eye(len(models) - 1), -np.ones(len(models) - 1)])
    left, right = [number[vote.left] for vote in votes], [number[vote.right] for vote in votes]
    design, shares = basis[left] - basis[right], [_SHARE[vote.winner] for vote in votes]
    items = _numbers([(vote.benchmark, vote.item) for vote in votes])
    voters = _numbers([vote.voter for vote in votes])
    few = max(items) + 1 < FEWEST_ITEMS
    clusters = [] if few else [[items]]
    if max(voters) + 1 >= FEWEST_VOTERS:
        clusters.append([voters] if few else [items, voters])
    if with_prior:
        design, shares = np.vstack([design, basis]), shares + [0.5] * len(models)
        clusters = [
            [[*group, *range(max(group) + 1, max(group) + 1 + len(models))] for group in groups]
            for groups in clusters
        ]
    model = GLM(np.array(shares), design, family=Binomial())
    tallies = [_tally(name, votes) for name in models]
    with warnings.catch_warnings():
        # of ties only every vote is as predicted, and of a single one no scale can be told: neither matters here
        warnings.simplefilter("ignore")
        plain = model.fit().t_test(ELO * basis)
        independent = plain.conf_int()[:, 1] - plain.effect
        half = np.zeros(len(models))
        for groups in clusters:
            how = {"groups": np.array(groups).T.squeeze()}
            robust = model.fit(cov_type="cluster", cov_kwds=how, use_t=True).t_test(ELO * basis)
            # an estimate of two kinds of clusters may be of no variance at all
            half = np.fmax(half, robust.conf_int()[:, 1] - robust.effect)
    is_doubtful = few or with_prior or any(not wins + losses for wins, losses, _ in tallies)
    half = np.fmax(half, independent) if is_doubtful else np.where(half > 0, half, independent)
    for name, strength, error, tally in zip(models, plain.effect, half, tallies, strict=True):
        rating = MEAN + float(strength)
        yield Rating(name, rating, rating - float(error), rating + float(error), *tally)


def _numbers(names: Sequence[object]) -> list[int]:
    known: dict[object, int] = {}
    return [known.setdefault(name, len(known)) for name in names]


def _tally(model: str, votes: Sequence[Vote]) -> tuple[int, int, int]:
    own = [vote for vote in votes if model in (vote.left, vote.right)]
    ties = sum(vote.winner == TIE for vote in own)
    wins = sum(vote.winner != TIE and getattr(vote, vote.winner) == model for vote in own)
    return wins, len(own) - ties - wins, ties
