"""A stand-in for GEdit-Bench's dataset: the English instructions of the mirror, all else made up."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

from PIL import Image

from benchmarks.gedit.benchmark import ROWS, TWICE
from imageevalkit.assets import FileFacts, Record
from tests.support.mirror import shared_mirror

IMAGES = 7
"""The number of different source images."""
# this copy of the instructions lacks the two edits that share their keys with others
_UNIWORLD = "PKU-YuanGroup/UniWorld/e64fa8e18642f3bbd09b7e0d06160acd502e03a9"
_ENGLISH = f"{_UNIWORLD}/UniWorld-V1/univa/eval/gedit/gedit_edit.json"


def rows() -> list[dict[str, Any]]:
    """The 1,212 rows, in English and then in Chinese; ``input_image`` is the path of :func:`write`."""
    english = json.loads((shared_mirror() / _ENGLISH).read_text(encoding="utf-8"))
    edits = [(key, one["edit_type"], one["prompt"]) for key, one in english.items()]
    edits += [(key, "subject-remove", f"Remove the thing in the {n}. image.") for n, key in enumerate(TWICE)]
    return [
        {
            "key": key,
            "task_type": kind,
            "instruction": text if language == "en" else f"第{n}条：请修改",
            "instruction_language": language,
            "input_image": f"images/{n % IMAGES}.png",
            "Intersection_exist": n % 3 > 0,
        }
        for language in ("en", "cn")
        for n, (key, kind, text) in enumerate(edits)
    ]


def image_bytes(number: int) -> bytes:
    """A source image as PNG, of a size of its own."""
    buffer = io.BytesIO()
    image = Image.new("RGB", (64, 32 + 8 * number), (30 * number, 90, 200))
    image.putpixel((0, 0), (9, 9, 9))
    image.save(buffer, "PNG")
    return buffer.getvalue()


def write(data: Path) -> None:
    """Writes rows, images and the record of prefetch to the folder ``data``."""
    (data / "images").mkdir(parents=True)
    files = {f"images/{n}.png": image_bytes(n) for n in range(IMAGES)}
    files[ROWS.path] = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows()).encode()
    for name, content in files.items():
        (data / name).write_bytes(content)
    facts = {name: FileFacts.of(data / name) for name in files}
    Record({"repo": ROWS.repo, "commit": ROWS.revision}, facts).write(ROWS.record(data))
