"""BLIP-Diffusion: subject-driven, with the subject's name as an input of its own."""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image

from custom_models.model_utils.diffusers_common import DiffusersModel
from custom_models.model_utils.subject_inputs import split_subject
from imageevalkit.generation.contract import Generated, ItemFailed


class BlipDiffusion(DiffusersModel):
    """Exactly one image of a named subject; the subject drawn is the subject seen."""

    reserved = DiffusersModel.reserved | {
        "reference_image",
        "source_subject_category",
        "target_subject_category",
    }

    def generate(self, input_list: Sequence[str | Image.Image], seed: int = 42) -> Generated:
        """One image of the subject. Raises ItemFailed without exactly one image, a name and a prompt."""
        name, images, prompt = split_subject(input_list)
        if len(images) != 1 or not name:
            raise ItemFailed(
                f"BLIP-Diffusion takes a subject's name and exactly one image of it, the item has {len(images)} "
                f"and {f'the name {name!r}' if name else 'no name'}"
            )
        return self._call(
            seed,
            prompt=[prompt],
            reference_image=images[0],
            source_subject_category=[name],
            target_subject_category=[name],
        )
