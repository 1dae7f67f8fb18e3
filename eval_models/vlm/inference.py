"""Runs a transformers model on questions. An answer is the likeliest first token, or a reply of several
tokens.

Questions about the same images share a forward pass. The common beginning of their prompts goes through the
model once. The remaining few tokens of each prompt and the reply continue from its key-value cache.

The ``temperature`` of a question decides how a reply is sampled:

* None: the checkpoint's ``generation_config.json`` decides everything.
* 0.0: greedy. The checkpoint's ``do_sample``, ``temperature``, ``top_p``, ``top_k`` and
  ``repetition_penalty`` are ignored.
* Above 0: sampled at that temperature with the checkpoint's ``top_p`` and ``top_k``, without its
  ``repetition_penalty``.

A ``repetition_penalty`` in ``extra`` always applies; as in transformers it counts the tokens of the prompt
too. Stop tokens and all other settings come from the checkpoint.

Probabilities of choices are the softmax of the last logits, at any temperature. Only the repetition penalty
is applied before, if the rules above keep one.
"""

from __future__ import annotations

import copy
import functools
import inspect
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from PIL import Image

from imageevalkit.benchmark.question import Answer, JudgeUnusable, Picture, Question, Sampling, ask
from imageevalkit.benchmark.thoughts import LONGEST_TAG, is_think_tag, opened_by
from imageevalkit.common.errors import say, suggest
from imageevalkit.common.images import CorruptImage
from imageevalkit.common.redaction import one_line
from imageevalkit.judges.api import by_text, judge_picture

if TYPE_CHECKING:
    import torch

Inputs = Mapping[str, "torch.Tensor"]
# for these classes tests/torch/test_transformers_judge.py compares shared passes with one ``generate`` call per
# question
_PROVEN = ("qwen2_5_vl", "qwen3_vl")
# The largest allowed difference of a probability between a shared and a separate pass. Half precision rounds
# by about 0.02; a class that exceeds the limit for that reason is slow, not wrong.
_TOLERANCE = {"torch.float32": 1e-5}
_TOLERANCE_HALF = 0.02
_TRIAL = ("Is it red?", "What is in the image, and how many are there?")
_BY_TOKEN = ("input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids")
_MOST_TOKENS = 4096  # the reply limit if the protocol sets none
_EXTRA = ("repetition_penalty", "chat_template_kwargs")


class UnfitPrompt(Exception):
    """The model cannot process the prompt. The message is one line with the reason."""


class UnfitPicture(UnfitPrompt):
    """The model cannot process the pictures, so no prompt with these pictures works."""


class Prefix(NamedTuple):
    """The common beginning of prompts: its tokens ``ids`` and the ``cache`` of their keys and values (one
    row).

    Models of the Qwen-VL family store the last position of the prefix. Therefore no other prompt may go
    through the model while a prefix is in use.
    """

    ids: torch.Tensor
    cache: Any

    def rows(self, count: int) -> Any:
        """Returns a copy of the cache with ``count`` rows; the copy may grow."""
        cache = copy.deepcopy(self.cache)
        cache.batch_repeat_interleave(count)
        return cache

    def before(self, suffixes: Sequence[torch.Tensor]) -> Inputs:
        """Returns complete prompts for ``generate``. Shorter ``suffixes`` have padding between prefix and
        suffix."""
        import torch
        from torch.nn.utils.rnn import pad_sequence

        ids = self.ids.expand(len(suffixes), -1)
        masks = [torch.ones_like(suffix) for suffix in suffixes]
        left = {"batch_first": True, "padding_side": "left"}
        return {
            "input_ids": torch.cat([ids, pad_sequence(suffixes, **left)], dim=1),
            "attention_mask": torch.cat([torch.ones_like(ids), pad_sequence(masks, **left)], dim=1),
        }


def reply_tokens(sampling: Sampling) -> int:
    """Returns the maximum length of a reply in tokens."""
    return sampling.max_tokens or _MOST_TOKENS


