"""Models for subject-driven generation alone; those that do more stand with their families."""

from __future__ import annotations

from typing import Any

from custom_models.model_settings.native import ALL, native

_BERT_COMMIT = "86b5e0934494bd15c9632b12f734a8a67f723594"

SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "subject": {
        # Card and TRIG, negative prompt included; that is read from the example of diffusers' pipeline, which has the
        # same one. neg_prompt replaces it; the pipeline's own default is empty.
        "blip-diffusion": native(
            "BlipDiffusion",
            ("Salesforce/blipdiffusion", None, ALL),  # no commit of its main branch is known
            dtype="float16",
            num_inference_steps=25,
            guidance_scale=7.5,
            width=512,
            height=512,
            bert="google-bert/bert-base-uncased",
            bert_revision=_BERT_COMMIT,
            entry={
                "assets": [
                    {
                        "hub": "google-bert/bert-base-uncased",
                        "revision": _BERT_COMMIT,
                        "type": "model",
                        "patterns": ["vocab.txt", "tokenizer*.json", "config.json"],
                    }
                ]
            },
        ),
    },
}
