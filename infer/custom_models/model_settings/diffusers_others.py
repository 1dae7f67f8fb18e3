"""Text-to-image models of other makers that diffusers has a pipeline for; OmniGen also edits and draws subjects."""

from __future__ import annotations

from typing import Any

from custom_models.model_settings.native import FP16_FILES, PIPELINE_FILES, PIPELINE_FOLDERS, native

_SQUARE: dict[str, Any] = {"width": 1024, "height": 1024}
# Authors' README and pipeline (README: guidance 2 to 3 all do). TRIG: the same for text to image.
_OMNIGEN: dict[str, Any] = {"num_inference_steps": 50, "guidance_scale": 2.5}
_OMNIGEN_WEIGHTS = ("Shitao/OmniGen-v1-diffusers", "016e2f61d12a98303f6bbdf122687694d7984268", PIPELINE_FILES)

SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "t2i": {
        # Pipeline, as in WISE; it cleans captions and takes 120 tokens of them.
        "pixart-alpha": native(
            "DiffusersT2I",
            (
                "PixArt-alpha/PixArt-XL-2-1024-MS",
                "b89adadeccd9ead2adcb9fa2825d3fabec48d404",
                PIPELINE_FOLDERS,
            ),
            dtype="float16",
            num_inference_steps=20,
            guidance_scale=4.5,
            **_SQUARE,
        ),
        # Pipeline, as in TRIG, with 300 tokens. This repository is whole: TRIG took only its transformer and the rest
        # from PixArt-alpha/pixart_sigma_sdxlvae_T5_diffusers.
        "pixart-sigma": native(
            "DiffusersT2I",
            (
                "PixArt-alpha/PixArt-Sigma-XL-2-1024-MS",
                "e102b3591cc82e97071b8b4cb90d834d0c487207",
                PIPELINE_FOLDERS,
            ),
            dtype="float16",
            num_inference_steps=20,
            guidance_scale=4.5,
            **_SQUARE,
        ),
        # Card.
        "playground-v2.5": native(
            "DiffusersT2I",
            (
                "playgroundai/playground-v2.5-1024px-aesthetic",
                "1e032f13f2fe6db2dc49947dbdbd196e753de573",
                FP16_FILES,
            ),
            dtype="float16",
            variant="fp16",
            num_inference_steps=50,
            guidance_scale=3.0,
            **_SQUARE,
        ),
        # No commit of it is known that surely holds these files. Authors' documentation, types included; TRIG: bfloat16
        # for all parts. The pipeline puts its instruction for rewriting before each prompt
        # (complex_human_instruction).
        "sana": native(
            "DiffusersT2I",
            ("Efficient-Large-Model/Sana_1600M_1024px_MultiLing_diffusers", None, PIPELINE_FOLDERS),
            dtype={"default": "bfloat16", "transformer": "float16"},
            variant="fp16",
            num_inference_steps=20,
            guidance_scale=4.5,
            **_SQUARE,
        ),
        "omnigen": native("DiffusersT2I", _OMNIGEN_WEIGHTS, **_OMNIGEN, **_SQUARE),
        # Card: distilled, without guidance. It says 9 steps where diffusers still ran one less than asked.
        "z-image-turbo": native(
            "DiffusersT2I",
            ("Tongyi-MAI/Z-Image-Turbo", "f332072aa78be7aecdf3ee76d5c247082da564a6", PIPELINE_FILES),
            num_inference_steps=8,
            guidance_scale=0.0,
            **_SQUARE,
        ),
        # Card's example (ranges: 28 to 50 steps, guidance 3 to 5); it advises a negative prompt but names none.
        "z-image": native(
            "DiffusersT2I",
            ("Tongyi-MAI/Z-Image", "04cc4abb7c5069926f75c9bfde9ef43d49423021", PIPELINE_FILES),
            num_inference_steps=50,
            guidance_scale=4.0,
            **_SQUARE,
        ),
        # Card; the pipeline's defaults: 30 steps, cfg_trunc_ratio 1.0.
        "lumina-image-2.0": native(
            "DiffusersT2I",
            ("Alpha-VLLM/Lumina-Image-2.0", "53504abd8178b30685b6c4c7a4cd181ff78b73e9", PIPELINE_FOLDERS),
            num_inference_steps=50,
            guidance_scale=4.0,
            cfg_trunc_ratio=0.25,
            cfg_normalization=True,
            **_SQUARE,
        ),
        # Card, which rules float16 out; the pipeline's default guidance is 5.0.
        "cogview4-6b": native(
            "DiffusersT2I",
            ("zai-org/CogView4-6B", "63a52b7f6dace7033380cd6da14d0915eab3e6b5", PIPELINE_FOLDERS),
            num_inference_steps=50,
            guidance_scale=3.5,
            **_SQUARE,
        ),
    },
    "edit": {
        # Authors' README: the output has the input's size (at most 1024 on a side). TRIG: half the input's sides.
        "omnigen": native(
            "OmniGenEdit",
            _OMNIGEN_WEIGHTS,
            **_OMNIGEN,
            img_guidance_scale=1.6,
            use_input_image_size_as_output=True,
        ),
    },
    "subject": {
        # TRIG: 512×512.
        "omnigen": native("OmniGenSubject", _OMNIGEN_WEIGHTS, **_OMNIGEN, img_guidance_scale=1.6, **_SQUARE),
    },
}
