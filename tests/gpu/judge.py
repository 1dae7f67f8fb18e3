"""A local judge of Qwen2.5-VL-7B's architecture: Soft-TIFA's questions, and one ``generate`` call for each of them.

The toolkit looks at an image once for all questions about it; the plain way, as official scripts do, for each.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence

from imageevalkit import registry
from imageevalkit.benchmark.question import Question
from imageevalkit.judges.choice import JudgeOptions
from perf.harness import Row, at_least, at_most
from tests.gpu.architectures import QWEN2_5_VL_7B
from tests.gpu.part import Part
from tests.gpu.ways import compare
from tests.support.image_questions import atom_questions, read_prompts, save_image
from tests.support.plain_judge import PlainJudge
from tests.support.tiny_vlm import save_qwen2_5_vl
from tests.support.vision_passes import VisionPasses

_OF_PLAIN_CALLS = at_least(2.0)
_IMAGES, _TINY_IMAGES, _PER_TURN = 24, 4, 4
_GREEDY = {"repetition_penalty": 1.0}
"""Soft-TIFA puts the checkpoint's own sampling aside."""
# of the logarithm of a probability, which is about -10: a wrong position changes it by more than 1, and the rounding of
# 28 layers to bfloat16 by less
_APART, _TINY_APART = 0.03, 1e-4


def examine(part: Part) -> None:
    """Ask both."""
    count = _TINY_IMAGES if part.tiny else _IMAGES
    turns = _questions(part, count)
    folder = part.folder / "judge"
    sizes = {} if part.tiny else QWEN2_5_VL_7B
    save_qwen2_5_vl(folder, **sizes, dtype=part.dtype, device=part.device)
    official = PlainJudge(folder, part.device)
    options = JudgeOptions({"device_map": "cpu"} if part.tiny else {})
    judge = registry.judge(f"transformers:{folder}", {}, options=options)

    def ask_judge(asked: Sequence[Question]) -> Iterator[Sequence[float]]:
        answers = {(answer.question.item, answer.question.name): answer for answer in judge.ask(asked)}
        for question in asked:
            answer = answers[question.item, question.name]
            if answer.probabilities is None:
                raise RuntimeError(f"no reply: {answer.error}")
            yield [math.log(answer.probabilities[wanted]) for wanted in question.choices]

    def ask_plain(asked: Sequence[Question]) -> Iterator[Sequence[float]]:
        for question in asked:
            probabilities = official.ask(question, **_GREEDY).probabilities
            yield [math.log(probabilities[wanted]) for wanted in question.choices]

    label = f"Qwen2.5-VL, {sum(map(len, turns))} questions about {count} images / generate calls"
    apart = _TINY_APART if part.tiny else _APART
    compare(part, label, ask_plain, ask_judge, turns, _OF_PLAIN_CALLS, apart)
    with VisionPasses() as vision:
        list(ask_judge([question for asked in turns for question in asked]))
    part.add(Row("  passes of images through the vision tower / images", vision.images / count, at_most(1.0)))


def _questions(part: Part, count: int) -> list[list[Question]]:
    """The questions about ``count`` images of 512 to 1024 pixels a side, those of a few images in each turn."""
    rng = random.Random(0)
    sides = range(64, 129, 32) if part.tiny else range(512, 1025, 64)
    about = []
    for n, prompt in enumerate(read_prompts(count).prompts):
        picture = save_image(part.folder / f"{n:04d}.png", (rng.choice(sides), rng.choice(sides)), seed=n)
        about.append(atom_questions(prompt, picture))
    starts = range(0, count, _PER_TURN)
    return [[question for each in about[start : start + _PER_TURN] for question in each] for start in starts]