@dataclass
class LocalModel:
    """A ``model`` in evaluation mode and its ``processor``. ``positions`` is the longest context; None if
    unknown."""

    model: Any
    processor: Any
    positions: int | None

    @functools.cached_property
    def shares(self) -> bool:
        """True if questions may share the forward pass of an image. Tests prove some classes; others run a
        trial.

        Sharing is impossible if image tokens attend to the question, or if a model cannot continue from a
        cache.
        """
        import torch

        name = self.model.config.model_type
        if name in _PROVEN:
            return True
        tolerance = _TOLERANCE.get(str(self.model.dtype), _TOLERANCE_HALF)
        try:
            if all(difference <= tolerance for difference in self._differences()):
                return True
            reason = "answers would differ"
        except torch.OutOfMemoryError:  # says nothing about the class
            raise
        except Exception as error:  # each class raises its own errors if it cannot continue from a cache
            reason = type(error).__name__
        say(f"judge: {name} cannot share an image between questions ({reason}): each is asked with its own")
        return False

    def _differences(self) -> Iterator[float]:
        """Yields, per token of a trial, the largest difference of a probability between shared and separate
        pass.

        A reply is compared up to the first different token: later tokens have different contexts.
        """
        import torch

        questions = [ask(text, _trial_picture(), text, max_tokens=8) for text in _TRIAL]
        sampling = questions[0].sampling
        prompts = self.prompts(questions, {})
        with torch.inference_mode():
            prefix, suffixes = self._prefix(prompts)
            first = self._logits_after(prefix, suffixes)
            shared = self._generated(
                sampling, prefix.before(suffixes), prefix.rows(len(suffixes)), output_logits=True
            )
            for n, prompt in enumerate(prompts):
                yield _difference(first[n], self._last_logits(prompt))
                alone = self._generated(sampling, prompt, output_logits=True)
                # the last tokens are the reply, one token per logits entry
                tokens = alone.sequences[0, -len(alone.logits) :].tolist()
                others = shared.sequences[n, -len(shared.logits) :].tolist()
                steps = zip(tokens, others, alone.logits, shared.logits, strict=False)
                for token, other, logits, its in steps:
                    yield _difference(logits[0], its[n])
                    if token != other:
                        break

    def prompts(self, questions: Sequence[Question], images: dict[Picture, Image.Image]) -> list[Inputs]:
        """Returns the prompt of each question, a batch of one row.

        ``images`` caches opened pictures; this method adds the missing ones. Raises UnfitPrompt if the model
        cannot process one of the questions.
        """
        try:
            return [self._prompt(question, images) for question in questions]
        except UnfitPrompt:
            raise
        except Exception as error:  # limits of a processor or of Pillow, such as an extreme aspect ratio
            raise UnfitPrompt(f"cannot be prepared: {one_line(error)}") from error

    def _prompt(self, question: Question, images: dict[Picture, Image.Image]) -> Inputs:
        conversation = [
            {"role": message.role, "content": [_content(part, images) for part in message.parts]}
            for message in question.messages
        ]
        sampling = question.sampling
        template = str(self.processor.chat_template)  # may be several templates by name
        # like vLLM, pass only variables that the template uses
        variables = {
            name: value
            for name, value in sampling.extra.get("chat_template_kwargs", {}).items()
            if re.search(rf"\b{re.escape(name)}\b", template)
        }
        inputs: Inputs = self.processor.apply_chat_template(
            [conversation],
            tokenize=True,
            add_generation_prompt=True,
            return_dict=True,
            return_tensors="pt",
            **variables,
        )
        (length,) = _lengths(inputs)
        if self.positions is not None and length + reply_tokens(sampling) > self.positions:
            raise UnfitPrompt(
                f"context too long: {length} tokens of prompt and {reply_tokens(sampling)} of reply, the model has "
                f"{self.positions} positions; the judge's max_pixels makes images smaller"
            )
        return inputs

    def batches(self, questions: Sequence[Question], size: Callable[[Question], int]) -> Iterator[list[int]]:
        """Yields batches of indices into ``questions``; questions about a first token come first.

        ``size`` returns the current batch size for a question. Replies in a batch have equal sampling. A
        reply sampled with a seed has its own batch, so it cannot depend on other questions.
        """
        groups: dict[Any, list[int]] = {}
        for n, question in enumerate(questions):
            sampling = json.dumps(asdict(question.sampling), sort_keys=True)
            alone = n if self._is_seeded(question.sampling) else None
            groups.setdefault(None if question.of_first_token else (sampling, alone), []).append(n)
        for group in sorted(groups.values(), key=lambda group: not questions[group[0]].of_first_token):
            while group:
                count = size(questions[group[0]])
                yield group[:count]
                group = group[count:]

    def answers(
        self, questions: Sequence[Question], prompts: Sequence[Inputs], batch_size: int, shares: bool
    ) -> list[Answer]:
        """Returns the answers to ``questions`` in any order; each of ``prompts`` is a batch of one row.

        If ``shares`` is true, all questions have the same images and share their forward pass (see
        :attr:`shares`). A seed makes replies repeatable only for the same batch of questions.
        """
        import torch

        def size(question: Question) -> int:
            return 1 if question.of_first_token and not shares else batch_size

        answers: list[Answer] = []
        with torch.inference_mode():
            prefix, suffixes = self._prefix(prompts) if shares else (None, [])
            for numbers in self.batches(questions, size):
                batch, own = [questions[n] for n in numbers], [prompts[n] for n in numbers]
                tails = [suffixes[n] for n in numbers] if prefix else []
                if batch[0].of_first_token:
                    ids = [prompt["input_ids"][0] for prompt in own]
                    logits = self._logits_after(prefix, tails) if prefix else [self._last_logits(own[0])]
                    answers += map(self._choice, batch, ids, logits)
                elif prefix:
                    answers += self._replies(batch, prefix.before(tails), prefix.rows(len(tails)))
                else:
                    answers += self._replies(batch, _batched(own))
        return answers

    def _moved(self, inputs: Inputs) -> Inputs:
        """Returns ``inputs`` on the model's device, with pixels in the model's precision."""
        return {
            name: value.to(self.model.device, self.model.dtype if value.is_floating_point() else None)
            for name, value in inputs.items()
        }

    def _forward(self, inputs: Inputs, at: torch.Tensor, **options: Any) -> tuple[torch.Tensor, Any]:
        """Returns the float32 logits at positions ``at``, (batch, positions, vocabulary), and the cache.

        The logits of a whole prompt would take gigabytes.
        """
        keeps = "logits_to_keep" in inspect.signature(self.model.forward).parameters
        if keeps:
            options["logits_to_keep"] = at.to(self.model.device)
        out = self.model(**self._moved(inputs), **options)
        return (out.logits if keeps else out.logits[:, at]).float(), out.get("past_key_values")

    def _last_logits(self, inputs: Inputs) -> torch.Tensor:
        """Returns the float32 logits after the single row of ``inputs``, shape (vocabulary,)."""
        import torch

        at = torch.tensor([inputs["input_ids"].shape[1] - 1])
        return self._forward(inputs, at, use_cache=False)[0][0, 0]

    def _choice(self, question: Question, ids: torch.Tensor, logits: torch.Tensor) -> Answer:
        """Returns the answer from ``logits`` (float32, (vocabulary,)) after the prompt ``ids``."""
        from transformers import RepetitionPenaltyLogitsProcessor

        penalise = RepetitionPenaltyLogitsProcessor(self._penalty(question.sampling))
        (logits,) = penalise(ids[None].to(logits.device), logits[None])
        if question.likeliest:
            values, tokens = logits.softmax(dim=-1).topk(question.likeliest)
            probabilities = by_text(zip(self._texts(tokens[:, None]), values.tolist(), strict=True))
        else:
            found = logits.softmax(dim=-1)[self.first_tokens(question.choices)].tolist()
            probabilities = dict(zip(question.choices, found, strict=True))
        (text,) = self._texts(logits.argmax()[None, None])
        text = self._opened_by(ids) + text
        return Answer(
            question,
            text,
            probabilities=probabilities,
            outside=0.0,
            tokens={"input": len(ids), "output": 1},
        )

    def _texts(self, tokens: torch.Tensor) -> list[str]:
        """Returns the text of each row of ``tokens``, without special tokens other than think tags."""
        return [self._text(row) for row in tokens.tolist()]

    def _text(self, row: Sequence[int]) -> str:
        pieces, start = list[str](), 0
        for n, token in enumerate(row):
            if token in self._special_think_tags:
                pieces += [self._decoded(row[start:n]), self._special_think_tags[token]]
                start = n + 1
        return "".join([*pieces, self._decoded(row[start:])])

    def _decoded(self, ids: Any, skips_special: bool = True) -> str:
        text: str = self.processor.tokenizer.decode(
            ids, skip_special_tokens=skips_special, clean_up_tokenization_spaces=False
        )
        return text

    @functools.cached_property
    def _special_think_tags(self) -> dict[int, str]:
        """The think tags, by token id, that are special tokens: the tokenizer omits these from texts."""
        added = self.processor.tokenizer.added_tokens_decoder
        return {
            id: token.content for id, token in added.items() if token.special and is_think_tag(token.content)
        }

    def _opened_by(self, ids: torch.Tensor) -> str:
        """Returns the opening think tag at the end of the prompt ``ids``, or an empty string."""
        return opened_by(self._decoded(ids[-LONGEST_TAG:], skips_special=False))

    def _generated(self, sampling: Sampling, inputs: Inputs, cache: Any = None, **more: Any) -> Any:
        """Returns the dictionary of ``generate``; ``more`` are further options for ``generate``."""
        import torch

        if self._is_seeded(sampling):
            torch.manual_seed(sampling.seed)
        options: dict[str, Any] = {
            "max_new_tokens": reply_tokens(sampling),
            "repetition_penalty": self._penalty(sampling),
        }
        if sampling.temperature is not None:
            options["do_sample"] = sampling.temperature > 0
        if sampling.temperature:
            options["temperature"] = float(sampling.temperature)
        ids = inputs["input_ids"]
        # transformers' repetition penalty counts padding too, so the padding repeats a token of the prompt
        padded = {**inputs, "input_ids": ids.where(inputs["attention_mask"].bool(), ids[:, -1:])}
        options |= {"past_key_values": cache, "return_dict_in_generate": True, **more}
        return self.model.generate(**self._moved(padded), **options)

    def _replies(self, questions: Sequence[Question], inputs: Inputs, cache: Any = None) -> list[Answer]:
        tokens = self._generated(questions[0].sampling, inputs, cache).sequences
        tokens = tokens[:, inputs["input_ids"].shape[1] :]
        stop = self.model.generation_config.eos_token_id
        stops = {stop} if isinstance(stop, int) else set(stop or ())
        answers = []
        tags = map(self._opened_by, inputs["input_ids"])
        rows = zip(questions, tags, self._texts(tokens), tokens.tolist(), _lengths(inputs), strict=True)
        for question, tag, text, row, prompt in rows:
            # count up to the stop token: padding follows it if other replies are longer
            length = next((n for n, token in enumerate(row, start=1) if token in stops), 0)
            counts = {"input": prompt, "output": length or len(row)}
            answers.append(Answer(question, tag + text, tokens=counts))
        return answers

    def _prefix(self, prompts: Sequence[Inputs]) -> tuple[Prefix, list[torch.Tensor]]:
        """Returns the common beginning of ``prompts`` and the rest of each prompt, which has at least one
        token."""
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
        """Returns the float32 logits after ``prefix`` and each suffix, shape (suffixes, vocabulary)."""
        import torch
        from torch.nn.utils.rnn import pad_sequence

        ends, columns = torch.tensor([len(suffix) - 1 for suffix in suffixes]).unique(return_inverse=True)
        # Padding on the right can be any token: no earlier token attends to it, so no mask is needed.
        inputs = {"input_ids": pad_sequence(suffixes, batch_first=True)}
        cache = prefix.rows(len(suffixes))
        logits, _ = self._forward(inputs, ends, past_key_values=cache, use_cache=True)
        return logits[range(len(suffixes)), columns]

    def _penalty(self, sampling: Sampling) -> float:
        own = self.model.generation_config.repetition_penalty if sampling.temperature is None else None
        return float(sampling.extra.get("repetition_penalty") or own or 1.0)

    def _is_seeded(self, sampling: Sampling) -> bool:
        """Returns whether the reply is sampled with a seed."""
        drawn = sampling.temperature
        if drawn is None:
            drawn = self.model.generation_config.do_sample
        return bool(drawn) and sampling.seed is not None

    def first_tokens(self, texts: Sequence[str]) -> list[int]:
        """Returns the id of the first token of each text, as at the beginning of a reply."""
        return [self.processor.tokenizer.encode(text, add_special_tokens=False)[0] for text in texts]


