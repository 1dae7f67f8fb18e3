"""Tiny diffusers pipelines with random weights, built from configs and saved to disk: no download."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any


def save_stable_diffusion(folder: Path, *, safety_checker_rejects: bool | None = None) -> None:
    """A StableDiffusionPipeline for 64 × 64 pixels.

    With ``safety_checker_rejects`` it has a safety checker that rejects every image (True) or none (False).
    """
    from diffusers import StableDiffusionPipeline

    checker, extractor = (None, None) if safety_checker_rejects is None else _checker(safety_checker_rejects)
    StableDiffusionPipeline(
        **_stable_diffusion_parts(unet_in_channels=4), safety_checker=checker, feature_extractor=extractor
    ).save_pretrained(folder)


def save_instruct_pix2pix(folder: Path) -> None:
    """A StableDiffusionInstructPix2PixPipeline: takes exactly one image."""
    from diffusers import StableDiffusionInstructPix2PixPipeline

    StableDiffusionInstructPix2PixPipeline(
        **_stable_diffusion_parts(unet_in_channels=8), safety_checker=None, feature_extractor=None
    ).save_pretrained(folder)


def save_flux2_klein(folder: Path) -> None:
    """A Flux2KleinPipeline: text to image, and edit with a list of images. Its text encoder has 3 layers."""
    import torch
    from diffusers import (
        AutoencoderKLFlux2,
        FlowMatchEulerDiscreteScheduler,
        Flux2KleinPipeline,
        Flux2Transformer2DModel,
    )
    from transformers import Qwen2TokenizerFast, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    tokenizer = Qwen2TokenizerFast(vocab=_vocabulary("<|endoftext|>"), merges=[])
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    text_encoder = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=3,
            num_attention_heads=2,
            num_key_value_heads=2,
            head_dim=8,
        )
    )
    transformer = Flux2Transformer2DModel(
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=48,
        timestep_guidance_channels=16,
        axes_dims_rope=(4, 4, 4, 4),
        guidance_embeds=False,
    )
    vae = AutoencoderKLFlux2(
        block_out_channels=(8, 8),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        layers_per_block=1,
        latent_channels=4,
        norm_num_groups=4,
        sample_size=64,
    )
    Flux2KleinPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(),
        vae=vae,
        text_encoder=text_encoder.eval(),
        tokenizer=tokenizer,
        transformer=transformer,
    ).save_pretrained(folder)


def _stable_diffusion_parts(unet_in_channels: int) -> dict[str, Any]:
    import torch
    from diffusers import AutoencoderKL, DDIMScheduler, UNet2DConditionModel
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

    torch.manual_seed(0)
    vocabulary = _vocabulary("<|startoftext|>", "<|endoftext|>")
    for symbol in list(vocabulary)[2:]:
        vocabulary[f"{symbol}</w>"] = len(vocabulary)
    tokenizer = CLIPTokenizer(vocab=vocabulary, merges=[], model_max_length=77)
    unet = UNet2DConditionModel(
        sample_size=32,
        in_channels=unet_in_channels,
        block_out_channels=(8, 16),
        norm_num_groups=4,
        layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=16,
        attention_head_dim=4,
    )
    vae = AutoencoderKL(
        block_out_channels=(8, 8),
        norm_num_groups=4,
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=4,
        sample_size=64,
    )
    text_encoder = CLIPTextModel(
        CLIPTextConfig(
            vocab_size=len(vocabulary),
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            bos_token_id=0,
            eos_token_id=1,
            pad_token_id=1,
        )
    )
    return {
        "unet": unet,
        "vae": vae,
        "text_encoder": text_encoder.eval(),
        "tokenizer": tokenizer,
        "scheduler": DDIMScheduler(clip_sample=False, set_alpha_to_one=False, steps_offset=1),
    }


def _vocabulary(*special: str) -> dict[str, int]:
    """Byte-level symbols of printable ASCII; "Ġ" is the blank."""
    symbols = [*special, *string.ascii_letters, *string.digits, *string.punctuation, "Ġ"]
    return {symbol: number for number, symbol in enumerate(symbols)}


def _checker(rejects: bool) -> tuple[Any, Any]:
    import torch
    from diffusers.pipelines.stable_diffusion import StableDiffusionSafetyChecker
    from transformers import CLIPConfig, CLIPImageProcessor

    tower = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    checker = StableDiffusionSafetyChecker(
        CLIPConfig(
            text_config=tower,
            vision_config={**tower, "image_size": 32, "patch_size": 16, "projection_dim": 8},
            projection_dim=8,
        )
    )
    # an image is rejected when a cosine (-1..1) exceeds one of these thresholds
    with torch.no_grad():
        checker.concept_embeds_weights.fill_(-2 if rejects else 2)
        checker.special_care_embeds_weights.fill_(-2 if rejects else 2)
    return checker.eval(), CLIPImageProcessor(
        size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}
    )
