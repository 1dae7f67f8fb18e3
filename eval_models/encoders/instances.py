"""mmdetection 2.x around Mask2Former: the input of the network for an image, and the objects in its output.

Source: the configuration ``mask2former_swin-s-p4-w7-224_lsj_8x2_50e_coco`` and ``MaskFormerFusionHead`` of
mmdetection 2.28.2. transformers' own processor differs in both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from PIL import Image

if TYPE_CHECKING:
    import numpy as np
    import torch

# the limits of the input's sides, the padding and the normalisation
_LONG, _SHORT, _MULTIPLE = 1333, 800, 32
_PAPER = 128
_MEAN, _STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
_MOST = 100


class Frame(NamedTuple):
    """The input of the network: ``pixels`` (3, height, width) with padding; ``size`` (height, width) is the
    size without padding, ``image`` the original image."""

    pixels: np.ndarray
    size: tuple[int, int]
    image: Image.Image


class Detected(NamedTuple):
    """A detected object. ``mask`` is a boolean array of the box: True where the pixel belongs to the
    object."""

    box: tuple[int, int, int, int]
    confidence: float
    mask: np.ndarray


def prepared(image: Image.Image) -> Frame:
    """Returns ``image`` (RGB) resized to fit 1333 x 800, padded with grey to multiples of 32, and
    normalised."""
    import cv2
    import numpy as np

    scale = min(_LONG / max(image.size), _SHORT / min(image.size))
    width, height = (int(side * scale + 0.5) for side in image.size)
    resized = cv2.resize(np.asarray(image), (width, height), interpolation=cv2.INTER_LINEAR)
    rows, columns = (-side % _MULTIPLE for side in (height, width))
    padded = np.pad(resized, ((0, rows), (0, columns), (0, 0)), constant_values=_PAPER)
    values = (padded.astype(np.float32) - np.float32(_MEAN)) / np.float32(_STD)
    return Frame(np.ascontiguousarray(values.transpose(2, 0, 1)), (height, width), image)


def detected(
    frame: Frame, classes: torch.Tensor, masks: torch.Tensor, names: Sequence[str], least: float
) -> dict[str, list[Detected]]:
    """Returns the objects of each class with a confidence above ``least``, the most confident first.

    They come from the 100 most probable (query, class) pairs, so several classes may share a mask. Objects
    without a pixel are left out: their confidence is 0.

    Args:
        frame: The input of the network.
        classes: The class logits (queries, classes + 1); the last class is "no object".
        masks: The mask logits (queries, height / 4, width / 4) of the padded input.
        names: The names of the classes.
        least: At least 0.
    """
    from torch.nn.functional import interpolate

    flat = classes.float().softmax(-1)[:, : len(names)].flatten()
    probabilities, pairs = flat.topk(min(_MOST, len(flat)))
    queries = pairs.div(len(names), rounding_mode="floor")
    height, width = frame.pixels.shape[1:]
    found: dict[str, list[Detected]] = {}
    # a mask only lowers the confidence, so masks of pairs below the threshold need no upscaling
    for query in queries[probabilities.double() > least].unique():
        whole = interpolate(
            masks[query][None, None].float(), (height, width), mode="bilinear", align_corners=False
        )
        inner = whole[..., : frame.size[0], : frame.size[1]]
        logit = interpolate(inner, frame.image.size[::-1], mode="bilinear", align_corners=False)[0, 0]
        mask = logit > 0
        area = mask.sum()
        if not area:
            continue
        inside = (logit.sigmoid() * mask).sum() / (area + 1e-6)
        rows, columns = (mask.any(axis).nonzero() for axis in (1, 0))
        box = (int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1)
        cut = mask[box[1] : box[3], box[0] : box[2]].cpu().numpy()
        for place in (queries == query).nonzero()[:, 0]:
            confidence = float(probabilities[place] * inside)
            if confidence > least:
                name = names[int(pairs[place]) % len(names)]
                found.setdefault(name, []).append(Detected(box, confidence, cut))
    return {name: sorted(objects, key=lambda one: -one.confidence) for name, objects in found.items()}