def _trial_picture() -> Picture:
    """Returns a test picture with many colours and fixed pixels."""
    ramp = Image.linear_gradient("L")
    turned = [ramp, ramp.transpose(Image.Transpose.ROTATE_90), ramp.transpose(Image.Transpose.ROTATE_180)]
    drawn = io.BytesIO()
    Image.merge("RGB", turned).resize((256, 192)).save(drawn, "PNG")
    return Picture(Path("ramps.png"), "", data=drawn.getvalue())


def _difference(logits: torch.Tensor, others: torch.Tensor) -> float:
    """Returns the largest difference of a probability."""
    return float((logits.float().softmax(dim=-1) - others.float().softmax(dim=-1)).abs().max())


def _batched(prompts: Sequence[Inputs]) -> Inputs:
    """Merges ``prompts``, batches of one row, into one batch with padding on the left."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    if len(prompts) == 1:
        return prompts[0]
    return {
        name: pad_sequence([prompt[name][0] for prompt in prompts], batch_first=True, padding_side="left")
        if name in _BY_TOKEN
        else torch.cat([prompt[name] for prompt in prompts])
        for name in prompts[0]
    }


def _content(part: str | Picture, images: dict[Picture, Image.Image]) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    try:
        # reuse the same object: _once() recognises an image by its identity
        images[part] = images.get(part) or judge_picture(part)
    except (OSError, CorruptImage) as error:
        raise UnfitPicture(f"unreadable image {part.path.name}: {one_line(error)}") from error
    except ValueError as error:  # the aspect ratio is too extreme
        raise UnfitPicture(f"cannot be prepared: {one_line(error)}") from error
    return {"type": "image", "image": images[part]}


def _lengths(inputs: Inputs) -> list[int]:
    """Returns the number of tokens of each row without padding."""
    lengths: list[int] = inputs["attention_mask"].sum(dim=1).tolist()
    return lengths


def check_sampling(question: Question) -> None:
    """Raises JudgeUnusable if ``question`` has a sampling option that this backend does not support."""
    for name in question.sampling.extra:
        if name not in _EXTRA:
            raise JudgeUnusable(
                f"question '{question.name}' of item {question.item}: a transformers judge cannot honour "
                f"'{name}'{suggest(name, _EXTRA)}; it knows {' and '.join(_EXTRA)}; leave it out, or use an openai or "
                "vllm judge"
            )
