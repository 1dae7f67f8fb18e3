"""What a model of transformers answers to prepared prompts: the likeliest first token, or a reply of several.

Questions about one image share its pass through the model: what their prompts have in common goes through by itself;
what differs, in few tokens for each, and the tokens of the replies continue from its keys and values.
"""

from __future__ import annotations

import copy
import functools
import inspect
import io
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from PIL import Image

from eval_models.vlm.prompts import (
    Inputs,
    batches_of,
    generate_options,
    is_seeded,
    model_inputs,
    penalty_of,
    prompt_lengths,
)
from imageevalkit.benchmark.question import Answer, JudgeUnusable, Picture, Question, ask
from imageevalkit.errors import say

if TYPE_CHECKING:
    import torch

# tests/test_transformers_judge.py compares them with one ``generate`` call for each question
_PROVEN = ("qwen2_5_vl", "qwen3_vl")
# Largest difference of a probability between the two ways. Float32 leaves no doubt; half precision rounds by
# about this much, and a class that fails for that reason is slow, not wrong.
_TOLERANCE = {"torch.float32": 1e-5}
_TOLERANCE_HALF = 0.02
_TRIAL = ("Is it red?", "What is in the image, and how many are there?")
_BY_TOKEN = ("input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids")


class Prefix(NamedTuple):
    """``ids`` are the tokens that went through the model, ``cache`` holds their keys and values (one row).

    Models of the Qwen-VL family remember where its positions ended: no other prompt may go through the model
    while a prefix is in use.
    """

    ids: torch.Tensor
    cache: Any

    def rows(self, count: int) -> Any:
        """A copy of the cache with ``count`` rows, which may grow."""
        cache = copy.deepcopy(self.cache)
        cache.batch_repeat_interleave(count)
        return cache

    def before(self, suffixes: Sequence[torch.Tensor]) -> Inputs:
        """Whole prompts for ``generate``: padding stands between the prefix and the shorter ``suffixes``."""
        import torch
        from torch.nn.utils.rnn import pad_sequence

        ids = self.ids.expand(len(suffixes), -1)
        masks = [torch.ones_like(suffix) for suffix in suffixes]
        left = {"batch_first": True, "padding_side": "left"}
        return {
            "input_ids": torch.cat([ids, pad_sequence(suffixes, **left)], dim=1),
            "attention_mask": torch.cat([torch.ones_like(ids), pad_sequence(masks, **left)], dim=1),
        }


