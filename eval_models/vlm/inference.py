"""What a model of transformers answers to prepared prompts: the likeliest first token, or a reply of several.

Questions about one image share its pass through the model: what their prompts have in common goes through by itself;
what differs, in few tokens for each, and the tokens of the replies continue from its keys and values.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

from eval_models.vlm.prompts import (
    Inputs,
    batches_of,
    generate_options,
    is_seeded,
    penalty_of,
    prompt_lengths,
)
from imageevalkit.benchmark.question import Answer, JudgeUnusable, Question
from imageevalkit.errors import say

if TYPE_CHECKING:
    import torch

# tests/test_transformers_judge.py compares them with one ``generate`` call for each question
PROVEN = ("qwen2_5_vl", "qwen3_vl")
# Largest difference of a probability between the two ways. Float32 leaves no doubt; half precision rounds by
# about this much, and a class that fails for that reason is slow, not wrong.
_TOLERANCE = {"torch.float32": 1e-5}
_TOLERANCE_HALF = 0.02
_COMPARED = 4  # first tokens of a reply
_BY_TOKEN = ("input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids")


class Prefix(NamedTuple):
    """``ids`` are the tokens that went through the model, ``cache`` holds their keys and values (one row).

    Models of the Qwen-VL family remember where its positions ended: no other prompt may go through the model
    while a prefix is in use.
    """

    ids: list[int]
    cache: Any

    def rows(self, count: int) -> Any:
        """A copy of the cache with ``count`` rows, which may grow."""
        cache = copy.deepcopy(self.cache)
        cache.batch_repeat_interleave(count)
        return cache


class Inference:
    """``model`` with its ``tokenizer``; to be used in torch's inference mode."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._keeps = "logits_to_keep" in inspect.signature(model.forward).parameters

    def answers(self, questions: Sequence[Question], inputs: Inputs) -> list[Answer]:
        """The answer to each of ``questions``, the rows of ``inputs``: one with choices, or some of equal sampling.

        A seed makes the replies of this batch repeatable, not those of a batch of other questions.
        """
        import torch

        if not questions[0].choices:
            return self._replies(questions, self._moved(inputs))
        (question,), (ids,) = questions, inputs["input_ids"]
        logits, _ = self._forward(inputs, torch.tensor([len(ids) - 1]), use_cache=False)
        return [self._choice(question, ids, logits[0, 0])]

    def shared_answers(
        self, questions: Sequence[Question], prompts: Sequence[Inputs], batch_size: int
    ) -> list[Answer]:
        """The answer to each of ``questions``, in any order; ``prompts`` are batches of one row.

        They have the same images, and the same tokens up to the last of them.
        """
        prefix, suffixes = self._prefix(prompts)
        answers = []
        for group in batches_of(questions, self._model.generation_config):
            for start in range(0, len(group), batch_size):
                numbers = group[start : start + batch_size]
                batch, tails = [questions[n] for n in numbers], [suffixes[n] for n in numbers]
                if batch[0].choices:
                    ids = [prompts[n]["input_ids"][0] for n in numbers]
                    answers += map(self._choice, batch, ids, self._logits_after(prefix, tails))
                else:
                    answers += self._replies(batch, self._continued(prefix, tails))
        return answers

    def may_share(self, prompts: Sequence[Inputs]) -> bool:
        """Whether :meth:`shared_answers` is right for the model, by these two ``prompts`` about one image.

        Where the probabilities are not those of the plain way (an image whose tokens see the question, positions that a
        cache does not continue), or the model cannot go on from a cache, it is not.
        """
        import torch

        try:
            plain = [self._beginnings(self._moved(prompt)) for prompt in prompts]
            ids, expected = (torch.cat(parts) for parts in zip(*plain, strict=True))
            prefix, suffixes = self._prefix(prompts)
            shared_ids, shared = self._beginnings(self._continued(prefix, suffixes))
            # the probabilities of a token mean something while those before it are the same
            same = (ids == shared_ids).long().cumprod(dim=1).roll(1, dims=1)
            same[:, 0] = 1
            differences = (shared - expected).abs().amax(dim=-1) * same
            at_once = self._logits_after(prefix, suffixes).softmax(dim=-1) - expected[:, 0]
            found = max(differences.max().item(), at_once.abs().max().item())
            if found <= _TOLERANCE.get(str(self._model.dtype), _TOLERANCE_HALF):
                return True
            reason = f"probabilities would differ by {found:.1g}"
        except Exception as error:  # classes fail in their own ways where they cannot go on from a cache
            reason = type(error).__name__
        say(
            f"judge: {self._model.config.model_type} cannot share an image between questions ({reason}): "
            "each is asked with its own"
        )
        return False

    def _beginnings(self, inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
        """The first tokens of replies, the most probable each time, and all probabilities at each of them."""
        import torch

        out = self._model.generate(
            **inputs,
            min_new_tokens=_COMPARED,
            max_new_tokens=_COMPARED,
            do_sample=False,
            repetition_penalty=1.0,
            output_logits=True,
            return_dict_in_generate=True,
        )
        return out.sequences[:, -_COMPARED:], torch.stack(out.logits, dim=1).float().softmax(dim=-1)

    def _moved(self, inputs: Inputs) -> Inputs:
        """``inputs`` on the model's device, pixels in its precision."""
        return {
            name: value.to(self._model.device, self._model.dtype if value.is_floating_point() else None)
            for name, value in inputs.items()
        }

    def _forward(self, inputs: Inputs, at: torch.Tensor, **options: Any) -> tuple[torch.Tensor, Any]:
        """The float32 logits at token positions ``at``, (batch, positions, vocabulary), and the cache.

        Only these logits: those of a whole prompt are gigabytes.
        """
        if self._keeps:
            options["logits_to_keep"] = at.to(self._model.device)
        out = self._model(**self._moved(inputs), **options)
        return (out.logits if self._keeps else out.logits[:, at]).float(), out.get("past_key_values")

    def _choice(self, question: Question, ids: torch.Tensor, logits: torch.Tensor) -> Answer:
        """The answer that ``logits`` (float32, shape (vocabulary,)) after the prompt ``ids`` hold."""
        from transformers import RepetitionPenaltyLogitsProcessor

        penalty = penalty_of(question.sampling, self._model.generation_config)
        if penalty != 1.0:
            ids = ids.to(logits.device)
            logits = RepetitionPenaltyLogitsProcessor(penalty)(ids[None], logits[None])[0]
        probabilities = logits.softmax(dim=-1)[choice_tokens(question.choices, self._tokenizer)].tolist()
        (text,) = self._texts(logits.argmax()[None, None])
        return Answer(
            question,
            text,
            probabilities=dict(zip(question.choices, probabilities, strict=True)),
            outside=0.0,
            tokens={"input": len(ids), "output": 1},
        )

    def _texts(self, tokens: torch.Tensor) -> list[str]:
        texts: list[str] = self._tokenizer.batch_decode(
            tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return texts

    def _replies(self, questions: Sequence[Question], inputs: Inputs) -> list[Answer]:
        import torch

        sampling, checkpoint = questions[0].sampling, self._model.generation_config
        if is_seeded(sampling, checkpoint):
            torch.manual_seed(sampling.seed)
        ids = inputs["input_ids"]
        # transformers' repetition penalty counts padding too: so that is a token that counts anyway
        padded = {"input_ids": ids.where(inputs["attention_mask"].bool(), ids[:, -1:])}
        tokens = self._model.generate(**{**inputs, **padded}, **generate_options(sampling, checkpoint))
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

    def _prefix(self, prompts: Sequence[Inputs]) -> tuple[Prefix, list[list[int]]]:
        """The common beginning of ``prompts`` (batches of one row), and what follows in each: one token at least."""
        import torch

        rows = [prompt["input_ids"][0].tolist() for prompt in prompts]
        columns = zip(*(row[:-1] for row in rows), strict=False)
        length = sum(1 for _ in takewhile(lambda tokens: len(set(tokens)) == 1, columns))
        inputs = {
            name: value[:, :length] if name in _BY_TOKEN else value for name, value in prompts[0].items()
        }
        _, cache = self._forward(inputs, torch.tensor([length - 1]), use_cache=True)
        return Prefix(rows[0][:length], cache), [row[length:] for row in rows]

    def _logits_after(self, prefix: Prefix, suffixes: Sequence[list[int]]) -> torch.Tensor:
        """Float32 logits after ``prefix`` and each of ``suffixes``, shape (suffixes, vocabulary)."""
        import torch

        width = max(map(len, suffixes))
        # Padded with any token on the right, where no other sees it: no mask is needed, positions go on
        padded = [suffix + [0] * (width - len(suffix)) for suffix in suffixes]
        ends = sorted({len(suffix) - 1 for suffix in suffixes})
        logits, _ = self._forward(
            {"input_ids": torch.tensor(padded)},
            torch.tensor(ends),
            past_key_values=prefix.rows(len(suffixes)),
            use_cache=True,
        )
        return logits[range(len(suffixes)), [ends.index(len(suffix) - 1) for suffix in suffixes]]

    def _continued(self, prefix: Prefix, suffixes: Sequence[list[int]]) -> dict[str, Any]:
        """What ``generate`` takes to go on from ``prefix``: padding stands between it and the shorter suffixes."""
        import torch

        gaps = [[0] * (max(map(len, suffixes)) - len(suffix)) for suffix in suffixes]
        rows = list(zip(gaps, suffixes, strict=True))
        device = self._model.device
        return {
            "input_ids": torch.tensor([prefix.ids + gap + suffix for gap, suffix in rows], device=device),
            "attention_mask": torch.tensor(
                [[1] * len(prefix.ids) + gap + [1] * len(suffix) for gap, suffix in rows], device=device
            ),
            "past_key_values": prefix.rows(len(suffixes)),
        }


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
