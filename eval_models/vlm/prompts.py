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
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from PIL import Image

from imageevalkit.benchmark.question import Answer, JudgeUnusable, Picture, Question, Sampling
from imageevalkit.errors import suggest
from imageevalkit.images import CorruptImage
from imageevalkit.judges.api import judge_picture
from imageevalkit.secrets import one_line

if TYPE_CHECKING:
    import torch

Row = TypeVar("Row")
Inputs = Mapping[str, "torch.Tensor"]
Images = Mapping[Picture, Image.Image | str]


class PromptBatches(NamedTuple):
    """The model's inputs, each with the questions of its rows in order, and the answers that are errors."""

    batches: list[tuple[list[Question], Inputs]]
    failures: list[Answer]


class Prompts:
    """Prepares questions, one call at a time: a tokenizer and a processor serve one thread.

    ``positions``: the longest context of the model, None if unknown.
    """

    def __init__(self, processor: Any, positions: int | None) -> None:
        self._processor = processor
        self._positions = positions
        self._turn = threading.Lock()

    def prepared(self, groups: Sequence[Sequence[Question]]) -> PromptBatches:
        """A batch of each group, whose questions must have equal sampling, padded on the left.

        A picture that several ask about is prepared once.
        """
        with self._turn:
            asked = (picture for group in groups for question in group for picture in question.pictures)
            images = {picture: _opened(picture) for picture in dict.fromkeys(asked)}
            prepared = PromptBatches([], [])
            for group in groups:
                whole = []
                for question in group:
                    broken = [found for p in question.pictures if isinstance(found := images[p], str)]
                    if broken:
                        prepared.failures.append(Answer(question, None, broken[0]))
                    else:
                        whole.append(question)
                self._add(whole, images, prepared)
            return prepared

    def _add(self, questions: list[Question], images: Images, prepared: PromptBatches) -> None:
        if not questions:
            return
        try:
            inputs = self._inputs(questions, images)
        except Exception as error:  # a processor's own limits, such as an extreme aspect ratio
            if len(questions) == 1:
                failure = f"cannot be prepared: {one_line(error)}"
                prepared.failures.append(Answer(questions[0], None, failure))
                return
            for question in questions:
                self._add([question], images, prepared)
            return
        fitting = []
        for question, length in zip(questions, prompt_lengths(inputs), strict=True):
            reply = question.sampling.max_tokens
            if self._positions is None or length + reply <= self._positions:
                fitting.append(question)
                continue
            too_long = (
                f"context too long: {length} tokens of prompt and {reply} of reply, the model has "
                f"{self._positions} positions; the judge's max_pixels makes images smaller"
            )
            prepared.failures.append(Answer(question, None, too_long))
        if len(fitting) == len(questions):
            prepared.batches.append((questions, inputs))
        else:
            self._add(fitting, images, prepared)

    def _inputs(self, questions: Sequence[Question], images: Images) -> Inputs:
        conversations = [
            [
                {
                    "role": message.role,
                    "content": [
                        {"type": "image", "image": images[part]}
                        if isinstance(part, Picture)
                        else {"type": "text", "text": part}
                        for part in message.parts
                    ],
                }
                for message in question.messages
            ]
            for question in questions
        ]
        template = str(self._processor.chat_template)  # or several by name
        given = questions[0].sampling.extra.get("chat_template_kwargs", {})
        inputs: Inputs = self._processor.apply_chat_template(
            conversations,
            tokenize=True,
            add_generation_prompt=True,
            return_dict=True,
            return_tensors="pt",
            # a checkpoint may have no padding token, which one row does not need
            processor_kwargs={"padding": True} if len(questions) > 1 else {},
            # variables that the template does not have mean nothing to it, as in vLLM
            **{
                name: value for name, value in given.items() if re.search(rf"\b{re.escape(name)}\b", template)
            },
        )
        return inputs


def _opened(picture: Picture) -> Image.Image | str:
    """The picture, or why it does not open."""
    try:
        return judge_picture(picture)
    except (OSError, CorruptImage) as error:
        return f"unreadable image {picture.path.name}: {one_line(error)}"
    except Exception as error:  # an encoding that Pillow does not have, an extreme aspect ratio
        return f"cannot be prepared: {one_line(error)}"


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
    if "" in question.choices:
        raise JudgeUnusable(f"{where}: an empty string has no first token")


def penalty_of(sampling: Sampling, checkpoint: Any) -> float:
    """The repetition penalty; 1.0 is none. ``checkpoint`` is the model's generation config."""
    own = checkpoint.repetition_penalty if sampling.temperature is None else None
    return float(sampling.extra.get("repetition_penalty") or own or 1.0)


def reply_groups(
    rows: Iterable[Row], sampling_of: Callable[[Row], Sampling], checkpoint: Any
) -> list[list[Row]]:
    """``rows`` of equal sampling, which may be generated together.

    A reply that is drawn with a seed is alone: it must not depend on what else is asked. ``checkpoint`` is the model's
    generation config.
    """
    groups: dict[Any, list[Row]] = {}
    for n, row in enumerate(rows):
        sampling = sampling_of(row)
        key = json.dumps(asdict(sampling), sort_keys=True)
        groups.setdefault((key, n if is_seeded(sampling, checkpoint) else None), []).append(row)
    return list(groups.values())


def is_seeded(sampling: Sampling, checkpoint: Any) -> bool:
    """Whether the reply is drawn, and the same each time."""
    if sampling.seed is None:
        return False
    return bool(checkpoint.do_sample) if sampling.temperature is None else sampling.temperature > 0


def generate_options(sampling: Sampling, checkpoint: Any, mask: torch.Tensor) -> dict[str, Any]:
    """Arguments of ``generate`` for prompts with the attention ``mask``."""
    # transformers' own penalty counts padding
    options: dict[str, Any] = {"max_new_tokens": sampling.max_tokens, "repetition_penalty": 1.0}
    if sampling.temperature is not None:
        options["do_sample"] = sampling.temperature > 0
    if sampling.temperature:
        options["temperature"] = float(sampling.temperature)
    penalty = penalty_of(sampling, checkpoint)
    if penalty != 1.0:
        options["logits_processor"] = [PromptPenalty(penalty, mask)]
    return options


class PromptPenalty:
    """A logits processor: transformers' repetition penalty, blind to padding.

    Its own counts padding as a token of the prompt, so that a reply would depend on what else is in the batch.
    ``mask``: 1 for tokens, 0 for padding on the left; shape (batch, prompt tokens).
    """

    def __init__(self, penalty: float, mask: torch.Tensor) -> None:
        from transformers import RepetitionPenaltyLogitsProcessor

        self._penalise = RepetitionPenaltyLogitsProcessor(penalty)
        self._mask = mask.bool()

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """``scores``: shape (batch, vocabulary); ``input_ids``: shape (batch, tokens so far)."""
        width = self._mask.shape[1]
        counted = input_ids.clone()
        # any token of the row's own prompt will do: the penalty is applied once however often it occurs
        counted[:, :width] = input_ids[:, :width].where(self._mask, input_ids[:, width - 1 : width])
        penalised: torch.Tensor = self._penalise(counted, scores)
        return penalised
