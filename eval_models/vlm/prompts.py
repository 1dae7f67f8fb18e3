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
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

from PIL import Image

from imageevalkit.benchmark.question import Answer, JudgeUnusable, Picture, Question, Sampling
from imageevalkit.errors import suggest
from imageevalkit.images import CorruptImage
from imageevalkit.judges.pictures import judge_picture
from imageevalkit.secrets import one_line

if TYPE_CHECKING:
    import torch

Inputs = Mapping[str, "torch.Tensor"]


class Prepared(NamedTuple):
    """``batches`` are the model's inputs, each with the questions of its rows in order.

    ``failures`` answer the questions that fail by themselves.
    """

    batches: list[tuple[list[Question], Inputs]]
    failures: list[Answer]


class Prompts:
    """Prepares questions, one call at a time: a tokenizer and a processor serve one thread."""

    def __init__(self, processor: Any, positions: int | None) -> None:
        self._processor = processor
        self._positions = positions
        self._turn = threading.Lock()

    def prepared(self, groups: Sequence[Sequence[Question]]) -> Prepared:
        """A batch of each group, whose questions must have equal sampling, padded on the left.

        A picture that several ask about is prepared once.
        """
        with self._turn:
            pictures, broken = self._open([question for group in groups for question in group])
            prepared = Prepared([], [])
            for group in groups:
                kept = []
                for question in group:
                    reason = next(
                        (broken[picture] for picture in question.pictures if picture in broken), None
                    )
                    if reason:
                        prepared.failures.append(Answer(question, None, reason))
                    else:
                        kept.append(question)
                if kept:
                    self._add(kept, pictures, prepared)
            return prepared

    def _open(self, questions: Sequence[Question]) -> tuple[dict[Picture, Image.Image], dict[Picture, str]]:
        """The pictures of ``questions``, and why others do not open."""
        pictures, broken = {}, {}
        for picture in dict.fromkeys(picture for question in questions for picture in question.pictures):
            try:
                pictures[picture] = judge_picture(picture)
            except (OSError, CorruptImage) as error:
                broken[picture] = f"unreadable image {picture.path.name}: {one_line(error)}"
            except Exception as error:  # an encoding that Pillow does not have, an extreme aspect ratio
                broken[picture] = f"cannot be prepared: {one_line(error)}"
        return pictures, broken

    def _add(
        self, questions: list[Question], pictures: Mapping[Picture, Image.Image], prepared: Prepared
    ) -> None:
        try:
            inputs = self._inputs(questions, pictures)
        except Exception as error:  # a processor's own limits, such as an extreme aspect ratio
            if len(questions) == 1:
                failure = f"cannot be prepared: {one_line(error)}"
                prepared.failures.append(Answer(questions[0], None, failure))
                return
            for question in questions:
                self._add([question], pictures, prepared)
            return
        kept = []
        for question, length in zip(questions, prompt_lengths(inputs), strict=True):
            if too_long := self._too_long(question, length):
                prepared.failures.append(Answer(question, None, too_long))
            else:
                kept.append(question)
        if len(kept) == len(questions):
            prepared.batches.append((questions, inputs))
        elif kept:
            self._add(kept, pictures, prepared)

    def _inputs(self, questions: Sequence[Question], pictures: Mapping[Picture, Image.Image]) -> Inputs:
        processor = self._processor
        template = processor.chat_template
        inputs: Inputs = processor.apply_chat_template(
            [_conversation(question, pictures) for question in questions],
            tokenize=True,
            add_generation_prompt=True,
            return_dict=True,
            return_tensors="pt",
            # a checkpoint may have no padding token, which one row does not need
            processor_kwargs={"padding": True} if len(questions) > 1 else {},
            **template_variables(
                questions[0].sampling, template if isinstance(template, str) else repr(template)
            ),
        )
        return inputs

    def _too_long(self, question: Question, length: int) -> str:
        wanted = length + question.sampling.max_tokens
        if self._positions is None or wanted <= self._positions:
            return ""
        return (
            f"context too long: {length} tokens of prompt and {question.sampling.max_tokens} of reply, the model has "
            f"{self._positions} positions; the judge's max_pixels makes images smaller"
        )


def prompt_lengths(inputs: Inputs) -> list[int]:
    """Tokens of each row, padding left out."""
    lengths: list[int] = inputs["attention_mask"].sum(dim=1).tolist()
    return lengths


def _conversation(question: Question, pictures: Mapping[Picture, Image.Image]) -> list[dict[str, Any]]:
    return [
        {
            "role": message.role,
            "content": [
                {"type": "image", "image": pictures[part]}
                if isinstance(part, Picture)
                else {"type": "text", "text": part}
                for part in message.parts
            ],
        }
        for message in question.messages
    ]


_EXTRA = ("repetition_penalty", "chat_template_kwargs")


def check_question(question: Question) -> None:
    """Raise JudgeUnusable when ``question`` wants what this backend cannot do."""
    where = f"question '{question.name}' of item {question.item}"
    for name in question.sampling.extra:
        if name not in _EXTRA:
            raise JudgeUnusable(
                f"{where}: a transformers judge cannot honour '{name}'{suggest(name, _EXTRA)}; it knows "
                f"{' and '.join(_EXTRA)}; leave it out, or use an openai or vllm judge"
            )
    penalty = question.sampling.extra.get("repetition_penalty")
    if penalty is not None and not (isinstance(penalty, int | float) and penalty > 0):
        raise JudgeUnusable(f"{where}: repetition_penalty must be a number above 0, not {penalty!r}")
    if not isinstance(question.sampling.extra.get("chat_template_kwargs", {}), dict):
        raise JudgeUnusable(f"{where}: chat_template_kwargs must be an object")
    if "" in question.choices:
        raise JudgeUnusable(f"{where}: an empty string has no first token")


def template_variables(sampling: Sampling, template: str) -> dict[str, Any]:
    """The ``chat_template_kwargs`` that occur in ``template``; others mean nothing to it, as in vLLM."""
    given = sampling.extra.get("chat_template_kwargs", {})
    return {name: value for name, value in given.items() if re.search(rf"\b{re.escape(name)}\b", template)}


def penalty_of(sampling: Sampling, checkpoint: Any) -> float:
    """The repetition penalty; 1.0 is none. ``checkpoint`` is the model's generation config."""
    own = checkpoint.repetition_penalty if sampling.temperature is None else None
    return float(sampling.extra.get("repetition_penalty") or own or 1.0)


def is_seeded(sampling: Sampling, checkpoint: Any) -> bool:
    """Whether the reply is drawn, and the same each time."""
    if sampling.seed is None:
        return False
    return bool(checkpoint.do_sample) if sampling.temperature is None else sampling.temperature > 0


def sampling_key(sampling: Sampling) -> str:
    """Equal for equal ones."""
    return json.dumps(asdict(sampling), sort_keys=True)


def generate_options(sampling: Sampling) -> dict[str, Any]:
    """Arguments of ``generate``; the penalty is not among them (see :class:`PromptPenalty`)."""
    options: dict[str, Any] = {"max_new_tokens": sampling.max_tokens, "repetition_penalty": 1.0}
    if sampling.temperature is not None:
        options["do_sample"] = sampling.temperature > 0
    if sampling.temperature:
        options["temperature"] = float(sampling.temperature)
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
