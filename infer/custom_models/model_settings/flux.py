"""FLUX.1 and FLUX.2 of Black Forest Labs. All but schnell and klein-4b are gated: accept the licence, set HF_TOKEN."""

from __future__ import annotations

from typing import Any

from custom_models.model_settings.native import PIPELINE_FILES, native
from imageevalkit.cell import REPO

_SQUARE: dict[str, Any] = {"width": 1024, "height": 1024}
_FLUX1_DEV = ("black-forest-labs/FLUX.1-dev", "3de623fc3c33e44ffbe2bad470d0f45bccf2eb21", PIPELINE_FILES)
_KONTEXT = (
    "black-forest-labs/FLUX.1-Kontext-dev",
    "24e9dedc4ef646698dc8eb4e18ae2cec3c9fea0d",
    PIPELINE_FILES,
)
_FLUX2_DEV = ("black-forest-labs/FLUX.2-dev", "26afe3a78bb242c0a8bb181dcc8937bb16e5c66c", PIPELINE_FILES)
_KLEIN_4B = ("black-forest-labs/FLUX.2-klein-4B", "e7b7dc27f91deacad38e78976d1f2b499d76a294", PIPELINE_FILES)
_KLEIN_9B = ("black-forest-labs/FLUX.2-klein-9B", "92196c8e11f7b6cf2b7493e037d8c5345c559216", PIPELINE_FILES)

# Card; 28 steps are the pipeline's default.
_KONTEXT_SETTINGS: dict[str, Any] = {"num_inference_steps": 28, "guidance_scale": 2.5}
# Card, which calls 28 steps a good trade-off. 64 GB of transformer and 48 GB of text encoder: one 80 GB GPU holds
# only one of them; there it takes offload=model together with INFER_GPU_MAP['flux.2-dev']=1.
_FLUX2_DEV_SETTINGS: dict[str, Any] = {
    "num_inference_steps": 50,
    "guidance_scale": 4.0,
    "device_map": "balanced",
    "entry": {"gpus": 2},
}
# Card: distilled to four steps without guidance; the pipeline's defaults (50, 4.0) are those of the base variants.
_KLEIN: dict[str, Any] = {"num_inference_steps": 4, "guidance_scale": 1.0}

# A file by its hash: no commit of XLabs-AI/flux-ip-adapter is known that surely holds it.
_IP_ADAPTER = {
    "url": "https://huggingface.co/XLabs-AI/flux-ip-adapter/resolve/main/ip_adapter.safetensors",
    "path": "infer/custom_models/checkpoints/flux-ip-adapter/ip_adapter.safetensors",
    "sha256": "750f912149b84bbb0c2a6ce90ffa7e78afd1795821407718724ebcd36372dc2d",
    "size": 981760648,
    "licence": "FLUX.1 [dev] Non-Commercial License",
}
_CLIP_COMMIT = "32bd64288804d66eefd0ccbe215aa642df71cc41"

SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "t2i": {
        # Card; the pipeline's default is 28 steps. TRIG: the same, 1024×1024.
        "flux.1-dev": native(
            "DiffusersT2I",
            _FLUX1_DEV,
            num_inference_steps=50,
            guidance_scale=3.5,
            max_sequence_length=512,
            **_SQUARE,
        ),
        # Card.
        "flux.1-schnell": native(
            "DiffusersT2I",
            ("black-forest-labs/FLUX.1-schnell", "741f7c3ce8b383c54771c7003378a50191e9efe9", PIPELINE_FILES),
            num_inference_steps=4,
            guidance_scale=0.0,
            max_sequence_length=256,
            **_SQUARE,
        ),
        "flux.2-dev": native("DiffusersT2I", _FLUX2_DEV, **_FLUX2_DEV_SETTINGS, **_SQUARE),
        "flux.2-klein-4b": native("DiffusersT2I", _KLEIN_4B, **_KLEIN, **_SQUARE),
        "flux.2-klein-9b": native("DiffusersT2I", _KLEIN_9B, **_KLEIN, **_SQUARE),
    },
    "edit": {
        # About 1024² pixels; without follow_input the pipeline's output is square whatever the image's shape.
        "flux.1-kontext-dev": native("DiffusersEdit", _KONTEXT, follow_input=True, **_KONTEXT_SETTINGS),
        # The first image decides the output's size, scaled down to 1024² pixels when it is larger.
        "flux.2-dev": native("DiffusersEdit", _FLUX2_DEV, multi_image=True, **_FLUX2_DEV_SETTINGS),
        "flux.2-klein-4b": native("DiffusersEdit", _KLEIN_4B, multi_image=True, **_KLEIN),
        "flux.2-klein-9b": native("DiffusersEdit", _KLEIN_9B, multi_image=True, **_KLEIN),
    },
    "subject": {
        "flux.1-kontext-dev": native("DiffusersSubject", _KONTEXT, **_KONTEXT_SETTINGS, **_SQUARE),
        "flux.2-dev": native(
            "DiffusersSubject", _FLUX2_DEV, multi_image=True, **_FLUX2_DEV_SETTINGS, **_SQUARE
        ),
        "flux.2-klein-4b": native("DiffusersSubject", _KLEIN_4B, multi_image=True, **_KLEIN, **_SQUARE),
        "flux.2-klein-9b": native("DiffusersSubject", _KLEIN_9B, multi_image=True, **_KLEIN, **_SQUARE),
        # The adapter authors' README (x-flux): 25 steps, guidance 4.0, adapter scale 1.0, 1024×1024, and a true
        # guidance of 3.5, which there starts one step late. TRIG: the same at 512×512.
        "flux-ip-adapter": native(
            "FluxIPAdapter",
            _FLUX1_DEV,
            num_inference_steps=25,
            guidance_scale=4.0,
            true_cfg_scale=3.5,
            negative_prompt="",
            **_SQUARE,
            ip_adapter=str((REPO / str(_IP_ADAPTER["path"])).parent),
            ip_adapter_scale=1.0,
            image_encoder="openai/clip-vit-large-patch14",
            image_encoder_revision=_CLIP_COMMIT,
            entry={
                "assets": [
                    _IP_ADAPTER,
                    {
                        "hub": "openai/clip-vit-large-patch14",
                        "revision": _CLIP_COMMIT,
                        "type": "model",
                        "patterns": ["config.json", "model.safetensors"],
                    },
                ]
            },
        ),
    },
}
