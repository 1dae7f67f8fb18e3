"""Subject-driven generation with any diffusers pipeline that takes images: a new model needs a registry entry only."""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image

from custom_models.model_utils.diffusers_edit import DiffusersEdit
from custom_models.model_utils.inputs import split_subject
from imageevalkit.generation.model import Generated


class DiffusersSubject(DiffusersEdit):
    """The pipeline sees the subject's images and the prompt, not the subject's name."""

    def generate(self, input_list: Sequence[str | Image.Image], seed: int = 42) -> Generated:
        """One image of the subject.

        Raises:
            ItemFailed: no prompt, or the number of images is not one the pipeline takes.
            Refused: the pipeline's safety checker rejected the result.
        """
        subject = split_subject(input_list)
        return self._show(subject.images, subject.prompt, seed)
