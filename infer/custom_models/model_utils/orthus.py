"""Orthus-7B with the authors' code. A diffusion head generates continuous image features one after
another."""

from __future__ import annotations

import ast
import io
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from custom_models.authors import AuthorsModel
from custom_models.model_utils.loading import levels_to_image
from imageevalkit.generate.model import ModelUnusable


@dataclass(kw_only=True, eq=False)
class OrthusT2I(AuthorsModel):
    """Orthus-7B, 512 x 512 pixels from 1024 features. It needs the authors' transformers and no other
    installation.

    Args:
        cfg_scale: w in ``unconditional + w * (conditional - unconditional)``, applied in the diffusion head.
        attn_implementation: ``sdpa`` needs no package; the authors' ``flash_attention_2`` computes the same
        with
            the package flash-attn.

    Source: zhijie-group/Orthus@609d9682, inference/t2i_generation.py (settings, order of the calls).
    """

    code = "orthus"
    below = ("transformers/src",)
    without_gradients = True

    cfg_scale: float
    attn_implementation: str

    def load(self) -> None:
        import torch
        import transformers

        if self.repository not in Path(str(transformers.__file__)).parents:
            raise ModelUnusable(
                f"Orthus needs its authors' transformers, and this environment has {transformers.__version__}; "
                "name one in INFER_ENV_MAP that has requirements/model/orthus.txt and nothing else"
            )
        from models.modeling_orthus import OrthusForConditionalGeneration
        from models.processing_orthus import OrthusProcessor

        self._unconditional = unconditional_prompt(self.repository / "inference/t2i_generation.py")
        folder = self.weights()
        self._processor: Any = OrthusProcessor.from_pretrained(folder)
        self._model: Any = OrthusForConditionalGeneration.from_pretrained(
            folder,
            device_map={"": self.device},
            torch_dtype=torch.bfloat16,
            attn_implementation=self.attn_implementation,
        )

    def make(self, given: str, seed: int) -> Image.Image:
        """Returns one image."""
        inputs = self._processor([given, self._unconditional], padding=True, return_tensors="pt")
        # the authors' loop prints a line per feature
        with redirect_stdout(io.StringIO()):
            features = self._model.generate(
                **inputs.to(self.device, dtype=self._model.dtype),
                cfg_scale=self.cfg_scale,
                multimodal_generation_mode="image-only",
                use_cache=True,
            )
        pixels = self._model.decode_image_latents(features)
        return levels_to_image(self._processor.postprocess_pixel_values(pixels)[0])


def unconditional_prompt(script: Path) -> str:
    """Returns the unconditional text for guidance from the authors' ``script``, which is parsed, not run.

    Raises ModelUnusable if the script has no list of the prompt and a text.
    """
    for node in ast.walk(ast.parse(script.read_text("utf-8"))):
        if isinstance(node, ast.List) and len(node.elts) == 2:
            first, second = node.elts
            if isinstance(first, ast.Name) and isinstance(second, ast.Constant):
                return str(second.value)
    raise ModelUnusable(f"{script} does not name the unconditional text for guidance")
