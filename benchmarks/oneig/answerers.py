"""Who answers for which task of OneIG-Bench."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from benchmarks.oneig.questions import PIXELS
from benchmarks.oneig.scored import Task
from benchmarks.oneig.settings import Settings
from eval_models.encoders.asked import AskedEncoder
from eval_models.judge.asked import AskedJudge
from eval_models.judge.registry import find
from eval_models.ocr.asked import AskedReader
from imageevalkit.assets import data_folder
from imageevalkit.benchmark.answerer import Answerer
from imageevalkit.cell.results import Evaluator

JUDGED: tuple[Task, ...] = ("alignment", "text")
"""The tasks with questions to a judge; the others have encoders."""

WEIGHTS_OF: Mapping[Task, Sequence[str]] = {
    "reasoning": ("llm2clip_vision", "llm2clip_text"),
    "style": ("csd", "se"),
    "diversity": ("dreamsim",),
}
"""The names of the weights that each task's encoders always need."""

_ENCODERS = {"reasoning": "llm2clip", "style": "csd+se", "diversity": "dreamsim"}


class Answerers(NamedTuple):
    """``by_task``, in the order in which they are to be asked; ``judge`` is the one among them, if there is one."""

    by_task: Mapping[Task, Answerer]
    judge: AskedJudge | None


def answerers(
    name: str, settings: Settings, judge: str, prompts: Mapping[str, str], official: str
) -> Answerers:
    """Those for the tasks of ``settings``; ``judge`` is a judge, a text reader, or empty where none is needed.

    ``name`` is the benchmark's, which has the reference embeddings. The encoders come first: they take minutes where a
    judge takes hours, and who gives up among them has cost nothing yet.
    """
    found: dict[Task, Answerer] = {
        task: _encoder(task, name, settings) for task in settings.tasks if task in _ENCODERS
    }
    asked = AskedJudge(judge, prompts, (official,), PIXELS) if judge and find(judge) else None
    for task in settings.tasks:
        if task in JUDGED:
            found[task] = asked or AskedReader(judge)
    return Answerers(found, asked)


def is_official(part: Evaluator) -> bool:
    """Whether a judge or reader is the official one; of an encoder, whether it computes in the official precision.

    The official code runs on CUDA, where torch's autocast takes float16; on the CPU it takes bfloat16.
    """
    encoder = part.details.get("encoder")
    if encoder is None:
        return part.official
    precision = encoder["precision"]
    return not (isinstance(precision, dict) and precision.get("official") == "bfloat16")


def _encoder(task: Task, name: str, settings: Settings) -> AskedEncoder:
    from eval_models.encoders.llm2clip import Llm2ClipEncoder
    from eval_models.encoders.perceptual import DreamSimEncoder
    from eval_models.encoders.style import StyleEncoder

    options = settings.encoder_options
    if task == "reasoning":
        return AskedEncoder(_ENCODERS[task], Llm2ClipEncoder(options))
    if task == "style":
        data = data_folder(name)
        references = {"csd": data / "CSD_embed.pt", "se": data / "SE_embed.pt"}
        return AskedEncoder(_ENCODERS[task], StyleEncoder(options, references))
    return AskedEncoder(_ENCODERS[task], DreamSimEncoder(options))
