"""Tiny pipelines of other makers: PixArt and OmniGen."""

from __future__ import annotations

from pathlib import Path

from tests.support.tiny_checkpoints.parts import (
    TEXT_WIDTH,
    byte_tokenizer,
    flow_scheduler,
    save,
    t5,
    vae,
)


def save_pixart_sigma(folder: Path) -> None:
    """A PixArtSigmaPipeline."""
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
        "PixArtSigmaPipeline",
        tokenizer=tokenizer,
        text_encoder=t5(tokenizer),
        vae=vae(blocks=4),
        transformer=transformer,
        scheduler=DPMSolverMultistepScheduler(),
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
