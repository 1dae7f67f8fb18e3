"""Any image-editing pipeline of diffusers: a new model needs a registry entry only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from PIL import Image

from custom_models.model_utils.diffusers_common import DiffusersModel
from custom_models.model_utils.inputs import split_inputs
from imageevalkit.generation.model import Generated, ItemFailed


class DiffusersEdit(DiffusersModel):
    """Edit; see :class:`DiffusersModel` for the settings.

    Args:
        multi_image: the pipeline takes a list of images; False shows it exactly one.
        follow_input: ask for the size of the last input image where no size is set, for pipelines whose own
            default is another shape.
        batch_size: for a model that does text to image too; edits are made singly, their images differ in size.
    """

    def __init__(
        self,
        model_path: str,
        *,
        multi_image: bool = False,
        follow_input: bool = False,
        batch_size: int = 1,
        **settings: Any,
    ) -> None:
        super().__init__(model_path, **settings)
        self.multi_image = multi_image
        self._follow_input = follow_input and not {"width", "height"} & self.call_settings.keys()

    def generate(self, input_list: Sequence[str | Image.Image], seed: int = 42) -> Generated:
        """One edited image.

        Raises:
            ItemFailed: the number of input images is not one the pipeline takes.
            Refused: the pipeline's safety checker rejected the result.
        """
        images, instruction = split_inputs(input_list)
        return self._show(images, instruction, seed)

    def _show(self, images: Sequence[Image.Image], prompt: str, seed: int) -> Generated:
        if not images or (len(images) > 1 and not self.multi_image):
            wanted = "at least one" if self.multi_image else "exactly one"
            raise ItemFailed(
                f"{self.pipeline_class} takes {wanted} input image, the item has {len(images)}", attempts=0
            )
        inputs = self._inputs(list(images), prompt)
        if self._follow_input:
            inputs["width"], inputs["height"] = images[-1].size
        return self._call(seed, **inputs)

    def _inputs(self, images: list[Image.Image], prompt: str) -> dict[str, Any]:
        """The pipeline's arguments for an item."""
        return {"prompt": prompt, "image": images if self.multi_image else images[0]}
