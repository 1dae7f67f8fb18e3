"""Tiny pipelines of other makers: PixArt, Sana, OmniGen, Z-Image, Lumina-Image 2.0, CogView4."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.tiny_checkpoints.parts import (
    TEXT_WIDTH,
    beginning_tokenizer,
    byte_tokenizer,
    decoder_config,
    flow_scheduler,
    save,
    t5,
    vae,
)


def save_pixart_alpha(folder: Path) -> None:
    """A PixArtAlphaPipeline."""
    _save_pixart(folder, "PixArtAlphaPipeline")


def save_pixart_sigma(folder: Path) -> None:
    """A PixArtSigmaPipeline."""
    _save_pixart(folder, "PixArtSigmaPipeline")


def _save_pixart(folder: Path, pipeline_class: str) -> None:
    import torch
    from diffusers import DPMSolverMultistepScheduler, PixArtTransformer2DModel

    torch.manual_seed(0)
    tokenizer = byte_tokenizer()
    transformer = PixArtTransformer2DModel(
        num_attention_heads=2,
        attention_head_dim=8,
        num_layers=1,
        cross_attention_dim=16,
        caption_channels=TEXT_WIDTH,
        # sizes are looked up in the table for images of 8 × sample_size pixels
        sample_size=32,
        use_additional_conditions=False,
    )
    save(
        folder,
        pipeline_class,
        tokenizer=tokenizer,
        text_encoder=t5(tokenizer),
        vae=vae(blocks=4),
        transformer=transformer,
        scheduler=DPMSolverMultistepScheduler(),
    )


def save_sana(folder: Path) -> None:
    """A SanaPipeline, saved as the variant fp16."""
    import torch
    from diffusers import AutoencoderDC, SanaTransformer2DModel

    torch.manual_seed(0)
    tokenizer = byte_tokenizer()
    transformer = SanaTransformer2DModel(
        in_channels=4,
        out_channels=4,
        num_layers=1,
        num_attention_heads=2,
        attention_head_dim=8,
        num_cross_attention_heads=2,
        cross_attention_head_dim=8,
        cross_attention_dim=16,
        caption_channels=TEXT_WIDTH,
        sample_size=32,
    )
    autoencoder = AutoencoderDC(
        latent_channels=4,
        attention_head_dim=2,
        encoder_block_types=("ResBlock", "EfficientViTBlock"),
        decoder_block_types=("ResBlock", "EfficientViTBlock"),
        encoder_block_out_channels=(8, 8),
        decoder_block_out_channels=(8, 8),
        encoder_qkv_multiscales=((), (5,)),
        decoder_qkv_multiscales=((), (5,)),
        encoder_layers_per_block=(1, 1),
        decoder_layers_per_block=(1, 1),
        downsample_block_type="conv",
        upsample_block_type="interpolate",
        scaling_factor=0.4,
    )
    save(
        folder,
        "SanaPipeline",
        "fp16",
        tokenizer=tokenizer,
        text_encoder=_gemma(tokenizer),
        vae=autoencoder.eval(),
        transformer=transformer,
        scheduler=flow_scheduler(shift=3.0),
    )


def save_omnigen(folder: Path) -> None:
    """An OmniGenPipeline; needs torchvision."""
    import torch
    from diffusers import OmniGenTransformer2DModel

    torch.manual_seed(0)
    tokenizer = byte_tokenizer("<|user|>", "<|assistant|>", "<|end|>", "<|diffusion|>", "<img>", "</img>")
    transformer = OmniGenTransformer2DModel(
        hidden_size=16,
        num_attention_heads=4,
        num_key_value_heads=4,
        intermediate_size=16,
        num_layers=1,
        vocab_size=len(tokenizer),
        pad_token_id=tokenizer.pad_token_id,
        rope_scaling={"long_factor": [1.0, 2.0], "short_factor": [1.0, 2.0], "type": "su"},
        pos_embed_max_size=64,
        time_step_dim=4,
    )
    save(
        folder,
        "OmniGenPipeline",
        transformer=transformer,
        scheduler=flow_scheduler(invert_sigmas=True, num_train_timesteps=1),
        vae=vae(blocks=4),
        tokenizer=tokenizer,
    )


def save_z_image(folder: Path) -> None:
    """A ZImagePipeline."""
    import torch
    from diffusers import ZImageTransformer2DModel
    from transformers import Qwen3Config, Qwen3Model

    torch.manual_seed(0)
    tokenizer = byte_tokenizer()
    transformer = ZImageTransformer2DModel(
        in_channels=4,
        dim=32,
        n_layers=1,
        n_refiner_layers=1,
        n_heads=2,
        n_kv_heads=2,
        cap_feat_dim=TEXT_WIDTH,
        axes_dims=[8, 4, 4],
        axes_lens=[256, 32, 32],
    )
    save(
        folder,
        "ZImagePipeline",
        scheduler=flow_scheduler(),
        vae=vae(shift_factor=0.1),
        text_encoder=Qwen3Model(Qwen3Config(**decoder_config(tokenizer, 2))).eval(),
        tokenizer=tokenizer,
        transformer=transformer,
    )


def save_lumina2(folder: Path) -> None:
    """A Lumina2Pipeline."""
    import torch
    from diffusers import Lumina2Transformer2DModel

    torch.manual_seed(0)
    tokenizer = byte_tokenizer()
    transformer = Lumina2Transformer2DModel(
        sample_size=4,
        in_channels=4,
        hidden_size=16,
        num_layers=1,
        num_refiner_layers=1,
        num_attention_heads=2,
        num_kv_heads=1,
        multiple_of=16,
        axes_dim_rope=(4, 2, 2),
        cap_feat_dim=TEXT_WIDTH,
    )
    save(
        folder,
        "Lumina2Pipeline",
        transformer=transformer,
        scheduler=flow_scheduler(),
        vae=vae(blocks=4, shift_factor=0.1),
        text_encoder=_gemma(tokenizer),
        tokenizer=tokenizer,
    )


def save_cogview4(folder: Path) -> None:
    """A CogView4Pipeline."""
    import torch
    from diffusers import CogView4Transformer2DModel
    from transformers import GlmConfig, GlmModel

    torch.manual_seed(0)
    tokenizer = beginning_tokenizer()
    transformer = CogView4Transformer2DModel(
        in_channels=4,
        out_channels=4,
        num_layers=1,
        attention_head_dim=8,
        num_attention_heads=2,
        text_embed_dim=TEXT_WIDTH,
        time_embed_dim=8,
        condition_dim=4,
        rope_axes_dim=(16, 16),
    )
    save(
        folder,
        "CogView4Pipeline",
        tokenizer=tokenizer,
        text_encoder=GlmModel(GlmConfig(**decoder_config(tokenizer))).eval(),
        vae=vae(),
        transformer=transformer,
        scheduler=flow_scheduler(
            base_shift=0.25, max_shift=0.75, use_dynamic_shifting=True, time_shift_type="linear"
        ),
    )


def _gemma(tokenizer: Any) -> Any:
    from transformers import Gemma2Config, Gemma2Model

    return Gemma2Model(Gemma2Config(**decoder_config(tokenizer, 2))).eval()
