"""Loads a Mask2Former checkpoint of mmdetection 2.x, with Swin as its backbone, into transformers' network.

The sizes of the network come from the shapes of the tensors. Both libraries compute the same functions, so a
checkpoint needs new names, split projections and another order of the channels that patch merging reads.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from eval_models.encoders.weights import loading, refuse_unfit
from imageevalkit.assets.weights import WeightsSource
from imageevalkit.common.errors import CellFailure

if TYPE_CHECKING:
    import torch

Tensors = Mapping[str, "torch.Tensor"]

_SWIN, _PIXELS = "model.pixel_level_module.encoder.", "model.pixel_level_module.decoder."
_DECODER = "model.transformer_module.decoder."
_BLOCK = (r"backbone\.stages\.(\d+)\.blocks\.(\d+)\.", rf"{_SWIN}encoder.layers.\1.blocks.\2.")
_MERGING = (r"backbone\.stages\.(\d+)\.downsample\.", rf"{_SWIN}encoder.layers.\1.downsample.")
_HEAD, _PIXEL_HEAD = r"panoptic_head\.", r"panoptic_head\.pixel_decoder\."
_ENCODER_LAYER = (rf"{_PIXEL_HEAD}encoder\.layers\.(\d+)\.", rf"{_PIXELS}encoder.layers.\1.")
_DECODER_LAYER = (rf"{_HEAD}transformer_decoder\.layers\.(\d+)\.", rf"{_DECODER}layers.\1.")
# a weight or a bias
_W = r"\.(weight|bias)"

_RENAMED: tuple[tuple[str, str], ...] = (
    (rf"backbone\.patch_embed\.projection{_W}", rf"{_SWIN}embeddings.patch_embeddings.projection.\1"),
    (rf"backbone\.patch_embed\.norm{_W}", rf"{_SWIN}embeddings.norm.\1"),
    (rf"{_BLOCK[0]}norm1{_W}", rf"{_BLOCK[1]}layernorm_before.\3"),
    (rf"{_BLOCK[0]}norm2{_W}", rf"{_BLOCK[1]}layernorm_after.\3"),
    (
        rf"{_BLOCK[0]}attn\.w_msa\.relative_position_bias_table",
        rf"{_BLOCK[1]}attention.self.relative_position_bias_table",
    ),
    (rf"{_BLOCK[0]}attn\.w_msa\.proj{_W}", rf"{_BLOCK[1]}attention.output.dense.\3"),
    (rf"{_BLOCK[0]}ffn\.layers\.0\.0{_W}", rf"{_BLOCK[1]}intermediate.dense.\3"),
    (rf"{_BLOCK[0]}ffn\.layers\.1{_W}", rf"{_BLOCK[1]}output.dense.\3"),
    *((rf"backbone\.norm{n}{_W}", rf"{_SWIN}hidden_states_norms.stage{n + 1}.\1") for n in range(4)),
    (rf"{_PIXEL_HEAD}input_convs\.(\d+)\.conv{_W}", rf"{_PIXELS}input_projections.\1.0.\2"),
    (rf"{_PIXEL_HEAD}input_convs\.(\d+)\.gn{_W}", rf"{_PIXELS}input_projections.\1.1.\2"),
    (rf"{_PIXEL_HEAD}level_encoding\.weight", rf"{_PIXELS}level_embed"),
    (
        rf"{_ENCODER_LAYER[0]}attentions\.0\.(sampling_offsets|attention_weights|value_proj|output_proj){_W}",
        rf"{_ENCODER_LAYER[1]}self_attn.\2.\3",
    ),
    (rf"{_ENCODER_LAYER[0]}norms\.0{_W}", rf"{_ENCODER_LAYER[1]}self_attn_layer_norm.\2"),
    (rf"{_ENCODER_LAYER[0]}norms\.1{_W}", rf"{_ENCODER_LAYER[1]}final_layer_norm.\2"),
    (rf"{_PIXEL_HEAD}lateral_convs\.0\.conv\.weight", rf"{_PIXELS}adapter_1.0.weight"),
    (rf"{_PIXEL_HEAD}lateral_convs\.0\.gn{_W}", rf"{_PIXELS}adapter_1.1.\1"),
    (rf"{_PIXEL_HEAD}output_convs\.0\.conv\.weight", rf"{_PIXELS}layer_1.0.weight"),
    (rf"{_PIXEL_HEAD}output_convs\.0\.gn{_W}", rf"{_PIXELS}layer_1.1.\1"),
    (rf"{_PIXEL_HEAD}mask_feature{_W}", rf"{_PIXELS}mask_projection.\1"),
    (rf"{_HEAD}query_embed\.weight", "model.transformer_module.queries_embedder.weight"),
    (rf"{_HEAD}query_feat\.weight", "model.transformer_module.queries_features.weight"),
    (rf"{_HEAD}level_embed\.weight", "model.transformer_module.level_embed.weight"),
    (
        rf"{_DECODER_LAYER[0]}attentions\.0\.attn\.(in_proj_weight|in_proj_bias|out_proj\.weight|out_proj\.bias)",
        rf"{_DECODER_LAYER[1]}cross_attn.\2",
    ),
    (rf"{_DECODER_LAYER[0]}attentions\.1\.attn\.out_proj{_W}", rf"{_DECODER_LAYER[1]}self_attn.out_proj.\2"),
    (rf"{_DECODER_LAYER[0]}norms\.0{_W}", rf"{_DECODER_LAYER[1]}cross_attn_layer_norm.\2"),
    (rf"{_DECODER_LAYER[0]}norms\.1{_W}", rf"{_DECODER_LAYER[1]}self_attn_layer_norm.\2"),
    (rf"{_DECODER_LAYER[0]}norms\.2{_W}", rf"{_DECODER_LAYER[1]}final_layer_norm.\2"),
    # the feed-forward networks of both kinds of layers
    *((rf"{old}ffns\.0\.layers\.0\.0{_W}", rf"{new}fc1.\2") for old, new in (_ENCODER_LAYER, _DECODER_LAYER)),
    *((rf"{old}ffns\.0\.layers\.1{_W}", rf"{new}fc2.\2") for old, new in (_ENCODER_LAYER, _DECODER_LAYER)),
    (rf"{_HEAD}transformer_decoder\.post_norm{_W}", rf"{_DECODER}layernorm.\1"),
    *(
        (rf"{_HEAD}mask_embed\.{2 * n}{_W}", rf"{_DECODER}mask_predictor.mask_embedder.{n}.0.\1")
        for n in range(3)
    ),
    (rf"{_HEAD}cls_embed{_W}", r"class_predictor.\1"),
)
"""Patterns of mmdetection's names, and the names of transformers 4.57; later versions rename these."""

