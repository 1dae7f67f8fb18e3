"""Janus-1.3B and JanusFlow-1.3B with the authors' code. Both generate images of 384 x 384 pixels.

Janus samples image tokens one after another. JanusFlow is a rectified flow: its language model predicts the
velocity.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from PIL import Image

from custom_models.authors import AuthorsModel
from custom_models.model_settings import SDXL_VAE
from custom_models.model_utils.loading import to_image, weights_folder

_GRID = 24  # tokens per side; the VQ decoder turns a token into 16 x 16 pixels
_CODE_CHANNELS = 8
_LATENT = (1, 4, 48, 48)  # shape for the SDXL autoencoder; a JanusFlow token covers 2 x 2 latents


@dataclass(kw_only=True, eq=False)
class _Janus(AuthorsModel):
    """The base of both models. The weights are deepseek-ai's originals, not those for transformers.

    Args:
        cfg_weight: w in ``unconditional + w * (conditional - unconditional)``, applied to logits or
        velocities.
    """

    code = "janus"
    without_gradients = True

    cfg_weight: float

    def _load(self, classes: Any) -> None:
        import torch

        folder = self.weights()
        self._processor: Any = classes.VLChatProcessor.from_pretrained(folder)
        model = classes.MultiModalityCausalLM.from_pretrained(folder)
        # after loading, like the authors: this also rounds the frequencies of the positions
        self._model: Any = model.to(torch.bfloat16).to(self.device).eval()

    def _ids(self, prompt: str, tag: str) -> list[int]:
        """Returns the tokens of ``prompt`` in the model's chat format, followed by ``tag``, which opens an
        image."""
        processor = self._processor
        turns = [{"role": "User", "content": prompt}, {"role": "Assistant", "content": ""}]
        text = processor.apply_sft_template_for_multi_turn_prompts(
            conversations=turns, sft_format=processor.sft_format, system_prompt=""
        )
        ids: list[int] = processor.tokenizer.encode(text + tag)
        return ids


@dataclass(kw_only=True, eq=False)
class JanusAuthorsT2I(_Janus):
    """Janus-1.3B. ``temperature`` is above 0; 1 samples from the model's own distribution.

    Source: deepseek-ai/Janus@1daa72fa, generation_inference.py (settings, order of the calls).
    """

    temperature: float

    def load(self) -> None:
        import janus.models

        self._load(janus.models)

    def make(self, given: str, seed: int) -> Image.Image:
        """Returns one image."""
        tokens = self._draw(self._ids(given, self._processor.image_start_tag))
        shape = [1, _CODE_CHANNELS, _GRID, _GRID]
        return to_image(self._model.gen_vision_model.decode_code(tokens.int(), shape=shape)[0])

    def _draw(self, prompt_ids: list[int]) -> Any:
        """Returns image tokens, 1 x 576. The unconditional prompt keeps its first and last token; the rest is
        padding."""
        import torch

        language, model = self._model.language_model, self._model
        blank = [prompt_ids[0], *[self._processor.pad_id] * (len(prompt_ids) - 2), prompt_ids[-1]]
        embeddings = language.get_input_embeddings()(torch.tensor([prompt_ids, blank], device=self.device))
        cache, drawn = None, []
        for _ in range(_GRID * _GRID):
            output = language.model(inputs_embeds=embeddings, past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            conditional, unconditional = model.gen_head(output.last_hidden_state[:, -1]).chunk(2)
            logits = unconditional + self.cfg_weight * (conditional - unconditional)
            token = torch.multinomial(torch.softmax(logits / self.temperature, dim=-1), num_samples=1)
            drawn.append(token)
            embeddings = model.prepare_gen_img_embeds(token.expand(2, 1))
        return torch.cat(drawn, dim=1)


@dataclass(kw_only=True, eq=False)
class JanusFlowT2I(_Janus):
    """JanusFlow-1.3B.

    Args:
        num_inference_steps: Euler steps from noise (t = 0) to image (t = 1).
        vae_path, vae_revision: the SDXL autoencoder, a folder or a hub repository at a commit.

    Source: deepseek-ai/Janus@1daa72fa, README.md "JanusFlow" (settings, order of the calls).
    """

    num_inference_steps: int
    vae_path: str
    vae_revision: str | None = None

    def load(self) -> None:
        import janus.janusflow.models
        import torch
        from diffusers.models import AutoencoderKL

        self._load(janus.janusflow.models)
        with self.loading(self.vae_path):
            folder = weights_folder(self.vae_path, self.vae_revision, SDXL_VAE.patterns)
            # bfloat16, because this autoencoder's values overflow float16
            vae = AutoencoderKL.from_pretrained(str(folder)).to(torch.bfloat16)
            self._vae: Any = vae.to(self.device).eval()

    def make(self, given: str, seed: int) -> Image.Image:
        """Returns one image."""
        latent = self._flow(self._ids(given, self._processor.image_gen_tag))
        return to_image(self._vae.decode(latent / self._vae.config.scaling_factor).sample[0])

    def _flow(self, prompt_ids: list[int]) -> Any:
        """Returns the latent at t = 1. The unconditional prompt keeps only its first token; the rest is
        masked padding."""
        import torch

        blank = [prompt_ids[0], *[self._processor.pad_id] * (len(prompt_ids) - 1)]
        pair = torch.tensor([prompt_ids, blank], device=self.device)
        # the embedded time replaces the prompt's last token, which opens the image
        words = self._model.language_model.get_input_embeddings()(pair)[:, :-1]
        mask = torch.ones(2, words.shape[1] + 1 + _GRID * _GRID, dtype=torch.int, device=self.device)
        mask[1, 1 : words.shape[1]] = 0
        # drawn on the CPU, so the noise does not depend on the GPU
        latent = torch.randn(_LATENT, dtype=torch.bfloat16).to(self.device)
        step_length = torch.full_like(latent, 1 / self.num_inference_steps)
        for step in range(self.num_inference_steps):
            time = torch.full((2,), step / self.num_inference_steps * 1000, dtype=torch.bfloat16)
            both = self._velocity(words, mask, latent.expand(2, -1, -1, -1), time.to(self.device))
            conditional, unconditional = both.chunk(2)
            velocity = self.cfg_weight * conditional - (self.cfg_weight - 1) * unconditional
            latent = latent + step_length * velocity
        return latent

    def _velocity(self, words: Any, mask: Any, latents: Any, time: Any) -> Any:
        """Returns the velocity at ``latents`` (2 x 4 x 48 x 48) for the prompt pair ``words``; ``time`` is
        0-1000."""
        import torch

        model = self._model
        features, time_embedding, skipped = model.vision_gen_enc_model(latents, time)
        patches = model.vision_gen_enc_aligner(features.flatten(2).transpose(1, 2))
        sequence = torch.cat([words, time_embedding.unsqueeze(1), patches], dim=1)
        output = model.language_model.model(inputs_embeds=sequence, attention_mask=mask, use_cache=False)
        hidden = output.last_hidden_state[:, -_GRID * _GRID :]
        hidden = model.vision_gen_dec_aligner(model.vision_gen_dec_aligner_norm(hidden))
        grid = hidden.transpose(1, 2).unflatten(2, (_GRID, _GRID))
        return model.vision_gen_dec_model(grid, skipped, time_embedding)
