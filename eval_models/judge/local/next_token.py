"""Replies to questions about the first token: wanted probabilities out of the whole vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from eval_models.judge.local.forward import Forward
from eval_models.judge.local.prefix import Prefix
from eval_models.judge.local.prompts import Inputs, prompt_lengths
from eval_models.judge.local.sampling import PromptPenalty, penalty_of
from imageevalkit.evaluation.question import JudgeUnusable, Question, Reply

if TYPE_CHECKING:
    import torch


def next_token_reply(
    question: Question, prompt: Inputs, logits: torch.Tensor, tokenizer: Any, checkpoint: Any
) -> Reply:
    """The reply that ``logits`` (float32, shape (vocabulary,)) after ``prompt`` (a batch of one row) hold."""
    import torch

    with torch.inference_mode():
        penalty = penalty_of(question.sampling, checkpoint)
        if penalty != 1.0:
            mask = prompt["attention_mask"].to(logits.device)
            logits = PromptPenalty(penalty, mask)(prompt["input_ids"].to(logits.device), logits[None])[0]
        probabilities = logits.softmax(dim=-1)
        wanted: list[float] = probabilities[first_tokens(question.wanted, tokenizer)].tolist()
        best = int(logits.argmax())
    return Reply(
        text=tokenizer.decode([best], skip_special_tokens=True, clean_up_tokenization_spaces=False),
        probabilities=dict(zip(question.wanted, wanted, strict=True)),
        outside=0.0,
        tokens={"input": prompt_lengths(prompt)[0], "output": 1},
    )


def logits_of(prompt: Inputs, images: int, forward: Forward) -> torch.Tensor:
    """Float32 logits after ``prompt`` (a batch of one row with ``images``), shape (vocabulary,)."""
    import torch

    end = torch.tensor([prompt["input_ids"].shape[1] - 1])
    with torch.inference_mode():
        logits, _ = forward(forward.moved(prompt), end, images=images, use_cache=False)
        return logits[0, 0].float()


def logits_after(prefix: Prefix, suffixes: Sequence[list[int]], forward: Forward) -> torch.Tensor:
    """Float32 logits after ``prefix`` and each of ``suffixes``, shape (suffixes, vocabulary)."""
    import torch

    width = max(map(len, suffixes))
    # Padded with any token on the right, where no other sees it: no mask is needed, positions go on from the prefix
    padded = [suffix + [0] * (width - len(suffix)) for suffix in suffixes]
    ends = sorted({len(suffix) - 1 for suffix in suffixes})
    logits, _ = forward(
        {"input_ids": torch.tensor(padded, device=forward.device)},
        torch.tensor(ends),
        images=0,
        past_key_values=prefix.rows(len(suffixes)),
        use_cache=True,
    )
    columns = [ends.index(len(suffix) - 1) for suffix in suffixes]
    return logits[range(len(suffixes)), columns].float()


def check_wanted_ids(questions: Sequence[Question], tokenizer: Any) -> None:
    """Raises JudgeUnusable when ``tokenizer`` gives a wanted string another first token than its question says."""
    expected = {q.wanted: q.wanted_ids for q in questions if q.wanted_ids}
    for strings, ids in expected.items():
        found = first_tokens(strings, tokenizer)
        for string, wanted, id in zip(strings, ids, found, strict=True):
            if wanted != id:
                raise JudgeUnusable(
                    f"judge: its tokenizer begins {string!r} with token {id} instead of {wanted}: these are not the "
                    "weights that the official scores come from; choose another judge by name"
                )


def first_tokens(strings: Sequence[str], tokenizer: Any) -> list[int]:
    """The id of the first token of each of ``strings``, as if the reply began with it."""
    return [tokenizer.encode(string, add_special_tokens=False)[0] for string in strings]
