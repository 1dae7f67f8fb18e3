"""CLIP of open_clip's, as GenEval and HPSv2 use it: features of length 1, in half precision on a GPU."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eval_models.encoders.weights import cached, loading
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
        with torch.inference_mode(), self.autocast():
            for start in range(0, len(texts), _TEXTS_AT_ONCE):
                tokens = self._tokenizer(list(texts[start : start + _TEXTS_AT_ONCE])).to(self._device)
                found.append(self._model.encode_text(tokens, normalize=True))
        return torch.cat(found)

    def autocast(self) -> torch.amp.autocast_mode.autocast:
        """float16 on a GPU, nothing on the CPU."""
        import torch

        kind = torch.device(self._device).type
        return torch.amp.autocast(kind, enabled=kind == "cuda")


def load_open_clip(source: WeightsSource, device: str) -> OpenClip:
    """The model of a folder or hub repository that open_clip has saved. Raises CellFailure: it does not load."""
    with loading(source):
        import open_clip

        schema = "local-dir" if Path(source.model_path).is_dir() else "hf-hub"
        name = f"{schema}:{source.model_path}"
        return OpenClip(open_clip.create_model(name), open_clip.get_tokenizer(name), device)


def load_state(source: WeightsSource, file: str, architecture: str, device: str) -> OpenClip:
    """A model of open_clip's ``architecture`` with the state in the ``file`` of a folder or hub repository.

    Another architecture is that of an open_clip_config.json beside it. Raises CellFailure: it does not load.
    """
    with loading(source):
        import open_clip
        import torch

        config: Mapping[str, Any] = open_clip.get_model_config(architecture)
        beside = Path(source.model_path) / _CONFIG
        if beside.is_file():
            config = json.loads(beside.read_text(encoding="utf-8"))["model_cfg"]
        model = open_clip.CLIP(**config)
        state = torch.load(cached(source, file), map_location="cpu", weights_only=True)
        model.load_state_dict(state["state_dict"])
        tokenizer = open_clip.SimpleTokenizer(context_length=config["text_cfg"]["context_length"])
        return OpenClip(model, tokenizer, device)
