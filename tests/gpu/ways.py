"""The plain way and the toolkit's over the same questions, in turns: a machine that slows down slows both."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from imageevalkit.benchmark.question import Question
from perf.harness import Bar, Row, at_most
from tests.gpu.part import Part, measured

Work = Callable[[Sequence[Question]], Iterator[Sequence[float]]]
"""Answers questions: the numbers of each, in order."""


def compare(
    part: Part, label: str, plain: Work, ours: Work, turns: Sequence[Sequence[Question]], bar: Bar, apart: float
) -> None:
    """Add two rows: how many times as fast ours is, against ``bar``; how far apart the numbers of both are.

    Args:
        part: gets the rows.
        label: what is asked.
        plain: the plain way.
        ours: the toolkit's.
        turns: the questions of each turn; those of the first are asked once more before it, unmeasured.
        bar: of the speed, on a GPU.
        apart: the largest difference of two numbers that rounding explains, as a share of the larger one.
    """
    numbers: tuple[list[Sequence[float]], list[Sequence[float]]] = ([], [])
    seconds, memory = [0.0, 0.0], ["", ""]
    for work in (plain, ours):
        list(work(turns[0]))
    for asked in turns:
        for n, work in enumerate((plain, ours)):
            with measured() as found:
                numbers[n].extend(work(asked))
            seconds[n] += found.seconds
            memory[n] = max(memory[n], found.memory, key=lambda text: float(text or 0))
    count = sum(map(len, turns))
    note = f"plain {memory[0]} GiB" if memory[0] else ""
    part.speed(label, count / seconds[1], count / seconds[0], bar, GiB=memory[1], note=note)
    distance = max(
        _apart(one, other)
        for some, others in zip(*numbers, strict=True)
        for one, other in zip(some, others, strict=True)
    )
    words = f"  largest relative difference of a number: share of {apart:g}"
    part.add(Row(words, distance / apart, at_most(1.0), {"note": f"{distance:.2g}"}))


def _apart(one: float, other: float) -> float:
    if math.isnan(one) or math.isnan(other):
        return math.inf
    return abs(one - other) / max(abs(one), abs(other), 1e-30)
