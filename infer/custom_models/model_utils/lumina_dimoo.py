"""Lumina-DiMOO with the authors' code: masked discrete diffusion on the tokens of a VQ autoencoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

from PIL import Image

from custom_models.authors import AuthorsModel
from custom_models.model_utils.inputs import one_image, split_inputs
from custom_models.model_utils.loading import torch_dtype
from imageevalkit.generate.model import Generated, ModelUnusable

_STRIDE = 16  # pixels per token
_EDIT_PATCHES, _PATCH = 256, 32  # an edit has at most 256 patches of 32 x 32 pixels


@dataclass(kw_only=True, eq=False)
class LuminaDimoo(AuthorsModel):
    """The base of both tasks. The weights hold the language model, its tokenizer and the folder ``vqvae``.

    Args:
        timesteps: number of steps that fill in masked tokens.
        temperature: sampling temperature of the tokens.
        dtype: ``bfloat16``, ``float16`` or ``float32``.
        device: a torch device; ``cuda`` spreads the layers over all GPUs that the process sees.
        cfg_scale: guidance towards the text; for text to image s in (1 + s) * conditional - s *
        unconditional.

    Source: Alpha-VLLM/Lumina-DiMOO@81344e60, inference/inference_t2i.py and inference_i2i.py.
    """

    code = "lumina-dimoo"
    without_gradients = True  # the authors' VQ code would keep tensors for gradients

    sampler: ClassVar[tuple[str, str]]
    """The authors' module and its sampling function."""

    timesteps: int
    temperature: float
    dtype: str
    cfg_scale: float

    def load(self) -> None:
        # first, because a misspelt dtype should not cost minutes
        weights_dtype = torch_dtype(self.dtype)
        from diffusers import VQModel
        from transformers import AutoTokenizer

        module, function = self.sampler
        self._sample = getattr(import_module(f"generators.{module}"), function)
        self._images, self._prompts = map(import_module, ("utils.image_utils", "utils.prompt_utils"))
        self._special = import_module("config").SPECIAL_TOKENS
        folder = self.weights()
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
        self._model: Any = import_module("model").LLaDAForMultiModalGeneration.from_pretrained(
            folder, torch_dtype=weights_dtype, device_map="auto" if self.device == "cuda" else self.device
        )
        self._vqvae: Any = VQModel.from_pretrained(folder, subfolder="vqvae").to(self.device)

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text)["input_ids"]
        return ids

    def _sampled(self, prompt: list[int], size: tuple[int, int], **others: list[int] | float) -> Generated:
        """Returns the image of ``size`` (width, height) that follows the tokens of ``prompt``.

        ``others`` are further arguments of the authors' sampler; a list holds the tokens of an unconditional
        prompt.
        """
        import torch

        def row(ids: list[int]) -> Any:
            return torch.tensor([ids], device=self.device)

        width, height = size
        length, per_line, rows, columns = self._images.calculate_vq_params(height, width, _STRIDE)
        special = self._special
        masked = self._images.add_break_line(
            [special["mask_token"]] * length, rows, columns, new_number=special["newline_token"]
        )
        opening, closing = ("answer_start", "boi"), ("eoi", "answer_end")
        answer = [*(special[name] for name in opening), *masked, *(special[name] for name in closing)]
        tokens = self._sample(
            self._model,
            row(prompt + answer),
            code_start=len(prompt) + 2,
            seq_len=length,
            newline_every=per_line,
            timesteps=self.timesteps,
            temperature=self.temperature,
            cfg_scale=self.cfg_scale,
            **{name: row(value) if isinstance(value, list) else value for name, value in others.items()},
        )
        image = self._images.decode_vq_to_image(
            tokens, save_path="", vae_ckpt="", image_height=height, image_width=width, vqvae=self._vqvae
        )
        return Generated(image, requested_size=(width, height))


@dataclass(kw_only=True, eq=False)
class LuminaDimooT2I(LuminaDimoo):
    """Text to image. ``width`` and ``height`` are multiples of 16."""

    sampler = ("image_generation_generator", "generate_image")

    width: int
    height: int

    def check(self) -> None:
        if self.width % _STRIDE or self.height % _STRIDE:
            raise ModelUnusable(f"Lumina-DiMOO makes sides that 16 divides, not {self.width} x {self.height}")
        super().check()

    def make(self, given: str, seed: int) -> Generated:
        """Returns one image."""
        conditional, unconditional = map(self._ids, self._prompts.generate_text_to_image_prompt(given))
        size = (self.width, self.height)
        return self._sampled(conditional, size, uncon_ids=unconditional, use_cache=False)


@dataclass(kw_only=True, eq=False)
class LuminaDimooEdit(LuminaDimoo):
    """Edit of one image, scaled and cropped (at a random place) to about 512 x 512 pixels.

    ``cfg_img`` is guidance towards the input image.
    """

    sampler = ("image_to_image_generator", "generate_i2i")

    cfg_img: float

    def make(self, given: Sequence[str | Image.Image], seed: int) -> Generated:
        """Returns one edited image of the crop's size. Raises ItemFailed unless there is exactly one input
        image."""
        images, instruction = split_inputs(given)
        sizes = self._images.generate_crop_size_list(_EDIT_PATCHES, _PATCH)
        image = self._images.var_center_crop(one_image(images, "Lumina-DiMOO"), crop_size_list=sizes)
        shown = self._images.encode_img_with_breaks(image, self._vqvae)
        prompt, no_text, _ = self._prompts.generate_image_to_image_prompt(instruction, "edit")
        with_text, without_text = self._ids(prompt), self._ids(no_text)
        return self._sampled(
            [*with_text[:-1], *shown, with_text[-1]],
            image.size,
            uncon_text=[*without_text[:-1], *shown, without_text[-1]],
            uncon_image=with_text,
            cfg_img=self.cfg_img,
        )
