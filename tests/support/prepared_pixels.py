"""Prints what a Qwen checkpoint's processor makes of three images: ``python -m tests.support.prepared_pixels FOLDER``.

A process of its own, because transformers looks for torchvision when it is imported.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import random
import sys
from typing import Any

from PIL import Image

from eval_models.vlm.judge import load_processor
from imageevalkit.judges.choice import TransformersSettings


def prepared(folder: str) -> dict[str, Any]:
    """A hash of all numbers, and whether they are torchvision's own (None where it is not there)."""
    import torch
    from transformers import AutoConfig
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING
    from transformers.utils import is_torchvision_available

    processor_class = PROCESSOR_MAPPING[type(AutoConfig.from_pretrained(folder))]
    ours = load_processor(processor_class, folder, None, TransformersSettings()).image_processor
    sizes = [(100, 70), (320, 256), (37, 1100)]
    images = [
        Image.frombytes("RGB", size, random.Random(0).randbytes(3 * size[0] * size[1])) for size in sizes
    ]
    pixels = ours(images, return_tensors="pt")["pixel_values"]
    official = None
    if is_torchvision_available():
        module: Any = importlib.import_module("transformers.models.qwen2_vl.image_processing_qwen2_vl")
        theirs = module.Qwen2VLImageProcessor.from_pretrained(folder)(images, return_tensors="pt")[
            "pixel_values"
        ]
        official = bool(torch.equal(pixels.bfloat16(), theirs.bfloat16()))
    return {"pixels": hashlib.sha256(pixels.numpy().tobytes()).hexdigest(), "torchvisions": official}


if __name__ == "__main__":
    print(json.dumps(prepared(sys.argv[1])))
