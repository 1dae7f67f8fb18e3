"""The plain way and the toolkit's over the same questions, in turns: a machine that slows down slows both."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

from imageevalkit.benchmark.question import Question
from perf.harness import Bar, Row, at_most
from tests.gpu.part import Part, measured

Work = Callable[[Sequence[Question]], Iterator[Sequence[float]]]
"""Answers questions: the numbers of each, in order."""
_WARMING = 32


def compare(
    part: Part,
    label: str,
    plain: Work,
    ours: Work,
    turns: Sequence[Sequence[Question]],
    bar: Bar,
    limit: float,
) -> None:
    """Add two rows: how many times as fast ours is, against ``bar``; how far apart the numbers of both are.

    Args:
        part: gets the rows.
        label: what is asked.
        plain: the plain way.
        ours: the toolkit's.
        turns: the questions of each turn; some of the first are asked once more before it, unmeasured.
        bar: of the speed, on a GPU.
        limit: the largest difference that rounding explains, as a share of the largest number.
    """
    numbers: tuple[list[Sequence[float]], list[Sequence[float]]] = ([], [])
    seconds, memory = [0.0, 0.0], ["", ""]
    for work in (plain, ours):
        list(work(turns[0][:_WARMING]))
    for asked in turns:
        for n, work in enumerate((plain, ours)):
            with measured() as found:
                numbers[n].extend(work(asked))
            seconds[n] += found.seconds
            memory[n] = max(memory[n], found.memory, key=lambda text: float(text or 0))
    count = sum(map(len, turns))
    note = f"plain {memory[0]} GiB" if memory[0] else ""
    part.speed(label, count / seconds[1], count / seconds[0], bar, GiB=memory[1], note=note)
    words = "  largest difference of a number / the largest number"
    part.add(Row(words, apart(*numbers), at_most(limit)))


def apart(some: Sequence[Sequence[float]], others: Sequence[Sequence[float]]) -> float:
    """The largest difference of two numbers, as a share of the largest number; infinite if one is none."""
    pairs = [pair for one, other in zip(some, others, strict=True) for pair in zip(one, other, strict=True)]
    if any(math.isnan(one - other) for one, other in pairs):
        return math.inf
    return max(abs(one - other) for one, other in pairs) / (max(map(abs, itertools.chain(*pairs))) or 1.0)
