"""What several prompts have in common, gone through the model once, images included."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

from eval_models.judge.local.forward import Forward
from eval_models.judge.local.prompts import Inputs

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
        repeated.layers = []
        for layer in self.cache.layers:
            if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer):
                raise TypeError(f"the model keeps a {type(layer).__name__}")
            layer = copy.copy(layer)
            layer.keys = layer.keys.expand(count, -1, -1, -1)
            layer.values = layer.values.expand(count, -1, -1, -1)
            repeated.layers.append(layer)
        return repeated


def run_prefix(prompts: Sequence[Inputs], images: int, forward: Forward) -> tuple[Prefix, list[list[int]]]:
    """The common beginning of ``prompts`` (batches of one row), and the tokens of each that follow: one at least.

    The prompts have the same ``images``, and the same tokens up to the last of them.
    """
    import torch

    rows = [prompt["input_ids"][0].tolist() for prompt in prompts]
    length = _common(rows)
    inputs = {name: value[:, :length] if name in _BY_TOKEN else value for name, value in prompts[0].items()}
    end = torch.tensor([length - 1])
    _, cache = forward(forward.moved(inputs), end, images=images, use_cache=True)
    return Prefix(rows[0][:length], cache), [row[length:] for row in rows]


def _common(rows: Sequence[list[int]]) -> int:
    """Length of the common beginning of ``rows``, leaving each at least one token."""
    length = min(map(len, rows)) - 1
    for row in rows[1:]:
        while row[:length] != rows[0][:length]:
            length = next(n for n in range(length) if row[n] != rows[0][n])
    return length
