"""A local judge of Qwen2.5-VL-7B's architecture: Soft-TIFA's questions against one ``generate`` call for each.

The toolkit looks at an image once for all questions about it; the plain way, as official scripts do, for each.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence

from imageevalkit import registry
from imageevalkit.benchmark.question import Question
from imageevalkit.judges.choice import JudgeOptions
from perf.harness import Row, at_least, at_most
from tests.gpu.architectures import QWEN2_5_VL_7B
from tests.gpu.part import Part, held
from tests.gpu.ways import Numbers, compare, differences
from tests.support.image_questions import atom_questions, make_prompts, save_image
from tests.support.plain_judge import PlainJudge
from tests.support.tiny_vlm import save_qwen2_5_vl
from tests.support.vision_passes import VisionPasses

_OF_PLAIN_CALLS = at_least(2.0)
_IMAGES, _TINY_IMAGES, _PER_TURN = 24, 4, 4
_GREEDY = {"repetition_penalty": 1.0}
"""Soft-TIFA puts the checkpoint's own sampling aside."""
_APART, _TINY_APART = 0.02, 1e-4


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
    limit = at_most(_TINY_APART if part.tiny else _APART)
    words = "  largest difference of a probability among the choices"
    part.add(Row(words, max(differences(*both)), limit))
    with VisionPasses() as vision:
        list(ask_judge([question for asked in turns for question in asked]))
    part.add(Row("  passes of images through the vision tower / images", vision.images / count, at_most(1.0)))


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
