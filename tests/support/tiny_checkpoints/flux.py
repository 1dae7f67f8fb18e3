"""Tiny FLUX.1 and FLUX.2 klein pipelines, and an IP-Adapter for the former."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.support.tiny_checkpoints.parts import (
    TEXT_WIDTH,
    Sizes,
    byte_tokenizer,
    clip_text,
    clip_tokenizer,
    decoder_config,
    flow_scheduler,
    save,
    small_config,
    t5,
    vae,
)

_HEADS, _HEAD_DIM = 2, 16


def save_flux(folder: Path) -> None:
    """A FluxPipeline, as dev."""
    save(folder, "FluxPipeline", **flux_parts())


def save_flux_kontext(folder: Path) -> None:
    """A FluxKontextPipeline."""
    save(folder, "FluxKontextPipeline", **flux_parts())


def save_flux_ip_adapter(folder: Path) -> None:
    """``folder/adapter`` with the weights of an IP-Adapter for :func:`save_flux`, ``folder/encoder`` with its CLIP."""
    import torch
    from safetensors.torch import save_file
    from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

    torch.manual_seed(1)
    width, image_width, tokens = _HEADS * _HEAD_DIM, 8, 4
    adapter = {
        "ip_adapter_proj_model.proj.weight": torch.randn(tokens * TEXT_WIDTH, image_width),
        "ip_adapter_proj_model.proj.bias": torch.randn(tokens * TEXT_WIDTH),
        "ip_adapter_proj_model.norm.weight": torch.ones(TEXT_WIDTH),
        "ip_adapter_proj_model.norm.bias": torch.zeros(TEXT_WIDTH),
    }
    for part in ("k", "v"):
        name = f"double_blocks.0.processor.ip_adapter_double_stream_{part}_proj"
        adapter[f"{name}.weight"] = torch.randn(width, TEXT_WIDTH)
        adapter[f"{name}.bias"] = torch.randn(width)
    (folder / "adapter").mkdir(parents=True)
    save_file(adapter, folder / "adapter" / "ip_adapter.safetensors")
    config = CLIPVisionConfig(
        **small_config(8, 8, 1),
        projection_dim=image_width,
        image_size=32,
        patch_size=16,
    )
    CLIPVisionModelWithProjection(config).save_pretrained(folder / "encoder")


def save_flux2_klein(folder: Path) -> None:
    """A Flux2KleinPipeline: text to image, and edit with a list of images. Its text encoder has 3 layers."""
    import torch
    from diffusers import AutoencoderKLFlux2, Flux2Transformer2DModel
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    tokenizer = byte_tokenizer()
    text_encoder = Qwen3ForCausalLM(Qwen3Config(**decoder_config(tokenizer, 3)))
    transformer = Flux2Transformer2DModel(
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=_HEAD_DIM,
        num_attention_heads=_HEADS,
        joint_attention_dim=3 * TEXT_WIDTH,
        timestep_guidance_channels=16,
        axes_dims_rope=(4, 4, 4, 4),
        guidance_embeds=False,
    )
    autoencoder = AutoencoderKLFlux2(
        block_out_channels=(8, 8),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        layers_per_block=1,
        latent_channels=4,
        norm_num_groups=4,
        sample_size=64,
    )
    save(
        folder,
        "Flux2KleinPipeline",
        scheduler=flow_scheduler(),
        vae=autoencoder,
        text_encoder=text_encoder.eval(),
        tokenizer=tokenizer,
        transformer=transformer,
    )


def flux_parts(sizes: Sizes = MappingProxyType({})) -> dict[str, Any]:
    """The parts of a FluxPipeline; ``sizes`` are settings of parts by their names, to make them larger."""
    import torch
    from diffusers import FluxTransformer2DModel

    torch.manual_seed(0)
    clip, bytes_ = clip_tokenizer(), byte_tokenizer()
    transformer = {
        "in_channels": 16,
        "num_layers": 1,
        "num_single_layers": 1,
        "attention_head_dim": _HEAD_DIM,
        "num_attention_heads": _HEADS,
        "joint_attention_dim": TEXT_WIDTH,
        "pooled_projection_dim": TEXT_WIDTH,
        "axes_dims_rope": (4, 4, 8),
        **sizes.get("transformer", {}),
    }
    return {
        "scheduler": flow_scheduler(use_dynamic_shifting=True),
        "vae": vae(**{"shift_factor": 0.1, **sizes.get("vae", {})}),
        "text_encoder": clip_text(clip, **sizes.get("text_encoder", {})),
        "tokenizer": clip,
        "text_encoder_2": t5(bytes_, **sizes.get("text_encoder_2", {})),
        "tokenizer_2": bytes_,
        "transformer": FluxTransformer2DModel(**transformer, guidance_embeds=True),
    }
