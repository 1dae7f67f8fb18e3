"""Weights of which an entry and its class, or several entries, speak: where, at which commit, which files."""

from __future__ import annotations

from typing import Any, NamedTuple

from custom_models.model_settings.native import PIPELINE_FILES


class HubWeights(NamedTuple):
    """``revision`` is a commit (None: the newest); ``patterns`` are the needed files, all when empty."""

    hub: str
    revision: str | None = None
    patterns: tuple[str, ...] = ()

    def asset(self) -> dict[str, Any]:
        """As a further need of an entry: see ``imageevalkit.assets``."""
        pin = {"revision": self.revision} if self.revision else {}
        return {"hub": self.hub, **pin, "type": "model", "patterns": list(self.patterns)}

    def entry(self) -> dict[str, Any]:
        """As the weights of an entry: its ``model_path`` and ``patterns``; the revision is one of its kwargs."""
        patterns = {"patterns": list(self.patterns)} if self.patterns else {}
        return {"model_path": self.hub, **patterns}

    def kwargs(self, part: str) -> dict[str, str | None]:
        """As a part of a model: its constructor's arguments ``<part>_path`` and ``<part>_revision``."""
        return {f"{part}_path": self.hub, f"{part}_revision": self.revision}


BAGEL = HubWeights(
    "ByteDance-Seed/BAGEL-7B-MoT",
    "5019f57d168e5816e8f3f701b17cc816bb7cf24b",
    ("*.json", "*.txt", "ae.safetensors", "ema.safetensors"),
)
FLUX_SCHNELL = HubWeights(
    "black-forest-labs/FLUX.1-schnell", "741f7c3ce8b383c54771c7003378a50191e9efe9", PIPELINE_FILES
)
OMINICONTROL = HubWeights(
    "Yuanshi/OminiControl",
    "8450dad3d77eb1e8bbe148b2f8b3b05ddcc5135c",
    ("omini/subject_512.safetensors",),
)
# each weight once, and not the safety checker
STABLE_DIFFUSION_1_5 = HubWeights(
    "stable-diffusion-v1-5/stable-diffusion-v1-5",
    "451f4fe16113bff5a5d2269ed5ad43b0592e9a14",
    (
        "model_index.json",
        "feature_extractor/*",
        "scheduler/*",
        "tokenizer/*",
        "*/config.json",
        "text_encoder/model.safetensors",
        "unet/diffusion_pytorch_model.safetensors",
        "vae/diffusion_pytorch_model.safetensors",
    ),
)
CLIP_VIT_L_14 = HubWeights(
    "openai/clip-vit-large-patch14",
    "32bd64288804d66eefd0ccbe215aa642df71cc41",
    ("config.json", "model.safetensors"),
)
# the repository has them thrice
SDXL_VAE = HubWeights(
    "stabilityai/sdxl-vae",
    "842b3456e87ab5eb43cd1e8f1a828a4151c4d24d",
    ("config.json", "diffusion_pytorch_model.safetensors"),
)
MAGVITV2 = HubWeights("showlab/magvitv2", "5c3fa78f8b3523347c5cd1a4c97f3c4e96f33d5d")
# no weights: tokenizer and shape
PHI_1_5 = HubWeights("microsoft/phi-1_5", "675aa382d814580b22651a30acb1a585d7c25963", ("*.json", "*.txt"))
# Only its shape: the authors of VILA-U look it up by this name, and at main, while they build the image tokenizer.
SIGLIP = HubWeights("google/siglip-large-patch16-256", patterns=("config.json",))

SSR_ENCODER_FILES = ("pytorch_model.bin", "pytorch_model_1.bin")
"""The aligner and the layers. They are on no hub."""
