"""FreeDiff: edits with plain Stable Diffusion, keeping the low frequencies of its guidance out of the early steps."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from PIL import Image

from custom_models import authors_code
from custom_models.model_utils.adapters import best_device, loading
from custom_models.model_utils.inputs import one_image, split_inputs
from imageevalkit.generation.model import Generated

_SIZE = (512, 512)
_LOW_PASS = (32,) * 6  # in tokens of 8 pixels; 32 lets everything through


class FreeDiffEdit:
    """Edit of one image, cut to its middle square and scaled to 512 x 512 pixels. Nothing in it is random.

    Args:
        model_path: Stable Diffusion 1.5, a folder or a hub repository.
        revision: commit of a hub repository.
        num_inference_steps: DDIM steps, of the inversion and of the edit.
        guidance_scale: guidance towards the prompt.
        fixed_point_steps: iterations that make each step of the inversion exact.
        time_steps: where the filter changes, from 999 (noise) down to 0.
        filter_sizes: the square high-pass filter from each of these times on, and one more for the rest: 0 lets the
            whole guidance through, 32 nothing of it.
        device: a torch device. Not ``cpu``: the authors' filter asks for the number of a GPU.

    Source: Thermal-Dynamics/FreeDiff@4b4af6cb, examples.ipynb and readme.md.

    Raises:
        ModelUnusable: code, packages, weights or GPU are missing.
    """

    def __init__(
        self,
        model_path: str,
        *,
        revision: str | None = None,
        num_inference_steps: int,
        guidance_scale: float,
        fixed_point_steps: int,
        time_steps: Sequence[int],
        filter_sizes: Sequence[int],
        device: str = "cuda",
    ) -> None:
        self.model_name = Path(model_path).name
        self._steps, self._fixed_point_steps = num_inference_steps, fixed_point_steps
        self._filter: dict[str, Any] = {
            "guidance_scale": guidance_scale,
            "TS": tuple(time_steps),
            "FS": tuple(filter_sizes),
            "HS": _LOW_PASS,
            "filter_shape": "sq",
            "clear_low": True,
        }
        authors_code.use("freediff")
        with loading(model_path, "freediff"):
            from diffusers import DDIMScheduler, StableDiffusionPipeline

            self._edit, self._inversion = map(import_module, ("ptp.frq_ptputils", "ptp.invutils"))
            self.device = best_device(device)
            scheduler = DDIMScheduler(
                beta_start=0.00085,
                beta_end=0.012,
                beta_schedule="scaled_linear",
                clip_sample=False,
                set_alpha_to_one=False,
                steps_offset=1,
            )
            # in float32, and without the checker, which only the pipeline's own call asks
            pipeline = StableDiffusionPipeline.from_pretrained(
                model_path,
                revision=revision,
                scheduler=scheduler,
                safety_checker=None,
                requires_safety_checker=False,
            )
            self._model: Any = pipeline.to(self.device)

    def generate(self, input_list: Sequence[str | Image.Image], seed: int = 42) -> Generated:
        """One edited image, the same for every seed. The text describes the result, such as "a marmot".

        Raises:
            ItemFailed: there is not exactly one input image.
        """
        import numpy as np

        images, text = split_inputs(input_list)
        image = one_image(images, "FreeDiff")
        inversion, model = self._inversion, self._model
        model.scheduler.set_timesteps(self._steps)
        square = inversion.load_512(np.array(image))
        noise, _ = inversion.ddim_inversion_null_fixpt(
            inversion.img2latn(square, model, self.device),
            model,
            inversion.encode_text("", model),
            FP_STEPS=self._fixed_point_steps,
            INV_STEPS=self._steps,
        )
        # it writes its images and settings to a folder, whatever the caller wants
        with tempfile.TemporaryDirectory() as folder:
            _, edited, _ = self._edit.frq_img_gen(
                model,
                [text],
                num_infer_steps=self._steps,
                latent=noise,
                save_dir=f"{folder}/",
                mod_guidance_frq=True,
                **self._filter,
            )
        pixels = self._edit.latn2img(model.vae, edited)[0]
        return Generated(Image.fromarray(pixels), seed_honoured=False, requested_size=_SIZE)
