"""Pipelines of diffusers that need more than a registry entry: authors' texts, further weights or other
inputs."""

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
from imageevalkit.generate.model import Generated


class QwenImage(DiffusersT2I):
    """Qwen-Image's first version. Its example appends a quality suffix in the prompt's language.

    Args:
        prompt_suffix: appended to every prompt; None: the authors' suffix.

    Raises ModelUnusable if the model does not load, or if the suffix is None and the authors' repository is
    missing.
    """

    def __init__(self, model_path: str, *, prompt_suffix: str | None = None, **settings: Any) -> None:
        # before the weights load: a missing repository should not cost minutes
        self._authors = (
            None if prompt_suffix is not None else _constant_in("Qwen/Qwen-Image", "positive_magic")
        )
        super().__init__(model_path, prompt_suffix=prompt_suffix or "", **settings)

    def _prompt(self, prompt: str) -> str:
        if self._authors is None:
            return super()._prompt(prompt)
        return prompt + str(self._authors["zh" if _is_chinese(prompt) else "en"])


class QwenImage2512(DiffusersT2I):
    """Qwen-Image's version of December 2025. Its example has a negative prompt.

    Args:
        negative_prompt: the negative prompt; None: the authors' text; a single space: no content.

    Raises ModelUnusable if the model does not load, or if the prompt is None and the authors' repository is
    missing.
    """

    def __init__(self, model_path: str, *, negative_prompt: str | None = None, **settings: Any) -> None:
        if negative_prompt is None:
            negative_prompt = str(_constant_in("Qwen/Qwen-Image-2512", "negative_prompt"))
        super().__init__(model_path, negative_prompt=negative_prompt, **settings)


def _constant_in(weights: str, variable: str) -> Any:
    return set_in_file("qwen-image", "README.md", variable, weights)


def _is_chinese(prompt: str) -> bool:
    """Returns whether the prompt has a Chinese character, like the authors' ``get_caption_language`` in
    src/examples/tools/prompt_utils.py."""
    return any("\u4e00" <= character <= "\u9fff" for character in prompt)


class FluxIPAdapter(DiffusersSubject):
    """FLUX.1 with an IP-Adapter: the CLIP embedding of exactly one image of the subject guides generation.

    Args:
        ip_adapter: folder or hub id of the adapter's weights.
        ip_adapter_revision: commit of that repository.
        ip_adapter_file: name of the weight file.
        ip_adapter_scale: weight of the image, 0-1.
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
    """OmniGen's edits of any number of images. The images' placeholders precede the instruction in order."""

    reserved = DiffusersModel.reserved | {"input_images"}

    def __init__(self, model_path: str, **settings: Any) -> None:
        super().__init__(model_path, multi_image=True, **settings)

    def _inputs(self, images: list[Image.Image], prompt: str) -> dict[str, Any]:
        return {"prompt": f"{_placeholders(len(images))} {prompt}", "input_images": images}


class OmniGenSubject(OmniGenEdit):
    """OmniGen with a subject. A sentence before the prompt says what in the images is the subject."""

    def generate(self, input_list: Sequence[str | Image.Image], seed: int = 42) -> Generated:
        """Returns one image of the subject. Raises ItemFailed without an image or a prompt."""
        name, images, prompt = split_subject(input_list)
        shown = f"The {name or 'subject'} is the one in {_placeholders(len(images))}."
        return self._call(seed, prompt=f"{shown} {prompt}", input_images=images)


def _placeholders(count: int) -> str:
    """Returns the placeholders that OmniGenPipeline replaces with its input images, numbered from 1."""
    return " ".join(f"<img><|image_{n}|></img>" for n in range(1, count + 1))


class HQEdit(DiffusersEdit):
    """InstructPix2Pix fine-tuned at 512 × 512. It takes one image and always generates this size."""

    def _inputs(self, images: list[Image.Image], prompt: str) -> dict[str, Any]:
        (image,) = images
        # the pipeline takes the output's size from the image and ignores width and height
        return {"prompt": prompt, "image": image.resize((512, 512), Image.Resampling.BICUBIC)}


class BlipDiffusion(DiffusersModel):
    """BLIP-Diffusion with exactly one image of a named subject, which is also the subject of the output.

    Current diffusers cannot load this pipeline, and transformers 5 lacks functions that it calls. The class
    needs its own environment with the last versions that run it (requirements/model/blip-diffusion.txt).

    Args:
        bert: folder or hub id of the BERT tokenizer that splits the subject's name.
        bert_revision: commit of that repository.
        neg_prompt: the negative prompt; None: the authors' text, from the example of the pipeline.
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
        """Returns the Q-Former with a local tokenizer: by itself it would look on the hub by an old name."""
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
        """Returns one image of the subject. Raises ItemFailed without exactly one image, a name and a
        prompt."""
        subject = split_subject(input_list)
        return self._call(
            seed,
            prompt=[subject.prompt],
            reference_image=subject.image_of_a_name("BLIP-Diffusion"),
            source_subject_category=[subject.name],
            target_subject_category=[subject.name],
        )
