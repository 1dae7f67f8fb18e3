"""A synthetic TRIG in the authors' schema, of any size: as their local JSON, and as the Parquet of the hub's cache."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from PIL import Image

from benchmarks.trig.benchmark import PAIRS, TrigP2P, TrigS2P, TrigT2I

TASKS = {"t2i": TrigT2I, "p2p": TrigP2P, "s2p": TrigS2P}
COMMIT = "0123456789" * 4
_SUBJECTS = 205


def records(task: str, most: int | None = None) -> Iterator[dict[str, Any]]:
    """The items of ``task`` in the local form, at most so many of each pair.

    Like the authors', a prompt stands in several pairs: number k of all pairs with the same first dimension is one.
    """
    benchmark = TASKS[task]()
    for pair in PAIRS:
        first, second = pair.split("_")
        size = benchmark.size_of(pair)
        for k in range(1, min(size, most or size) + 1):
            subject = f"thing {k % _SUBJECTS}"
            record: dict[str, Any] = {
                "data_id": f"{pair}_{k}",
                "item": subject if task == "s2p" else None,
                "prompt": f"A scene of number {k} that {first} asks for, with a cup and 一只猫",
                "dimension_prompt": [f"{first} of {k}", f"{second} of {k}"] if k % 2 else [],
                "parent_dataset": [f"<{first}, {second}>", ("Origin", "Auto", "Human")[k % 3]],
                "img_id": "" if task == "t2i" else f"{k % _SUBJECTS}.{'jpg' if k % 2 else 'png'}",
            }
            # as upstream: only their files of text to image have the other name
            record["dimension" if task == "t2i" else "dimensions"] = [first, second]
            yield record


def image_bytes(img_id: str) -> bytes:
    """The source image called ``img_id``."""
    buffer, number = io.BytesIO(), int(img_id.partition(".")[0])
    image = Image.new("RGB", (32, 24), (number, 90, 255 - number))
    image.putpixel((0, 0), (9, 9, 9))
    image.save(buffer, "JPEG" if img_id.endswith("jpg") else "PNG")
    return buffer.getvalue()


def write_local(folder: Path, task: str, most: int | None = None) -> dict[str, str]:
    """Write ``<task>.json`` and the images that it names to ``folder``; the benchmark's settings for them."""
    items = list(records(task, most))
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{task}.json"
    file.write_text(json.dumps(items, ensure_ascii=False), encoding="utf-8")
    names = sorted({item["img_id"] for item in items} - {""})
    for name in names:
        (folder / name).write_bytes(image_bytes(name))
    return {"prompts": str(file), **({"sources": str(folder)} if names else {})}


def write_hub_cache(home: Path, task: str, most: int | None = None) -> None:
    """Put the dataset into the cache below ``home``, as HF_HOME, in two Parquet files of the hub's schema."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = []
    for item in records(task, most):
        name = item["img_id"]
        image = {"bytes": image_bytes(name), "path": name} if name else None
        dimensions = item.pop("dimension", None) or item.pop("dimensions")
        rows.append({**item, "dimensions": dimensions, "image": image})
    schema = pa.schema(
        [
            *((name, pa.string()) for name in ("data_id", "item", "prompt")),
            *((name, pa.list_(pa.string())) for name in ("dimension_prompt", "parent_dataset")),
            ("img_id", pa.string()),
            ("dimensions", pa.list_(pa.string())),
            ("image", pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
        ]
    )
    repo = home / "hub/datasets--TRIG-bench--TRIG"
    folder = repo / "snapshots" / COMMIT / "data"
    folder.mkdir(parents=True, exist_ok=True)
    (repo / "refs").mkdir(exist_ok=True)
    (repo / "refs/main").write_text(COMMIT)
    size = -(-len(rows) // 2)
    for n in range(2):
        table = pa.Table.from_pylist(rows[n * size : (n + 1) * size], schema=schema)
        pq.write_table(table, folder / f"{TASKS[task].split}-{n:05d}-of-00002.parquet")
