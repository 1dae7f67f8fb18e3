"""Show-o with the authors' code. It unmasks image tokens step by step (discrete diffusion)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from PIL import Image

from custom_models.authors import AuthorsModel
from custom_models.model_settings import PHI_1_5
from custom_models.model_utils.loading import to_image, weights_folder


@dataclass(kw_only=True, eq=False)
class ShowOT2I(AuthorsModel):
    """Show-o (1.3B), square images. The weights and ``config`` decide their size.

    Args:
        config: file in the authors' folder ``configs/`` that describes the weights.
        guidance_scale: s in ``(1 + s) * conditional - s * unconditional``, applied to logits; 0 means no
            guidance.
        generation_timesteps: number of unmasking rounds.
        temperature: temperature of the noise when tokens to keep are chosen; it falls to 0 over the rounds.
        vq_path, vq_revision: the image tokenizer, a folder or a hub repository at a commit.
        llm_path, llm_revision: the text tokenizer and the configuration of the language model (no weights),
            likewise.

    Source: showlab/Show-o@45a5a2de, inference_t2i.py (order of the calls, float32) and README.md (settings).
    """

    code = "show-o"
    without_gradients = True

    config: str
    guidance_scale: float
    generation_timesteps: int
    temperature: float
    vq_path: str
    vq_revision: str | None = None
    llm_path: str
    llm_revision: str | None = None

    def load(self) -> None:
        from models import MAGVITv2, Showo, get_mask_chedule
        from omegaconf import OmegaConf
        from training.prompting_utils import UniversalPrompting, create_attention_mask_predict_next
        from transformers import AutoTokenizer

        self._config: Any = OmegaConf.load(self.repository / "configs" / self.config)
        self._attention_mask: Any = create_attention_mask_predict_next
        self._mask_schedule: Any = get_mask_chedule("cosine")
        language_model = str(weights_folder(self.llm_path, self.llm_revision, PHI_1_5.patterns))
        self._prompting: Any = UniversalPrompting(
            AutoTokenizer.from_pretrained(language_model, padding_side="left"),
            max_text_len=self._config.dataset.preprocessing.max_seq_length,
        )
        # the config of the weights would load the newest commit of the hub's phi-1_5
        model = Showo.from_pretrained(self.weights(), llm_model_path=language_model)
        self._model: Any = model.to(self.device).eval()
        with self.loading(self.vq_path):
            tokenizer = MAGVITv2.from_pretrained(str(weights_folder(self.vq_path, self.vq_revision)))
            self._image_tokenizer: Any = tokenizer.to(self.device).eval()

    def make(self, given: str, seed: int) -> Image.Image:
        """Returns one square image."""
        import torch

        sizes = self._config.model.showo
        masked = torch.full((1, sizes.num_vq_tokens), self._model.config.mask_token_id, device=self.device)
        conditional, _ = self._prompting(([given], masked), "t2i_gen")
        unconditional, sequences = None, conditional
        if self.guidance_scale > 0:
            unconditional, _ = self._prompting(([""], masked), "t2i_gen")
            sequences = torch.cat([conditional, unconditional])
        ids = {
            f"{name}_id": int(self._prompting.sptids_dict[f"<|{name}|>"]) for name in ("pad", "soi", "eoi")
        }
        tokens = self._model.t2i_generate(
            input_ids=conditional,
            uncond_input_ids=unconditional,
            # text attends to earlier tokens, image tokens to everything except padding
            attention_mask=self._attention_mask(sequences, rm_pad_in_image=True, **ids),
            guidance_scale=self.guidance_scale,
            temperature=self.temperature,
            timesteps=self.generation_timesteps,
            noise_schedule=self._mask_schedule,
            noise_type="mask",
            seq_len=sizes.num_vq_tokens,
            uni_prompting=self._prompting,
            config=self._config,
        )
        return to_image(self._image_tokenizer.decode_code(tokens.clamp(0, sizes.codebook_size - 1))[0])
