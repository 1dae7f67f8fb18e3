"""Qwen-Image and its editing models."""

from __future__ import annotations

from typing import Any

from custom_models.model_settings.native import PIPELINE_FILES, native

# Card and pipeline; true classifier-free guidance is on only with a negative prompt, and a blank counts as one.
_SETTINGS: dict[str, Any] = {"num_inference_steps": 50, "true_cfg_scale": 4.0, "negative_prompt": " "}
# 16:9 is the card's example and ImageEvalKit's default of 2025. The card's other sizes: 1:1 1328×1328, 9:16 928×1664,
# 4:3 1472×1104, 3:4 1104×1472, 3:2 1584×1056, 2:3 1056×1584.
_WIDE: dict[str, Any] = {"width": 1664, "height": 928}
# Card; the guidance_scale=1.0 that it also passes has no effect on these weights.
_PLUS: dict[str, Any] = {**_SETTINGS, "num_inference_steps": 40, "multi_image": True}

_EDIT = native(
    # The output has about 1024² pixels in the shape of the input; exactly one image.
    "DiffusersEdit",
    ("Qwen/Qwen-Image-Edit", "ac7f9318f633fc4b5778c59367c8128225f1e3de", PIPELINE_FILES),
    **_SETTINGS,
)


def _plus(class_name: str, version: str, revision: str, **settings: Any) -> dict[str, Any]:
    """An editing model for several images: the last one decides the shape of about 1024² pixels."""
    weights = (f"Qwen/Qwen-Image-Edit-{version}", revision, PIPELINE_FILES)
    return native(class_name, weights, **_PLUS, **settings)


_2509 = ("2509", "d3968ef930e841f4c73640fb8afa3b306a78167e")
_2511 = ("2511", "6f3ccc0b56e431dc6a0c2b2039706d7d26f22cb9")
# A subject's photo should not decide the shape of the new picture.
_SQUARE: dict[str, Any] = {"width": 1024, "height": 1024}
# Its README has the examples with the words that the classes of the text-to-image models read.
_CODE: dict[str, Any] = {
    "assets": [
        {
            "code": "QwenLM/Qwen-Image",
            "commit": "6b5e1f5cec987d404be5ac6657db3b9aacb56a89",
            "tree": "7e9ee3da2f4742988cd13cbf0d7c7b6b70cb21f3",
            "to": "qwen-image",
            "licence": "Apache-2.0",
        }
    ]
}

SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "t2i": {
        # Each prompt ends with the card's words on quality, which are read from the authors' README: Chinese ones where
        # the prompt has a Chinese character, as their programs decide. prompt_suffix replaces them; ImageEvalKit had
        # none (prompt_suffix="").
        "qwen-image": native(
            "QwenImage",
            ("Qwen/Qwen-Image", "75e0b4be04f60ec59a75f475837eced720f823b6", PIPELINE_FILES),
            **_SETTINGS,
            **_WIDE,
            entry=_CODE,
        ),
        # The negative prompt is the card's Chinese one, read from the authors' README; negative_prompt replaces it.
        # ImageEvalKit had the blank of the first version (negative_prompt=" ").
        "qwen-image-2512": native(
            "QwenImage2512",
            ("Qwen/Qwen-Image-2512", "25468b98e3276ca6700de15c6628e51b7de54a26", PIPELINE_FILES),
            **{**_SETTINGS, "negative_prompt": None},
            **_WIDE,
            entry=_CODE,
        ),
    },
    "edit": {
        "qwen-image": _EDIT,
        "qwen-image-edit": _EDIT,
        "qwen-image-edit-2509": _plus("DiffusersEdit", *_2509),
        "qwen-image-edit-2511": _plus("DiffusersEdit", *_2511),
    },
    "subject": {
        "qwen-image-edit-2509": _plus("DiffusersSubject", *_2509, **_SQUARE),
        "qwen-image-edit-2511": _plus("DiffusersSubject", *_2511, **_SQUARE),
    },
}
