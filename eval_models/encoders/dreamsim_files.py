"""What DreamSim's folder holds: the package reads these files, or downloads them. Needs no package."""

from __future__ import annotations

from pathlib import Path

from imageevalkit.asset_manifest import CodeAsset, PlacedAsset, UrlAsset

LORA = "ensemble_lora"
_LORA_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
_BACKBONES = ("dino_vitb16_pretrain.pth", "clip_vitb16_pretrain.pth.tar", "open_clip_vitb16_pretrain.pth.tar")
# torch.hub's names for the repository, and for what its hubconf.py downloads
_DINO = "facebookresearch_dino_main"
_DINO_WEIGHTS = "checkpoints/dino_vitbase16_pretrain.pth"
_FILES = (*_BACKBONES, f"{LORA}/adapter_config.json", f"{_DINO}/hubconf.py", _DINO_WEIGHTS)


def assets_in(folder: str) -> tuple[PlacedAsset, ...]:
    """What makes up ``folder`` (relative to the tree's root), and where it comes from.

    Nobody has published hashes of the two files. The commit of DINO's repository is the newest of its branch main,
    which the package reads; the repository is archived.
    """
    return (
        UrlAsset(
            "https://github.com/ssundaram21/dreamsim/releases/download/v0.2.0-checkpoints/"
            "dreamsim_ensemble_checkpoint.zip",
            folder,
            "MIT",
            unpack=(*_BACKBONES, f"{LORA}/adapter_config.json"),
        ),
        CodeAsset(
            "facebookresearch/dino",
            "7c446df5b9f45747937fb0d72314eb9f7b66930a",
            "b0273e7ed12b0e4d4f7a37a215004038cbe7222b",
            f"{folder}/{_DINO}",
            "Apache-2.0",
        ),
        UrlAsset(
            "https://dl.fbaipublicfiles.com/dino/dino_vitbase16_pretrain/dino_vitbase16_pretrain.pth",
            f"{folder}/{_DINO_WEIGHTS}",
            "Apache-2.0",
        ),
    )


def problem(folder: Path) -> str:
    """The one line on what ``folder`` lacks and how to get it; empty when it is whole."""
    absent = [name for name in _FILES if not (folder / name).exists()]
    if not any((folder / LORA / name).exists() for name in _LORA_WEIGHTS):
        absent.append(f"{LORA}/{_LORA_WEIGHTS[0]}")
    if not absent:
        return ""
    return (
        f"encoders: DreamSim's folder {folder} lacks {', '.join(absent)}; bash utils/prefetch.sh --ds_names oneig "
        "fetches a whole one"
    )


def entries() -> list[str]:
    """What the package reads in the folder; of the DINO code, the files that make the model."""
    return [*_BACKBONES, _DINO_WEIGHTS, LORA, f"{_DINO}/hubconf.py", f"{_DINO}/vision_transformer.py"]
