"""A checkpoint of mmdetection's format with random weights, and drawn images: equal in every environment.

tests.support.mmdet_golden runs mmdetection on both, the tests run our evaluator.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

_NAMES = (
    "person,bicycle,car,motorcycle,airplane,bus,train,truck,boat,traffic light,fire hydrant,stop sign,parking meter,"
    "bench,bird,cat,dog,horse,sheep,cow,elephant,bear,zebra,giraffe,backpack,umbrella,handbag,tie,suitcase,frisbee,"
    "skis,snowboard,sports ball,kite,baseball bat,baseball glove,skateboard,surfboard,tennis racket,bottle,wine glass,"
    "cup,fork,knife,spoon,bowl,banana,apple,sandwich,orange,broccoli,carrot,hot dog,pizza,donut,cake,chair,couch,"
    "potted plant,bed,dining table,toilet,tv,laptop,mouse,remote,keyboard,cell phone,microwave,oven,toaster,sink,"
    "refrigerator,book,clock,vase,scissors,teddy bear,hair drier,toothbrush"
)
ANSWERS = Path(__file__).with_name("mmdet_answers")
"""The answers of mmdetection with :func:`small`."""
COCO = _NAMES.split(",")
"""The names of the classes in a checkpoint."""
# how much larger the numbers of some tensors are than usual: queries, their classes and masks shall differ, as after a
# training
_LARGER = {
    "cls_embed.weight": 12.0,
    "mask_embed.4.weight": 2.0,
    "query_feat.weight": 3.0,
    "attn.in_proj_weight": 2.0,
    "attn.out_proj.weight": 0.2,
    "sampling_offsets.bias": 40.0,
}

# the mask logit of most pixels
_OUTSIDE = -15.0


def filled(shapes: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """Returns tensors of these shapes by name. Their numbers are the same on every machine."""
    import torch

    draw, state = np.random.RandomState(0), {}
    for name, shape in shapes.items():
        if name.endswith("relative_position_index"):
            state[name] = torch.zeros(*shape, dtype=torch.int64)
            continue
        values = draw.random_sample(int(np.prod(shape))).reshape(shape) * 2 - 1
        if "norm" in name or ".gn." in name:
            values = values * 0.3 + (name.endswith("weight"))
        elif len(shape) == 1:
            values *= 0.05
        elif not any(word in name for word in ("query_", "level_", "table")):
            values *= math.sqrt(3 / np.prod(shape[1:]))
        values *= math.prod(factor for end, factor in _LARGER.items() if name.endswith(end))
        state[name] = torch.from_numpy(values.astype(np.float32))
    return state


def localise(state: dict[str, Any], mean: Sequence[float]) -> None:
    """Changes the last layer of the masks so that an object covers a part of the image, not nearly all of it.

    ``mean`` is the mean of the mask features over an image. Its share of every logit becomes a constant below 0.
    """
    import torch

    name, middle = "panoptic_head.mask_embed.4", np.array(mean)
    weight = state[f"{name}.weight"].double().numpy()
    rest = weight - np.outer(middle, middle @ weight) / (middle @ middle)
    state[f"{name}.weight"] = torch.from_numpy(rest.astype(np.float32))
    state[f"{name}.bias"] = torch.from_numpy((_OUTSIDE * middle / (middle @ middle)).astype(np.float32))


def small() -> dict[str, Any]:
    """Returns the tensors of the network that tests.support.mmdet_golden makes."""
    state = filled(json.loads((ANSWERS / "shapes.json").read_text()))
    localise(state, json.loads((ANSWERS / "mean.json").read_text()))
    return state


def save(path: Path, state: Mapping[str, Any]) -> None:
    """Writes ``state`` as mmdetection's training does; the record holds a number of numpy."""
    import torch

    meta = {"CLASSES": tuple(COCO), "seed": np.int64(0), "mmdet_version": "2.22.0"}
    torch.save({"meta": meta, "state_dict": state}, path)


def drawn(number: int, height: int, width: int) -> Image.Image:
    """Returns a picture of coloured shapes. Integers alone, so that every machine draws the same."""
    draw = np.random.RandomState(number)
    rows, columns = np.arange(height)[:, None], np.arange(width)
    pixels = np.stack(
        [rows * 255 // height + 0 * columns, columns * 255 // width + 0 * rows, 0 * rows + 0 * columns]
    )
    for _ in range(6):
        y, x = draw.randint(height), draw.randint(width)
        far = draw.randint(20, min(height, width) // 2)
        is_inside = (rows - y) ** 2 + (columns - x) ** 2 < far**2
        pixels[:, is_inside] = draw.randint(0, 256, 3)[:, None]
    return Image.fromarray(pixels.astype(np.uint8).transpose(1, 2, 0).copy())
