"""OmniGen beyond text to image: its prompt says where each input image stands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from PIL import Image

from custom_models.model_utils.diffusers_common import DiffusersModel
from custom_models.model_utils.diffusers_edit import DiffusersEdit
from custom_models.model_utils.inputs import split_subject
from imageevalkit.generation.model import Generated


class OmniGenEdit(DiffusersEdit):
    """Edit, any number of images: their placeholders, in order, stand before the instruction."""

    reserved = DiffusersModel.reserved | {"input_images"}

    def __init__(self, model_path: str, **settings: Any) -> None:
        super().__init__(model_path, multi_image=True, **settings)

    def _inputs(self, images: list[Image.Image], prompt: str) -> dict[str, Any]:
        return {"prompt": f"{_placeholders(len(images))} {prompt}", "input_images": images}


class OmniGenSubject(OmniGenEdit):
    """Subject-driven: a sentence before the prompt says which of the images' contents is meant."""

    def generate(self, input_list: Sequence[str | Image.Image], seed: int = 42) -> Generated:
        """One image of the subject. Raises ItemFailed when the item has no image or no prompt."""
        name, images, prompt = split_subject(input_list)
        shown = f"The {name or 'subject'} is the one in {_placeholders(len(images))}."
        return self._call(seed, prompt=f"{shown} {prompt}", input_images=images)


def _placeholders(count: int) -> str:
    """What OmniGenPipeline replaces by its input images, numbered from 1."""
    return " ".join(f"<img><|image_{n}|></img>" for n in range(1, count + 1))
