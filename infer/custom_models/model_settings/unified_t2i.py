"""Unified models of the WISE and TRIG papers that need their authors' code. Settings are the authors' own."""

from __future__ import annotations

from typing import Any

from custom_models.model_settings.weights import MAGVITV2, PHI_1_5, SDXL_VAE, SIGLIP

_JANUS = {
    "code": "deepseek-ai/Janus",
    "commit": "1daa72fa409002d40931bd7b36a9280362469ead",
    "tree": "9c9dcee505ef6298860ea0f3bc0bf81cb602ad19",
    "to": "janus",
    "licence": "MIT (LICENSE-CODE); weights: DeepSeek Model License",
}
_SHOW_O = {
    "code": "showlab/Show-o",
    "commit": "45a5a2de01d1ebd10cd5864d29310a76476cdf23",
    "tree": "c72763c827f85feb4ebc9084afc649d08f183e14",
    "to": "show-o",
    "licence": "Apache-2.0",
}
_ORTHUS = {
    "code": "zhijie-group/Orthus",
    "commit": "609d968233304bb101a5930a888e9833a95952f4",
    "tree": "47f07a43243bffa59eb7816ebaa427f9137b07bb",
    "to": "orthus",
    "licence": "none given; its folder transformers/: Apache-2.0; weights: Chameleon Research License",
}
_VILA_U = {
    "code": "mit-han-lab/vila-u",
    "commit": "096623cef36a57c707d4bdc5cdfeec823b58d223",
    "tree": "7b0de772a3137f43d6f3e013411d928691dc0fd8",
    "to": "vila-u",
    "licence": "MIT",
}


def _show_o(model_path: str, config: str, revision: str | None = None) -> dict[str, Any]:
    """README.md of the commit has one command for text to image, for 512 x 512: guidance 5, 50 steps.

    Up to October 2024 it had one for 256 x 256, with guidance 1.75 and 18 steps; WISE is of 2025.
    """
    return {
        "model_path": model_path,
        "module": ".model_utils.show_o",
        "class": "ShowOT2I",
        "model_kwargs": {
            **({"revision": revision} if revision else {}),
            "config": config,
            "guidance_scale": 5.0,
            "generation_timesteps": 50,
            "temperature": 1.0,
            **MAGVITV2.kwargs("vq"),
            **PHI_1_5.kwargs("llm"),
        },
        "assets": [_SHOW_O, MAGVITV2.asset(), PHI_1_5.asset()],
    }


def _orthus(model_path: str) -> dict[str, Any]:
    """inference/t2i_generation.py, which loads the instruct model; nothing says that the base model differs.

    It runs on flash_attention_2, which computes the same as sdpa, with a package more.
    """
    return {
        "model_path": model_path,
        "module": ".model_utils.orthus",
        "class": "OrthusT2I",
        "model_kwargs": {"cfg_scale": 5.0, "attn_implementation": "sdpa"},
        "assets": [_ORTHUS],
    }


SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "t2i": {
        # generation_inference.py and README.md
        "janus-1.3b": {
            "model_path": "deepseek-ai/Janus-1.3B",
            "module": ".model_utils.janus_authors",
            "class": "JanusAuthorsT2I",
            "model_kwargs": {
                "revision": "08b9a5dafcb70d2acef7c0c4d6589efa1721dae4",
                "cfg_weight": 5.0,
                "temperature": 1.0,
            },
            "assets": [_JANUS],
        },
        # README.md calls its function with guidance 2, the demo's default too; TRIG keeps the function's default, 5
        "janusflow-1.3b": {
            "model_path": "deepseek-ai/JanusFlow-1.3B",
            "module": ".model_utils.janusflow",
            "class": "JanusFlowT2I",
            "model_kwargs": {
                "revision": "ca941de8401646b2b97dc7d1d4948f6c0e855d31",
                "cfg_weight": 2.0,
                "num_inference_steps": 30,
                **SDXL_VAE.kwargs("vae"),
            },
            "assets": [_JANUS, SDXL_VAE.asset()],
        },
        "show-o": _show_o("showlab/show-o", "showo_demo.yaml", "cdabfbde0b00f617a846ea970488f8b0c6e26df7"),
        "show-o-512": _show_o("showlab/show-o-512x512", "showo_demo_512x512.yaml"),
        "orthus-7b-base": _orthus("SJTU-Deng-Lab/Orthus-7B-base"),
        "orthus-7b-instruct": _orthus("SJTU-Deng-Lab/Orthus-7B-instruct"),
        # inference.py
        "vila-u-7b-256": {
            "model_path": "mit-han-lab/vila-u-7b-256",
            "module": ".model_utils.vila_u",
            "class": "VilaUT2I",
            "model_kwargs": {"revision": "89ee1eb34774f56b136197d6ae1a3b158e779fb2", "cfg": 3.0},
            "assets": [_VILA_U, SIGLIP.asset()],
        },
    }
}
