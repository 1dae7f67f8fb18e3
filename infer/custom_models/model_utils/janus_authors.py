"""Janus-1.3B with the authors' code: image tokens one after another, with classifier-free guidance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from PIL import Image

from custom_models import authors_code
from custom_models.model_utils.adapters import best_device, loading, set_seeds, to_image, weights_folder

_SIDE = 384  # pixels; the VQ decoder makes 16 x 16 of them from a token
_GRID = _SIDE // 16
_CODE_CHANNELS = 8


class JanusAuthorsT2I:
    """Janus-1.3B, 384 x 384 pixels from 24 x 24 tokens.

    Args:
        model_path: weights as deepseek-ai published them (not those converted for transformers).
        revision: commit of a hub repository.
        cfg_weight: guidance w in ``unconditional + w * (conditional - unconditional)``, of logits.
        temperature: > 0; 1 draws from the model's own distribution.
        device: a torch device.

    Source: deepseek-ai/Janus@1daa72fa, generation_inference.py (settings, order of the calls).

    Raises:
        ModelUnusable: code, packages, weights or GPU are missing.
    """

    def __init__(
        self,
        model_path: str,
        *,
        revision: str | None = None,
        cfg_weight: float,
        temperature: float,
        device: str = "cuda",
    ) -> None:
        self.model_name = Path(model_path).name
        self.cfg_weight = cfg_weight
        self.temperature = temperature
        authors_code.use("janus")
        with loading(model_path, "janus"):
            import torch
            from janus.models import MultiModalityCausalLM, VLChatProcessor

            self.device = best_device(device)
            folder = str(weights_folder(model_path, revision))
            self._processor: Any = VLChatProcessor.from_pretrained(folder)
            model = MultiModalityCausalLM.from_pretrained(folder)
            # after loading, as the authors do: it rounds the frequencies of the positions too
            self._model: Any = model.to(torch.bfloat16).to(self.device).eval()

    def generate(self, prompt: str, seed: int = 42) -> Image.Image:
        """One image of 384 x 384 pixels."""
        import torch

        set_seeds(seed)
        with torch.inference_mode():
            tokens = self._draw(chat_prompt_ids(self._processor, prompt, self._processor.image_start_tag))
            pixels = self._model.gen_vision_model.decode_code(
                tokens.to(torch.int), shape=[1, _CODE_CHANNELS, _GRID, _GRID]
            )
        return to_image(pixels[0])

    def _draw(self, prompt_ids: list[int]) -> Any:
        """Image tokens, 1 x 576. The unconditional sequence is the prompt with all but its ends padded."""
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


def chat_prompt_ids(processor: Any, prompt: str, tag: str) -> list[int]:
    """Tokens of ``prompt`` in the model's own chat format, then ``tag``, which opens an image."""
    turns = [{"role": "User", "content": prompt}, {"role": "Assistant", "content": ""}]
    text = processor.apply_sft_template_for_multi_turn_prompts(
        conversations=turns, sft_format=processor.sft_format, system_prompt=""
    )
    ids: list[int] = processor.tokenizer.encode(text + tag)
    return ids
