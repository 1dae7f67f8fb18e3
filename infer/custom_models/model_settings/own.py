"""Entries of the project's own model, a small diffusion model that runs on any machine.

The two are checkpoints of one training (``infer/training/``), an early and the last one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from custom_models.model_settings import Settings

CHECKPOINTS = Path(__file__).resolve().parents[1] / "shapes_tiny"


def _entry(checkpoint: str) -> dict[str, Any]:
    return {
        "module": ".model_utils.shapes_tiny",
        "class": "ShapesTiny",
        "model_path": str(CHECKPOINTS / checkpoint),
        "model_kwargs": {"num_inference_steps": 12, "guidance_scale": 4.0},
        "gpus": 0,
        "api": False,
    }


SETTINGS: Settings = {"t2i": {"shapes-tiny": _entry("late"), "shapes-tiny-early": _entry("early")}}
