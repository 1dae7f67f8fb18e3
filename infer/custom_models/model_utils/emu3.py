"""Emu3 in the layout of transformers: an image is a grid of tokens, row by row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from PIL import Image

from custom_models.authors_examples import set_in_program
from custom_models.model_utils.transformers_common import TransformersImageModel
from imageevalkit.generation.model import Generated


class Emu3T2I(TransformersImageModel):
    """Text to image.

    Args:
        ratio: width to height, such as "1:1" or "16:9".
        image_area: about how many pixels the image has; each side is a multiple of 8.
        guidance_scale: weight of classifier-free guidance; above 1.
        top_k: tokens among which each next one is drawn.
        prompt_suffix: added to every prompt as it is; None: the authors' words on quality.
        negative_prompt: what guidance leads away from; None: the authors' own.

    Raises:
        ModelUnusable: it does not load, or the authors' words are wanted and their code is not there.
    """

    model_class = "Emu3ForConditionalGeneration"
    processor_class = "Emu3Processor"

    def __init__(
        self,
        model_path: str,
        *,
        ratio: str = "1:1",
        image_area: int = 518400,
        guidance_scale: float = 3.0,
        top_k: int = 2048,
        prompt_suffix: str | None = None,
        negative_prompt: str | None = None,
        **settings: Any,
    ) -> None:
        # before the weights are read: what is missing should not cost minutes
        self._prompt_suffix = _authors("POSITIVE_PROMPT") if prompt_suffix is None else prompt_suffix
        self._negative_prompt = _authors("NEGATIVE_PROMPT") if negative_prompt is None else negative_prompt
        super().__init__(model_path, **settings)
        self._grid = {"ratio": ratio, "image_area": image_area}
        self._sampling = {"do_sample": True, "guidance_scale": guidance_scale, "top_k": top_k}

    def generate(self, prompt: str, seed: int = 42) -> Generated:
        """One image, sampled with ``seed``."""
        inputs = self._inputs(prompt + self._prompt_suffix)
        ((height, width),) = inputs.pop("image_sizes")
        negative = self._inputs(self._negative_prompt)
        start = inputs["input_ids"].shape[1]
        grid = _Grid(self._model, self._processor, height, width)
        self._seed(seed)
        tokens = self._model.generate(
            **inputs,
            max_new_tokens=grid.tokens,
            prefix_allowed_tokens_fn=grid.allowed_after(start),
            negative_prompt_ids=negative["input_ids"],
            negative_prompt_attention_mask=negative["attention_mask"],
            **self._sampling,
        )
        decoded = self._model.decode_image_tokens(image_tokens=tokens[:, start:], height=height, width=width)
        images = self._processor.postprocess(list(decoded.float()), return_tensors="PIL.Image.Image")
        (image,) = images["pixel_values"]
        assert isinstance(image, Image.Image)
        return Generated(image)

    def _inputs(self, text: str) -> Any:
        return self._processor(
            text=text, return_for_image_generation=True, return_tensors="pt", **self._grid
        ).to(self.device)


def _authors(variable: str) -> str:
    return str(set_in_program("emu3", "image_generation.py", variable))


class _Grid:
    """Which tokens may follow: rows of image tokens that each end with a mark, then three closing marks."""

    def __init__(self, model: Any, processor: Any, height: int, width: int) -> None:
        import torch

        vocabulary, tokenizer = model.vocabulary_mapping, processor.tokenizer
        # a tensor, because this list of 32768 is asked for at every token
        self._image_tokens = torch.tensor(vocabulary.image_tokens, device=model.device)
        self._end_of_row = [vocabulary.eol_token_id]
        self._closing = [
            tokenizer.encode(token, add_special_tokens=False)
            for token in (tokenizer.eof_token, tokenizer.eoi_token, tokenizer.eos_token)
        ]
        self._row = width + 1
        self._cells = height * self._row

    @property
    def tokens(self) -> int:
        """Tokens of a whole image."""
        return self._cells + len(self._closing)

    def allowed_after(self, start: int) -> Callable[[int, Any], Any]:
        """The function that transformers asks before each token; the image begins at position ``start``."""

        def allowed(batch_id: int, input_ids: Any) -> Any:
            at = len(input_ids) - start
            if at >= self._cells:
                return self._closing[at - self._cells]
            return self._end_of_row if (at + 1) % self._row == 0 else self._image_tokens

        return allowed
