"""Models that run their authors' code: unified models of text and images, and diffusion models for subjects
or edits. The models of the TRIG paper are among them. The settings are the authors'.
"""

from __future__ import annotations

from typing import Any

from custom_models.model_settings import (
    BAGEL,
    CLIP_VIT_L_14,
    FLUX_SCHNELL,
    OMINICONTROL,
    PHI_1_5,
    SDXL_VAE,
    SSR_ENCODER_FILES,
    STABLE_DIFFUSION_1_5,
    HubWeights,
    Settings,
    authors_code,
    entry,
)
from imageevalkit.store.cell import REPO

# no commit of these weights is known, so the newest one is used
_OVIS_U1, _LUMINA_DIMOO = HubWeights("AIDC-AI/Ovis-U1-3B"), HubWeights("Alpha-VLLM/Lumina-DiMOO")
_JANUS, _VILA_U = HubWeights("deepseek-ai/Janus-1.3B"), HubWeights("mit-han-lab/vila-u-7b-256")
# Only the configuration: VILA-U's code looks it up by this name, at main, when it builds the image tokenizer.
_SIGLIP = HubWeights("google/siglip-large-patch16-256", ("config.json",))

_512: dict[str, Any] = {"width": 512, "height": 512}
_1024: dict[str, Any] = {"width": 1024, "height": 1024}
# README.md, "About Inference Hyperparameters", and inference.ipynb, which like the official kit differs for
# edits
_BAGEL: dict[str, Any] = {
    "max_think_tokens": 1000,
    "cfg_text_scale": 4.0,
    "cfg_interval_end": 1.0,
    "cfg_renorm_min": 0.0,
    "num_timesteps": 50,
    "timestep_shift": 3.0,
}
_BAGEL_T2I: dict[str, Any] = {
    **_BAGEL,
    **_1024,
    "cfg_img_scale": 1.0,
    "cfg_interval_start": 0.4,
    "cfg_renorm_type": "global",
}
_BAGEL_EDIT: dict[str, Any] = {
    **_BAGEL,
    "cfg_img_scale": 2.0,
    "cfg_interval_start": 0.0,
    "cfg_renorm_type": "text_channel",
}
# inference/inference_t2i.py and inference_i2i.py, which edits in bfloat16; the official evaluation kit uses
# float16
_LUMINA: dict[str, Any] = {"timesteps": 64, "temperature": 1.0, "dtype": "bfloat16"}

_SSR_ENCODER = "infer/custom_models/checkpoints/ssr-encoder"
_SSR_ENCODER_WEIGHTS: list[dict[str, Any]] = [
    {
        "url": "https://drive.google.com/drive/folders/1pMwzGRA8QzHjEH5Hc4zDwdsSDwjwQKMW",
        "path": f"{_SSR_ENCODER}/{name}",
        "by_hand": True,
        "licence": "none stated",
    }
    for name in SSR_ENCODER_FILES
]


def _model(code: str, of_class: str, weights: HubWeights, *needs: Any, **model_kwargs: Any) -> dict[str, Any]:
    """Returns the entry of a model whose class runs the authors' repository ``code``."""
    return entry(of_class, weights, authors_code(code), *needs, **model_kwargs)


def _show_o(hub: str, config: str) -> dict[str, Any]:
    """Returns an entry of Show-o with the settings of README.md at the commit (512 x 512): guidance 5, 50
    steps.

    Until October 2024 README.md had a command for 256 x 256 with guidance 1.75 and 18 steps. WISE is from
    2025.
    """
    tokenizer = HubWeights("showlab/magvitv2")
    return _model(
        "show-o",
        "show_o.ShowOT2I",
        HubWeights(hub),
        tokenizer,
        PHI_1_5,
        config=config,
        guidance_scale=5.0,
        generation_timesteps=50,
        temperature=1.0,
        **tokenizer.kwargs("vq"),
        **PHI_1_5.kwargs("llm"),
    )


def _orthus(hub: str) -> dict[str, Any]:
    """Returns an entry of Orthus with the settings of inference/t2i_generation.py.

    That script loads the instruct model; no source names other settings for the base model. The script uses
    flash_attention_2, which computes the same as sdpa but needs another package.
    """
    weights = HubWeights(hub)
    return _model("orthus", "orthus.OrthusT2I", weights, cfg_scale=5.0, attn_implementation="sdpa")


