"""What a question's sampling means to a model of transformers.

``temperature`` None: the checkpoint's ``generation_config.json`` decides everything. 0.0: the most probable token
each time, the checkpoint's ``do_sample``, ``temperature``, ``top_p``, ``top_k`` and ``repetition_penalty`` put
aside. Above 0: drawn at that temperature, with the checkpoint's ``top_p`` and ``top_k`` but without its
``repetition_penalty``. A ``repetition_penalty`` in ``extra`` applies in every case; as transformers does, it counts
the tokens of the prompt too. Stop tokens, and what else the checkpoint sets, are always the checkpoint's.

Wanted probabilities are the model's own (softmax of its last logits), whatever the temperature; only the repetition
penalty is applied before, where the rules above keep one.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from imageevalkit.errors import suggest
from imageevalkit.evaluation.question import JudgeUnusable, Question, Sampling

if TYPE_CHECKING:
    import torch

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
    if "" in question.wanted:
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
