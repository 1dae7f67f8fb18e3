"""The logits of the next token after several prompts that begin alike, images included.

The common part goes through the model once; what differs, in few tokens for each prompt, reuses its keys and values.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from eval_models.judge.local.forward import Forward
from eval_models.judge.local.prompts import Inputs
from imageevalkit.errors import say

if TYPE_CHECKING:
    import torch

# tests/test_transformers_judge.py compares them with one ``generate`` call for each question
_PROVEN = ("qwen2_5_vl", "qwen3_vl")
_BY_TOKEN = ("input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids")
# Largest difference of a probability between the two ways. Float32 leaves no doubt; half precision rounds by
# about this much, and a class that fails for that reason is slow, not wrong.
_TOLERANCE = {"float32": 1e-5}
_TOLERANCE_HALF = 0.02
_CHECKED = 2


class NextTokens:
    """Computes next-token logits, sharing prefixes where that is right for the model.

    For the classes of :data:`_PROVEN` it is. Any other is tried on its first image: where the logits are not those
    of the plain way (an image whose tokens see the question, positions that a cache does not continue), or
    the model cannot go on from a cache, every question is a forward pass of its own.
    """

    def __init__(self, model: Any, forward: Forward, padding: int, batch_size: int) -> None:
        self._forward = forward
        self._padding = padding
        self._batch_size = batch_size
        self._name = model.config.model_type
        self._dtype = str(model.dtype).removeprefix("torch.")
        self._shares: bool | None = True if self._name in _PROVEN else None

    def logits(self, prompts: Sequence[Inputs]) -> torch.Tensor:
        """Float32 logits after each of ``prompts`` (batches of one row), shape (prompts, vocabulary).

        The prompts have the same images; what stands before their end is the same up to the last of them.
        """
        import torch

        with torch.inference_mode():
            if len(prompts) == 1 or self._shares is False:
                return torch.cat([self._alone(prompt) for prompt in prompts])
            if self._shares:
                return self._shared(prompts)
            return self._tried(prompts)

    def _alone(self, prompt: Inputs) -> torch.Tensor:
        import torch

        end = torch.tensor([prompt["input_ids"].shape[1] - 1])
        logits, _ = self._forward(self._forward.moved(prompt), end, use_cache=False)
        return logits[:, 0].float()

    def _shared(self, prompts: Sequence[Inputs]) -> torch.Tensor:
        import torch

        rows = [prompt["input_ids"][0].tolist() for prompt in prompts]
        length = _common(rows)
        prefix = {
            name: value[:, :length] if name in _BY_TOKEN else value for name, value in prompts[0].items()
        }
        _, cache = self._forward(self._forward.moved(prefix), torch.tensor([length - 1]), use_cache=True)
        suffixes = [row[length:] for row in rows]
        parts = []
        start = 0
        while start < len(suffixes):
            try:
                parts.append(self._after(cache, suffixes[start : start + self._batch_size]))
            except torch.OutOfMemoryError:
                if self._batch_size == 1:
                    raise
                self._batch_size //= 2
                say(f"judge: out of GPU memory; from now on {self._batch_size} questions in one forward pass")
                torch.cuda.empty_cache()
            else:
                start += len(parts[-1])
        return torch.cat(parts)

    def _after(self, cache: Any, suffixes: Sequence[list[int]]) -> torch.Tensor:
        """Logits after each suffix of the prefix in ``cache``, which stays as it is."""
        import torch

        lengths = [len(suffix) for suffix in suffixes]
        # Padded on the right, where no token sees it: no mask is needed, and positions go on from the prefix
        padded = [suffix + [self._padding] * (max(lengths) - len(suffix)) for suffix in suffixes]
        ends = sorted({length - 1 for length in lengths})
        logits, _ = self._forward(
            {"input_ids": torch.tensor(padded, device=self._forward.device)},
            torch.tensor(ends),
            past_key_values=_repeated(cache, len(suffixes)),
            use_cache=True,
        )
        columns = [ends.index(length - 1) for length in lengths]
        return logits[range(len(suffixes)), columns].float()

    def _tried(self, prompts: Sequence[Inputs]) -> torch.Tensor:
        import torch

        plain = torch.cat([self._alone(prompt) for prompt in prompts[:_CHECKED]])
        try:
            shared = self._shared(prompts)
            difference = (shared[:_CHECKED].softmax(-1) - plain.softmax(-1)).abs().max().item()
            self._shares = difference <= _TOLERANCE.get(self._dtype, _TOLERANCE_HALF)
            reason = f"probabilities would differ by {difference:.1g}"
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # classes fail in their own ways where they cannot go on from a cache
            self._shares = False
            reason = f"{type(error).__name__}"
        if self._shares:
            return shared
        say(
            f"judge: {self._name} cannot share an image between questions ({reason}): one forward pass for each"
        )
        return torch.cat([plain, *(self._alone(prompt) for prompt in prompts[_CHECKED:])])


def _common(rows: Sequence[list[int]]) -> int:
    """Length of the common beginning of ``rows``, leaving each at least one token."""
    length = min(map(len, rows)) - 1
    for row in rows[1:]:
        while row[:length] != rows[0][:length]:
            length = next(n for n in range(length) if row[n] != rows[0][n])
    return length


def _repeated(cache: Any, times: int) -> Any:
    """``cache`` of one row as one of ``times`` rows, without a copy: a dynamic layer copies when it grows."""
    from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

    repeated = copy.copy(cache)
    repeated.layers = []
    for layer in cache.layers:
        if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer):
            raise TypeError(f"the model keeps a {type(layer).__name__}")
        layer = copy.copy(layer)
        layer.keys = layer.keys.expand(times, -1, -1, -1)
        layer.values = layer.values.expand(times, -1, -1, -1)
        repeated.layers.append(layer)
    return repeated
