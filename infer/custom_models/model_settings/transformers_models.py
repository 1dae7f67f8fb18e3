"""Image generators that transformers has a class for; they draw token by token."""

from __future__ import annotations

from typing import Any

from custom_models.model_settings.native import ALL, native

# Authors' README: 384×384, cfg 5, temperature 1, no other limit on the sampling.
_JANUS: dict[str, Any] = {"guidance_scale": 5.0, "temperature": 1.0}

SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "t2i": {
        # The authors' weights in the layout of transformers.
        "janus-pro-1b": native(
            "JanusT2I",
            ("deepseek-community/Janus-Pro-1B", "1655280bb75959cc1cb85529a2a8b26e7016072e", ALL),
            **_JANUS,
        ),
        "janus-pro-7b": native(
            "JanusT2I", ("deepseek-community/Janus-Pro-7B", None, ALL), **_JANUS
        ),  # no commit known
        # Authors' README: 720×720, cfg 3, top_k 2048, words on quality after each prompt, and a negative prompt: both
        # are read from their program; prompt_suffix and negative_prompt replace them.
        "emu3": native(
            "Emu3T2I",
            ("BAAI/Emu3-Gen-hf", None, ALL),  # no commit of its main branch is known
            ratio="1:1",
            image_area=518400,
            guidance_scale=3.0,
            top_k=2048,
            entry={
                "assets": [
                    {
                        "code": "baaivision/Emu3",
                        "commit": "f6ea9aaa44bd4ae5d7a048300cf0a16a863b0cae",
                        "tree": "3e01b16c7b2441c8ae9cee8aec2c67e71af517e5",
                        "to": "emu3",
                        "licence": "Apache-2.0",
                    }
                ]
            },
        ),
    },
}
