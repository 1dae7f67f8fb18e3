"""Replies of several tokens, for a batch of questions at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from eval_models.judge.local.forward import Forward
from eval_models.judge.local.prefix import Prefix
from eval_models.judge.local.prompts import Inputs, prompt_lengths
from eval_models.judge.local.sampling import PromptPenalty, generate_options, is_seeded, penalty_of
from imageevalkit.evaluation.question import Question, Reply, Sampling

if TYPE_CHECKING:
    import torch

_FIRST_TOKENS = 4


def generate_replies(
    questions: Sequence[Question], inputs: Inputs, model: Any, tokenizer: Any, forward: Forward
) -> list[Reply]:
    """The reply to each of ``questions``, which have equal sampling and are the rows of ``inputs``.

    A seed makes the replies of this batch repeatable, not those of a batch of other questions.
    """
    forward.count(sum(len(question.pictures) for question in questions))
    return _replies(forward.moved(inputs), questions[0].sampling, model, tokenizer)


def generate_after(
    prefix: Prefix,
    suffixes: Sequence[list[int]],
    sampling: Sampling,
    model: Any,
    tokenizer: Any,
    forward: Forward,
) -> list[Reply]:
    """The reply to each prompt, ``prefix`` and one of ``suffixes``; a seed is as in :func:`generate_replies`."""
    forward.count(0)
    return _replies(_continued(prefix, suffixes, forward), sampling, model, tokenizer)


class FirstTokens(NamedTuple):
    """The first tokens of a reply, the most probable each time, and the probabilities of (tokens, vocabulary)."""

    ids: list[int]
    probabilities: torch.Tensor


def first_tokens(inputs: Inputs, images: int, model: Any, forward: Forward) -> list[FirstTokens]:
    """How the reply to each row of ``inputs``, which hold ``images``, begins."""
    forward.count(images)
    return _first_tokens(forward.moved(inputs), model)


def first_tokens_after(
    prefix: Prefix, suffixes: Sequence[list[int]], model: Any, forward: Forward
) -> list[FirstTokens]:
    """How the reply to each prompt, ``prefix`` and one of ``suffixes``, begins."""
    forward.count(0)
    return _first_tokens(_continued(prefix, suffixes, forward), model)


def largest_difference(one: FirstTokens, other: FirstTokens) -> float:
    """The largest difference of a probability (0-1) while the replies are the same."""
    largest = 0.0
    steps = zip(one.ids, other.ids, one.probabilities, other.probabilities, strict=False)
    for token, its, mine, theirs in steps:
        largest = max(largest, (mine - theirs).abs().max().item())
        if token != its:
            break
    return largest


def _continued(prefix: Prefix, suffixes: Sequence[list[int]], forward: Forward) -> dict[str, Any]:
    """What ``generate`` takes to go on from ``prefix``: padding stands between it and the shorter suffixes."""
    import torch

    width = max(map(len, suffixes))
    gaps = [width - len(suffix) for suffix in suffixes]
    # masked, so that any token will do
    ids = [[*prefix.ids, *[0] * gap, *suffix] for gap, suffix in zip(gaps, suffixes, strict=True)]
    mask = [[1] * len(prefix.ids) + [0] * gap + [1] * (width - gap) for gap in gaps]
    return {
        "input_ids": torch.tensor(ids, device=forward.device),
        "attention_mask": torch.tensor(mask, device=forward.device),
        "past_key_values": prefix.rows(len(suffixes)),
    }


def _first_tokens(inputs: Mapping[str, Any], model: Any) -> list[FirstTokens]:
    import torch

    out = model.generate(
        **inputs,
        max_new_tokens=_FIRST_TOKENS,
        do_sample=False,
        repetition_penalty=1.0,
        output_logits=True,
        return_dict_in_generate=True,
    )
    probabilities = torch.stack(out.logits, dim=1).float().softmax(dim=-1)
    ids = out.sequences[:, inputs["input_ids"].shape[1] :].tolist()
    return [FirstTokens(*row) for row in zip(ids, probabilities, strict=True)]


def _replies(inputs: Mapping[str, Any], sampling: Sampling, model: Any, tokenizer: Any) -> list[Reply]:
    import torch

    checkpoint = model.generation_config
    options = generate_options(sampling)
    penalty = penalty_of(sampling, checkpoint)
    if penalty != 1.0:
        options["logits_processor"] = [PromptPenalty(penalty, inputs["attention_mask"])]
    if is_seeded(sampling, checkpoint):
        torch.manual_seed(sampling.seed)
    with torch.inference_mode():
        tokens = model.generate(**inputs, **options)[:, inputs["input_ids"].shape[1] :]
    texts = tokenizer.batch_decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    replies = []
    for text, row, prompt in zip(texts, tokens.tolist(), prompt_lengths(inputs), strict=True):
        length = _length(row, checkpoint.eos_token_id)
        counts = {"input": prompt, "output": length or len(row)}
        replies.append(Reply(text, tokens=counts, cut=not length))
    return replies


def _length(row: Sequence[int], stop: int | Sequence[int] | None) -> int:
    """Tokens up to the one that ended the reply; 0 where none did. Padding follows where others are longer."""
    stops = {stop} if isinstance(stop, int) else set(stop or ())
    return next((n for n, token in enumerate(row, start=1) if token in stops), 0)
