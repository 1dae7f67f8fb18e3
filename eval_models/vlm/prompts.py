"""Questions as a local model takes them: pictures opened, words through the chat template, all of it as tensors.

What a question's sampling means: ``temperature`` None: the checkpoint's ``generation_config.json`` decides everything.
0.0: the most probable token each time, the checkpoint's ``do_sample``, ``temperature``, ``top_p``, ``top_k`` and
``repetition_penalty`` put aside. Above 0: drawn at that temperature, with the checkpoint's ``top_p`` and ``top_k`` but
without its ``repetition_penalty``. A ``repetition_penalty`` in ``extra`` applies in every case; as transformers does,
it counts the tokens of the prompt too. Stop tokens, and what else the checkpoint sets, are always the checkpoint's.

Probabilities of choices are the model's own (softmax of its last logits), whatever the temperature; only the repetition
penalty is applied before, where the rules above keep one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from PIL import Image

from imageevalkit.benchmark.question import JudgeUnusable, Picture, Question, Sampling
from imageevalkit.errors import suggest
from imageevalkit.images import CorruptImage
from imageevalkit.judges.api import judge_picture
from imageevalkit.secrets import one_line

if TYPE_CHECKING:
    import torch

Inputs = Mapping[str, "torch.Tensor"]


class UnfitPrompt(Exception):
    """The model cannot take it: one line why."""


def model_inputs(processor: Any, positions: int | None, groups: Iterable[Sequence[Question]]) -> list[Inputs]:
    """A batch of each group of questions, padded on the left; ``positions``: the longest context, None if unknown.

    The questions of a group have equal sampling. A picture that several ask about is opened once.
    Raises UnfitPrompt: one of the questions cannot be put.
    """
    images: dict[Picture, Image.Image] = {}
    try:
        return [_batch(processor, positions, questions, images) for questions in groups]
    except UnfitPrompt:
        raise
    except Exception as error:  # a processor's own limits, or Pillow's, such as an extreme aspect ratio
        raise UnfitPrompt(f"cannot be prepared: {one_line(error)}") from error


def _batch(
    processor: Any, positions: int | None, questions: Sequence[Question], images: dict[Picture, Image.Image]
) -> Inputs:
    conversations = [
        [
            {"role": message.role, "content": [_content(part, images) for part in message.parts]}
            for message in question.messages
        ]
        for question in questions
    ]
    sampling = questions[0].sampling
    template = str(processor.chat_template)  # or several by name
    # variables that the template does not have mean nothing to it, as in vLLM
    variables = {
        name: value
        for name, value in sampling.extra.get("chat_template_kwargs", {}).items()
        if re.search(rf"\b{re.escape(name)}\b", template)
    }
    inputs: Inputs = processor.apply_chat_template(
        conversations,
        tokenize=True,
        add_generation_prompt=True,
        return_dict=True,
        return_tensors="pt",
        # a checkpoint may have no padding token, which one row does not need
        processor_kwargs={"padding": True} if len(questions) > 1 else {},
        **variables,
    )
    length = max(prompt_lengths(inputs))
    if positions is not None and length + sampling.max_tokens > positions:
        raise UnfitPrompt(
            f"context too long: {length} tokens of prompt and {sampling.max_tokens} of reply, the model has "
            f"{positions} positions; the judge's max_pixels makes images smaller"
        )
    return inputs


def _content(part: str | Picture, images: dict[Picture, Image.Image]) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    try:
        # the processor knows by its identity an image that it has seen
        images[part] = images.get(part) or judge_picture(part)
    except (OSError, CorruptImage) as error:
        raise UnfitPrompt(f"unreadable image {part.path.name}: {one_line(error)}") from error
    return {"type": "image", "image": images[part]}


def prompt_lengths(inputs: Inputs) -> list[int]:
    """Tokens of each row, padding left out."""
    lengths: list[int] = inputs["attention_mask"].sum(dim=1).tolist()
    return lengths


_EXTRA = ("repetition_penalty", "chat_template_kwargs")


def check_question(question: Question) -> None:
    """Raise JudgeUnusable when ``question`` wants what this backend cannot do."""
    where = f"question '{question.name}' of item {question.item}"
    extra = question.sampling.extra
    for name in extra:
        if name not in _EXTRA:
            raise JudgeUnusable(
                f"{where}: a transformers judge cannot honour '{name}'{suggest(name, _EXTRA)}; it knows "
                f"{' and '.join(_EXTRA)}; leave it out, or use an openai or vllm judge"
            )
    penalty = extra.get("repetition_penalty")
    if penalty is not None and not (isinstance(penalty, int | float) and penalty > 0):
        raise JudgeUnusable(f"{where}: repetition_penalty must be a number above 0, not {penalty!r}")
    if not isinstance(extra.get("chat_template_kwargs", {}), dict):
        raise JudgeUnusable(f"{where}: chat_template_kwargs must be an object")


# below, ``checkpoint`` is the model's generation config


def penalty_of(sampling: Sampling, checkpoint: Any) -> float:
    """The repetition penalty; 1.0 is none."""
    own = checkpoint.repetition_penalty if sampling.temperature is None else None
    return float(sampling.extra.get("repetition_penalty") or own or 1.0)


def is_seeded(sampling: Sampling, checkpoint: Any) -> bool:
    """Whether the reply is drawn, and the same each time."""
    if sampling.seed is None:
        return False
    return bool(checkpoint.do_sample) if sampling.temperature is None else sampling.temperature > 0


def generate_options(sampling: Sampling, checkpoint: Any) -> dict[str, Any]:
    """Arguments of ``generate``."""
    options = {
        "max_new_tokens": sampling.max_tokens,
        "repetition_penalty": penalty_of(sampling, checkpoint),
    }
    if sampling.temperature is not None:
        options["do_sample"] = sampling.temperature > 0
    if sampling.temperature:
        options["temperature"] = float(sampling.temperature)
    return options


def batches_of(questions: Sequence[Question], checkpoint: Any) -> list[list[int]]:
    """The numbers of the ``questions`` that may go through the model together, those with choices first.

    Replies are of equal sampling. One that is drawn with a seed is alone: it must not depend on what else is asked.
    """
    groups: dict[Any, list[int]] = {}
    for n, question in enumerate(questions):
        sampling = json.dumps(asdict(question.sampling), sort_keys=True)
        alone = n if is_seeded(question.sampling, checkpoint) else None
        groups.setdefault(None if question.choices else (sampling, alone), []).append(n)
    return sorted(groups.values(), key=lambda group: not questions[group[0]].choices)
