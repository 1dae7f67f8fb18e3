"""Which questions a local model answers together."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import NamedTuple

from eval_models.judge.local.sampling import is_drawn
from imageevalkit.evaluation.question import Picture, Question


class Job(NamedTuple):
    """Questions that are prepared and answered together; ``generates``: replies of several tokens."""

    questions: tuple[Question, ...]
    generates: bool


def plan(questions: Sequence[Question], batch_size: int, checkpoint: object) -> list[Job]:
    """Questions about the same image with the same words before its end are a job; so are ``batch_size`` to generate.

    ``checkpoint`` is the model's generation config. A reply that is drawn with a seed is a job of its own: it must
    not depend on what else is asked.
    """
    about: dict[Hashable, list[Question]] = {}
    generated: dict[Hashable, list[Question]] = {}
    for question in questions:
        if question.wanted:
            about.setdefault(_beginning(question), []).append(question)
        else:
            generated.setdefault(_sampling(question), []).append(question)
    jobs = [Job(tuple(group), False) for group in about.values()]
    for group in generated.values():
        alone = group[0].sampling.seed is not None and is_drawn(group[0].sampling, checkpoint)
        jobs += [Job(chunk, True) for chunk in _chunks(group, 1 if alone else batch_size)]
    return jobs


def _beginning(question: Question) -> Hashable:
    """All up to the last picture."""
    parts = [(m.role, part) for m in question.messages for part in m.parts]
    end = max((n for n, (_, part) in enumerate(parts, start=1) if isinstance(part, Picture)), default=0)
    return tuple(parts[:end]), _sampling(question)


def _sampling(question: Question) -> str:
    return json.dumps(asdict(question.sampling), sort_keys=True)


def _chunks(questions: Iterable[Question], size: int) -> Iterator[tuple[Question, ...]]:
    group = tuple(questions)
    for start in range(0, len(group), size):
        yield group[start : start + size]
