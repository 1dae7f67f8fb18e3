"""Diffusion models that authors' code turns to a subject's image or to an edit; those of the TRIG paper (seed 003)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

_CHECKPOINTS = Path(__file__).resolve().parents[1] / "checkpoints"

_SD15 = "stable-diffusion-v1-5/stable-diffusion-v1-5"
_SD15_REVISION = "451f4fe16113bff5a5d2269ed5ad43b0592e9a14"
# each weight once, and not the safety checker
_SD15_FILES = [
    "model_index.json",
    "feature_extractor/*",
    "scheduler/*",
    "tokenizer/*",
    "*/config.json",
    "text_encoder/model.safetensors",
    "unet/diffusion_pytorch_model.safetensors",
    "vae/diffusion_pytorch_model.safetensors",
]
_FLUX_SCHNELL = "741f7c3ce8b383c54771c7003378a50191e9efe9"
_FLUX_FILES = [
    "model_index.json",
    "scheduler/*",
    "text_encoder/*",
    "text_encoder_2/*",
    "tokenizer/*",
    "tokenizer_2/*",
    "transformer/*",
    "vae/*",
]
_CLIP = "32bd64288804d66eefd0ccbe215aa642df71cc41"

SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "subject": {
        # examples/subject.ipynb: 8 steps; schnell's own 4 are for plain text to image
        "ominicontrol": {
            "model_path": "Yuanshi/OminiControl",
            "module": ".model_utils.ominicontrol",
            "class": "OminiControlSubject",
            "model_kwargs": {
                "revision": "8450dad3d77eb1e8bbe148b2f8b3b05ddcc5135c",
                "base_revision": _FLUX_SCHNELL,
            },
            "patterns": ["omini/subject_512.safetensors"],
            "assets": [
                {
                    "code": "Yuanshi9815/OminiControl",
                    "commit": "331dd34e3b06c450e128d7c10a80f94310029716",
                    "tree": "76139e8b2b3bf1ac0a68cea2e74c0f24ec0dcec4",
                    "to": "ominicontrol",
                    "licence": "Apache-2.0",
                },
                {
                    "hub": "black-forest-labs/FLUX.1-schnell",
                    "revision": _FLUX_SCHNELL,
                    "type": "model",
                    "patterns": _FLUX_FILES,
                },
            ],
        },
        # its weights are on the authors' Google Drive only
        "ssr-encoder": {
            "model_path": str(_CHECKPOINTS / "ssr-encoder"),
            "module": ".model_utils.ssr_encoder",
            "class": "SSREncoderSubject",
            "model_kwargs": {"base_revision": _SD15_REVISION, "encoder_revision": _CLIP},
            "assets": [
                {
                    "code": "Xiaojiu-z/SSR_Encoder",
                    "commit": "7bb5f684536841d995ebef58b1946e39b82f9300",
                    "tree": "15e9b880555ee20edc1573e23844373508f8f568",
                    "to": "ssr-encoder",
                    "licence": "none stated; its diffusers/ Apache-2.0",
                },
                {"hub": _SD15, "revision": _SD15_REVISION, "type": "model", "patterns": _SD15_FILES},
                {
                    "hub": "openai/clip-vit-large-patch14",
                    "revision": _CLIP,
                    "type": "model",
                    "patterns": ["config.json", "model.safetensors"],
                },
            ],
        },
    },
    "edit": {
        # The authors tune the filter to each image. This one, twice in their examples.ipynb, is TRIG's for all.
        "freediff": {
            "model_path": _SD15,
            "module": ".model_utils.freediff",
            "class": "FreeDiffEdit",
            "model_kwargs": {"revision": _SD15_REVISION},
            "patterns": _SD15_FILES,
            "assets": [
                {
                    "code": "Thermal-Dynamics/FreeDiff",
                    "commit": "4b4af6cb6db1f353ce2e71bd0a33551eeccd1e8b",
                    "tree": "ac3a5c61832aa3689b0364f1fe4531a6f031917c",
                    "to": "freediff",
                    "licence": "none stated",
                }
            ],
        },
    },
}
