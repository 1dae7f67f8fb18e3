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
# the scores of classes and the logits of masks shall be far from each other, as after a training
_LARGER = {"panoptic_head.cls_embed.weight": 12.0, "panoptic_head.mask_embed.4.weight": 4.0}


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
        elif len(shape) > 1 and not any(word in name for word in ("query_", "level_", "table")):
            values *= math.sqrt(3 / np.prod(shape[1:])) * _LARGER.get(name, 1.0)
        state[name] = torch.from_numpy(values.astype(np.float32))
    return state


def small() -> dict[str, Any]:
    """Returns the tensors of the network that tests.support.mmdet_golden makes."""
    return filled(json.loads((ANSWERS / "shapes.json").read_text()))


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
