"""OpenAI's CLIP image encoder, from the names in its checkpoints to a model of transformers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_HEAD_WIDTH = 64  # of every CLIP vision transformer of OpenAI's; no tensor tells it
_NAMES = {
    "class_embedding": "embeddings.class_embedding",
    "positional_embedding": "embeddings.position_embedding.weight",
    "conv1.weight": "embeddings.patch_embedding.weight",
    **{
        f"{theirs}.{kind}": f"{ours}.{kind}"
        for theirs, ours in (("ln_pre", "pre_layrnorm"), ("ln_post", "post_layernorm"))
        for kind in ("weight", "bias")
    },
}
_LAYER_NAMES = {
    f"{theirs}.{kind}": f"{ours}.{kind}"
    for theirs, ours in (
        ("ln_1", "layer_norm1"),
        ("attn.out_proj", "self_attn.out_proj"),
        ("ln_2", "layer_norm2"),
        ("mlp.c_fc", "mlp.fc1"),
        ("mlp.c_proj", "mlp.fc2"),
    )
    for kind in ("weight", "bias")
}
# query, key and value in one tensor, in this order
_PACKED = {f"attn.in_proj_{kind}": kind for kind in ("weight", "bias")}
_PACKED_NAMES = ("q_proj", "k_proj", "v_proj")
_LAYER = re.compile(r"transformer\.resblocks\.(\d+)\.")


def layers_of(visual: Mapping[str, Any]) -> int:
    """How many transformer layers ``visual`` has: one more than the highest number in its names."""
    return max((int(found[1]) + 1 for name in visual if (found := _LAYER.match(name))), default=0)


def missing_names(visual: Mapping[str, Any]) -> list[str]:
    """What ``visual`` (tensors by the names below "visual.") lacks of an image encoder without its projection."""
    layers = layers_of(visual)
    needed = [
        *_NAMES,
        *(
            f"transformer.resblocks.{n}.{name}"
            for n in range(max(1, layers))
            for name in (*_LAYER_NAMES, *_PACKED)
        ),
    ]
    return [name for name in needed if name not in visual]


def vision_model(visual: Mapping[str, Any]) -> Any:
    """A ``CLIPVisionModel`` in float32 and evaluation mode with the weights ``visual``.

    Its shape is that of the tensors. ``pooler_output`` is what OpenAI's encoder gives without its projection:
    (batch, width).

    Raises:
        KeyError: a tensor is missing.
        RuntimeError: shapes do not fit together.
    """
    from transformers import CLIPVisionConfig, CLIPVisionModel

    patches = visual["conv1.weight"]
    width, patch = patches.shape[0], patches.shape[-1]
    positions = visual["positional_embedding"].shape[0]
    config = CLIPVisionConfig(
        hidden_size=width,
        intermediate_size=visual["transformer.resblocks.0.mlp.c_fc.weight"].shape[0],
        num_hidden_layers=layers_of(visual),
        num_attention_heads=width // _HEAD_WIDTH,
        # one position is the class token's
        image_size=round((positions - 1) ** 0.5) * patch,
        patch_size=patch,
        hidden_act="quick_gelu",
    )
    model = CLIPVisionModel(config)
    model.load_state_dict(_renamed(visual))
    return model.float().eval()


def _renamed(visual: Mapping[str, Any]) -> dict[str, Any]:
    renamed = {ours: visual[theirs] for theirs, ours in _NAMES.items()}
    for n in range(layers_of(visual)):
        theirs, ours = f"transformer.resblocks.{n}.", f"encoder.layers.{n}."
        for name, our_name in _LAYER_NAMES.items():
            renamed[ours + our_name] = visual[theirs + name]
        for name, kind in _PACKED.items():
            for part, tensor in zip(_PACKED_NAMES, visual[theirs + name].chunk(3), strict=True):
                renamed[f"{ours}self_attn.{part}.{kind}"] = tensor
    return renamed
