"""Checks a detector before it scores: on some GPUs users of GenEval's program found few objects.

Issues 15 and 18 of djghosh13/geneval report far lower confidences on an A100 than on a V100, without a cause.
Such a run ends without an error, and most of its verdicts are wrong.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from PIL import Image, ImageDraw

from eval_models.encoders.encoder import inference, to_device
from eval_models.encoders.instances import detected, prepared
from imageevalkit.common.errors import CellFailure, say

_SIDE = 512
# a GPU and a CPU differ by far less, a GPU that computes wrongly by far more
_MOST_DIFFERENCE = 0.05
# the official threshold of a detection
_LEAST = 0.3
# classes of COCO that a few shapes show, and these shapes in fractions of the picture
PICTURED = ("stop sign", "clock", "traffic light")


def check_detector(network: Any, classes: Sequence[str], device: str, *, is_official: bool) -> None:
    """Raises CellFailure if ``network`` finds other objects in drawn pictures on ``device`` than on the CPU.

    If the official weights find none of the drawn objects, a line says so. It is no failure: nobody has seen
    these weights look at these pictures. Other weights may not know such objects.
    """
    if device == "cpu" and not is_official:
        return  # nothing to compare with
    pictures = [picture(name) for name in PICTURED]
    here = _confidences(network, pictures, classes, device)
    if device != "cpu":
        there = _confidences(network.to("cpu"), pictures, classes, "cpu")
        network.to(device)
        most = max((abs(here.get(key, 0) - there.get(key, 0)) for key in {**here, **there}), default=0.0)
        # a comparison with NaN is false
        if not most <= _MOST_DIFFERENCE:
            raise CellFailure(
                f"encoders: the detector's confidences on {device} differ by {most:.2f} from the CPU's on drawn "
                f"pictures: this GPU or its libraries compute wrongly; score on another GPU or without "
                "one (EVAL_GPU_MAP), or run the official program elsewhere (--ds_kwargs detections=FILE)"
            )
    best = max((here.get((n, name), 0.0) for n, name in enumerate(PICTURED)), default=0.0)
    if is_official and best <= _LEAST:
        say(
            f"encoders: the detector is at most {best:.2f} sure of a drawn {', '.join(PICTURED)}, not above {_LEAST}: "
            "score images with a known result first"
        )


def _confidences(
    network: Any, pictures: Sequence[Image.Image], classes: Sequence[str], device: str
) -> Mapping[tuple[int, str], float]:
    """Returns the confidence of the surest object, by picture and class."""
    found = {}
    with inference("a drawn picture"):
        for n, image in enumerate(pictures):
            frame = prepared(image)
            output = network(pixel_values=to_device([frame.pixels], device))
            objects = detected(
                frame, output.class_queries_logits[0], output.masks_queries_logits[0], classes, _LEAST / 2
            )
            found.update({(n, name): of_class[0].confidence for name, of_class in objects.items()})
    return found


def picture(name: str) -> Image.Image:
    """Returns a drawing of an object of :data:`PICTURED`."""
    image = Image.new("RGB", (_SIDE, _SIDE), (150, 190, 230))
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, 400, _SIDE, _SIDE), (110, 140, 90))
    if name == "stop sign":
        draw.rectangle((248, 330, 264, 500), (130, 130, 130))
        for radius, colour in ((150, (245, 245, 245)), (138, (190, 25, 35))):
            turns = [math.radians(22.5 + 45 * n) for n in range(8)]
            draw.polygon([(256 + radius * math.cos(t), 190 + radius * math.sin(t)) for t in turns], colour)
        _write_stop(draw)
    elif name == "clock":
        draw.ellipse((116, 66, 396, 346), (40, 40, 40))
        draw.ellipse((132, 82, 380, 330), (250, 250, 245))
        for n in range(12):
            sine, cosine = math.sin(math.radians(30 * n)), math.cos(math.radians(30 * n))
            ends = [(256 + sine * far, 206 - cosine * far) for far in (98, 116)]
            draw.line(ends, (30, 30, 30), 8)
        draw.line((256, 206, 210, 160), (30, 30, 30), 12)
        draw.line((256, 206, 330, 150), (30, 30, 30), 7)
    else:
        draw.rectangle((246, 360, 266, 512), (70, 70, 70))
        draw.rounded_rectangle((190, 50, 322, 370), 24, (25, 25, 25))
        for top, colour in ((70, (225, 40, 35)), (168, (70, 60, 20)), (266, (20, 60, 30))):
            draw.ellipse((212, top, 300, top + 88), colour)
    return image


def _write_stop(draw: ImageDraw.ImageDraw) -> None:
    """Writes STOP in lines: fonts differ between machines."""
    letters = {
        "S": ((1, 0), (0, 0), (0, 1), (1, 1), (1, 2), (0, 2)),
        "T": ((0, 0), (1, 0), (0.5, 0), (0.5, 2)),
        "O": ((0, 0), (1, 0), (1, 2), (0, 2), (0, 0)),
        "P": ((0, 2), (0, 0), (1, 0), (1, 1), (0, 1)),
    }
    for n, letter in enumerate("STOP"):
        points = [(152 + 56 * n + 38 * x, 150 + 40 * y) for x, y in letters[letter]]
        draw.line(points, (245, 245, 245), 12)
