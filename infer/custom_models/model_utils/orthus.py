"""Orthus-7B with the authors' code: continuous image features one after another, each from a diffusion head."""

from __future__ import annotations

import ast
import io
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from PIL import Image

from custom_models import authors_code
from custom_models.model_utils.adapters import (
    best_device,
    levels_to_image,
    loading,
    set_seeds,
    weights_folder,
)
from imageevalkit.generation.model import ModelUnusable

_SCRIPT = "inference/t2i_generation.py"


class OrthusT2I:
    """Orthus-7B, 512 x 512 pixels from 1024 features.

    Args:
        model_path: weights as SJTU-Deng-Lab published them.
        revision: commit of a hub repository.
        cfg_scale: guidance w in ``unconditional + w * (conditional - unconditional)``, of the diffusion head.
        attn_implementation: ``sdpa`` needs nothing more; the authors' ``flash_attention_2`` computes the same
            with package flash-attn.
        device: a torch device.

    Source: zhijie-group/Orthus@609d9682, inference/t2i_generation.py (settings, order of the calls).

    Raises:
        ModelUnusable: code, packages, weights or GPU are missing; or another transformers hides the authors' own.
    """

    def __init__(
        self,
        model_path: str,
        *,
        revision: str | None = None,
        cfg_scale: float,
        attn_implementation: str,
        device: str = "cuda",
    ) -> None:
        self.model_name = Path(model_path).name
        self.cfg_scale = cfg_scale
        code = authors_code.use("orthus", "transformers/src")
        with loading(model_path, "orthus"):
            import torch
            import transformers

            if code not in Path(str(transformers.__file__)).parents:
                raise ModelUnusable(
                    f"Orthus needs its authors' transformers, and this environment has {transformers.__version__}; "
                    "name one in INFER_ENV_MAP that has requirements/model/orthus.txt and nothing else"
                )
            from models.modeling_orthus import OrthusForConditionalGeneration
            from models.processing_orthus import OrthusProcessor

            self.device = best_device(device)
            self._unconditional = unconditional_prompt(code / _SCRIPT)
            folder = str(weights_folder(model_path, revision))
            self._processor: Any = OrthusProcessor.from_pretrained(folder)
            self._model: Any = OrthusForConditionalGeneration.from_pretrained(
                folder,
                device_map={"": self.device},
                torch_dtype=torch.bfloat16,
                attn_implementation=attn_implementation,
            )

    def generate(self, prompt: str, seed: int = 42) -> Image.Image:
        """One image of 512 x 512 pixels."""
        import torch

        set_seeds(seed)
        inputs = self._processor([prompt, self._unconditional], padding=True, return_tensors="pt")
        # the authors' loop prints a line for each of the 1024 features
        with redirect_stdout(io.StringIO()), torch.inference_mode():
            features = self._model.generate(
                **inputs.to(self.device, dtype=self._model.dtype),
                cfg_scale=self.cfg_scale,
                multimodal_generation_mode="image-only",
                use_cache=True,
            )
            pixels = self._model.decode_image_latents(features)
            levels = self._processor.postprocess_pixel_values(pixels)[0]
        return levels_to_image(levels)


def unconditional_prompt(script: Path) -> str:
    """The text that stands beside the prompt for guidance, as the authors' ``script`` has it (which is not run).

    Raises:
        ModelUnusable: the script has no list of the prompt and a text.
    """
    for node in ast.walk(ast.parse(script.read_text("utf-8"))):
        if isinstance(node, ast.List) and len(node.elts) == 2:
            first, second = node.elts
            if (
                isinstance(first, ast.Name)
                and isinstance(second, ast.Constant)
                and isinstance(second.value, str)
            ):
                return second.value
    raise ModelUnusable(f"{script} does not say which text stands beside a prompt for guidance")
