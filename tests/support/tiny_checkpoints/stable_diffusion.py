"""Tiny pipelines around Stable Diffusion, 1 to 3, and InstructPix2Pix."""

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
    flow_scheduler,
    save,
    t5,
    vae,
)


def save_with_checker(pipeline: Path, folder: Path, rejects: bool) -> None:
    """Saves a StableDiffusionPipeline with a safety checker that rejects every image or none."""
    from diffusers import StableDiffusionPipeline

    checker, extractor = _checker(rejects)
    StableDiffusionPipeline.from_pretrained(
        pipeline, safety_checker=checker, feature_extractor=extractor
    ).save_pretrained(folder)


def save_instruct_pix2pix(folder: Path, vae_blocks: int = 2) -> None:
    """A StableDiffusionInstructPix2PixPipeline: takes exactly one image."""
    import torch
    from diffusers import DDIMScheduler, StableDiffusionInstructPix2PixPipeline, UNet2DConditionModel

    torch.manual_seed(0)
    tokenizer = clip_tokenizer()
    unet = UNet2DConditionModel(
        sample_size=32,
        in_channels=8,
        block_out_channels=(8, 16),
        norm_num_groups=4,
        layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=TEXT_WIDTH,
        attention_head_dim=4,
    )
    StableDiffusionInstructPix2PixPipeline(
        unet=unet,
        vae=vae(vae_blocks),
        text_encoder=clip_text(tokenizer),
        tokenizer=tokenizer,
        scheduler=DDIMScheduler(clip_sample=False, set_alpha_to_one=False, steps_offset=1),
        safety_checker=None,
        feature_extractor=None,
    ).save_pretrained(folder)


def save_stable_diffusion_3(folder: Path) -> None:
    """A StableDiffusion3Pipeline."""
    save(folder, "StableDiffusion3Pipeline", **stable_diffusion_3_parts())


def stable_diffusion_3_parts(sizes: Sizes = MappingProxyType({})) -> dict[str, Any]:
    """The parts of a StableDiffusion3Pipeline; ``sizes`` are settings of parts by their names, to make them larger."""
    import torch
    from diffusers import SD3Transformer2DModel

    torch.manual_seed(0)
    clip, bytes_ = clip_tokenizer(), byte_tokenizer()
    transformer = {
        "sample_size": 32,
        "patch_size": 1,
        "in_channels": 4,
        "num_layers": 1,
        "attention_head_dim": 8,
        "num_attention_heads": 2,
        "joint_attention_dim": 2 * TEXT_WIDTH,
        "caption_projection_dim": 16,
        "pooled_projection_dim": 2 * TEXT_WIDTH,
        "out_channels": 4,
        **sizes.get("transformer", {}),
    }
    return {
        "transformer": SD3Transformer2DModel(**transformer),
        "scheduler": flow_scheduler(shift=3.0),
        "vae": vae(**{"shift_factor": 0.06, **sizes.get("vae", {})}),
        "text_encoder": clip_text(clip, projected=True, **sizes.get("text_encoder", {})),
        "tokenizer": clip,
        "text_encoder_2": clip_text(clip, projected=True, **sizes.get("text_encoder_2", {})),
        "tokenizer_2": clip_tokenizer(),
        "text_encoder_3": t5(bytes_, **{"width": 2 * TEXT_WIDTH, **sizes.get("text_encoder_3", {})}),
        "tokenizer_3": bytes_,
    }


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