_SPLIT: tuple[tuple[str, str, Sequence[str]], ...] = (
    (rf"{_BLOCK[0]}attn\.w_msa\.qkv{_W}", rf"{_BLOCK[1]}attention.self.{{}}.\3", ("query", "key", "value")),
    (
        rf"{_DECODER_LAYER[0]}attentions\.1\.attn\.in_proj_(weight|bias)",
        rf"{_DECODER_LAYER[1]}self_attn.{{}}.\2",
        ("q_proj", "k_proj", "v_proj"),
    ),
)
"""As :data:`_RENAMED`, for tensors that hold several projections in equal blocks of rows."""

_MERGED = (rf"{_MERGING[0]}(reduction\.weight|norm\.weight|norm\.bias)", rf"{_MERGING[1]}\2")
# transformers computes the positions within a window itself
_INDEX = r"backbone\..*\.relative_position_index"


def converted(state: Tensors) -> tuple[dict[str, torch.Tensor], list[str]]:
    """Returns the tensors of mmdetection's ``state`` by their names in transformers, and the names that no
    rule knows."""
    found: dict[str, torch.Tensor] = {}
    unknown = []
    for name, tensor in state.items():
        parts = _parts(name, tensor)
        if not parts and not re.fullmatch(_INDEX, name):
            unknown.append(name)
        found.update(parts)
    return found, unknown


