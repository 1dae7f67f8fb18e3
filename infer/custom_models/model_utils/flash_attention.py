"""flash-attn for authors' code that needs it at import: the package, or a replacement with torch's
attention."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from itertools import pairwise
from types import ModuleType
from typing import Any


@contextmanager
def flash_attention() -> Iterator[bool]:
    """A block in which ``flash_attn`` can be imported. Yields True if it is the installed package.

    If the package is missing (it compiles against the environment's torch and CUDA), the functions below
    replace it; their results are equal up to rounding. After the block they leave ``sys.modules``, otherwise
    transformers and diffusers would assume that flash-attn is installed.
    """
    if importlib.util.find_spec("flash_attn") is not None:
        yield True
        return
    functions: dict[str, dict[str, Any]] = {
        "flash_attn": {"flash_attn_varlen_func": varlen_attention},
        "flash_attn.layers": {},
        "flash_attn.layers.rotary": {"apply_rotary_emb": rotary_embedding},
    }
    for name, content in functions.items():
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        module.__dict__.update({"__path__": [], **content})
        sys.modules[name] = module
    try:
        yield False
    finally:
        for name in functions:
            del sys.modules[name]


def varlen_attention(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
) -> Any:
    """Computes attention within each of several concatenated sequences, like ``flash_attn_varlen_func``.

    ``q``, ``k`` and ``v`` are tokens x heads x channels. ``k`` and ``v`` may have fewer heads; each then
    serves several heads of ``q``. ``cu_seqlens`` holds the start of each sequence and the end of the last
    one. ``dropout_p`` must be 0. ``softmax_scale`` None means 1 / sqrt(channels). With ``causal`` the last
    query sees all keys, the query before it all but the last key, and so on.
    """
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    if dropout_p:
        raise ValueError("dropout needs the package flash-attn")
    k, v = (part.repeat_interleave(q.shape[1] // part.shape[1], dim=1) for part in (k, v))
    output = torch.empty_like(q)
    sequences = zip(pairwise(cu_seqlens_q.tolist()), pairwise(cu_seqlens_k.tolist()), strict=True)
    for (q_start, q_end), (k_start, k_end) in sequences:
        queries, keys = q_end - q_start, k_end - k_start
        mask = None
        if causal and 1 < queries != keys:
            mask = torch.ones(queries, keys, dtype=torch.bool, device=q.device).tril(keys - queries)
        query, key, value = (
            part.transpose(0, 1)[None] for part in (q[q_start:q_end], k[k_start:k_end], v[k_start:k_end])
        )
        # without a mask torch can use its fused kernel
        result = scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=causal and queries == keys, scale=softmax_scale
        )
        output[q_start:q_end] = result[0].transpose(0, 1)
    return output


def rotary_embedding(x: Any, cos: Any, sin: Any) -> Any:
    """Rotates the pairs (i, i + n) of the first 2n channels by the positions' angles, like
    ``apply_rotary_emb``.

    ``x`` is batch x tokens x heads x channels, ``cos`` and ``sin`` are tokens x n.
    """
    import torch

    pairs = cos.shape[-1]
    first, second, rest = x[..., :pairs], x[..., pairs : 2 * pairs], x[..., 2 * pairs :]
    cos, sin = cos[:, None].float(), sin[:, None].float()
    rotated = (first * cos - second * sin, first * sin + second * cos)
    return torch.cat([*(part.to(x.dtype) for part in rotated), rest], dim=-1)
