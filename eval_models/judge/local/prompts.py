"""Questions as a local model takes them: pictures opened, words through the chat template, all of it as tensors."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from PIL import Image

from eval_models.judge.local.pictures import judge_picture
from eval_models.judge.local.sampling import template_variables
from imageevalkit.evaluation.question import Picture, Question
from imageevalkit.images import CorruptImage
from imageevalkit.secrets import one_line

if TYPE_CHECKING:
    import torch

Inputs = Mapping[str, "torch.Tensor"]


class Unanswerable(NamedTuple):
    """A question that fails by itself, with a one-line ``error``."""

    question: Question
    error: str


class Prepared(NamedTuple):
    """``batches`` are the model's inputs, each with the questions of its rows in order."""

    batches: list[tuple[list[Question], Inputs]]
    unanswerable: list[Unanswerable]


class Prompts:
    """Prepares questions, one call at a time: a tokenizer and a processor serve one thread."""

    def __init__(self, processor: Any, positions: int | None) -> None:
        self._processor = processor
        self._positions = positions
        self._turn = threading.Lock()

    def one_by_one(self, questions: Sequence[Question]) -> Prepared:
        """One batch of one row for each question; a picture that several ask about is prepared once."""
        return self._prepared([[question] for question in questions])

    def together(self, questions: Sequence[Question]) -> Prepared:
        """One batch of all questions, which must have equal sampling, padded on the left."""
        return self._prepared([list(questions)])

    def _prepared(self, groups: Sequence[Sequence[Question]]) -> Prepared:
        with self._turn:
            pictures, unanswerable = self._open([question for group in groups for question in group])
            batches: list[tuple[list[Question], Inputs]] = []
            for group in groups:
                kept = [q for q in group if all(picture in pictures for picture in q.pictures)]
                if kept:
                    self._add(kept, pictures, batches, unanswerable)
            return Prepared(batches, unanswerable)

    def _open(self, questions: Sequence[Question]) -> tuple[dict[Picture, Image.Image], list[Unanswerable]]:
        pictures, broken = {}, {}
        for picture in dict.fromkeys(picture for question in questions for picture in question.pictures):
            try:
                pictures[picture] = judge_picture(picture)
            except (OSError, CorruptImage) as error:
                broken[picture] = f"unreadable image {picture.path.name}: {one_line(error)}"
            except Exception as error:  # an encoding that Pillow does not have, an extreme aspect ratio
                broken[picture] = f"cannot be prepared: {one_line(error)}"
        unanswerable = []
        for question in questions:
            reason = next((broken[picture] for picture in question.pictures if picture in broken), None)
            if reason:
                unanswerable.append(Unanswerable(question, reason))
        return pictures, unanswerable

    def _add(
        self,
        questions: list[Question],
        pictures: Mapping[Picture, Image.Image],
        batches: list[tuple[list[Question], Inputs]],
        unanswerable: list[Unanswerable],
    ) -> None:
        try:
            inputs = self._inputs(questions, pictures)
        except Exception as error:  # a processor's own limits, such as an extreme aspect ratio
            if len(questions) == 1:
                unanswerable.append(Unanswerable(questions[0], f"cannot be prepared: {one_line(error)}"))
                return
            for question in questions:
                self._add([question], pictures, batches, unanswerable)
            return
        too_long = [self._too_long(q, n) for q, n in zip(questions, prompt_lengths(inputs), strict=True)]
        if not any(too_long):
            batches.append((questions, inputs))
            return
        unanswerable += [Unanswerable(q, why) for q, why in zip(questions, too_long, strict=True) if why]
        kept = [q for q, why in zip(questions, too_long, strict=True) if not why]
        if kept:
            self._add(kept, pictures, batches, unanswerable)

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
