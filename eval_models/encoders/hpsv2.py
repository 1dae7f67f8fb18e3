"""HPSv2's preference for an image: the cosine with its prompt in a CLIP that was trained on people's choices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from PIL import Image

from eval_models.encoders.clip import OpenClip, load_clip
from eval_models.encoders.encoder import Encoder
from eval_models.encoders.pixels import CLIP_MEAN, CLIP_STD
from imageevalkit.benchmark.question import PILLOW, Question

if TYPE_CHECKING:
    import torch

_FILES = {"v2.1": "HPS_v2.1_compressed.pt", "v2.0": "HPS_v2_compressed.pt"}
_ARCHITECTURE = "ViT-H-14"


class HPSv2Encoder(Encoder):
    """Asked by a message of a picture and its prompt; an answer is {"v2.1": cosine x 100, "v2.0": …}.

    ``antialias``: how images are shrunk (see :func:`resized`).
    """

    name = "hpsv2"
    weight_names = ("hpsv2",)
    packages = ("open_clip_torch",)
    official = True
    pixels = PILLOW

    def __init__(self, antialias: bool = True, **options: Any) -> None:
        super().__init__(**options)
        self.antialias = antialias

    @property
    def identity(self) -> dict[str, Any]:
        return {
            "encoder": self.name,
            "weights": self.sources["hpsv2"].identity,
            "precision": "float16 on a GPU",
            "antialias": self.antialias,
        }

    def load(self, questions: Sequence[Question]) -> dict[str, tuple[OpenClip, dict[str, torch.Tensor]]]:
        """Each version's model, and the features of the prompts."""
        prompts = sorted({question.text for question in questions})
        models = {}
        for version, file in _FILES.items():
            clip = load_clip(self.sources["hpsv2"], [file], self.device, _ARCHITECTURE)
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
        """Officially the product is one of half precision, so that scores are multiples of 1/64."""
        scores = {}
        for version, (clip, prompts) in self.models.items():
            with clip.autocast():
                product = features[version][None] @ prompts[question.text][None].T
                scores[version] = (product * 100).item()
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
