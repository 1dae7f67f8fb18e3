"""What OneIG-Bench asks about an image, and what the replies hold."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.oneig.editions import Edition, looks_at
from benchmarks.oneig.scored import Prompt, ScoredImage, Similarity, StyleSimilarities, Task
from benchmarks.oneig.settings import Settings
from benchmarks.oneig.text_metric import max_tokens
from eval_models.encoders.embedding import read_embedding
from imageevalkit.benchmark.contract import Unparsed
from imageevalkit.benchmark.question import (
    QWEN_VL_UTILS,
    Encoding,
    Message,
    Picture,
    PixelRule,
    Question,
    Reply,
    Sampling,
)

ALIGNMENT_PROMPT = "scripts/utils/inference.py::Qwen2_5VLBatchInferencer.infer_semantic"
TEXT_PROMPT = "scripts/utils/inference.py::Qwen2_5VLBatchInferencer.TEXT_PROMPT"

# the official splitter saves every image with Pillow's defaults, a single one too: all models see those losses
_JPEG = Encoding("JPEG")
PIXELS = PixelRule("oneig", turned=False, multiple=QWEN_VL_UTILS.multiple)
"""That splitter looks at no EXIF data, and has no other way with transparency; its files go through qwen_vl_utils."""
_UPRIGHT = PIXELS._replace(name="oneig upright", turned=True)
_ALIGNMENT_TOKENS = 128
_NO_SAMPLING = Sampling(0)


def questions_about(
    item: str,
    prompt: Prompt,
    image: Picture,
    edition: Edition,
    settings: Settings,
    prompts: Mapping[str, str],
    sampling: Mapping[str, Any] | None,
) -> list[Question]:
    """All questions of the tasks that look at ``prompt``; ``sampling`` is how the judge's replies are drawn.

    None: there is no judge, and texts are read from the files as they are. Their names are the task, for alignment with
    the number of the question: ``alignment/3``.
    """
    rule = PIXELS if settings.rules == "official" else _UPRIGHT
    picture = image._replace(encoding=_JPEG, pixels=rule)
    asked: list[tuple[str, tuple[str | Picture, ...], Sampling]] = []
    for task in settings.tasks:
        if not looks_at(task, prompt):
            continue
        if task == "alignment":
            drawn = Sampling(_ALIGNMENT_TOKENS, **(sampling or {}))
            template = prompts[ALIGNMENT_PROMPT]
            asked += [
                (f"alignment/{n}", (picture, template.format(question=question)), drawn)
                for n, question in prompt.questions.items()
            ]
        elif task == "text" and sampling is None:
            asked.append((task, (image,), _NO_SAMPLING))
        elif task == "text":
            drawn = Sampling(max_tokens(prompt, settings.rules, edition.language), **sampling or {})
            asked.append((task, (picture, prompts[TEXT_PROMPT]), drawn))
        elif task == "reasoning":
            asked.append((task, (picture, prompt.answer), _NO_SAMPLING))
        elif task == "style":
            asked.append((task, (picture, prompt.style), _NO_SAMPLING))
        else:
            asked.append((task, (picture,), _NO_SAMPLING))
    return [Question(item, name, (Message("user", parts),), drawn) for name, parts, drawn in asked]


def task_of(question: str) -> Task:
    """The task of the question with that name."""
    return question.partition("/")[0]  # type: ignore[return-value]


def parsed_reply(question: str, reply: Reply) -> Any:
    """What the reply to ``question`` holds: a judge's words as they are, an encoder's numbers.

    Raises:
        Unparsed: an encoder's numbers are none.
    """
    task = task_of(question)
    if task in ("alignment", "text"):
        return reply.text  # what is no "Yes" is a no, what is no text costs edits: nothing is malformed
    try:
        if task == "diversity":
            return len(_finite(read_embedding(reply.text)))
        found = json.loads(reply.text)
        if task == "reasoning":
            return _finite(Similarity(float(found["official"]), float(found["exact"])))
        return [_finite([float(n) for n in found[name]]) for name in StyleSimilarities._fields]
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise Unparsed(f"the record holds no numbers of an encoder ({type(error).__name__})") from None


def _finite(numbers: Sequence[float]) -> Sequence[float]:
    if not numbers or not all(map(math.isfinite, numbers)):
        raise ValueError("no finite numbers")
    return numbers


def scored_image(
    parsed: Mapping[str, Any], replies: Mapping[str, Reply], prompt: Prompt, **known: Any
) -> ScoredImage:
    """All that was said of an image of ``prompt``; a task with an open question is as if it was not asked."""
    answers = {n: parsed[f"alignment/{n}"] for n in prompt.questions if f"alignment/{n}" in parsed}
    return ScoredImage(
        answers=answers if answers and len(answers) == len(prompt.questions) else None,
        reading=parsed.get("text"),
        similarity=Similarity(*parsed["reasoning"]) if "reasoning" in parsed else None,
        style=StyleSimilarities(*parsed["style"]) if "style" in parsed else None,
        embedding=read_embedding(replies["diversity"].text) if "diversity" in parsed else None,
        **known,
    )
