"""Stand-ins for the images of KRIS-Bench, which nobody keeps; its annotations are in the mirror."""

from __future__ import annotations

import io
import json
from pathlib import Path

from PIL import Image

from benchmarks.krisbench.benchmark import DATA, IMAGES, KrisBench
from imageevalkit.assets import FileAsset
from tests.support.mirror import shared_mirror


def write(data: Path) -> None:
    """Writes an image for each name in the annotations below the folder ``data``."""
    [annotations] = [one for one in KrisBench.assets if isinstance(one, FileAsset) and one.path == DATA]
    drawn: dict[tuple[str, int], bytes] = {}
    for row in json.loads((shared_mirror() / annotations.source).read_bytes()):
        inputs = [row["ori_img"]] if isinstance(row["ori_img"], str) else row["ori_img"]
        for number, name in enumerate([*inputs, row["gt_img"]] if row.get("gt_img") else inputs):
            path = data / IMAGES / row["type"] / name
            path.parent.mkdir(parents=True, exist_ok=True)
            kind = (path.suffix, 5 * (int(row["id"]) % 5) + number)
            path.write_bytes(drawn.setdefault(kind, _image(*kind)))


def _image(suffix: str, number: int) -> bytes:
    image, buffer = Image.new("RGB", (64, 32 + number), (9 * number, 90, 200)), io.BytesIO()
    image.putpixel((0, 0), (9, 9, 9))
    image.save(buffer, "PNG" if suffix == ".png" else "JPEG")
    return buffer.getvalue()
