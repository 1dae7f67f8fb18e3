"""Lumina-DiMOO with the authors' code: masked discrete diffusion over the tokens of a VQ autoencoder."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from PIL import Image

from custom_models import authors_code
from custom_models.model_utils.adapters import best_device, loading, set_seeds, weights_folder
from custom_models.model_utils.diffusers_loading import torch_dtype
from custom_models.model_utils.inputs import one_image, split_inputs
from imageevalkit.generation.model import Generated, ModelUnusable

_STRIDE = 16  # pixels of a token
_EDIT_PATCHES, _PATCH = 256, 32  # an edit has at most that many patches of 32 x 32 pixels


class LuminaDimoo:
    """Loading and the settings of both tasks.

    Args:
        model_path: folder or hub repository with the language model, its tokenizer and ``vqvae``.
        revision: commit of a hub repository.
        timesteps: steps in which masked tokens are filled in.
        temperature: of the sampled tokens.
        dtype: ``bfloat16``, ``float16`` or ``float32``.
        device: a torch device; ``cuda`` spreads the layers over all GPUs that the process sees.

    Source: Alpha-VLLM/Lumina-DiMOO@81344e60, inference/inference_t2i.py and inference_i2i.py.

    Raises:
        ModelUnusable: code, packages, weights or GPU are missing.
    """

    def __init__(
        self,
        model_path: str,
        *,
        revision: str | None = None,
        timesteps: int,
        temperature: float,
        dtype: str,
        device: str = "cuda",
    ) -> None:
        self.model_name = Path(model_path).name
        self._sampling = {"timesteps": timesteps, "temperature": temperature}
        authors_code.use("lumina-dimoo")
        with loading(model_path, "lumina-dimoo"):
            # a typing slip should not cost minutes
            weights_dtype = torch_dtype(dtype)
            from diffusers import VQModel
            from transformers import AutoTokenizer

            self._images, self._prompts = map(import_module, ("utils.image_utils", "utils.prompt_utils"))
            self._special = import_module("config").SPECIAL_TOKENS
            self.device = best_device(device)
            folder = str(weights_folder(model_path, revision))
            self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
            self._model: Any = import_module("model").LLaDAForMultiModalGeneration.from_pretrained(
                folder, torch_dtype=weights_dtype, device_map="auto" if device == "cuda" else device
            )
            self._vqvae: Any = VQModel.from_pretrained(folder, subfolder="vqvae").to(device)

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text)["input_ids"]
        return ids

    def _row(self, ids: list[int]) -> Any:
        """The tokens as a batch of one."""
        import torch

        return torch.tensor([ids], device=self.device)

    def _answer(self, width: int, height: int) -> tuple[list[int], dict[str, int]]:
        """The masked tokens of an image, a line feed after each row, and what the sampler must know of them."""
        length, per_line, rows, columns = self._images.calculate_vq_params(height, width, _STRIDE)
        special = self._special
        masked = self._images.add_break_line(
            [special["mask_token"]] * length, rows, columns, new_number=special["newline_token"]
        )
        opening, closing = ("answer_start", "boi"), ("eoi", "answer_end")
        answer = [*(special[name] for name in opening), *masked, *(special[name] for name in closing)]
        return answer, {"seq_len": length, "newline_every": per_line}

    def _decode(self, tokens: Any, width: int, height: int) -> Generated:
        image = self._images.decode_vq_to_image(
            tokens, save_path="", vae_ckpt="", image_height=height, image_width=width, vqvae=self._vqvae
        )
        return Generated(image, requested_size=(width, height))


class LuminaDimooT2I(LuminaDimoo):
    """Text to image; see :class:`LuminaDimoo`. ``cfg_scale`` is s in (1 + s) * conditional - s * unconditional."""

    def __init__(
        self, model_path: str, *, width: int, height: int, cfg_scale: float, **settings: Any
    ) -> None:
        if width % _STRIDE or height % _STRIDE:
            raise ModelUnusable(f"Lumina-DiMOO makes sides that 16 divides, not {width} x {height}")
        super().__init__(model_path, **settings)
        self._sample = import_module("generators.image_generation_generator").generate_image
        self._size, self._cfg_scale = (width, height), cfg_scale

    def generate(self, prompt: str, seed: int = 42) -> Generated:
        """One image."""
        import torch

        set_seeds(seed)
        # the authors' VQ code would keep what gradients need
        with torch.inference_mode():
            conditional, unconditional = map(self._ids, self._prompts.generate_text_to_image_prompt(prompt))
            answer, layout = self._answer(*self._size)
            tokens = self._sample(
                self._model,
                self._row(conditional + answer),
                uncon_ids=self._row(unconditional),
                code_start=len(conditional) + 2,
                cfg_scale=self._cfg_scale,
                use_cache=False,
                **layout,
                **self._sampling,
            )
            return self._decode(tokens, *self._size)


class LuminaDimooEdit(LuminaDimoo):
    """Edit of one image, scaled and cut (at a random place) to about 512 x 512 pixels; see :class:`LuminaDimoo`.

    Args:
        cfg_scale, cfg_img: guidance towards the instruction and the input image.
    """

    def __init__(self, model_path: str, *, cfg_scale: float, cfg_img: float, **settings: Any) -> None:
        super().__init__(model_path, **settings)
        self._sample = import_module("generators.image_to_image_generator").generate_i2i
        self._guidance = {"cfg_scale": cfg_scale, "cfg_img": cfg_img}

    def generate(self, input_list: Sequence[str | Image.Image], seed: int = 42) -> Generated:
        """One edited image of the cut's size. Raises ItemFailed unless there is exactly one input image."""
        import torch

        images, instruction = split_inputs(input_list)
        source = one_image(images, "Lumina-DiMOO")
        set_seeds(seed)
        with torch.inference_mode():
            sizes = self._images.generate_crop_size_list(_EDIT_PATCHES, _PATCH)
            image = self._images.var_center_crop(source, crop_size_list=sizes)
            shown = self._images.encode_img_with_breaks(image, self._vqvae)
            prompt, no_text, _ = self._prompts.generate_image_to_image_prompt(instruction, "edit")
            with_text, without_text = self._ids(prompt), self._ids(no_text)
            conditional = [*with_text[:-1], *shown, with_text[-1]]
            answer, layout = self._answer(*image.size)
            tokens = self._sample(
                self._model,
                self._row(conditional + answer),
                uncon_text=self._row([*without_text[:-1], *shown, without_text[-1]]),
                uncon_image=self._row(with_text),
                code_start=len(conditional) + 2,
                **self._guidance,
                **layout,
                **self._sampling,
            )
            return self._decode(tokens, *image.size)
