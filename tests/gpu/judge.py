"""A local judge of Qwen2.5-VL-7B's architecture: Soft-TIFA's questions against one ``generate`` call for each.

The toolkit looks at an image once for all questions about it; the plain way, as official scripts do, for each.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

import torch

from imageevalkit import registry
from imageevalkit.benchmark.question import Picture, Question
from imageevalkit.judges.choice import JudgeOptions
from perf.harness import Row, at_least, at_most
from tests.gpu.architectures import QWEN2_5_VL_7B
from tests.gpu.part import Part, held
from tests.gpu.ways import Numbers, Work, compare, differences, share
from tests.support.image_questions import atom_questions, make_prompts, save_image
from tests.support.plain_judge import PlainJudge
from tests.support.tiny_vlm import save_qwen2_5_vl
from tests.support.vision_passes import VisionPasses

_OF_PLAIN_CALLS = at_least(2.0)
_IMAGES, _TINY_IMAGES, _PER_TURN = 24, 4, 4
_GREEDY = {"repetition_penalty": 1.0}
"""Soft-TIFA puts the checkpoint's own sampling aside."""
_APART, _TINY_APART = 0.2, 1e-3
"""Differences of probabilities, as shares of what another image changes. A GPU computes them in bfloat16."""
_OF_PLAIN_ROUNDING = at_most(1.5)
"""Both ways round in bfloat16, each in its own way: neither is the right one."""
_EXACT_TURNS = 2
_LONGEST_EXACT = 50.0
"""Seconds with which the float32 of these turns is started."""


def examine(part: Part) -> None:
    """Ask both."""
    count = _TINY_IMAGES if part.tiny else _IMAGES
    turns = _questions(part, count)
    folder = part.folder / "judge"
    sizes = {} if part.tiny else QWEN2_5_VL_7B
    save_qwen2_5_vl(folder, **sizes, dtype=part.dtype, device=part.device)
    before = held()
    official = PlainJudge(folder, part.device)
    plain_own = held() - before
    options = JudgeOptions({"device_map": "cpu"} if part.tiny else {})
    judge = registry.judge(f"transformers:{folder}", {}, options=options)

    def ask_judge(asked: Sequence[Question]) -> Iterator[Numbers]:
        answers = {(answer.question.item, answer.question.name): answer for answer in judge.ask(asked)}
        for question in asked:
            answer = answers[question.item, question.name]
            if answer.probabilities is None:
                raise RuntimeError(f"no reply: {answer.error}")
            yield _shares(question, answer.probabilities)

    def ask_plain(asked: Sequence[Question]) -> Iterator[Numbers]:
        for question in asked:
            yield _shares(question, official.ask(question, **_GREEDY).probabilities)

    label = f"Qwen2.5-VL, {sum(map(len, turns))} questions about {count} images / generate calls"
    before = held()
    list(ask_judge(turns[0][:1]))  # loads the judge
    own = plain_own, held() - before
    both = compare(part, label, ask_plain, ask_judge, turns, _OF_PLAIN_CALLS, own)
    some = list(chain(*turns[:_EXACT_TURNS]))
    with VisionPasses() as vision:
        list(ask_judge(some))
    images = len({question.item for question in some})
    words = "  passes of images through the vision tower / images"
    part.add(Row(words, vision.images / images, at_most(1.0)))
    words = "  differences of probabilities among the choices"
    part.attempt(words, _differences, part, both, ask_plain, official.model, some, seconds=_LONGEST_EXACT)


def _differences(
    part: Part,
    both: Sequence[Sequence[Numbers]],
    plain: Work,
    model: torch.nn.Module,
    some: Sequence[Question],
) -> None:
    """Add the differences of the numbers ``both``, whose first ones are those of ``some`` questions.

    ``model``, which answers ``plain``, has float32 afterwards.
    """
    if not part.tiny and torch.cuda.mem_get_info()[0] < sum(each.nbytes for each in model.parameters()) * 1.2:
        raise RuntimeError("too little GPU memory is free for the model in float32")
    model.float()
    exact = list(plain(some))
    pictures = list(dict.fromkeys(picture for question in some for picture in question.pictures))
    following = dict(zip(pictures, [*pictures[1:], pictures[0]], strict=True))
    others = differences(exact, list(plain([_about(question, following) for question in some])))
    limit = at_most(_TINY_APART if part.tiny else _APART)
    figures = {"note": f"largest {max(differences(*both)):.2g}, another image: {min(others):.2g}"}
    words = "  largest difference of a probability among the choices / that of another image"
    part.add(Row(words, share(differences(*both), others), limit, figures))
    words = "  mean distance of a probability to that in float32 / that of the generate calls"
    if part.tiny:
        part.skip(words, "both compute in float32")
        return
    of_plain, ours = (_distance(numbers[: len(some)], exact) for numbers in both)
    figures = {"note": f"{ours:.2g}, of the generate calls {of_plain:.2g}"}
    part.add(Row(words, ours / of_plain, _OF_PLAIN_ROUNDING, figures))


def _about(question: Question, pictures: Mapping[Picture, Picture]) -> Question:
    """Returns the question about another picture."""
    messages = [
        message._replace(
            parts=tuple(pictures[part] if isinstance(part, Picture) else part for part in message.parts)
        )
        for message in question.messages
    ]
    return replace(question, messages=tuple(messages))


def _distance(some: Sequence[Numbers], others: Sequence[Numbers]) -> float:
    """Returns the mean difference of two numbers."""
    pairs = zip(chain(*some), chain(*others), strict=True)
    found = [abs(one - other) for one, other in pairs]
    return sum(found) / len(found)


def _shares(question: Question, probabilities: Mapping[str, float]) -> list[float]:
    """Returns the probabilities of the choices if no other reply were possible.

    With random weights all probabilities are tiny, and so are their differences.
    """
    found = [probabilities[wanted] for wanted in question.choices]
    return [probability / sum(found) for probability in found]


def _questions(part: Part, count: int) -> list[list[Question]]:
    """The questions about ``count`` images of 512 to 1024 pixels a side, those of a few images in each turn."""
    rng = random.Random(0)
    sides = range(64, 129, 32) if part.tiny else range(512, 1025, 64)
    about = []
    for n, prompt in enumerate(make_prompts(count)):
        picture = save_image(part.folder / f"{n:04d}.png", (rng.choice(sides), rng.choice(sides)), seed=n)
        about.append(atom_questions(prompt, picture))
    starts = range(0, count, _PER_TURN)
    return [[question for each in about[start : start + _PER_TURN] for question in each] for start in starts]
