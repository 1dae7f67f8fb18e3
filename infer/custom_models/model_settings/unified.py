"""Unified models (they read and write text and images) that run with their authors' code."""

from __future__ import annotations

from typing import Any

from custom_models.model_settings.weights import BAGEL

_BAGEL: dict[str, Any] = {
    **BAGEL.entry(),
    "module": ".model_utils.bagel",
    "assets": [
        {
            "code": "ByteDance-Seed/Bagel",
            "commit": "056b5fd51a88c1eb4547318609e25d40080fcf87",
            "tree": "f5576d23d08fd907cdfcb194e7228e5ab3caa30c",
            "to": "bagel",
            "licence": "Apache-2.0; modeling/bagel/modeling_utils.py CC-BY-NC-4.0",
        }
    ],
}
# README.md, "About Inference Hyperparameters", and inference.ipynb, which has others for edits; the official kit too
_BAGEL_COMMON: dict[str, Any] = {
    "revision": BAGEL.revision,
    "think": False,
    "max_think_tokens": 1000,
    "cfg_text_scale": 4.0,
    "cfg_interval_end": 1.0,
    "cfg_renorm_min": 0.0,
    "num_timesteps": 50,
    "timestep_shift": 3.0,
}
_BAGEL_T2I = {
    **_BAGEL_COMMON,
    "width": 1024,
    "height": 1024,
    "cfg_img_scale": 1.0,
    "cfg_interval_start": 0.4,
    "cfg_renorm_type": "global",
}
_BAGEL_EDIT = {
    **_BAGEL_COMMON,
    "cfg_img_scale": 2.0,
    "cfg_interval_start": 0.0,
    "cfg_renorm_type": "text_channel",
}

# no commit of these weights and of the next ones is known here: the newest
_OVIS_U1: dict[str, Any] = {
    "model_path": "AIDC-AI/Ovis-U1-3B",
    "module": ".model_utils.ovis_u1",
    "assets": [
        {
            "code": "AIDC-AI/Ovis-U1",
            "commit": "dccf5eb36a725dba482ea506b586362ee2b0a01e",
            "tree": "873b8d7e5d1eef2b9be890323c28ef6fcd23c4c2",
            "to": "ovis-u1",
            "licence": "Apache-2.0",
        }
    ],
}

# test_txt_to_img.py
_OVIS_U1_T2I = {"width": 1024, "height": 1024, "num_inference_steps": 50, "txt_cfg": 5.0}
# test_img_edit.py
_OVIS_U1_EDIT = {"num_inference_steps": 50, "txt_cfg": 6.0, "img_cfg": 1.5}

_LUMINA_DIMOO: dict[str, Any] = {
    "model_path": "Alpha-VLLM/Lumina-DiMOO",
    "module": ".model_utils.lumina_dimoo",
    "assets": [
        {
            "code": "Alpha-VLLM/Lumina-DiMOO",
            "commit": "81344e60545ae8d70f11039d3450717d974f831b",
            "tree": "e1352c8583485e15f5be206b1e813d0035fad0d7",
            "to": "lumina-dimoo",
            "licence": "Apache-2.0",
        }
    ],
}

# inference/inference_t2i.py
_LUMINA_DIMOO_T2I = {
    "timesteps": 64,
    "temperature": 1.0,
    "dtype": "bfloat16",
    "width": 1024,
    "height": 1024,
    "cfg_scale": 4.0,
}
# inference/inference_i2i.py; the official evaluation kit edits in float16, this script in bfloat16; so do we
_LUMINA_DIMOO_EDIT = {
    "timesteps": 64,
    "temperature": 1.0,
    "dtype": "bfloat16",
    "cfg_scale": 2.5,
    "cfg_img": 4.0,
}

SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "t2i": {
        "bagel": {**_BAGEL, "class": "BagelT2I", "model_kwargs": _BAGEL_T2I},
        "bagel-think": {**_BAGEL, "class": "BagelT2I", "model_kwargs": {**_BAGEL_T2I, "think": True}},
        "ovis-u1": {**_OVIS_U1, "class": "OvisU1T2I", "model_kwargs": _OVIS_U1_T2I},
        "lumina-dimoo": {**_LUMINA_DIMOO, "class": "LuminaDimooT2I", "model_kwargs": _LUMINA_DIMOO_T2I},
    },
    "edit": {
        "bagel": {**_BAGEL, "class": "BagelEdit", "model_kwargs": _BAGEL_EDIT},
        "bagel-think": {**_BAGEL, "class": "BagelEdit", "model_kwargs": {**_BAGEL_EDIT, "think": True}},
        "ovis-u1": {**_OVIS_U1, "class": "OvisU1Edit", "model_kwargs": _OVIS_U1_EDIT},
        "lumina-dimoo": {**_LUMINA_DIMOO, "class": "LuminaDimooEdit", "model_kwargs": _LUMINA_DIMOO_EDIT},
    },
}