@dataclass
class LocalModel:
    """``model`` in evaluation mode and its ``processor``; ``positions``: the longest context, None if unknown."""

    model: Any
    processor: Any
    positions: int | None

    @functools.cached_property
    def shares(self) -> bool:
        """Whether :meth:`shared_answers` is right: tests tell it of some classes, a trial with an image of others.

        Where an image's tokens see the question, positions do not go on from a cache, or the model does not at all,
        the answers are others than the plain way's.
        """
        name = self.model.config.model_type
        if name in _PROVEN:
            return True
        drawn = io.BytesIO()
        Image.effect_noise((256, 192), 90).convert("RGB").save(drawn, "PNG")
        picture = Picture(Path("noise.png"), "", data=drawn.getvalue())
        questions = [ask(f"choice/{text}", picture, text, choices=("Yes", "No", "1")) for text in _TRIAL]
        questions += [ask(f"reply/{text}", picture, text, max_tokens=8) for text in _TRIAL]
        tolerance = _TOLERANCE.get(str(self.model.dtype), _TOLERANCE_HALF)
        try:
            prompts = model_inputs(self.processor, self.positions, [[question] for question in questions])
            shared = {one.question.name: one for one in self.shared_answers(questions, prompts, len(prompts))}
            plain = [self.answers([q], prompt)[0] for q, prompt in zip(questions, prompts, strict=True)]
            if all(_is_close(one, shared[one.question.name], tolerance) for one in plain):
                return True
            reason = "answers would differ"
        except Exception as error:  # classes fail in their own ways where they cannot go on from a cache
            reason = type(error).__name__
        say(f"judge: {name} cannot share an image between questions ({reason}): each is asked with its own")
        return False

    def answers(self, questions: Sequence[Question], inputs: Inputs) -> list[Answer]:
        """The answer to each of ``questions``, the rows of ``inputs``: one with choices, or some of equal sampling.

        A seed makes the replies of this batch repeatable, not those of a batch of other questions.
        """
        import torch

        with torch.inference_mode():
            if not questions[0].choices:
                return self._replies(questions, inputs)
            (question,), (ids,) = questions, inputs["input_ids"]
            logits, _ = self._forward(inputs, torch.tensor([len(ids) - 1]), use_cache=False)
            return [self._choice(question, ids, logits[0, 0])]

    def shared_answers(
        self, questions: Sequence[Question], prompts: Sequence[Inputs], batch_size: int
    ) -> list[Answer]:
        """The answer to each of ``questions``, in any order; ``prompts`` are batches of one row.

        They have the same images, and the same tokens up to the last of them.
        """
        import torch

        answers = []
        with torch.inference_mode():
            prefix, suffixes = self._prefix(prompts)
            for group in batches_of(questions, self.model.generation_config):
                for start in range(0, len(group), batch_size):
                    numbers = group[start : start + batch_size]
                    batch, tails = [questions[n] for n in numbers], [suffixes[n] for n in numbers]
                    if batch[0].choices:
                        ids = [prompts[n]["input_ids"][0] for n in numbers]
                        answers += map(self._choice, batch, ids, self._logits_after(prefix, tails))
                    else:
                        answers += self._replies(batch, prefix.before(tails), prefix.rows(len(tails)))
        return answers

    def _moved(self, inputs: Inputs) -> Inputs:
        """``inputs`` on the model's device, pixels in its precision."""
        return {
            name: value.to(self.model.device, self.model.dtype if value.is_floating_point() else None)
            for name, value in inputs.items()
        }

    def _forward(self, inputs: Inputs, at: torch.Tensor, **options: Any) -> tuple[torch.Tensor, Any]:
        """The float32 logits at token positions ``at``, (batch, positions, vocabulary), and the cache.

        Only these logits: those of a whole prompt are gigabytes.
        """
        keeps = "logits_to_keep" in inspect.signature(self.model.forward).parameters
        if keeps:
            options["logits_to_keep"] = at.to(self.model.device)
        out = self.model(**self._moved(inputs), **options)
        return (out.logits if keeps else out.logits[:, at]).float(), out.get("past_key_values")

    def _choice(self, question: Question, ids: torch.Tensor, logits: torch.Tensor) -> Answer:
        """The answer that ``logits`` (float32, shape (vocabulary,)) after the prompt ``ids`` hold."""
        from transformers import RepetitionPenaltyLogitsProcessor

        penalise = RepetitionPenaltyLogitsProcessor(
            penalty_of(question.sampling, self.model.generation_config)
        )
        (logits,) = penalise(ids[None].to(logits.device), logits[None])
        tokens = choice_tokens(question.choices, self.processor.tokenizer)
        probabilities = logits.softmax(dim=-1)[tokens].tolist()
        (text,) = self._texts(logits.argmax()[None, None])
        return Answer(
            question,
            text,
            probabilities=dict(zip(question.choices, probabilities, strict=True)),
            outside=0.0,
            tokens={"input": len(ids), "output": 1},
        )

    def _texts(self, tokens: torch.Tensor) -> list[str]:
        texts: list[str] = self.processor.tokenizer.batch_decode(
            tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return texts

    def _replies(self, questions: Sequence[Question], inputs: Inputs, cache: Any = None) -> list[Answer]:
        import torch

        sampling, checkpoint = questions[0].sampling, self.model.generation_config
        if is_seeded(sampling, checkpoint):
            torch.manual_seed(sampling.seed)
        ids = inputs["input_ids"]
        # transformers' repetition penalty counts padding too: so that is a token that counts anyway
        padded = {**inputs, "input_ids": ids.where(inputs["attention_mask"].bool(), ids[:, -1:])}
        options = generate_options(sampling, checkpoint)
        tokens = self.model.generate(**self._moved(padded), **options, past_key_values=cache)
        tokens = tokens[:, ids.shape[1] :]
        stop = checkpoint.eos_token_id
        stops = {stop} if isinstance(stop, int) else set(stop or ())
        answers = []
        rows = zip(questions, self._texts(tokens), tokens.tolist(), prompt_lengths(inputs), strict=True)
        for question, text, row, prompt in rows:
            # up to the one that ended the reply, if one did; padding follows where others are longer
            length = next((n for n, token in enumerate(row, start=1) if token in stops), 0)
            counts = {"input": prompt, "output": length or len(row)}
            answers.append(Answer(question, text, tokens=counts, cut=not length))
        return answers

    def _prefix(self, prompts: Sequence[Inputs]) -> tuple[Prefix, list[torch.Tensor]]:
        """The common beginning of ``prompts`` (batches of one row), and what follows in each: one token at least."""
        import torch

        rows = [prompt["input_ids"][0] for prompt in prompts]
        columns = zip(*(row[:-1].tolist() for row in rows), strict=False)
        length = sum(1 for _ in takewhile(lambda tokens: len(set(tokens)) == 1, columns))
        inputs = {
            name: value[:, :length] if name in _BY_TOKEN else value for name, value in prompts[0].items()
        }
        _, cache = self._forward(inputs, torch.tensor([length - 1]), use_cache=True)
        return Prefix(rows[0][:length], cache), [row[length:] for row in rows]

    def _logits_after(self, prefix: Prefix, suffixes: Sequence[torch.Tensor]) -> torch.Tensor:
        """Float32 logits after ``prefix`` and each of ``suffixes``, shape (suffixes, vocabulary)."""
        import torch
        from torch.nn.utils.rnn import pad_sequence

        ends, columns = torch.tensor([len(suffix) - 1 for suffix in suffixes]).unique(return_inverse=True)
        # Padded with any token on the right, where no other sees it: no mask is needed, positions go on
        inputs = {"input_ids": pad_sequence(suffixes, batch_first=True)}
        cache = prefix.rows(len(suffixes))
        logits, _ = self._forward(inputs, ends, past_key_values=cache, use_cache=True)
        return logits[range(len(suffixes)), columns]


def _is_close(one: Answer, other: Answer, tolerance: float) -> bool:
    ours, theirs = one.probabilities or {}, other.probabilities or {}
    return one.text == other.text and all(abs(ours[name] - theirs[name]) <= tolerance for name in ours)


def check_choice_ids(questions: Sequence[Question], tokenizer: Any) -> None:
    """Raises JudgeUnusable when ``tokenizer`` gives a choice another first token than its question says."""
    expected = {q.choices: q.choice_ids for q in questions if q.choice_ids}
    for choices, ids in expected.items():
        for choice, id, found in zip(choices, ids, choice_tokens(choices, tokenizer), strict=True):
            if id != found:
                raise JudgeUnusable(
                    f"judge: its tokenizer begins {choice!r} with token {found} instead of {id}: these are not the "
                    "weights that the official scores come from; choose another judge by name"
                )


def choice_tokens(choices: Sequence[str], tokenizer: Any) -> list[int]:
    """The id of the first token of each of ``choices``, as if the reply began with it."""
    return [tokenizer.encode(choice, add_special_tokens=False)[0] for choice in choices]
