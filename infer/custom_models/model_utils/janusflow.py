"""JanusFlow-1.3B with the authors' code: rectified flow, whose velocity the language model predicts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from PIL import Image

from custom_models import authors_code
from custom_models.model_settings.weights import SDXL_VAE
from custom_models.model_utils.adapters import best_device, loading, set_seeds, to_image, weights_folder
from custom_models.model_utils.janus_authors import chat_prompt_ids

_LATENT = (1, 4, 48, 48)  # of the SDXL autoencoder: 384 x 384 pixels
_GRID = 24  # the language model sees 2 x 2 latents as one token


class JanusFlowT2I:
    """JanusFlow-1.3B, 384 x 384 pixels.

    Args:
        model_path: weights as deepseek-ai published them.
        revision: commit of a hub repository.
        cfg_weight: guidance w in ``unconditional + w * (conditional - unconditional)``, of velocities.
        num_inference_steps: Euler steps from noise (t = 0) to image (t = 1).
        vae_path, vae_revision: the SDXL autoencoder, a folder or a hub repository at a commit.
        device: a torch device.

    Source: deepseek-ai/Janus@1daa72fa, README.md "JanusFlow" (settings, order of the calls).

    Raises:
        ModelUnusable: code, packages, weights or GPU are missing.
    """

    def __init__(
        self,
        model_path: str,
        *,
        revision: str | None = None,
        cfg_weight: float,
        num_inference_steps: int,
        vae_path: str,
        vae_revision: str | None = None,
        device: str = "cuda",
    ) -> None:
        self.model_name = Path(model_path).name
        self.cfg_weight = cfg_weight
        self.num_inference_steps = num_inference_steps
        authors_code.use("janus")
        with loading(model_path, "janus"):
            import torch
            from diffusers.models import AutoencoderKL
            from janus.janusflow.models import MultiModalityCausalLM, VLChatProcessor

            self.device = best_device(device)
            folder = str(weights_folder(model_path, revision))
            self._processor: Any = VLChatProcessor.from_pretrained(folder)
            model = MultiModalityCausalLM.from_pretrained(folder)
            # after loading, as the authors do: it rounds the frequencies of the positions too
            self._model: Any = model.to(torch.bfloat16).to(self.device).eval()
        with loading(vae_path, "janus"):
            vae = AutoencoderKL.from_pretrained(
                str(weights_folder(vae_path, vae_revision, SDXL_VAE.patterns))
            )
            # float16 does not hold this autoencoder's values
            self._vae: Any = vae.to(torch.bfloat16).to(self.device).eval()

    def generate(self, prompt: str, seed: int = 42) -> Image.Image:
        """One image of 384 x 384 pixels."""
        import torch

        set_seeds(seed)
        with torch.inference_mode():
            ids = chat_prompt_ids(self._processor, prompt, self._processor.image_gen_tag)
            latent = self._flow(ids)
            pixels = self._vae.decode(latent / self._vae.config.scaling_factor).sample
        return to_image(pixels[0])

    def _flow(self, prompt_ids: list[int]) -> Any:
        """The latent at t = 1. In the unconditional sequence all but the first token is padding nobody attends to."""
        import torch

        blank = [prompt_ids[0], *[self._processor.pad_id] * (len(prompt_ids) - 1)]
        pair = torch.tensor([prompt_ids, blank], device=self.device)
        # the embedded time takes the place of the prompt's last token, which opens the image
        words = self._model.language_model.get_input_embeddings()(pair)[:, :-1]
        mask = torch.ones(2, words.shape[1] + 1 + _GRID * _GRID, dtype=torch.int, device=self.device)
        mask[1, 1 : words.shape[1]] = 0
        # drawn on the CPU: the same noise whatever the GPU
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
        """The velocity at ``latents`` (2 x 4 x 48 x 48) for the sequence pair ``words``; ``time`` is 0 to 1000."""
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
