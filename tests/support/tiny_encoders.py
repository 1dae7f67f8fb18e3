"""Style encoders with random weights, saved as the real ones are: no download."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.openai_visual import openai_visual
from tests.support.tiny_checkpoints.parts import small_config

CSD_WIDTH, SE_WIDTH = 24, 20
STYLES = ("baroque", "3d_rendering", "ukiyo-e")


def save_style_encoders(folder: Path) -> dict[str, str]:
    """A complete CSD checkpoint and an SE folder below ``folder``; their places, as EncoderOptions.weights."""
    folder.mkdir(parents=True, exist_ok=True)
    save_csd(folder / "checkpoint.pth")
    save_se(folder / "se")
    return {"csd": str(folder / "checkpoint.pth"), "se": str(folder / "se")}


def csd_state(*, seed: int = 0, **shape: Any) -> dict[str, Any]:
    """A whole CSD model's tensors by their official names; ``shape`` is :func:`openai_visual`'s."""
    import torch

    visual = openai_visual(seed=seed, **{"projection": CSD_WIDTH, **shape})
    random = torch.Generator().manual_seed(seed + 1)
    heads = {
        f"last_layer_{kind}": torch.randn(visual.proj.shape, generator=random)
        for kind in ("style", "content")
    }
    visual.proj = None
    return {**{f"backbone.{name}": tensor for name, tensor in visual.state_dict().items()}, **heads}


def save_csd(
    path: Path,
    *,
    keep: Callable[[str], bool] = lambda name: True,
    seed: int = 0,
    training: Mapping[str, Any] | None = None,
    **shape: Any,
) -> None:
    """A ``checkpoint.pth`` of distributed training, of which only the tensors that ``keep`` wants are stored."""
    import numpy as np
    import torch

    state = {f"module.{name}": tensor for name, tensor in csd_state(seed=seed, **shape).items() if keep(name)}
    # beside the model there are the optimizer, whose learning rate is numpy's, and the command's options
    beside = {
        "opt_bb": {"param_groups": [{"lr": np.float64(3e-4)}]},
        "iter": 5,
        "args": argparse.Namespace(arch="vit_large", lr=0.003),
    }
    torch.save({"model_state_dict": state, **(beside if training is None else training)}, path)


def save_se(
    folder: Path,
    *,
    width: int = 64,
    layers: int = 2,
    patch: int = 8,
    size: int = 32,
    projection: int = SE_WIDTH,
) -> None:
    """A CLIP image encoder with its projection, of transformers."""
    import torch
    from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

    config = CLIPVisionConfig(
        **small_config(width, 4 * width, layers, max(1, width // 64)),
        image_size=size,
        patch_size=patch,
        projection_dim=projection,
        # the usual weights are so small that all images look alike
        initializer_factor=5.0,
    )
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model = CLIPVisionModelWithProjection(config)
    model.save_pretrained(folder)


def save_references(
    folder: Path,
    *,
    csd_width: int = CSD_WIDTH,
    styles: Iterable[str] = STYLES,
) -> dict[str, Path]:
    """Reference vectors, three of length 1 for each style; the files by the encoder's name."""
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    random = torch.Generator().manual_seed(7)
    found: dict[str, Path] = {}
    kinds: Sequence[tuple[str, int, Any]] = (
        ("csd", csd_width, torch.float32),
        ("se", SE_WIDTH, torch.bfloat16),
    )
    for name, width, dtype in kinds:
        vectors = {
            style: torch.nn.functional.normalize(torch.randn(3, width, generator=random), dim=1).to(dtype)
            for style in styles
        }
        found[name] = folder / f"{name.upper()}_embed.pt"
        torch.save(vectors, found[name])
    return found
