"""Image generators with a class in transformers. They sample tokens with torch's global random generator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from PIL import Image

from custom_models.authors import set_in_file
from custom_models.model_utils.loading import LocalModel, check_environment, levels_to_image, torch_dtype
from imageevalkit.generate.model import Generated


@dataclass(kw_only=True, eq=False)
class TransformersImageModel(LocalModel):
    """A checkpoint and its processor. ``dtype`` is ``bfloat16``, ``float16`` or ``float32``.

    The class generates no batches, because images of a batch would share a seed.
    """

    model_class: ClassVar[str]
    """The name of the model's class in transformers."""
    processor_class: ClassVar[str]
    """The name of the processor's class in transformers."""

    dtype: str = "bfloat16"

    def check(self) -> None:
        check_environment("transformers")
        self._dtype = torch_dtype(self.dtype)

    def load(self) -> None:
        import transformers

        model, processor = (getattr(transformers, name) for name in (self.model_class, self.processor_class))
        self._processor: Any = processor.from_pretrained(self.model_path, revision=self.revision)
        loaded = model.from_pretrained(self.model_path, revision=self.revision, dtype=self._dtype)
        self._model: Any = loaded.eval().to(self.device)


@dataclass(kw_only=True, eq=False)
class JanusT2I(TransformersImageModel):
    """Janus and Janus-Pro, in the checkpoint's only size (384 × 384 for Janus-Pro).

    Args:
        guidance_scale: weight of classifier-free guidance; above 1.
        temperature: sampling temperature; above 0.
    """

    model_class = "JanusForConditionalGeneration"
    processor_class = "JanusProcessor"

    guidance_scale: float = 5.0
    temperature: float = 1.0

    def make(self, given: str, seed: int) -> Generated:
        """Returns one image."""
        message = {"role": "user", "content": [{"type": "text", "text": given}]}
        text = self._processor.apply_chat_template([message], add_generation_prompt=True)
        inputs = self._processor(text=text, generation_mode="image", return_tensors="pt").to(self.device)
        tokens = self._model.generate(
            **inputs,
            generation_mode="image",
            do_sample=True,
            # the authors sample from all tokens; transformers' default samples from the top 50
            top_k=0,
            **self.chosen("guidance_scale", "temperature"),
        )
        # (height, width, channel), normalised like the model's inputs. Without torchvision the processor's
        # own postprocess would read the height as channels.
        pixels = self._model.decode_image_tokens(tokens)[0].float()
        scale = self._processor.image_processor
        mean, std = (pixels.new_tensor(values) for values in (scale.image_mean, scale.image_std))
        return Generated(levels_to_image(((pixels * std + mean) * 255).permute(2, 0, 1)))


@dataclass(kw_only=True, eq=False)
class Emu3T2I(TransformersImageModel):
    """Emu3, which generates an image as a grid of tokens, row by row.

    Args:
        ratio: width to height, such as "1:1" or "16:9".
        image_area: approximate number of pixels; each side is a multiple of 8.
        guidance_scale: weight of classifier-free guidance; above 1.
        top_k: the number of candidate tokens for each sampled token.
        prompt_suffix: appended to every prompt; None: the authors' quality suffix.
        negative_prompt: the negative prompt; None: the authors' text.

    Raises ModelUnusable if the model does not load, or if a text of the authors is needed and their code is
    missing.
    """

    model_class = "Emu3ForConditionalGeneration"
    processor_class = "Emu3Processor"

    ratio: str = "1:1"
    image_area: int = 518400
    guidance_scale: float = 3.0
    top_k: int = 2048
    prompt_suffix: str | None = None
    negative_prompt: str | None = None

    def check(self) -> None:
        super().check()
        self._suffix = _authors("POSITIVE_PROMPT") if self.prompt_suffix is None else self.prompt_suffix
        self._negative = _authors("NEGATIVE_PROMPT") if self.negative_prompt is None else self.negative_prompt

    def make(self, given: str, seed: int) -> Generated:
        """Returns one image."""
        inputs = self._inputs(given + self._suffix)
        ((height, width),) = inputs.pop("image_sizes")
        negative = self._inputs(self._negative)
        start = inputs["input_ids"].shape[1]
        count, allowed = self._layout(start, height, width)
        tokens = self._model.generate(
            **inputs,
            do_sample=True,
            max_new_tokens=count,
            prefix_allowed_tokens_fn=allowed,
            negative_prompt_ids=negative["input_ids"],
            negative_prompt_attention_mask=negative["attention_mask"],
            **self.chosen("guidance_scale", "top_k"),
        )
        decoded = self._model.decode_image_tokens(image_tokens=tokens[:, start:], height=height, width=width)
        images = self._processor.postprocess(list(decoded.float()), return_tensors="PIL.Image.Image")
        (image,) = images["pixel_values"]
        assert isinstance(image, Image.Image)
        return Generated(image)

    def _inputs(self, text: str) -> Any:
        return self._processor(
            text=text,
            return_for_image_generation=True,
            return_tensors="pt",
            **self.chosen("ratio", "image_area"),
        ).to(self.device)

    def _layout(self, start: int, height: int, width: int) -> tuple[int, Callable[[int, Any], Any]]:
        """Returns the token count of an image, and transformers' function for the allowed next tokens.

        The image begins at position ``start``: rows of image tokens with an end-of-line token each, then
        three closing tokens.
        """
        import torch

        vocabulary, tokenizer = self._model.vocabulary_mapping, self._processor.tokenizer
        # a tensor, because transformers needs this list of 32768 ids at every token
        image_tokens = torch.tensor(vocabulary.image_tokens, device=self._model.device)
        closing = [
            tokenizer.encode(token, add_special_tokens=False)
            for token in (tokenizer.eof_token, tokenizer.eoi_token, tokenizer.eos_token)
        ]
        row = width + 1
        cells = height * row

        def allowed(batch_id: int, input_ids: Any) -> Any:
            at = len(input_ids) - start
            if at >= cells:
                return closing[at - cells]
            return [vocabulary.eol_token_id] if (at + 1) % row == 0 else image_tokens

        return cells + len(closing), allowed


def _authors(variable: str) -> str:
    return str(set_in_file("emu3", "image_generation.py", variable))
