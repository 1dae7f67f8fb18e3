"""Any text-to-image pipeline of diffusers: a new model needs a registry entry only."""

from __future__ import annotations

from custom_models.model_utils.diffusers_common import DiffusersModel
from imageevalkit.generation.contract import Generated


class DiffusersT2I(DiffusersModel):
    """Text to image; see :class:`DiffusersModel` for the settings."""

    def generate(self, prompt: str, seed: int = 42) -> Generated:
        """One image. Raises Refused when the pipeline's safety checker rejects it."""
        return self._call(seed, prompt=prompt)
