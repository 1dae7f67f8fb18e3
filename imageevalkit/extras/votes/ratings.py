"""Ratings of models by votes on pairs of images: the Bradley-Terry model on the scale of Elo ratings.

A vote for the left image counts 1, for the right image 0, and a tie 0.5, as in arenas. The fit is a logistic
regression on the difference of two strengths, by quasi-likelihood. A vote names two of possibly thousands of
models, so the matrices are sparse.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np

LEFT, RIGHT, TIE = "left", "right", "tie"
MEAN = 1000.0
"""The mean rating of the models of a table."""
ELO = 400 / math.log(10)
"""Elo points for one unit of the logistic scale. A model with 400 points more wins 10 of 11 votes."""
FEWEST_VOTERS = 5
"""From this number of voters on, votes of one voter count as dependent: fewer do not show how voters
differ."""
FEWEST_ITEMS = 20
_SHARE = {LEFT: 1.0, TIE: 0.5, RIGHT: 0.0}
_STEPS, _CLOSE = 100, 1e-10  # Newton's method: the most steps, and the size of a step that ends it
_NUMBERS_AT_ONCE = 4_000_000  # numbers in a block of columns of the inverse: 32 MB
_NORMAL = 1.959963984540054  # quantile for intervals of 95 %


class Vote(NamedTuple):
    """A vote of one ``voter`` on two models' images of one ``item``. ``winner`` is left, right or tie."""

    voter: str
    benchmark: str
    item: str
    left: str
    right: str
    winner: str
    time: str = ""


class Rating(NamedTuple):
    """The rating of a model with its 95 % interval, and the counts of its votes."""

    model: str
    rating: float
    low: float
    high: float
    wins: int
    losses: int
    ties: int


class Table(NamedTuple):
    """The ratings of models that votes connect, directly or through other models, best first.

    ``held`` names models that won or lost all votes against the others: only a prior keeps their ratings
    finite. With fewer than :data:`FEWEST_VOTERS` ``voters``, the intervals hold for these voters only."""

    rows: list[Rating]
    held: list[str]
    voters: int


def rate(votes: Sequence[Vote]) -> list[Table]:
    """Return a table for each group of models that the ``votes`` connect, largest group first.

    The intervals are of the ratings relative to the mean of the table. They use the sandwich estimate of
    variance with votes on one item as dependent, and Student's t with (number of items - 1) degrees of
    freedom. With :data:`FEWEST_VOTERS` or more voters, votes of one voter are dependent too (Cameron, Gelbach
    and Miller 2011). Student's t then uses the smaller of the numbers of items and voters. The wider of the
    two intervals counts, because few voters may agree by chance.

    The estimate exists if no set of models won all its votes against the rest (Ford 1957). Otherwise each
    model gets one more vote, a tie with the mean of all. This is the prior log-F(1, 1) (Greenland and
    Mansournia 2015, Statistics in Medicine 34).

    In three cases an interval is at least as wide as with independent votes without ties. The cases are this
    prior, a model that has ties only, and fewer than :data:`FEWEST_ITEMS` items. So few items do not show how
    votes on one item depend; the intervals then ignore it.
    """
    import numpy as np
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    models = sorted({model for vote in votes for model in (vote.left, vote.right)})
    number = {model: n for n, model in enumerate(models)}
    left, right = (np.array([number[getattr(vote, side)] for vote in votes], int) for side in (LEFT, RIGHT))
    share = np.array([_SHARE[vote.winner] for vote in votes])
    one: Any = coo_array((share, (left, right)), shape=(len(models), len(models)))
    other: Any = coo_array((1 - share, (right, left)), shape=one.shape)
    won = (one + other).tocsr()
    won.eliminate_zeros()
    _, group_of = connected_components(won, directed=True, connection="weak")
    _, firm_of = connected_components(won, directed=True, connection="strong")
    members, among = dict[int, list[str]](), dict[int, list[Vote]]()
    for model, group in zip(models, group_of.tolist(), strict=True):
        members.setdefault(group, []).append(model)
    for vote, group in zip(votes, group_of[left].tolist(), strict=True):
        among.setdefault(group, []).append(vote)
    tables = []
    for group, names in members.items():
        firm = [int(firm_of[number[model]]) for model in names]
        [(most, count)] = Counter(firm).most_common(1)
        held = [model for model, own in zip(names, firm, strict=True) if own != most or count == 1]
        rows = sorted(_ratings(names, among[group], bool(held)), key=lambda row: -row.rating)
        tables.append(Table(rows, held, len({vote.voter for vote in among[group]})))
    return sorted(tables, key=lambda table: -len(table.rows))


def _ratings(models: Sequence[str], votes: Sequence[Vote], with_prior: bool) -> Iterator[Rating]:
    import numpy as np

    number = {model: n for n, model in enumerate(models)}
    left, right = (np.array([number[getattr(vote, side)] for vote in votes], int) for side in (LEFT, RIGHT))
    items = _numbers([(vote.benchmark, vote.item) for vote in votes])
    voters = _numbers([vote.voter for vote in votes])
    few = items.max() + 1 < FEWEST_ITEMS
    clusters = [] if few else [[items]]
    if voters.max() + 1 >= FEWEST_VOTERS:
        clusters.append([voters] if few else [items, voters])
    fit = _fit(len(models), left, right, np.array([_SHARE[vote.winner] for vote in votes]), with_prior)
    variance, robust = fit.variances(clusters)
    independent, half = _NORMAL * np.sqrt(variance), np.zeros(len(models))
    for each in robust:
        half = np.fmax(half, each)
    share = fit.shares[: len(votes)]
    wins, losses, ties = (
        np.bincount(np.append(left[share == mine], right[share == 1 - mine]), minlength=len(models))
        for mine in (1.0, 0.0, 0.5)
    )
    is_doubtful = few or with_prior or not (wins + losses).all()
    half = np.fmax(half, independent) if is_doubtful else np.where(half > 0, half, independent)
    columns = (fit.strengths, half, wins, losses, ties)
    for name, strength, error, *tally in zip(models, *(each.tolist() for each in columns), strict=True):
        rating = MEAN + ELO * strength
        yield Rating(name, rating, rating - ELO * error, rating + ELO * error, *tally)


