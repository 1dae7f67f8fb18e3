"""BLIP-Diffusion: subject-driven, with the subject's name as an input of its own.

diffusers keeps the pipeline but no longer loads it, and transformers 5 lacks what it calls: it has an environment of
its own with the last versions that run it (requirements/model/blip-diffusion.txt).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from PIL import Image

from custom_models.authors_examples import set_in_docstring
from custom_models.model_utils import diffusers_loading as loading
from custom_models.model_utils.adapters import weights_folder
from custom_models.model_utils.diffusers_common import DiffusersModel
from custom_models.model_utils.inputs import split_subject
from imageevalkit.generation.model import Generated, ItemFailed


class BlipDiffusion(DiffusersModel):
    """Exactly one image of a named subject; the subject drawn is the subject seen.

    Args:
        bert: folder or hub id of the BERT tokenizer that splits the subject's name.
        bert_revision: commit of that repository.
        neg_prompt: what guidance leads away from; None: that of the pipeline's example, which is its authors'.
    """

    environment = "blip-diffusion"
    reserved = DiffusersModel.reserved | {
        "reference_image",
        "source_subject_category",
        "target_subject_category",
    }

    def __init__(
        self,
        model_path: str,
        *,
        bert: str,
        bert_revision: str | None = None,
        neg_prompt: str | None = None,
        **settings: Any,
    ) -> None:
        self._model_path = model_path
        self._bert = (bert, bert_revision)
        if neg_prompt is None:
            neg_prompt = _negative_prompt_of_the_example()
        super().__init__(model_path, neg_prompt=neg_prompt, **settings)

    def _load_parts(self) -> dict[str, Any]:
        """The Q-Former, which would look for its tokenizer on the hub by an old name."""
        from diffusers.pipelines.blip_diffusion.modeling_blip2 import Blip2QFormerModel
        from transformers import Blip2Config

        where = {"subfolder": "qformer", "revision": self._options.revision or "main"}
        config = Blip2Config.from_pretrained(self._model_path, **where)
        config.tokenizer = str(
            weights_folder(*self._bert, patterns=["vocab.txt", "tokenizer*.json", "config.json"])
        )
        qformer = Blip2QFormerModel.from_pretrained(
            self._model_path, config=config, torch_dtype=loading.part_dtype(self.dtype, "qformer"), **where
        )
        return {"qformer": qformer}

    def generate(self, input_list: Sequence[str | Image.Image], seed: int = 42) -> Generated:
        """One image of the subject. Raises ItemFailed without exactly one image, a name and a prompt."""
        name, images, prompt = split_subject(input_list)
        if len(images) != 1 or not name:
            raise ItemFailed(
                f"BLIP-Diffusion takes a subject's name and exactly one image of it, the item has {len(images)} "
                f"and {f'the name {name!r}' if name else 'no name'}",
                attempts=0,
            )
        return self._call(
            seed,
            prompt=[prompt],
            reference_image=images[0],
            source_subject_category=[name],
            target_subject_category=[name],
        )


def _negative_prompt_of_the_example() -> str:
    loading.check_environment("diffusers", environment=BlipDiffusion.environment)
    from diffusers import BlipDiffusionPipeline

    return str(set_in_docstring(BlipDiffusionPipeline.__call__, "negative_prompt"))
