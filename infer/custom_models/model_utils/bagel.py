"""BAGEL-7B-MoT with the authors' code, which takes texts and images in any order and makes one image of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from custom_models import authors_code
from custom_models.model_settings.weights import BAGEL
from custom_models.model_utils.adapters import best_device, loading, set_seeds, weights_folder
from custom_models.model_utils.bagel_loading import load_inferencer
from custom_models.model_utils.flash_attention import flash_attention
from imageevalkit.generation.model import Generated, ItemFailed, ModelUnusable

_STRIDE, _LARGEST = 16, 1024  # pixels


class Bagel:
    """Loading and the settings of both tasks.

    Args:
        model_path: folder or hub repository with ``ema.safetensors``, ``ae.safetensors`` and both configurations.
        revision: commit of a hub repository.
        think: let the model plan in words first; the authors' system prompt asks for it.
        max_think_tokens: length of that plan at most; it is decoded greedily.
        cfg_text_scale, cfg_img_scale: guidance towards the text and the input images; 1 is none.
        cfg_interval_start, cfg_interval_end: times (1 is noise, 0 the image) between which guidance is on.
        cfg_renorm_type: ``global``, ``channel`` or ``text_channel``.
        cfg_renorm_min: smallest factor that renormalising takes, 0 to 1; 1 switches it off.
        num_timesteps, timestep_shift: steps, and how much denser they are near the noise.
        device: a torch device; ``cuda`` spreads the layers over all GPUs that the process sees.

    Source: ByteDance-Seed/Bagel@056b5fd5, app.py and README.md ("About Inference Hyperparameters").

    Raises:
        ModelUnusable: code, packages, weights or GPU are missing.
    """

    def __init__(
        self,
        model_path: str,
        *,
        revision: str | None = None,
        think: bool,
        max_think_tokens: int,
        cfg_text_scale: float,
        cfg_img_scale: float,
        cfg_interval_start: float,
        cfg_interval_end: float,
        cfg_renorm_type: str,
        cfg_renorm_min: float,
        num_timesteps: int,
        timestep_shift: float,
        device: str = "cuda",
    ) -> None:
        self.model_name = Path(model_path).name
        self._settings: dict[str, Any] = {
            "think": think,
            "max_think_token_n": max_think_tokens,
            "do_sample": False,
            "cfg_text_scale": cfg_text_scale,
            "cfg_img_scale": cfg_img_scale,
            "cfg_interval": [cfg_interval_start, cfg_interval_end],
            "cfg_renorm_min": cfg_renorm_min,
            "cfg_renorm_type": cfg_renorm_type,
            "num_timesteps": num_timesteps,
            "timestep_shift": timestep_shift,
        }
        authors_code.use("bagel")
        with loading(model_path, "bagel"):
            device = best_device(device)
            folder = weights_folder(model_path, revision, BAGEL.patterns)
            with flash_attention():
                self._inferencer = load_inferencer(folder, device)

    def _make(self, parts: Sequence[str | Image.Image], seed: int, **size: Any) -> Generated:
        import torch

        set_seeds(seed)
        torch.backends.cudnn.deterministic = True
        answers = self._inferencer.interleave_inference(input_lists=list(parts), **self._settings, **size)
        image = answers[-1]
        thoughts = [answer for answer in answers if isinstance(answer, str)]
        extra = {"thought": thoughts[0]} if thoughts else {}
        return Generated(image, requested_size=image.size, extra=extra)


class BagelT2I(Bagel):
    """Text to image; see :class:`Bagel`. ``width`` and ``height`` are multiples of 16, 1024 at most."""

    def __init__(self, model_path: str, *, width: int, height: int, **settings: Any) -> None:
        for side in (width, height):
            if side % _STRIDE or not 0 < side <= _LARGEST:
                raise ModelUnusable(f"BAGEL makes sides of 16, 32, … or 1024 pixels, not {width} x {height}")
        self._size = (height, width)
        super().__init__(model_path, **settings)

    def generate(self, prompt: str, seed: int = 42) -> Generated:
        """One image; the plan, if any, is its ``extra["thought"]``."""
        return self._make([prompt], seed, image_shapes=self._size)


class BagelEdit(Bagel):
    """Edit; see :class:`Bagel`. The last input image, with sides of 512 to 1024 pixels, gives the size."""

    def generate(self, input_list: Sequence[str | Image.Image], seed: int = 42) -> Generated:
        """One image. Texts and images are read in their order; alpha is laid on white.

        Raises:
            ItemFailed: there is no image.
        """
        if not any(isinstance(part, Image.Image) for part in input_list):
            raise ItemFailed("the item has no input image to edit", attempts=0)
        return self._make(input_list, seed)
