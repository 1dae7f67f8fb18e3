"""HPSv2's preference for an image: the cosine with its prompt in a CLIP that was trained on people's choices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from PIL import Image

from eval_models.encoders.clip import OpenClip, load_state
from eval_models.encoders.encoder import Encoder
from eval_models.encoders.pixels import CLIP_MEAN, CLIP_STD
from eval_models.encoders.weights import find
from imageevalkit.benchmark.question import Question

if TYPE_CHECKING:
    import torch

FILES = {"v2.0": "HPS_v2_compressed.pt", "v2.1": "HPS_v2.1_compressed.pt"}
_ARCHITECTURE = "ViT-H-14"


class HPSv2Encoder(Encoder):
    """Asked by a message of a picture and its prompt; an answer is {"v2.1": cosine x 100, …}.

    ``versions`` are keys of :data:`FILES`. ``antialias``: how images are shrunk (see :func:`resized`).
    """

    name = "hpsv2"
    packages = ("open_clip_torch",)

    def __init__(self, versions: Sequence[str], antialias: bool = True, **options: Any) -> None:
        super().__init__(**options)
        self.versions, self.antialias = list(versions), antialias

    @property
    def identity(self) -> dict[str, Any]:
        return {
            "encoder": self.name,
            "weights": find("hpsv2", self.weights).identity,
            "precision": "float16 on a GPU",
            "versions": self.versions,
            "antialias": self.antialias,
        }

    def load(self, questions: Sequence[Question], device: str) -> PreferenceModel:
        source = find("hpsv2", self.weights)
        clips = {name: load_state(source, FILES[name], _ARCHITECTURE, device) for name in self.versions}
        return PreferenceModel(clips, {question.text for question in questions}, self.antialias, device)


class PreferenceModel:
    """The models by version, on ``device``; the features of ``prompts`` are made at once."""

    def __init__(
        self, clips: Mapping[str, OpenClip], prompts: set[str], antialias: bool, device: str
    ) -> None:
        self._clips, self._antialias, self._device = clips, antialias, device
        self._size = next(iter(clips.values())).image_size
        ordered = sorted(prompts)
        self._texts = {
            name: dict(zip(ordered, clip.text_features(ordered), strict=True)) for name, clip in clips.items()
        }

    def prepare(self, image: Image.Image) -> torch.Tensor:
        """float32 (3, size, size)."""
        return resized(image, self._size, self._antialias)

    def forward(self, batch: list[torch.Tensor]) -> list[dict[str, torch.Tensor]]:
        """The features of each image by version."""
        import torch

        pixels = torch.stack(batch).to(self._device)
        features = {name: clip.image_features(pixels) for name, clip in self._clips.items()}
        return [{name: found[n] for name, found in features.items()} for n in range(len(batch))]

    def measure(self, question: Question, features: Mapping[str, torch.Tensor]) -> dict[str, float]:
        """Officially the product is one of half precision, so that scores are multiples of 1/64."""
        scores = {}
        for name, clip in self._clips.items():
            with clip.autocast():
                product = features[name][None] @ self._texts[name][question.text][None].T
                scores[name] = (product * 100).item()
        return scores


def resized(image: Image.Image, size: int, antialias: bool) -> torch.Tensor:
    """``image`` (RGB) with a longest side of ``size``, in the middle of a black square, normalised as CLIP's input.

    The resizing is that of torchvision for tensors (bicubic, in float32): with ``antialias`` as by default since its
    0.17, without as before.
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
