"""Pipelines of diffusers that need more than a registry entry: words of the authors, further weights, other inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from PIL import Image

from custom_models.authors import set_in_docstring, set_in_file
from custom_models.model_settings import BERT, CLIP_VIT_L_14
from custom_models.model_utils.diffusers_models import (
    DiffusersEdit,
    DiffusersModel,
    DiffusersSubject,
    DiffusersT2I,
    part_dtype,
)
from custom_models.model_utils.inputs import split_subject
from custom_models.model_utils.loading import check_environment, weights_folder
from imageevalkit.generation.model import Generated


class QwenImage(DiffusersT2I):
    """Qwen-Image's first version, whose example ends each prompt with words on quality in the prompt's language.

    Args:
        prompt_suffix: added to every prompt as it is; None: the authors' words.

    Raises ModelUnusable: it does not load, or the authors' words are wanted and their repository is not there.
    """

    def __init__(self, model_path: str, *, prompt_suffix: str | None = None, **settings: Any) -> None:
        # before the weights are read: what is missing should not cost minutes
        self._authors = None if prompt_suffix is not None else _said("Qwen/Qwen-Image", "positive_magic")
        super().__init__(model_path, prompt_suffix=prompt_suffix or "", **settings)

    def _prompt(self, prompt: str) -> str:
        if self._authors is None:
            return super()._prompt(prompt)
        return prompt + str(self._authors["zh" if _is_chinese(prompt) else "en"])


class QwenImage2512(DiffusersT2I):
    """Qwen-Image's version of December 2025, whose example has a negative prompt.

    Args:
        negative_prompt: what guidance leads away from; None: the authors' own, a blank: nothing.

    Raises ModelUnusable: it does not load, or the authors' words are wanted and their repository is not there.
    """

    def __init__(self, model_path: str, *, negative_prompt: str | None = None, **settings: Any) -> None:
        if negative_prompt is None:
            negative_prompt = str(_said("Qwen/Qwen-Image-2512", "negative_prompt"))
        super().__init__(model_path, negative_prompt=negative_prompt, **settings)


def _said(weights: str, variable: str) -> Any:
    return set_in_file("qwen-image", "README.md", variable, weights)


def _is_chinese(prompt: str) -> bool:
    """As the authors' programs decide (get_caption_language of src/examples/tools/prompt_utils.py)."""
    return any("\u4e00" <= character <= "\u9fff" for character in prompt)


class FluxIPAdapter(DiffusersSubject):
    """FLUX.1 with an IP-Adapter: the CLIP embedding of exactly one image of the subject steers the picture.

    Args:
        ip_adapter: folder or hub id of the adapter's weights.
        ip_adapter_revision: commit of that repository.
        ip_adapter_file: the weights' name there.
        ip_adapter_scale: how much the image counts, 0..1.
        image_encoder: folder or hub id of the CLIP model that the adapter was trained with.
        image_encoder_revision: commit of that repository.
    """

    reserved = DiffusersModel.reserved | {"ip_adapter_image", "ip_adapter_image_embeds"}

    def __init__(
        self,
        model_path: str,
        *,
        ip_adapter: str,
        image_encoder: str,
        ip_adapter_revision: str | None = None,
        ip_adapter_file: str = "ip_adapter.safetensors",
        ip_adapter_scale: float = 1.0,
        image_encoder_revision: str | None = None,
        **settings: Any,
    ) -> None:
        self._adapter = (ip_adapter, ip_adapter_revision, ip_adapter_file)
        self._encoder = (image_encoder, image_encoder_revision)
        self._scale = ip_adapter_scale
        super().__init__(model_path, **settings)

    def _add_parts(self, pipeline: Any) -> None:
        path, revision, file = self._adapter
        encoder, encoder_revision = self._encoder
        pipeline.load_ip_adapter(
            str(weights_folder(path, revision, [file])),
            weight_name=file,
            image_encoder_pretrained_model_name_or_path=str(
                weights_folder(encoder, encoder_revision, CLIP_VIT_L_14.patterns)
            ),
            image_encoder_dtype=part_dtype(self.dtype, "image_encoder"),
        )
        pipeline.set_ip_adapter_scale(self._scale)

    def _inputs(self, images: list[Image.Image], prompt: str) -> dict[str, Any]:
        return {"prompt": prompt, "ip_adapter_image": images[0]}


