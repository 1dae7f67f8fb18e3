"""open_clip's CLIP for GenEval and HPSv2: features of length 1, in half precision on a GPU.

HPSv2's score of an image is its cosine with the prompt in a CLIP trained on human preferences.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from PIL import Image

from eval_models.encoders.encoder import CLIP_MEAN, CLIP_STD, TORCH, Encoder, inference
from eval_models.encoders.weights import cached, first_cached, load_state, loading
from imageevalkit.assets.weights import WeightsSource
from imageevalkit.benchmark.question import PILLOW, Question

if TYPE_CHECKING:
    import torch

_CONFIG = "open_clip_config.json"
_TEXTS_AT_ONCE = 64
_HPSV2_FILES = {"v2.1": "HPS_v2.1_compressed.pt", "v2.0": "HPS_v2_compressed.pt"}
_HPSV2_ARCHITECTURE = "ViT-H-14"


class OpenClip:
    """A CLIP ``model`` on ``device`` with its ``tokenizer``. ``image_size`` is the side of its input in
    pixels.

    On CUDA the model runs under autocast, like the official programs; on the CPU in float32.
    """

    def __init__(self, model: Any, tokenizer: Any, device: str) -> None:
        self._model, self._tokenizer, self._device = model.to(device).eval(), tokenizer, device
        size = model.visual.image_size
        self.image_size: int = size if isinstance(size, int) else size[0]

    def image_features(self, pixels: torch.Tensor) -> torch.Tensor:
        """Returns the features (images, width) of ``pixels`` (images, 3, size, size)."""
        with self.autocast():
            return self._model.encode_image(pixels, normalize=True)

    def text_features(self, texts: Sequence[str]) -> torch.Tensor:
        """Returns the features of ``texts``, (texts, width)."""
        import torch

        found = []
        with inference("a text"), self.autocast():
            for start in range(0, len(texts), _TEXTS_AT_ONCE):
                tokens = self._tokenizer(list(texts[start : start + _TEXTS_AT_ONCE])).to(self._device)
                found.append(self._model.encode_text(tokens, normalize=True))
        return torch.cat(found)

    def autocast(self) -> torch.amp.autocast_mode.autocast:
        """Returns autocast to float16 on CUDA, and no autocast on the CPU."""
        import torch

        kind = torch.device(self._device).type
        return torch.amp.autocast(kind, enabled=kind == "cuda")


def load_clip(
    source: WeightsSource,
    files: Sequence[str],
    device: str,
    architecture: str = "",
    changes: Mapping[str, Any] = MappingProxyType({}),
) -> OpenClip:
    """Loads the first existing file of ``files`` from a folder or hub repository.

    The configuration is open_clip's ``architecture``, or if that is empty the repository's
    open_clip_config.json, with ``changes``. Raises CellFailure if the model does not load or the weights do not match.
    """
    with loading(source):
        import open_clip

        if architecture:
            config = open_clip.get_model_config(architecture)
        else:
            config = json.loads(cached(source, _CONFIG).read_text(encoding="utf-8"))["model_cfg"]
        path = first_cached(source, files)
        model = open_clip.CLIP(**{**config, **changes})
        load_state(model, open_clip.factory.load_state_dict(str(path)), WeightsSource(str(path), None, {}))
        return OpenClip(
            model, open_clip.SimpleTokenizer(context_length=config["text_cfg"]["context_length"]), device
        )


class HPSv2Encoder(Encoder):
    """A question holds a picture and its prompt. The answer is {"v2.1": cosine x 100, "v2.0": …}.

    ``antialias`` changes how images are resized (see :func:`resized`).
    """

    name = "hpsv2"
    weight_names = ("hpsv2",)
    packages = (*TORCH, "open_clip_torch")
    official = True
    precision = "float16 on a GPU"
    pixels = PILLOW

    def __init__(self, antialias: bool = True, **options: Any) -> None:
        super().__init__(**options)
        self.antialias = antialias

    @property
    def identity(self) -> dict[str, Any]:
        return {
            **super().identity,
            "weights": self.sources["hpsv2"].identity,
            "antialias": self.antialias,
        }

    def load(self, questions: Sequence[Question]) -> dict[str, tuple[OpenClip, dict[str, torch.Tensor]]]:
        """Returns, by version, the model and the features of the prompts."""
        prompts = sorted({question.text for question in questions})
        models = {}
        for version, file in _HPSV2_FILES.items():
            clip = load_clip(self.sources["hpsv2"], [file], self.device, _HPSV2_ARCHITECTURE)
            models[version] = clip, dict(zip(prompts, clip.text_features(prompts), strict=True))
        return models

    def prepare(self, image: Image.Image) -> torch.Tensor:
        return resized(image, self.models["v2.1"][0].image_size, self.antialias)

    def forward(self, batch: list[torch.Tensor]) -> list[dict[str, torch.Tensor]]:
        import torch

        pixels = torch.stack(batch).to(self.device)
        features = {version: clip.image_features(pixels) for version, (clip, _) in self.models.items()}
        return [{version: found[n] for version, found in features.items()} for n in range(len(batch))]

    def measure(self, question: Question, features: Mapping[str, torch.Tensor]) -> dict[str, float]:
        """Returns the scores by version. As officially the product is in half precision: multiples of
        1/64."""
        scores = {}
        for version, (clip, prompts) in self.models.items():
            with clip.autocast():
                product = features[version][None] @ prompts[question.text][None].T
                scores[version] = (product * 100).item()
        return scores


def resized(image: Image.Image, size: int, antialias: bool) -> torch.Tensor:
    """Resizes ``image`` (RGB) to a longest side of ``size``, centres it on a black square and normalises it
    for CLIP.

    The resizing equals torchvision's for tensors (bicubic, float32): with ``antialias`` its default since
    0.17, without its earlier default.
    """
    import numpy as np
    import torch
    from torch.nn.functional import interpolate, pad

    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float().div(255)
    scale = size / max(image.size)
    if scale != 1:
        height, width = (round(side * scale) for side in pixels.shape[1:])
        pixels = interpolate(
            pixels[None], (height, width), mode="bicubic", align_corners=False, antialias=antialias
        )[0]
    rows, columns = (size - side for side in pixels.shape[1:])
    left, top = columns // 2, rows // 2
    pixels = pad(pixels, (left, columns - left, top, rows - top))
    mean, std = (torch.tensor(values)[:, None, None] for values in (CLIP_MEAN, CLIP_STD))
    return (pixels - mean) / std
