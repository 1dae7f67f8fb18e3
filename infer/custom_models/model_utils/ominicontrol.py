"""OminiControl: FLUX.1-schnell with a LoRA and the authors' conditioning on an image of the subject."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from PIL import Image

from custom_models import authors_code
from custom_models.model_settings.weights import OMINICONTROL
from custom_models.model_utils.adapters import best_device, loading, set_seeds, weights_folder
from custom_models.model_utils.inputs import one_image, split_subject
from imageevalkit.generation.model import Generated

_SIDE = 512  # pixels of the condition
_BESIDE = (0, 32)  # the condition's place in tokens: to the right of an image of 512 pixels


class OminiControlSubject:
    """Subject-driven generation from one image, which is cut to a square and scaled to 512 x 512 pixels.

    Args:
        model_path: folder or hub repository with ``omini/subject_512.safetensors``.
        revision: commit of a hub repository.
        base_path, base_revision: FLUX.1-schnell, a folder or a hub repository at a commit.
        num_inference_steps: steps.
        width, height: pixels of the image that is made.
        image_guidance_scale: guidance towards the subject's image; 1 is none.
        device: a torch device.

    Source: Yuanshi9815/OminiControl@331dd34e, examples/subject.ipynb (settings), README.md ("Guidelines": the cut).

    Raises:
        ModelUnusable: code, packages, weights or GPU are missing.
    """

    def __init__(
        self,
        model_path: str,
        *,
        revision: str | None = None,
        base_path: str,
        base_revision: str | None = None,
        num_inference_steps: int,
        width: int,
        height: int,
        image_guidance_scale: float,
        device: str = "cuda",
    ) -> None:
        self.model_name = Path(model_path).name
        self._settings: dict[str, Any] = {
            "num_inference_steps": num_inference_steps,
            "width": width,
            "height": height,
            "image_guidance_scale": image_guidance_scale,
        }
        authors_code.use("ominicontrol")
        with loading(base_path, "ominicontrol"):
            import torch
            from diffusers.pipelines import FluxPipeline

            self._omini = import_module("omini.pipeline.flux_omini")
            device = best_device(device)
            # as their own seeding does
            torch.backends.cudnn.deterministic = True
            pipeline = FluxPipeline.from_pretrained(
                base_path, revision=base_revision, torch_dtype=torch.bfloat16
            )
        with loading(model_path, "ominicontrol"):
            (file,) = OMINICONTROL.patterns
            lora = weights_folder(model_path, revision, [file]) / file
            self._pipeline: Any = pipeline.to(device)
            self._pipeline.load_lora_weights(str(lora.parent), weight_name=lora.name, adapter_name="subject")
        self._pipeline.set_progress_bar_config(disable=True)

    def generate(self, input_list: Sequence[str | Image.Image], seed: int = 42) -> Generated:
        """One image. The prompt is used as it is: the model knows its subject as "this item".

        Raises:
            ItemFailed: there is not exactly one image of the subject, or no prompt.
        """
        subject = split_subject(input_list)
        image = one_image(subject.images, "OminiControl")
        condition = self._omini.Condition(_square(image), "subject", position_delta=_BESIDE)
        set_seeds(seed)
        made = self._omini.generate(
            self._pipeline, prompt=subject.prompt, conditions=[condition], **self._settings
        )
        size = (self._settings["width"], self._settings["height"])
        return Generated(made.images[0], requested_size=size)


def _square(image: Image.Image) -> Image.Image:
    """The middle of ``image``, 512 x 512 pixels."""
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    return image.crop((left, top, left + side, top + side)).resize((_SIDE, _SIDE))