SETTINGS: Settings = {
    "t2i": {
        "bagel": _model("bagel", "bagel.BagelT2I", BAGEL, think=False, **_BAGEL_T2I),
        "bagel-think": _model("bagel", "bagel.BagelT2I", BAGEL, think=True, **_BAGEL_T2I),
        # test_txt_to_img.py
        "ovis-u1": _model(
            "ovis-u1", "ovis_u1.OvisU1T2I", _OVIS_U1, num_inference_steps=50, txt_cfg=5.0, **_1024
        ),
        "lumina-dimoo": _model(
            "lumina-dimoo", "lumina_dimoo.LuminaDimooT2I", _LUMINA_DIMOO, cfg_scale=4.0, **_LUMINA, **_1024
        ),
        # generation_inference.py and README.md
        "janus-1.3b": _model(
            "janus", "janus_authors.JanusAuthorsT2I", _JANUS, cfg_weight=5.0, temperature=1.0
        ),
        # README.md and the demo use guidance 2; TRIG keeps the function's default, 5
        "janusflow-1.3b": _model(
            "janus",
            "janus_authors.JanusFlowT2I",
            HubWeights("deepseek-ai/JanusFlow-1.3B"),
            SDXL_VAE,
            cfg_weight=2.0,
            num_inference_steps=30,
            **SDXL_VAE.kwargs("vae"),
        ),
        "show-o": _show_o("showlab/show-o", "showo_demo.yaml"),
        "show-o-512": _show_o("showlab/show-o-512x512", "showo_demo_512x512.yaml"),
        "orthus-7b-base": _orthus("SJTU-Deng-Lab/Orthus-7B-base"),
        "orthus-7b-instruct": _orthus("SJTU-Deng-Lab/Orthus-7B-instruct"),
        # inference.py
        "vila-u-7b-256": _model("vila-u", "vila_u.VilaUT2I", _VILA_U, _SIGLIP, cfg=3.0),
    },
    "edit": {
        "bagel": _model("bagel", "bagel.BagelEdit", BAGEL, think=False, **_BAGEL_EDIT),
        "bagel-think": _model("bagel", "bagel.BagelEdit", BAGEL, think=True, **_BAGEL_EDIT),
        # test_img_edit.py
        "ovis-u1": _model(
            "ovis-u1", "ovis_u1.OvisU1Edit", _OVIS_U1, num_inference_steps=50, txt_cfg=6.0, img_cfg=1.5
        ),
        "lumina-dimoo": _model(
            "lumina-dimoo",
            "lumina_dimoo.LuminaDimooEdit",
            _LUMINA_DIMOO,
            cfg_scale=2.5,
            cfg_img=4.0,
            **_LUMINA,
        ),
        # The authors tune the filter for each image. This filter occurs twice in their examples.ipynb, and
        # TRIG uses it for all images.
        "freediff": _model(
            "freediff",
            "controlled.FreeDiffEdit",
            STABLE_DIFFUSION_1_5,
            num_inference_steps=50,
            guidance_scale=7.5,
            fixed_point_steps=5,
            time_steps=[801, 781, 581],
            filter_sizes=[32, 32, 10, 10],
        ),
    },
    "subject": {
        # examples/subject.ipynb: 8 steps; FLUX.1-schnell's default of 4 is for plain text to image
        "ominicontrol": _model(
            "ominicontrol",
            "controlled.OminiControlSubject",
            OMINICONTROL,
            FLUX_SCHNELL,
            **FLUX_SCHNELL.kwargs("base"),
            num_inference_steps=8,
            **_512,
            image_guidance_scale=1.0,
        ),
        # infer_text.py; only the authors' Google Drive has its weights. The authors recommend a scale of 0.5
        # to 0.8.
        "ssr-encoder": _model(
            "ssr-encoder",
            "controlled.SSREncoderSubject",
            HubWeights(str(REPO / _SSR_ENCODER)),
            *_SSR_ENCODER_WEIGHTS,
            STABLE_DIFFUSION_1_5,
            CLIP_VIT_L_14,
            **STABLE_DIFFUSION_1_5.kwargs("base"),
            **CLIP_VIT_L_14.kwargs("encoder"),
            num_inference_steps=30,
            guidance_scale=5.0,
            scale=0.65,
            negative_prompt="bad quality",
            **_512,
        ),
    },
}
