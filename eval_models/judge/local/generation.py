"""Replies of several tokens, for a batch of questions at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eval_models.judge.local.forward import Forward
from eval_models.judge.local.prompts import Inputs, prompt_lengths
from eval_models.judge.local.sampling import PromptPenalty, generate_options, is_drawn, penalty_of
from imageevalkit.evaluation.question import Question, Reply


def generate_replies(
    questions: Sequence[Question], inputs: Inputs, model: Any, tokenizer: Any, forward: Forward
) -> list[Reply]:
    """The reply to each of ``questions``, which have equal sampling and are the rows of ``inputs``.

    A seed makes the replies of this batch repeatable, not those of a batch of other questions.
    """
    import torch

    sampling, checkpoint = questions[0].sampling, model.generation_config
    options = generate_options(sampling)
    inputs = forward.moved(inputs)
    penalty = penalty_of(sampling, checkpoint)
    if penalty != 1.0:
        options["logits_processor"] = [PromptPenalty(penalty, inputs["attention_mask"])]
    if sampling.seed is not None and is_drawn(sampling, checkpoint):
        torch.manual_seed(sampling.seed)
    forward.count(inputs)
    with torch.inference_mode():
        tokens = model.generate(**inputs, **options)[:, inputs["input_ids"].shape[1] :]
    texts = tokenizer.batch_decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return [
        Reply(text, tokens={"input": prompt, "output": _length(row, checkpoint.eos_token_id)})
        for text, row, prompt in zip(texts, tokens.tolist(), prompt_lengths(inputs), strict=True)
    ]


def _length(row: Sequence[int], stop: int | Sequence[int] | None) -> int:
    """Tokens up to the one that ended the reply; padding follows where others of the batch are longer."""
    stops = {stop} if isinstance(stop, int) else set(stop or ())
    return next((n for n, token in enumerate(row, start=1) if token in stops), len(row))
