"""The plain way and the toolkit's way to answer the same questions, in turns: a slower machine slows both."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from imageevalkit.benchmark.question import Question
from perf.harness import Bar
from tests.gpu.part import Part, measured

Numbers = Sequence[float]
Work = Callable[[Sequence[Question]], Iterator[Numbers]]
"""Answers questions: yields the numbers of each, in order."""
_WARMING = (4, 32)
"""Questions that are asked before: the plain way answers one at a time, the toolkit's way in batches."""


def compare(
    part: Part,
    label: str,
    plain: Work,
    ours: Work,
    turns: Sequence[Sequence[Question]],
    bar: Bar,
    own: tuple[int, int] = (0, 0),
) -> tuple[list[Numbers], list[Numbers]]:
    """Adds a row with the ratio of both speeds; returns the numbers of the plain way and of ours.

    Args:
        part: gets the row.
        label: the label of the row.
        plain: the plain way.
        ours: the toolkit's way.
        turns: the questions of each turn. The first questions are asked once before, unmeasured.
        bar: the bar of the ratio on a GPU.
        own: bytes of GPU memory that the models of both ways occupy before they are asked.
    """
    numbers: tuple[list[Numbers], list[Numbers]] = ([], [])
    seconds, memory = [0.0, 0.0], ["", ""]
    for work, warming in zip((plain, ours), _WARMING, strict=True):
        list(work(turns[0][:warming]))
    for asked in turns:
        for n, work in enumerate((plain, ours)):
            with measured(own[n]) as found:
                numbers[n].extend(work(asked))
            seconds[n] += found.seconds
            memory[n] = max(memory[n], found.memory, key=lambda text: float(text or 0))
    count = sum(map(len, turns))
    note = f"plain {memory[0]} GiB" if memory[0] else ""
    part.speed(label, count / seconds[1], count / seconds[0], bar, GiB=memory[1], note=note)
    return numbers


def differences(some: Sequence[Numbers], others: Sequence[Numbers]) -> list[float]:
    """Returns the largest difference at each position of the answers; infinite if a number is NaN."""
    found: list[float] = []
    for one, other in zip(some, others, strict=True):
        for n, (left, right) in enumerate(zip(one, other, strict=True)):
            if n == len(found):
                found.append(0.0)
            distance = abs(left - right)
            found[n] = math.inf if math.isnan(distance) else max(found[n], distance)
    return found


def share(distances: Sequence[float], of: Sequence[float]) -> float:
    """Returns the largest quotient of ``distances`` and ``of``, position by position; infinite for a divisor of 0."""
    pairs = zip(distances, of, strict=True)
    return max((distance / whole if whole else math.inf) if distance else 0.0 for distance, whole in pairs)
