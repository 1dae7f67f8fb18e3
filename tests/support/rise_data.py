"""A stand-in for RISEBench's 360 edits: their categories and keys, with texts and images made up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from PIL import Image

from benchmarks.rise.benchmark import FILES, SUBTASKS
from imageevalkit.assets import PROMPTS, PromptsAsset, asset_list, text_sha256
from imageevalkit.store.cell import REPO

COUNTS = ((19, 46, 13, 7), (36, 25, 16, 13), (23, 12, 27, 15, 23), (31, 14, 40))
"""The edits of each subtask."""
FREE = {"temporal": 5, "causal": 2}
"""The edits of a category without a question about consistency."""
_ASSETS = REPO / "benchmarks/rise/assets.txt"


def texts() -> dict[str, str]:
    """Returns a text for each question of the official program, with its fields, by its key."""
    [listed] = asset_list(_ASSETS)
    assert isinstance(listed, PromptsAsset)
    return {key: _text(key.rpartition("prompt_")[2]) for key in listed.texts}


def _text(name: str) -> str:
    fields = "" if name in ("generation", "spatial_qual", "logical_img_wo_q") else " Edit: {instruct}."
    if name in ("reasoning", "reasoning_w_input", "spatial_ref", "spatial_ref_w_input", "logical_cons_ans"):
        fields += " Answer: {reference}."
    if name == "logical_txt":
        fields = " Answer: {reference}."
    end = "**Final Score**: **X**" if name.startswith("logical") else "**Final Score:** **X**"
    return f"Grade {name}.{fields} Write {end}"


def rows() -> list[dict[str, Any]]:
    """Returns the 360 records."""
    found = []
    for (category, subtasks), counts in zip(SUBTASKS.items(), COUNTS, strict=True):
        of_category = [one for one, count in zip(subtasks, counts, strict=True) for _ in range(count)]
        for n, subtask in enumerate(of_category, 1):
            row: dict[str, Any] = {
                "index": f"{category}_reasoning_{n}",
                "category": f"{category}_reasoning",
                "subtask": subtask,
                "instruction": f"Draw the {n}. outcome.",
                "image": f"{category}_reasoning_images/{1 + n % 2}.png",
            }
            if category == "logical" or (category == "spatial" and n % 5 == 0):
                text, picture = (
                    ("reference_txt", "It is 4."),
                    ("reference_img", f"{category}_reasoning_images/1_ref.png"),
                )
                row |= [text if category == "logical" and n % 4 == 0 else picture]
            else:
                row["reference"] = f"Outcome {n}."
                row |= {"reasoning_img": True} if n % 3 == 0 else {}
            row |= {"consistency_free": True} if n <= FREE.get(category, 0) else {}
            row |= {"reasoning_wo_ins": True} if category == "logical" and n == 1 else {}
            found.append(row)
    return found


def write(folder: Path) -> None:
    """Writes data and texts to the folder of the benchmark, and the hashes of the texts to its assets.txt."""
    data, made = folder / "data", texts()
    (data / "data").mkdir(parents=True)
    (data / FILES[360]).write_text(json.dumps(rows()), encoding="utf-8")
    for number, category in enumerate(SUBTASKS):
        images = data / f"data/{category}_reasoning_images"
        images.mkdir()
        for n, name in enumerate(("1.png", "2.png", "1_ref.png")):
            image = Image.new("RGB", (900 if n else 64, 48 + n), (60 * number, 80 * n, 200))
            image.putpixel((0, 0), (9, 9, 9))
            image.save(images / name)
    (data / PROMPTS).parent.mkdir()
    (data / PROMPTS).write_text(json.dumps(made), encoding="utf-8")
    head = _ASSETS.read_text(encoding="utf-8").splitlines()[:2]
    hashes = [f"{text_sha256(text)} {key}" for key, text in made.items()]
    (folder / "assets.txt").write_text("\n".join([*head, *hashes]) + "\n", encoding="utf-8")
