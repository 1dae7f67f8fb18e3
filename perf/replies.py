"""What the latency server sends: a few PNGs that cost what photos cost to send, decode and encode; verdicts."""

from __future__ import annotations

import base64
import io
import json
import random
from pathlib import Path
from statistics import NormalDist

from PIL import Image, ImageChops

SIDES = {"small": 256, "real": 1024}
"""Width and height in pixels by name."""
_DISTINCT = 4
# Standard deviation, in grey levels, at which noise on a smooth ground makes 1024 px a PNG of 1.7 MB.
_NOISE = 3.3


def make_pngs(size: str) -> list[bytes]:
    """The distinct images of a size; the same in every run."""
    return [_photo_like(SIDES[size], seed) for seed in range(_DISTINCT)]


def _photo_like(side: int, seed: int) -> bytes:
    rng = random.Random(seed)
    coarse = bytes(rng.randrange(60, 196) for _ in range(8 * 8 * 3))
    ground = Image.frombytes("RGB", (8, 8), coarse).resize((side, side), Image.Resampling.BICUBIC)
    quantile = NormalDist(128, _NOISE).inv_cdf
    bell = [round(quantile((value + 0.5) / 256)) for value in range(256)]
    noise = Image.frombytes("RGB", (side, side), rng.randbytes(side * side * 3)).point(bell * 3)
    buffer = io.BytesIO()
    ImageChops.add(ground, noise, offset=-128).save(buffer, "PNG")
    return buffer.getvalue()


def write_image_replies(folder: Path, pngs: list[bytes]) -> None:
    """Write the body of an ``/images/generations`` reply for each image, in order, as ``0.json``, …"""
    folder.mkdir(parents=True)
    usage = {"input_tokens": 12, "output_tokens": 272, "total_tokens": 284}
    for n, png in enumerate(pngs):
        reply = {"created": 0, "data": [{"b64_json": base64.b64encode(png).decode()}], "usage": usage}
        (folder / f"{n}.json").write_text(json.dumps(reply))


def write_judge_replies(folder: Path) -> None:
    """Write the body of a ``/chat/completions`` reply for each binary verdict."""
    folder.mkdir(parents=True)
    usage = {"prompt_tokens": 2400, "completion_tokens": 4, "total_tokens": 2404}
    for score in (0, 1):
        message = {"role": "assistant", "content": f"Score: {score}"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        reply = {"id": "chatcmpl-0", "object": "chat.completion", "choices": [choice], "usage": usage}
        (folder / f"{score}.json").write_text(json.dumps(reply))
