"""Image generators that transformers has a class for: they sample tokens with torch's global random numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from PIL import Image

from custom_models.authors import set_in_file
from custom_models.model_utils.loading import LocalModel, check_environment, levels_to_image, torch_dtype
from imageevalkit.generation.model import Generated


@dataclass(kw_only=True, eq=False)
class TransformersImageModel(LocalModel):
    """A checkpoint and its processor. ``dtype`` is ``bfloat16``, ``float16`` or ``float32``.

    Images of a batch would share a seed, so there are no batches.
    """

    model_class: ClassVar[str]
    """Name of the model's class in transformers."""
    processor_class: ClassVar[str]
    """Name of the processor's class in transformers."""

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
        temperature: of the sampling; above 0.
    """

    model_class = "JanusForConditionalGeneration"
    processor_class = "JanusProcessor"

    guidance_scale: float = 5.0
    temperature: float = 1.0

    def make(self, given: str, seed: int) -> Generated:
        """One image."""
        message = {"role": "user", "content": [{"type": "text", "text": given}]}
        text = self._processor.apply_chat_template([message], add_generation_prompt=True)
        inputs = self._processor(text=text, generation_mode="image", return_tensors="pt").to(self.device)
        tokens = self._model.generate(
            **inputs,
            generation_mode="image",
            do_sample=True,
            # the authors draw from all tokens, transformers' default from the 50 most probable
            top_k=0,
            **self.chosen("guidance_scale", "temperature"),
        )
        # (height, width, channel), normalized as the model's inputs are; the processor's own postprocess takes the
        # height for the channels where torchvision is missing
        pixels = self._model.decode_image_tokens(tokens)[0].float()
        scale = self._processor.image_processor
        mean, std = (pixels.new_tensor(values) for values in (scale.image_mean, scale.image_std))
        return Generated(levels_to_image(((pixels * std + mean) * 255).permute(2, 0, 1)))


@dataclass(kw_only=True, eq=False)
class Emu3T2I(TransformersImageModel):
    """Emu3: an image is a grid of tokens, row by row.

    Args:
        ratio: width to height, such as "1:1" or "16:9".
        image_area: about how many pixels the image has; each side is a multiple of 8.
        guidance_scale: weight of classifier-free guidance; above 1.
        top_k: tokens among which each next one is drawn.
        prompt_suffix: added to every prompt as it is; None: the authors' words on quality.
        negative_prompt: what guidance leads away from; None: the authors' own.

    Raises ModelUnusable: it does not load, or the authors' words are wanted and their code is not there.
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
        """One image."""
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
        """How many tokens an image has, and the function that transformers asks which may follow: rows of image tokens
        that each end with a mark, then three closing marks. The image begins at position ``start``."""
        import torch

        vocabulary, tokenizer = self._model.vocabulary_mapping, self._processor.tokenizer
        # a tensor, because this list of 32768 is asked for at every token
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
