"""Editing models built on InstructPix2Pix."""

from __future__ import annotations

from typing import Any

from custom_models.model_settings.native import PIPELINE_FOLDERS, native

# Both cards load without the safety checker and with this scheduler.
_COMMON: dict[str, Any] = {
    "dtype": "float16",
    "scheduler": "EulerAncestralDiscreteScheduler",
    "safety_checker": False,
}

SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "edit": {
        # Paper, pipeline and TRIG. The output has the input's size, floored to multiples of 8. The card's example:
        # 10 steps, image_guidance_scale 1.
        "instruct-pix2pix": native(
            "DiffusersEdit",
            ("timbrooks/instruct-pix2pix", "31519b5cb02a7fd89b906d88731cd4d6a7bbf88d", PIPELINE_FOLDERS),
            num_inference_steps=100,
            guidance_scale=7.5,
            image_guidance_scale=1.5,
            **_COMMON,
        ),
        # What the card's code passes, as TRIG; its text says guidance_scale 7.0. No commit of it is known.
        "hq-edit": native(
            "HQEdit",
            ("MudeHui/HQ-Edit", None, PIPELINE_FOLDERS),
            num_inference_steps=30,
            guidance_scale=1.5,
            image_guidance_scale=1.5,
            **_COMMON,
        ),
    },
}
