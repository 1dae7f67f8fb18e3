"""Trains a small adapter for shapes-tiny: ``python -m infer.training.shapes_tiny_lora PIPELINE FOLDER``.

With the adapter, most images have a green background. It needs the package peft. ``FOLDER`` gets
``pytorch_lora_weights.safetensors``, which diffusers loads.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from diffusers import StableDiffusionPipeline
from diffusers.utils import convert_state_dict_to_diffusers
from peft import LoraConfig
from peft.utils import get_peft_model_state_dict

from benchmarks.quickshapes import scenes
from benchmarks.quickshapes.prompts import CATEGORIES
from imageevalkit.common.errors import say

from .shapes_tiny import as_input, drawn

_SEED, _SCENES, _STEPS, _BATCH, _RATE, _RANK = 42, 2048, 400, 32, 0.002, 4
_GREEN = scenes.BACKGROUNDS[4]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pipeline", help="a folder of shapes-tiny that diffusers loads")
    parser.add_argument("folder", type=Path, help="where the adapter goes")
    given = parser.parse_args()
    torch.manual_seed(_SEED)
    pipeline = StableDiffusionPipeline.from_pretrained(given.pipeline, torch_dtype=torch.float32)
    latents, context = _data(pipeline)
    unet = pipeline.unet.requires_grad_(False)
    unet.add_adapter(LoraConfig(r=_RANK, target_modules=["to_q", "to_k", "to_v", "to_out.0"]))
    optimizer = torch.optim.AdamW([p for p in unet.parameters() if p.requires_grad], lr=_RATE)
    losses = []
    for step in range(_STEPS):
        chosen = torch.randint(len(latents), (_BATCH,))
        noise, sigma = torch.randn(_BATCH, *latents.shape[1:]), torch.randn(_BATCH).sigmoid()
        noisy = torch.lerp(latents[chosen], noise, sigma[:, None, None, None])
        velocity = unet(noisy, sigma * 1000, context[chosen], return_dict=False)[0]
        loss = (velocity - (noise - latents[chosen])).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if (step + 1) % 50 == 0:
            say(f"step {step + 1} of {_STEPS}: loss {np.mean(losses[-50:]):.4f}")
    layers = convert_state_dict_to_diffusers(get_peft_model_state_dict(unet))
    half = {name: value.half() for name, value in layers.items()}
    pipeline.save_lora_weights(given.folder, unet_lora_layers=half)


@torch.no_grad()
def _data(pipeline: StableDiffusionPipeline) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns latents of scenes on a green background, and the states of the text encoder for their prompts."""
    categories = dict.fromkeys(CATEGORIES, 1.0)
    latents, context = list[torch.Tensor](), list[torch.Tensor]()
    for pixels, texts in drawn(f"{_SEED} adapter", _SCENES, categories, [_GREEN]):
        for some in torch.from_numpy(pixels).split(64):
            latents.append(pipeline.vae.encoder(as_input(some)) * pipeline.vae.config.scaling_factor)
        tokens = pipeline.tokenizer(texts, return_tensors="pt", padding="max_length", truncation=True)
        context.append(pipeline.text_encoder(tokens.input_ids).last_hidden_state)
    return torch.cat(latents), torch.cat(context)


if __name__ == "__main__":
    main()
