"""What DreamSim's folder holds: the package reads these files, or downloads them. Needs no package."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

LORA = "ensemble_lora"
_LORA_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")


class _Part(NamedTuple):
    """Files and folders that the package reads or else downloads, and how to get them."""

    names: tuple[str, ...]
    how: str


_PARTS = (
    _Part(
        (
            "dino_vitb16_pretrain.pth",
            "clip_vitb16_pretrain.pth.tar",
            "open_clip_vitb16_pretrain.pth.tar",
            f"{LORA}/adapter_config.json",
        ),
        "unpack https://github.com/ssundaram21/dreamsim/releases/download/v0.2.0-checkpoints/"
        "dreamsim_ensemble_checkpoint.zip there",
    ),
    # torch.hub's names for the repository, and for what its hubconf.py downloads
    _Part(
        ("facebookresearch_dino_main/hubconf.py",),
        "unpack https://github.com/facebookresearch/dino/archive/refs/heads/main.zip there and rename "
        "its folder dino-main to facebookresearch_dino_main",
    ),
    _Part(
        ("checkpoints/dino_vitbase16_pretrain.pth",),
        "put https://dl.fbaipublicfiles.com/dino/dino_vitbase16_pretrain/dino_vitbase16_pretrain.pth "
        "into its folder checkpoints",
    ),
)


def problem(folder: Path) -> str:
    """The one line on what ``folder`` lacks and where to get it; empty when it is whole."""
    for part in _PARTS:
        absent = [name for name in part.names if not (folder / name).exists()]
        if absent:
            return _lacks(folder, absent, part.how)
    if not any((folder / LORA / name).exists() for name in _LORA_WEIGHTS):
        return _lacks(folder, [f"{LORA}/{_LORA_WEIGHTS[0]}"], _PARTS[0].how)
    return ""


def entries() -> list[str]:
    """What the package reads in the folder; of the DINO code, the files that make the model."""
    hub = "facebookresearch_dino_main"
    names = [name for part in _PARTS for name in part.names if not name.startswith((LORA, hub))]
    return [*names, LORA, f"{hub}/hubconf.py", f"{hub}/vision_transformer.py"]


def _lacks(folder: Path, names: list[str], how: str) -> str:
    return f"encoders: DreamSim's folder {folder} lacks {', '.join(names)}; {how}"
