"""Show-o with the authors' code: image tokens unmasked step by step (discrete diffusion)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from PIL import Image

from custom_models import authors_code
from custom_models.model_settings.weights import PHI_1_5
from custom_models.model_utils.adapters import best_device, loading, set_seeds, to_image, weights_folder


class ShowOT2I:
    """Show-o (1.3B), square images; their size belongs to the weights and to ``config``.

    Args:
        model_path: weights as showlab published them.
        revision: commit of a hub repository.
        config: file in the authors' folder ``configs/`` that describes the weights.
        guidance_scale: guidance s in ``(1 + s) * conditional - s * unconditional``, of logits; 0: none.
        generation_timesteps: rounds in which the tokens are unmasked.
        temperature: of the noise on the choice of tokens to keep; falls to 0 over the rounds.
        vq_path, vq_revision: the image tokenizer, a folder or a hub repository at a commit.
        llm_path, llm_revision: the text tokenizer and the shape of the language model (no weights), likewise.
        device: a torch device.

    Source: showlab/Show-o@45a5a2de, inference_t2i.py (order of the calls, float32) and README.md (settings).

    Raises:
        ModelUnusable: code, packages, weights or GPU are missing.
    """

    def __init__(
        self,
        model_path: str,
        *,
        revision: str | None = None,
        config: str,
        guidance_scale: float,
        generation_timesteps: int,
        temperature: float,
        vq_path: str,
        vq_revision: str | None = None,
        llm_path: str,
        llm_revision: str | None = None,
        device: str = "cuda",
    ) -> None:
        self.model_name = Path(model_path).name
        self.guidance_scale = guidance_scale
        self.generation_timesteps = generation_timesteps
        self.temperature = temperature
        code = authors_code.use("show-o")
        with loading(model_path, "show-o"):
            from models import MAGVITv2, Showo, get_mask_chedule
            from omegaconf import OmegaConf
            from training.prompting_utils import UniversalPrompting, create_attention_mask_predict_next
            from transformers import AutoTokenizer

            self.device = best_device(device)
            self._config: Any = OmegaConf.load(code / "configs" / config)
            self._attention_mask: Any = create_attention_mask_predict_next
            self._mask_schedule: Any = get_mask_chedule("cosine")
            language_model = str(weights_folder(llm_path, llm_revision, PHI_1_5.patterns))
            self._prompting: Any = UniversalPrompting(
                AutoTokenizer.from_pretrained(language_model, padding_side="left"),
                max_text_len=self._config.dataset.preprocessing.max_seq_length,
            )
            folder = str(weights_folder(model_path, revision))
            # the weights' own config names the hub's phi-1_5, whatever its newest commit
            model = Showo.from_pretrained(folder, llm_model_path=language_model)
            self._model: Any = model.to(self.device).eval()
        with loading(vq_path, "show-o"):
            tokenizer = MAGVITv2.from_pretrained(str(weights_folder(vq_path, vq_revision)))
            self._image_tokenizer: Any = tokenizer.to(self.device).eval()

    def generate(self, prompt: str, seed: int = 42) -> Image.Image:
        """One square image."""
        import torch

        set_seeds(seed)
        sizes = self._config.model.showo
        masked = torch.full((1, sizes.num_vq_tokens), self._model.config.mask_token_id, device=self.device)
        with torch.inference_mode():
            conditional, _ = self._prompting(([prompt], masked), "t2i_gen")
            unconditional, sequences = None, conditional
            if self.guidance_scale > 0:
                unconditional, _ = self._prompting(([""], masked), "t2i_gen")
                sequences = torch.cat([conditional, unconditional])
            tokens = self._model.t2i_generate(
                input_ids=conditional,
                uncond_input_ids=unconditional,
                attention_mask=self._mask(sequences),
                guidance_scale=self.guidance_scale,
                temperature=self.temperature,
                timesteps=self.generation_timesteps,
                noise_schedule=self._mask_schedule,
                noise_type="mask",
                seq_len=sizes.num_vq_tokens,
                uni_prompting=self._prompting,
                config=self._config,
            )
            pixels = self._image_tokenizer.decode_code(tokens.clamp(0, sizes.codebook_size - 1))
        return to_image(pixels[0])

    def _mask(self, sequences: Any) -> Any:
        """Who attends to whom: text to what precedes it, image tokens to everything but padding."""
        ids = {name: int(self._prompting.sptids_dict[f"<|{name}|>"]) for name in ("pad", "soi", "eoi")}
        return self._attention_mask(
            sequences, pad_id=ids["pad"], soi_id=ids["soi"], eoi_id=ids["eoi"], rm_pad_in_image=True
        )
