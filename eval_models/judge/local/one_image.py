"""Replies to several questions about one image, which goes through the model once for all of them.

What the prompts have in common is a forward pass of its own; what differs, in few tokens for each, and the tokens of
the replies continue from its keys and values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from eval_models.judge.local.forward import Forward
from eval_models.judge.local.generation import (
    FirstTokens,
    first_tokens,
    first_tokens_after,
    generate_after,
    largest_difference,
)
from eval_models.judge.local.next_token import logits_after, next_token_reply
from eval_models.judge.local.prefix import Prefix, run_prefix
from eval_models.judge.local.prompts import Inputs
from eval_models.judge.local.sampling import is_seeded, sampling_key
from imageevalkit.errors import say
from imageevalkit.evaluation.question import Question, Reply

# tests/test_transformers_judge.py compares them with one ``generate`` call for each question
_PROVEN = ("qwen2_5_vl", "qwen3_vl")
# Largest difference of a probability between the two ways. Float32 leaves no doubt; half precision rounds by
# about this much, and a class that fails for that reason is slow, not wrong.
_TOLERANCE = {"float32": 1e-5}
_TOLERANCE_HALF = 0.02
_CHECKED = 2


class _Row(NamedTuple):
    """``suffix``: the tokens of ``prompt`` (a batch of one row) after the common prefix."""

    question: Question
    prompt: Inputs
    suffix: list[int]


class OneImage:
    """Answers questions about one image together, where that is right for the model.

    For the classes of :data:`_PROVEN` it is. Any other is tried on its first image: where the probabilities are
    not those of the plain way (an image whose tokens see the question, positions that a cache does not continue),
    or the model cannot go on from a cache, it may not.
    """

    def __init__(self, model: Any, tokenizer: Any, forward: Forward, batch_size: int) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._forward = forward
        self._batch_size = batch_size
        self._shares: bool | None = True if model.config.model_type in _PROVEN else None

    def may_share(self, questions: Sequence[Question], prompts: Sequence[Inputs]) -> bool:
        """Whether the model is one for :meth:`replies`; found out with these, of which there are two at least."""
        import torch

        if self._shares is None:
            with torch.inference_mode():
                self._shares = self._try(len(questions[0].pictures), prompts[:_CHECKED])
        return self._shares

    def replies(
        self, questions: Sequence[Question], prompts: Sequence[Inputs]
    ) -> list[tuple[Question, Reply]]:
        """The reply to each of ``questions``, in any order; ``prompts`` are batches of one row.

        They have the same images, and the same tokens up to the last of them.
        """
        import torch

        with torch.inference_mode():
            prefix, suffixes = run_prefix(prompts, len(questions[0].pictures), self._forward)
            rows = [_Row(*row) for row in zip(questions, prompts, suffixes, strict=True)]
            replies = self._next_tokens(prefix, [row for row in rows if row.question.wanted])
            generated: dict[str, list[_Row]] = {}
            for row in rows:
                if not row.question.wanted:
                    generated.setdefault(sampling_key(row.question.sampling), []).append(row)
            for group in generated.values():
                replies += self._generated(prefix, group)
            return replies

    def _next_tokens(self, prefix: Prefix, rows: Sequence[_Row]) -> list[tuple[Question, Reply]]:
        def answer(batch: Sequence[_Row]) -> list[Reply]:
            logits = logits_after(prefix, [row.suffix for row in batch], self._forward)
            return [
                next_token_reply(
                    row.question, row.prompt, found, self._tokenizer, self._model.generation_config
                )
                for row, found in zip(batch, logits, strict=True)
            ]

        return self._in_batches(rows, self._batch_size, answer)

    def _generated(self, prefix: Prefix, rows: Sequence[_Row]) -> list[tuple[Question, Reply]]:
        sampling = rows[0].question.sampling

        def answer(batch: Sequence[_Row]) -> list[Reply]:
            suffixes = [row.suffix for row in batch]
            return generate_after(prefix, suffixes, sampling, self._model, self._tokenizer, self._forward)

        alone = is_seeded(sampling, self._model.generation_config)
        return self._in_batches(rows, 1 if alone else self._batch_size, answer)

    def _in_batches(
        self, rows: Sequence[_Row], size: int, answer: Callable[[Sequence[_Row]], Sequence[Reply]]
    ) -> list[tuple[Question, Reply]]:
        """The ``answer`` to all ``rows``, ``size`` of them at once; fewer from where memory runs out."""
        import torch

        replies: list[tuple[Question, Reply]] = []
        while len(replies) < len(rows):
            batch = rows[len(replies) : len(replies) + min(size, self._batch_size)]
            try:
                answers = answer(batch)
            except torch.OutOfMemoryError:
                if len(batch) == 1:
                    raise
                self._batch_size = len(batch) // 2
                say(f"judge: out of GPU memory; from now on {self._batch_size} questions in one forward pass")
                torch.cuda.empty_cache()
            else:
                replies += zip([row.question for row in batch], answers, strict=True)
        return replies

    def _try(self, images: int, prompts: Sequence[Inputs]) -> bool:
        """Whether the first tokens after ``prompts`` have the same probabilities both ways."""
        import torch

        plain = [first_tokens(prompt, images, self._model, self._forward)[0] for prompt in prompts]
        try:
            prefix, suffixes = run_prefix(prompts, images, self._forward)
            shared = first_tokens_after(prefix, suffixes, self._model, self._forward)
            next_tokens = logits_after(prefix, suffixes, self._forward).softmax(-1)
            at_once = [
                FirstTokens(one.ids[:1], row[None]) for one, row in zip(plain, next_tokens, strict=True)
            ]
            found = max(map(largest_difference, plain + plain, shared + at_once))
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # classes fail in their own ways where they cannot go on from a cache
            reason = type(error).__name__
        else:
            if found <= _TOLERANCE.get(str(self._model.dtype).removeprefix("torch."), _TOLERANCE_HALF):
                return True
            reason = f"probabilities would differ by {found:.1g}"
        say(
            f"judge: {self._model.config.model_type} cannot share an image between questions ({reason}): "
            "each is asked with its own"
        )
        return False