class _Fit(NamedTuple):
    """A fitted model. Its ``strengths`` add up to 0.

    ``inverse`` solves with the matrix of second derivatives, whose last row and column fix the sum of
    strengths. ``scores`` has the derivative of each vote, votes × models."""

    strengths: np.ndarray
    shares: np.ndarray
    inverse: Any
    scores: Any

    def variances(self, clusters: Sequence[Sequence[np.ndarray]]) -> tuple[np.ndarray, list[np.ndarray]]:
        """Return the variance of each strength for independent votes, and half the interval per clusters.

        The half intervals use the sandwich estimate with votes of one cluster as dependent. For two kinds of
        clusters the variances add up, minus the variance of their intersection. Each has the usual factor for
        few clusters. A half is NaN if the variance is negative, which two kinds allow.
        """
        import numpy as np
        from scipy.special import stdtrit

        count = len(self.strengths)
        votes = self.scores.shape[0]
        parts = []
        for kinds in clusters:
            both = (
                [_numbers([*zip(*(kind.tolist() for kind in kinds), strict=True)])] if len(kinds) > 1 else []
            )
            signed = [*((kind, 1.0) for kind in kinds), *((kind, -1.0) for kind in both)]
            parts.append([(self._sums(kind, votes, count), sign) for kind, sign in signed])
        plain, sandwich = np.zeros(count), np.zeros((len(clusters), count))
        at_once = max(1, _NUMBERS_AT_ONCE // (votes + count))
        for start in range(0, count, at_once):
            some = np.arange(start, min(start + at_once, count))
            unit = np.zeros((count + 1, len(some)))
            unit[some, np.arange(len(some))] = 1.0
            columns = self.inverse(unit)[:count]
            plain[some] = columns[some, np.arange(len(some))]
            for n, of_kinds in enumerate(parts):
                for sums, sign in of_kinds:
                    sandwich[n, some] += sign * ((sums @ columns) ** 2).sum(0)
        # the kind with the fewest clusters counts; each prior vote is a cluster of its own
        freedom = [min(int(kind.max()) + votes - len(kind) for kind in kinds) for kinds in clusters]
        with np.errstate(invalid="ignore"):
            half = [stdtrit(f, 0.975) * np.sqrt(own) for f, own in zip(freedom, sandwich, strict=True)]
        return plain, half

    def _sums(self, cluster: np.ndarray, votes: int, count: int) -> Any:
        """Return the sum of derivatives of each cluster, with the factor for few clusters.

        Each prior vote is a cluster of its own."""
        import numpy as np
        from scipy.sparse import coo_array

        prior = np.arange(votes - len(cluster)) + cluster.max() + 1
        cluster = np.append(cluster, prior)
        clusters = int(cluster.max()) + 1
        factor = clusters / (clusters - 1) * (votes - 1) / max(1, votes - (count - 1))
        cells = np.full(votes, math.sqrt(factor)), (cluster, np.arange(votes))
        return (coo_array(cells, shape=(clusters, votes)) @ self.scores).tocsr()


def _fit(count: int, left: np.ndarray, right: np.ndarray, shares: np.ndarray, with_prior: bool) -> _Fit:
    """Fit the most likely strengths of ``count`` models by Newton's method."""
    import numpy as np
    from scipy.sparse import block_array, coo_array, diags_array, eye_array, vstack
    from scipy.sparse.linalg import splu

    votes = len(shares)
    each = np.arange(votes)
    lefts, rights = (
        coo_array((np.ones(votes), (each, side)), shape=(votes, count)) for side in (left, right)
    )
    design: Any = lefts - rights
    if with_prior:  # a tie with the mean, which is 0
        design, shares = vstack([design, eye_array(count)]), np.append(shares, np.full(count, 0.5))
    design = design.tocsr()
    ones = coo_array(np.ones((count, 1)))
    strengths = np.zeros(count)

    def loss(at: np.ndarray) -> float:
        logits = design @ at
        return float((np.logaddexp(0.0, logits) - shares * logits).sum())

    for _ in range(_STEPS):
        likely = 1 / (1 + np.exp(-(design @ strengths)))
        curved = design.T @ diags_array(likely * (1 - likely)) @ design
        # votes determine only differences, so the system also needs the condition that strengths add up to 0
        inverse = splu(block_array([[curved, ones], [ones.T, None]], format="csc")).solve
        step = inverse(np.append(design.T @ (shares - likely), 0.0))[:count]
        while loss(strengths + step) > loss(strengths) + _CLOSE * votes:
            step /= 2
        strengths = strengths + step
        if np.abs(step).max() < _CLOSE:
            break
    scores = diags_array(shares - likely) @ design
    return _Fit(strengths, shares, inverse, scores)


def _numbers(names: Sequence[Hashable]) -> np.ndarray:
    """Return the number of each name: equal names share one, in order of first appearance."""
    import numpy as np

    known: dict[Hashable, int] = {}
    return np.array([known.setdefault(name, len(known)) for name in names], int)
