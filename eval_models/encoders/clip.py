"""CLIP of open_clip's, as GenEval and HPSv2 use it: features of length 1, in half precision on a GPU."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from eval_models.encoders.encoder import inference
from eval_models.encoders.weights import cached, first_cached, load_state, loading
from imageevalkit.weights import WeightsSource

if TYPE_CHECKING:
    import torch

_CONFIG = "open_clip_config.json"
_TEXTS_AT_ONCE = 64


class OpenClip:
    """``model`` on ``device`` with its ``tokenizer``. ``image_size`` is the side of its input in pixels.

    The official programs run under CUDA's autocast; the CPU computes in float32.
    """

    def __init__(self, model: Any, tokenizer: Any, device: str) -> None:
        self._model, self._tokenizer, self._device = model.to(device).eval(), tokenizer, device
        size = model.visual.image_size
        self.image_size: int = size if isinstance(size, int) else size[0]

    def image_features(self, pixels: torch.Tensor) -> torch.Tensor:
        """(images, width) of ``pixels`` (images, 3, size, size)."""
        with self.autocast():
            return self._model.encode_image(pixels, normalize=True)

    def text_features(self, texts: Sequence[str]) -> torch.Tensor:
        """(texts, width)."""
        import torch

        found = []
        with inference("a text"), self.autocast():
            for start in range(0, len(texts), _TEXTS_AT_ONCE):
                tokens = self._tokenizer(list(texts[start : start + _TEXTS_AT_ONCE])).to(self._device)
                found.append(self._model.encode_text(tokens, normalize=True))
        return torch.cat(found)

    def autocast(self) -> torch.amp.autocast_mode.autocast:
        """float16 on a GPU, nothing on the CPU."""
        import torch

        kind = torch.device(self._device).type
        return torch.amp.autocast(kind, enabled=kind == "cuda")


def load_clip(source: WeightsSource, files: Sequence[str], device: str, architecture: str = "") -> OpenClip:
    """The model in the first of ``files`` that a folder or hub repository has.

    Its configuration is that of open_clip's own ``architecture``, or where none is named in the open_clip_config.json
    beside it. Raises CellFailure: it does not load, or they are another model's weights.
    """
    with loading(source):
        import open_clip

        if architecture:
            config = open_clip.get_model_config(architecture)
        else:
            config = json.loads(cached(source, _CONFIG).read_text(encoding="utf-8"))["model_cfg"]
        path = first_cached(source, files)
        model = open_clip.CLIP(**config)
        load_state(model, open_clip.factory.load_state_dict(str(path)), WeightsSource(str(path), None, {}))
        return OpenClip(
            model, open_clip.SimpleTokenizer(context_length=config["text_cfg"]["context_length"]), device
        )
