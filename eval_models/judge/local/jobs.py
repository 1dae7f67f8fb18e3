"""Which questions a local model answers together."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

from eval_models.judge.local.sampling import is_seeded, sampling_key
from imageevalkit.evaluation.question import Picture, Question


class Job(NamedTuple):
    """Questions that are prepared and answered together.

    ``one_image``: they are about the same pictures, with the same words before the end of the last. Otherwise it is
    one question with ``wanted``, or several of equal sampling without, each about its own image.
    """

    questions: tuple[Question, ...]
    one_image: bool


def plan(questions: Sequence[Question], batch_size: int, checkpoint: object) -> list[Job]:
    """All questions about one image are a job; so are ``batch_size`` others to generate replies to.

    ``checkpoint`` is the model's generation config.
    """
    about: dict[Hashable, list[Question]] = {}
    for n, question in enumerate(questions):
        about.setdefault(_beginning(question) if question.pictures else n, []).append(question)
    jobs = [Job(tuple(group), True) for group in about.values() if len(group) > 1]
    alone = [group[0] for group in about.values() if len(group) == 1]
    return jobs + plan_apart(alone, batch_size, checkpoint)


def plan_apart(questions: Sequence[Question], batch_size: int, checkpoint: object) -> list[Job]:
    """The same where no question shares an image with another.

    A reply that is drawn with a seed is a job of its own: it must not depend on what else is asked.
    """
    jobs = [Job((question,), False) for question in questions if question.wanted]
    generated: dict[str, list[Question]] = {}
    for question in questions:
        if not question.wanted:
            generated.setdefault(sampling_key(question.sampling), []).append(question)
    for group in generated.values():
        size = 1 if is_seeded(group[0].sampling, checkpoint) else batch_size
        jobs += [Job(chunk, False) for chunk in _chunks(group, size)]
    return jobs


def _beginning(question: Question) -> Hashable:
    """All up to the last picture, and what else the chat template may write before it."""
    parts = [(n, m.role, part) for n, m in enumerate(question.messages) for part in m.parts]
    end = max(n for n, (*_, part) in enumerate(parts, start=1) if isinstance(part, Picture))
    return tuple(parts[:end]), json.dumps(question.sampling.extra.get("chat_template_kwargs"), sort_keys=True)


def _chunks(questions: Sequence[Question], size: int) -> Iterator[tuple[Question, ...]]:
    for start in range(0, len(questions), size):
        yield tuple(questions[start : start + size])
