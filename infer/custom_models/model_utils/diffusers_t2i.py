"""Any text-to-image pipeline of diffusers: a new model needs a registry entry only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from custom_models.model_utils.diffusers_common import DiffusersModel
from imageevalkit.generation.model import Generated, ModelUnusable, Refused

# Their images depend on which others are in the batch (of diffusers 0.42.1).
_NOT_IN_BATCHES = {
    "CogView4Pipeline": "it pads prompts to the longest one and attends to the padding",
    "OmniGenPipeline": "it gives all prompts the positions of the first one",
}


class DiffusersT2I(DiffusersModel):
    """Text to image; see :class:`DiffusersModel` for the settings.

    Args:
        prompt_suffix: added to every prompt as it is, for models whose authors recommend one.
        batch_size: images that one call of the pipeline makes, 1 or more.
    """

    def __init__(
        self, model_path: str, *, prompt_suffix: str = "", batch_size: int = 1, **settings: Any
    ) -> None:
        if type(batch_size) is not int or batch_size < 1:
            raise ModelUnusable(f"batch_size must be a whole number from 1, not {batch_size!r}")
        super().__init__(model_path, **settings)
        if batch_size > 1 and self.pipeline_class in _NOT_IN_BATCHES:
            raise ModelUnusable(
                f"{self.pipeline_class} makes no batches: {_NOT_IN_BATCHES[self.pipeline_class]}; leave out batch_size"
            )
        self.prompt_suffix = str(prompt_suffix)
        self.batch_size = batch_size

    def generate(self, prompt: str, seed: int = 42) -> Generated:
        """One image. Raises Refused when the pipeline's safety checker rejects it."""
        return self._call(seed, prompt=self._prompt(prompt))

    def generate_batch(self, prompts: Sequence[str], seeds: Sequence[int]) -> list[Generated | Refused]:
        """One image, or the safety checker's refusal, for each of ``prompts`` with its seed."""
        return self._call_batch(seeds, prompt=[self._prompt(prompt) for prompt in prompts])

    def _prompt(self, prompt: str) -> str:
        """What the pipeline is given for ``prompt``."""
        return prompt + self.prompt_suffix