class OmniGenEdit(DiffusersEdit):
    """OmniGen's edits, of any number of images: their placeholders, in order, stand before the instruction."""

    reserved = DiffusersModel.reserved | {"input_images"}

    def __init__(self, model_path: str, **settings: Any) -> None:
        super().__init__(model_path, multi_image=True, **settings)

    def _inputs(self, images: list[Image.Image], prompt: str) -> dict[str, Any]:
        return {"prompt": f"{_placeholders(len(images))} {prompt}", "input_images": images}


class OmniGenSubject(OmniGenEdit):
    """OmniGen with a subject: a sentence before the prompt says which of the images' contents is meant."""

    def generate(self, input_list: Sequence[str | Image.Image], seed: int = 42) -> Generated:
        """One image of the subject. Raises ItemFailed when the item has no image or no prompt."""
        name, images, prompt = split_subject(input_list)
        shown = f"The {name or 'subject'} is the one in {_placeholders(len(images))}."
        return self._call(seed, prompt=f"{shown} {prompt}", input_images=images)


def _placeholders(count: int) -> str:
    """What OmniGenPipeline replaces by its input images, numbered from 1."""
    return " ".join(f"<img><|image_{n}|></img>" for n in range(1, count + 1))


class HQEdit(DiffusersEdit):
    """InstructPix2Pix fine-tuned at 512 × 512: one image, and that size, whatever the input's shape."""

    def _inputs(self, images: list[Image.Image], prompt: str) -> dict[str, Any]:
        (image,) = images
        # the pipeline takes the output's size from the image, and swallows width and height unused
        return {"prompt": prompt, "image": image.resize((512, 512), Image.Resampling.BICUBIC)}


class BlipDiffusion(DiffusersModel):
    """BLIP-Diffusion: exactly one image of a named subject; the subject drawn is the subject seen.

    diffusers keeps the pipeline but no longer loads it, and transformers 5 lacks what it calls: it has an environment
    of its own with the last versions that run it (requirements/model/blip-diffusion.txt).

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
        self._bert = (bert, bert_revision)
        if neg_prompt is None:
            check_environment("diffusers", environment=self.environment)
            from diffusers import BlipDiffusionPipeline

            neg_prompt = str(set_in_docstring(BlipDiffusionPipeline.__call__, "negative_prompt"))
        super().__init__(model_path, neg_prompt=neg_prompt, **settings)

    def _load_parts(self) -> dict[str, Any]:
        """The Q-Former, which would look for its tokenizer on the hub by an old name."""
        from diffusers.pipelines.blip_diffusion.modeling_blip2 import Blip2QFormerModel
        from transformers import Blip2Config

        where = {"subfolder": "qformer", "revision": self.revision or "main"}
        config = Blip2Config.from_pretrained(self._model_path, **where)
        config.tokenizer = str(weights_folder(*self._bert, patterns=BERT.patterns))
        qformer = Blip2QFormerModel.from_pretrained(
            self._model_path, config=config, torch_dtype=part_dtype(self.dtype, "qformer"), **where
        )
        return {"qformer": qformer}

    def generate(self, input_list: Sequence[str | Image.Image], seed: int = 42) -> Generated:
        """One image of the subject. Raises ItemFailed without exactly one image, a name and a prompt."""
        subject = split_subject(input_list)
        return self._call(
            seed,
            prompt=[subject.prompt],
            reference_image=subject.image_of_a_name("BLIP-Diffusion"),
            source_subject_category=[subject.name],
            target_subject_category=[subject.name],
        )
