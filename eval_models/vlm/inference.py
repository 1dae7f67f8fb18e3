"""What a model of transformers answers to prepared prompts: the likeliest first token, or a reply of several.

Questions about one image share its pass through the model: what their prompts have in common goes through by itself;
what differs, in few tokens for each, and the tokens of the replies continue from its keys and values.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from eval_models.vlm.prompts import (
    Inputs,
    PromptPenalty,
    generate_options,
    is_seeded,
    penalty_of,
    prompt_lengths,
    reply_groups,
)
from imageevalkit.benchmark.question import Answer, JudgeUnusable, Question
from imageevalkit.errors import say

if TYPE_CHECKING:
    import torch

# tests/test_transformers_judge.py compares them with one ``generate`` call for each question
_PROVEN = ("qwen2_5_vl", "qwen3_vl")
# Largest difference of a probability between the two ways. Float32 leaves no doubt; half precision rounds by
# about this much, and a class that fails for that reason is slow, not wrong.
_TOLERANCE = {"float32": 1e-5}
_TOLERANCE_HALF = 0.02
_CHECKED = 2  # prompts
_FIRST_TOKENS = 4  # of each
_BY_TOKEN = ("input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids")


class Prefix(NamedTuple):
    """``ids`` are the tokens that went through the model, ``cache`` holds their keys and values (one row).

    Models of the Qwen-VL family remember where its positions ended: no other prompt may go through the model
    while a prefix is in use.
    """

    ids: list[int]
    cache: Any

    def rows(self, count: int) -> Any:
        """The cache as one of ``count`` rows that may grow, without a copy: a dynamic layer copies when it grows.

        Raises:
            TypeError: the model keeps something else than keys and values of all tokens.
        """
        from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

        repeated = copy.copy(self.cache)
        repeated.layers = [copy.copy(layer) for layer in self.cache.layers]
        for layer in repeated.layers:
            if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer):
                raise TypeError(f"the model keeps a {type(layer).__name__}")
            layer.keys = layer.keys.expand(count, -1, -1, -1)
            layer.values = layer.values.expand(count, -1, -1, -1)
        return repeated


class _Row(NamedTuple):
    """``suffix``: the tokens of ``prompt`` (a batch of one row) after the common prefix."""

    question: Question
    prompt: Inputs
    suffix: list[int]


# the first tokens of a reply, the most probable each time, and the probabilities of (tokens, vocabulary)
_Beginning = tuple[list[int], "torch.Tensor"]


class Inference:
    """``model`` with its ``tokenizer``; at most ``batch_size`` questions go through it at once."""

    def __init__(self, model: Any, tokenizer: Any, batch_size: int) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._batch_size = batch_size
        self._keeps = "logits_to_keep" in inspect.signature(model.forward).parameters
        self._shares: bool | None = True if model.config.model_type in _PROVEN else None

    def answers(self, questions: Sequence[Question], inputs: Inputs) -> list[Answer]:
        """The answer to each of ``questions``, the rows of ``inputs``: one with choices, or some of equal sampling.

        A seed makes the replies of this batch repeatable, not those of a batch of other questions.
        """
        import torch

        with torch.inference_mode():
            if not questions[0].choices:
                return self._replies(questions, self._moved(inputs))
            (question,) = questions
            end = torch.tensor([inputs["input_ids"].shape[1] - 1])
            logits, _ = self._forward(inputs, end, use_cache=False)
            return [self._choice(question, inputs, logits[0, 0].float())]

    def may_share(self, prompts: Sequence[Inputs]) -> bool:
        """Whether :meth:`shared_answers` is right for the model; found out with these, two at least.

        For the classes of :data:`_PROVEN` it is. Any other is tried on its first image: where the probabilities are
        not those of the plain way (an image whose tokens see the question, positions that a cache does not continue),
        or the model cannot go on from a cache, it is not.
        """
        import torch

        if self._shares is None:
            with torch.inference_mode():
                self._shares = self._try(prompts[:_CHECKED])
        return self._shares

    def shared_answers(self, questions: Sequence[Question], prompts: Sequence[Inputs]) -> list[Answer]:
        """The answer to each of ``questions``, in any order; ``prompts`` are batches of one row.

        They have the same images, and the same tokens up to the last of them.
        """
        import torch

        with torch.inference_mode():
            prefix, suffixes = self._prefix(prompts)
            rows = [_Row(*row) for row in zip(questions, prompts, suffixes, strict=True)]

            def choices(batch: Sequence[_Row]) -> list[Answer]:
                logits = self._logits_after(prefix, [row.suffix for row in batch])
                return [
                    self._choice(row.question, row.prompt, found)
                    for row, found in zip(batch, logits, strict=True)
                ]

            def replies(batch: Sequence[_Row]) -> list[Answer]:
                inputs = self._continued(prefix, [row.suffix for row in batch])
                return self._replies([row.question for row in batch], inputs)

            answers = self._in_batches([row for row in rows if row.question.choices], choices)
            others = (row for row in rows if not row.question.choices)
            for group in reply_groups(
                others, lambda row: row.question.sampling, self._model.generation_config
            ):
                answers += self._in_batches(group, replies)
            return answers

    def _moved(self, inputs: Inputs) -> Inputs:
        """``inputs`` on the model's device, pixels in its precision."""
        return {
            name: value.to(self._model.device, self._model.dtype if value.is_floating_point() else None)
            for name, value in inputs.items()
        }

    def _forward(self, inputs: Inputs, at: torch.Tensor, **options: Any) -> tuple[torch.Tensor, Any]:
        """The logits at token positions ``at`` (one-dimensional), (batch, positions, vocabulary), and the cache.

        Only these logits: those of a whole prompt are gigabytes.
        """
        if self._keeps:
            options["logits_to_keep"] = at.to(self._model.device)
        out = self._model(**self._moved(inputs), **options)
        return out.logits if self._keeps else out.logits[:, at], out.get("past_key_values")

    def _choice(self, question: Question, prompt: Inputs, logits: torch.Tensor) -> Answer:
        """The answer that ``logits`` (float32, shape (vocabulary,)) after ``prompt`` (a batch of one row) hold."""
        penalty = penalty_of(question.sampling, self._model.generation_config)
        if penalty != 1.0:
            mask = prompt["attention_mask"].to(logits.device)
            logits = PromptPenalty(penalty, mask)(prompt["input_ids"].to(logits.device), logits[None])[0]
        tokens = choice_tokens(question.choices, self._tokenizer)
        probabilities: list[float] = logits.softmax(dim=-1)[tokens].tolist()
        (text,) = self._texts(logits.argmax()[None, None])
        return Answer(
            question,
            text,
            probabilities=dict(zip(question.choices, probabilities, strict=True)),
            outside=0.0,
            tokens={"input": prompt_lengths(prompt)[0], "output": 1},
        )

    def _texts(self, tokens: torch.Tensor) -> list[str]:
        texts: list[str] = self._tokenizer.batch_decode(
            tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return texts

    def _replies(self, questions: Sequence[Question], inputs: Mapping[str, Any]) -> list[Answer]:
        import torch

        sampling, checkpoint = questions[0].sampling, self._model.generation_config
        if is_seeded(sampling, checkpoint):
            torch.manual_seed(sampling.seed)
        options = generate_options(sampling, checkpoint, inputs["attention_mask"])
        tokens = self._model.generate(**inputs, **options)[:, inputs["input_ids"].shape[1] :]
        stop = checkpoint.eos_token_id
        stops = {stop} if isinstance(stop, int) else set(stop or ())
        answers = []
        rows = zip(questions, self._texts(tokens), tokens.tolist(), prompt_lengths(inputs), strict=True)
        for question, text, row, prompt in rows:
            # up to the one that ended the reply, if one did; padding follows where others are longer
            length = next((n for n, token in enumerate(row, start=1) if token in stops), 0)
            counts = {"input": prompt, "output": length or len(row)}
            answers.append(Answer(question, text, tokens=counts))
        return answers

    def _prefix(self, prompts: Sequence[Inputs]) -> tuple[Prefix, list[list[int]]]:
        """The common beginning of ``prompts`` (batches of one row), and what follows in each: one token at least."""
        import torch

        rows = [prompt["input_ids"][0].tolist() for prompt in prompts]
        columns = enumerate(zip(*(row[:-1] for row in rows), strict=False))
        length = next((n for n, tokens in columns if len(set(tokens)) > 1), min(map(len, rows)) - 1)
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
        columns = [ends.index(len(suffix) - 1) for suffix in suffixes]
        return logits[range(len(suffixes)), columns].float()

    def _continued(self, prefix: Prefix, suffixes: Sequence[list[int]]) -> dict[str, Any]:
        """What ``generate`` takes to go on from ``prefix``: padding stands between it and the shorter suffixes."""
        import torch

        width = max(map(len, suffixes))
        ids, mask = [], []
        for suffix in suffixes:
            gap = [0] * (width - len(suffix))  # masked, so that any token will do
            ids.append([*prefix.ids, *gap, *suffix])
            mask.append([1] * len(prefix.ids) + gap + [1] * len(suffix))
        return {
            "input_ids": torch.tensor(ids, device=self._model.device),
            "attention_mask": torch.tensor(mask, device=self._model.device),
            "past_key_values": prefix.rows(len(suffixes)),
        }

    def _in_batches(
        self, rows: Sequence[_Row], answer: Callable[[Sequence[_Row]], Sequence[Answer]]
    ) -> list[Answer]:
        """The ``answer`` to all ``rows``, a batch at once; smaller ones from where memory runs out."""
        import torch

        answers: list[Answer] = []
        while len(answers) < len(rows):
            batch = rows[len(answers) : len(answers) + self._batch_size]
            try:
                answers += answer(batch)
            except torch.OutOfMemoryError:
                if len(batch) == 1:
                    raise
                self._batch_size = len(batch) // 2
                say(f"judge: out of GPU memory; from now on {self._batch_size} questions in one forward pass")
                torch.cuda.empty_cache()
        return answers

    def _try(self, prompts: Sequence[Inputs]) -> bool:
        """Whether the first tokens after ``prompts`` have the same probabilities both ways."""
        import torch

        plain = [row for prompt in prompts for row in self._beginnings(self._moved(prompt))]
        try:
            prefix, suffixes = self._prefix(prompts)
            shared = self._beginnings(self._continued(prefix, suffixes))
            next_tokens = self._logits_after(prefix, suffixes).softmax(-1)
            at_once = [(ids[:1], row[None]) for (ids, _), row in zip(plain, next_tokens, strict=True)]
            found = max(map(_difference, plain + plain, shared + at_once))
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

    def _beginnings(self, inputs: Mapping[str, Any]) -> list[_Beginning]:
        import torch

        out = self._model.generate(
            **inputs,
            max_new_tokens=_FIRST_TOKENS,
            do_sample=False,
            repetition_penalty=1.0,
            output_logits=True,
            return_dict_in_generate=True,
        )
        probabilities = torch.stack(out.logits, dim=1).float().softmax(dim=-1)
        ids = out.sequences[:, inputs["input_ids"].shape[1] :].tolist()
        return list(zip(ids, probabilities, strict=True))


def _difference(one: _Beginning, other: _Beginning) -> float:
    """The largest difference of a probability (0-1) while the replies are the same."""
    largest = 0.0
    for token, its, mine, theirs in zip(one[0], other[0], one[1], other[1], strict=False):
        largest = max(largest, (mine - theirs).abs().max().item())
        if token != its:
            break
    return largest


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
