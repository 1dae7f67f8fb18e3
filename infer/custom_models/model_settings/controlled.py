"""Diffusion models that authors' code turns to a subject's image or to an edit; those of the TRIG paper (seed 003)."""

from __future__ import annotations

from typing import Any

from custom_models.model_settings.weights import (
    CLIP_VIT_L_14,
    FLUX_SCHNELL,
    OMINICONTROL,
    SSR_ENCODER_FILES,
    STABLE_DIFFUSION_1_5,
)
from imageevalkit.cell import REPO

_SSR_ENCODER = "infer/custom_models/checkpoints/ssr-encoder"
_SSR_ENCODER_WEIGHTS = [
    {
        "url": "https://drive.google.com/drive/folders/1pMwzGRA8QzHjEH5Hc4zDwdsSDwjwQKMW",
        "path": f"{_SSR_ENCODER}/{name}",
        "by_hand": True,
        "licence": "none stated",
    }
    for name in SSR_ENCODER_FILES
]

SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "subject": {
        # examples/subject.ipynb: 8 steps; schnell's own 4 are for plain text to image
        "ominicontrol": {
            **OMINICONTROL.entry(),
            "module": ".model_utils.ominicontrol",
            "class": "OminiControlSubject",
            "model_kwargs": {
                "revision": OMINICONTROL.revision,
                **FLUX_SCHNELL.kwargs("base"),
                "num_inference_steps": 8,
                "width": 512,
                "height": 512,
                "image_guidance_scale": 1.0,
            },
            "assets": [
                {
                    "code": "Yuanshi9815/OminiControl",
                    "commit": "331dd34e3b06c450e128d7c10a80f94310029716",
                    "tree": "76139e8b2b3bf1ac0a68cea2e74c0f24ec0dcec4",
                    "to": "ominicontrol",
                    "licence": "Apache-2.0",
                },
                FLUX_SCHNELL.asset(),
            ],
        },
        # infer_text.py; its weights are on the authors' Google Drive only. The authors recommend a scale of 0.5 to 0.8.
        "ssr-encoder": {
            "model_path": str(REPO / _SSR_ENCODER),
            "module": ".model_utils.ssr_encoder",
            "class": "SSREncoderSubject",
            "model_kwargs": {
                **STABLE_DIFFUSION_1_5.kwargs("base"),
                **CLIP_VIT_L_14.kwargs("encoder"),
                "num_inference_steps": 30,
                "guidance_scale": 5.0,
                "scale": 0.65,
                "negative_prompt": "bad quality",
                "width": 512,
                "height": 512,
            },
            "assets": [
                {
                    "code": "Xiaojiu-z/SSR_Encoder",
                    "commit": "7bb5f684536841d995ebef58b1946e39b82f9300",
                    "tree": "15e9b880555ee20edc1573e23844373508f8f568",
                    "to": "ssr-encoder",
                    "licence": "none stated; its diffusers/ Apache-2.0",
                },
                *_SSR_ENCODER_WEIGHTS,
                STABLE_DIFFUSION_1_5.asset(),
                CLIP_VIT_L_14.asset(),
            ],
        },
    },
    "edit": {
        # The authors tune the filter to each image. This one, twice in their examples.ipynb, is TRIG's for all.
        "freediff": {
            **STABLE_DIFFUSION_1_5.entry(),
            "module": ".model_utils.freediff",
            "class": "FreeDiffEdit",
            "model_kwargs": {
                "revision": STABLE_DIFFUSION_1_5.revision,
                "num_inference_steps": 50,
                "guidance_scale": 7.5,
                "fixed_point_steps": 5,
                "time_steps": [801, 781, 581],
                "filter_sizes": [32, 32, 10, 10],
            },
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