def _parts(name: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    for pattern, new in _RENAMED:
        if match := re.fullmatch(pattern, name):
            return {match.expand(new): tensor}
    for pattern, new, names in _SPLIT:
        if match := re.fullmatch(pattern, name):
            return {
                match.expand(new.format(one)): part for one, part in zip(names, tensor.chunk(3), strict=True)
            }
    if match := re.fullmatch(_MERGED[0], name):
        return {match.expand(_MERGED[1]): merged(tensor)}
    return {}


def merged(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor of patch merging with its last axis in transformers' order.

    mmdetection numbers the inputs channel by channel, with the four pixels (row, column) = 00, 01, 10, 11 of
    a channel together. transformers numbers them pixel by pixel, in the order 00, 10, 01, 11.
    """
    pixels = tensor.unflatten(-1, (-1, 4)).transpose(-1, -2)
    return pixels[..., [0, 2, 1, 3], :].flatten(-2).contiguous()


def config_of(state: Tensors) -> dict[str, Any]:
    """Returns the sizes of the network as arguments of ``Mask2FormerConfig``; ``backbone_config`` holds those
    of ``SwinConfig``. Raises KeyError if ``state`` is no such network."""
    head, stages = "panoptic_head.", range(4)
    tables = [
        state[f"backbone.stages.{n}.blocks.0.attn.w_msa.relative_position_bias_table"].shape for n in stages
    ]
    backbone = {
        "embed_dim": len(state["backbone.patch_embed.projection.bias"]),
        "depths": [_count(state, rf"backbone\.stages\.{n}\.blocks\.(\d+)\.norm1\.weight") for n in stages],
        "num_heads": [shape[1] for shape in tables],
        # the table has a row for each offset between two pixels of a window
        "window_size": int((tables[0][0] ** 0.5 + 1) / 2),
        "out_features": [f"stage{n + 1}" for n in stages],
    }
    queries, width = state[f"{head}query_feat.weight"].shape
    encoder, decoder = f"{head}pixel_decoder.encoder.layers", f"{head}transformer_decoder.layers"
    levels = len(state[f"{head}level_embed.weight"])
    return {
        "backbone_config": backbone,
        "num_labels": len(state[f"{head}cls_embed.bias"]) - 1,
        "num_queries": queries,
        "hidden_dim": width,
        "feature_size": width,
        "mask_feature_size": width,
        # an offset is a number for x and for y at 4 points of each level
        "num_attention_heads": len(state[f"{encoder}.0.attentions.0.sampling_offsets.bias"]) // (levels * 8),
        "encoder_layers": _count(state, rf"{re.escape(encoder)}\.(\d+)\.norms\.0\.weight"),
        "encoder_feedforward_dim": len(state[f"{encoder}.0.ffns.0.layers.0.0.bias"]),
        # transformers counts the prediction before the first layer as a layer
        "decoder_layers": _count(state, rf"{re.escape(decoder)}\.(\d+)\.norms\.0\.weight") + 1,
        "dim_feedforward": len(state[f"{decoder}.0.ffns.0.layers.0.0.bias"]),
    }


def _count(state: Tensors, pattern: str) -> int:
    return sum(re.fullmatch(pattern, name) is not None for name in state)


def read_mmdet(source: WeightsSource, classes: Sequence[str]) -> dict[str, Any]:
    """Returns mmdetection's file ``source`` as the arguments ``config`` and ``state_dict`` of
    ``from_pretrained``.

    ``classes`` are our names of the classes. A name ends with the name in the file ("computer mouse", "mouse").

    Raises CellFailure if the file does not load, has other classes or unknown tensors.
    """
    with loading(source):
        from transformers import Mask2FormerConfig, SwinConfig

        checkpoint = _read(source.model_path)
        state, theirs = checkpoint["state_dict"], checkpoint["meta"]["CLASSES"]
        if len(theirs) != len(classes) or not all(map(str.endswith, classes, theirs)):
            raise CellFailure(
                f"encoders: {source.model_path} detects other classes ({', '.join(theirs[:3])}, …): its detector is "
                "not GenEval's; download it again"
            )
        tensors, unknown = converted(state)
        refuse_unfit(source, {"has unexpected": unknown})
        sizes = config_of(state)
        config = Mask2FormerConfig(**{**sizes, "backbone_config": SwinConfig(**sizes["backbone_config"])})
        return {"config": config, "state_dict": tensors}


def _read(path: str) -> dict[str, Any]:
    import numpy as np
    import torch

    # the record of the training in the file may hold numbers of numpy: they are plain data too
    rebuild, *state = np.float64(0).__reduce__()[0], np.dtype, *map(type, map(np.dtype, ("f8", "i8")))
    with torch.serialization.safe_globals([(rebuild, "numpy.core.multiarray.scalar"), rebuild, *state]):
        found: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return found
