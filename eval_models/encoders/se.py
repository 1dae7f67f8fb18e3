"""OneIG-Bench's own style encoder: a CLIP image encoder with its projection, in bfloat16."""

from __future__ import annotations

from typing import Any

from eval_models.encoders.weights import does_not_load
from eval_models.weights_source import WeightsSource
from imageevalkit.errors import CellFailure


class Se:
    """``image_size`` in pixels is the side of what it takes; ``width`` is the length of its style vectors."""

    def __init__(self, model: Any, device: str) -> None:
        self._model = model.to(device)
        self.image_size: int = model.config.image_size
        self.width: int = model.config.projection_dim

    def style_vectors(self, pixels: Any) -> Any:
        """(batch, width), bfloat16, each of length 1 as bfloat16 can; ``pixels`` (batch, 3, size, size), float32."""
        import torch

        embeds = self._model(pixel_values=pixels.to(torch.bfloat16)).image_embeds
        return torch.nn.functional.normalize(embeds, dim=-1, p=2)


def load_se(source: WeightsSource, device: str) -> Se:
    """The encoder, in bfloat16.

    Raises:
        CellFailure: it does not load.
    """
    try:
        import torch
        import transformers

        # its bars and its advice to programmers would garble the log of the job
        transformers.utils.logging.disable_progress_bar()
        transformers.utils.logging.set_verbosity_error()
        model, loading = transformers.CLIPVisionModelWithProjection.from_pretrained(
            source.model_path, revision=source.commit, dtype=torch.bfloat16, output_loading_info=True
        )
        missing = sorted(loading["missing_keys"])
        if missing:
            # transformers only warns, and an encoder with random weights answers all the same
            raise CellFailure(
                f"encoders: {source.model_path} lacks {len(missing)} of its weights (first: {missing[0]}); "
                "download it anew"
            )
        return Se(model.eval(), device)
    except CellFailure:
        raise
    except Exception as error:  # the hub, a damaged file, no memory left on the device
        raise does_not_load(source, error) from error
