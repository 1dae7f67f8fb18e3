"""A DreamSim checkpoint of random weights: the shapes are the package's own, the files are small.

CLIP's and OpenCLIP's sizes are fixed in the package, so their weights are overlapping views of one small pool of
numbers, which torch saves once. DINO's code comes from a folder of the checkpoint: there a narrower one stands in.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_POOL = 1 << 18
_DINO_WIDTH = 48
_RANK = 2
# torch.hub's layout: the repository's entry points, and the weights that these load by their address
_HUBCONF = f'''\
"""Stands in for facebookresearch/dino: its vision transformer, {_DINO_WIDTH} wide instead of 768."""
import torch
import vision_transformer

dependencies = ["torch"]


def dino_vitb16(pretrained=True):
    model = vision_transformer.narrow()
    if pretrained:
        model.load_state_dict(torch.hub.load_state_dict_from_url(
            "https://dl.fbaipublicfiles.com/dino/dino_vitbase16_pretrain/dino_vitbase16_pretrain.pth"
        ))
    return model
'''
_VISION_TRANSFORMER = f"""\
from dreamsim.feature_extraction.vision_transformer import VisionTransformer


def narrow():
    return VisionTransformer(patch_size=16, embed_dim={_DINO_WIDTH}, depth=12, num_heads=3, qkv_bias=True)
"""


def save_dreamsim(folder: Path, seed: int = 0) -> None:
    """All that the package and :class:`DreamSimEncoder` read, below ``folder``. Needs the package dreamsim."""
    import torch
    from dreamsim.feature_extraction.vision_transformer import VisionTransformer, vit_base
    from safetensors.torch import save_file

    draw = torch.Generator().manual_seed(seed)
    clip = vit_base(patch_size=16)
    clip.pos_drop = torch.nn.LayerNorm(clip.embed_dim)
    dino = VisionTransformer(patch_size=16, embed_dim=_DINO_WIDTH, depth=12, num_heads=3, qkv_bias=True)
    for name in ("clip", "open_clip"):
        weights = _drawn(clip, draw)
        weights["proj"] = _view(draw, (clip.embed_dim, 512))
        torch.save({"state_dict": weights}, _into(folder / f"{name}_vitb16_pretrain.pth.tar"))
    torch.save(_drawn(dino, draw), _into(folder / "checkpoints" / "dino_vitbase16_pretrain.pth"))
    # the package loads the head, whose output it does not use
    head = [f"mlp.{i}.{kind}" for i in (0, 2, 4) for kind in ("weight", "bias")] + ["last_layer.weight"]
    student = {f"module.head.{name}": torch.zeros(1) for name in head}
    torch.save({"student": student}, folder / "dino_vitb16_pretrain.pth")
    hub = folder / "facebookresearch_dino_main"
    _into(hub / "hubconf.py").write_text(_HUBCONF)
    (hub / "vision_transformer.py").write_text(_VISION_TRANSFORMER)
    lora = folder / "ensemble_lora"
    _into(lora / "adapter_config.json").write_text(json.dumps(_LORA))
    widths = (_DINO_WIDTH, clip.embed_dim, clip.embed_dim)
    save_file(
        {
            f"base_model.model.extractor_list.{i}.model.blocks.{block}.attn.qkv.lora_{matrix}.weight": (
                torch.randn(shape, generator=draw) * 0.1
            )
            for i, width in enumerate(widths)
            for block in range(12)
            for matrix, shape in (("A", (_RANK, width)), ("B", (3 * width, _RANK)))
        },
        lora / "adapter_model.safetensors",
    )


_LORA = {
    "peft_type": "LORA",
    "base_model_name_or_path": None,
    "task_type": None,
    "inference_mode": True,
    "r": _RANK,
    "lora_alpha": _RANK,
    "lora_dropout": 0.0,
    "bias": "none",
    "target_modules": ["qkv"],
}


def _drawn(module: Any, draw: Any) -> dict[str, Any]:
    return {
        # norms scale by about 1, all else is small
        name: _view(draw, tensor.shape, 1.0 if "norm" in name and name.endswith("weight") else 0.0)
        for name, tensor in module.state_dict().items()
    }


_pools: dict[tuple[int, float], Any] = {}


def _view(draw: Any, shape: tuple[int, ...], around: float = 0.0) -> Any:
    """Numbers of the generator's pool from a random place on; rows and further dimensions overlap."""
    import torch

    pool = _pools.get((id(draw), around))
    if pool is None:
        pool = _pools[id(draw), around] = torch.randn(_POOL, generator=draw) * 0.03 + around
    strides = (31, 13, 5, 1)[-len(shape) :]
    needed = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) + 1
    start = int(torch.randint(_POOL - needed, (1,), generator=draw))
    return pool.as_strided(tuple(shape), strides, start)


def _into(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
