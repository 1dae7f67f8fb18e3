"""Tiny Qwen-Image pipelines: text to image, and edit with several images."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.support.tiny_checkpoints.parts import Sizes, flow_scheduler, save
from tests.support.tiny_vlm import qwen2_5_vl, save_qwen2_5_vl


def save_qwen_image(folder: Path) -> None:
    """A QwenImagePipeline."""
    save(folder, "QwenImagePipeline", **qwen_image_parts())


def save_qwen_image_edit_plus(folder: Path) -> None:
    """A QwenImageEditPlusPipeline; needs torchvision."""
    save(folder, "QwenImageEditPlusPipeline", **qwen_image_parts(edit=True), processor=_processor(folder))


def qwen_image_parts(edit: bool = False, sizes: Sizes = MappingProxyType({})) -> dict[str, Any]:
    """The parts of a pipeline; ``sizes`` are settings of parts by their names, to make them larger."""
    import torch
    from diffusers import AutoencoderKLQwenImage, QwenImageTransformer2DModel
    from transformers import Qwen2_5_VLForConditionalGeneration

    tokenizer, config = qwen2_5_vl(**sizes.get("text_encoder", {}))
    torch.manual_seed(0)
    transformer = {
        "in_channels": 16,
        "out_channels": 4,
        "num_layers": 1,
        "attention_head_dim": 16,
        "num_attention_heads": 2,
        "joint_attention_dim": 64,
        "axes_dims_rope": (8, 4, 4),
        **sizes.get("transformer", {}),
    }
    # edit pipelines scale every input image to 1024² pixels: it takes a scale of 16 and few channels to be quick then
    blocks = 5 if edit else 2
    vae = {
        "base_dim": 2 if edit else 8,
        "z_dim": 4,
        "dim_mult": [1] * blocks,
        "num_res_blocks": 1,
        "temperal_downsample": [False] * (blocks - 1),
        "latents_mean": [0.0] * 4,
        "latents_std": [1.0] * 4,
        **sizes.get("vae", {}),
    }
    autoencoder = AutoencoderKLQwenImage(**vae)
    # random weights decode to nearly one grey
    with torch.no_grad():
        autoencoder.decoder.conv_out.weight.mul_(30)
    return {
        "scheduler": flow_scheduler(use_dynamic_shifting=True),
        "vae": autoencoder.eval(),
        "text_encoder": Qwen2_5_VLForConditionalGeneration(config).eval(),
        "tokenizer": tokenizer,
        "transformer": QwenImageTransformer2DModel(**transformer),
    }


def _processor(folder: Path) -> Any:
    from transformers import Qwen2VLProcessor

    source = folder / ".qwen2.5-vl"
    save_qwen2_5_vl(source)
    processor = Qwen2VLProcessor.from_pretrained(source)
    processor.image_processor.size = {"shortest_edge": 56 * 56, "longest_edge": 112 * 112}
    return processor
