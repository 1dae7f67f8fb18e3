"""WISE's questions to its judge, one per item with an image of its own: from a mirror, or of the same size."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from imageevalkit.cell import Cell
from imageevalkit.cell.jsonl import JsonlWriter
from perf.replies import make_pngs
from perf.server_process import REPO

_WISE = "PKU-YuanGroup/WISE/*/data_verified/merge.json"
_TEMPLATE = "vllm_eval.py::build_evaluation_messages#"
_SYSTEM = "You judge images against the words they were made from."
_RULES = "Give 1 only where the image shows what the explanation says, 0 where there is any doubt. " * 40
_USER = (
    _RULES + '\n\nPROMPT: "{Prompt}"\nEXPLANATION: "{Explanation}"\n\nReturn only `Score: 0` or `Score: 1`.'
)


class Items(NamedTuple):
    """``source`` says where they come from; ``prompts`` are all different and in the benchmark's order."""

    source: str
    prompts: list[str]
    image_mb: float


CELL = Cell("model", "perf")
"""The cell that holds the images, as the generate stage leaves them."""


def write_questions(folder: Path, count: int) -> Items:
    """Write ``questions.json`` to ``folder``, and the images of ``count`` items with their records to :data:`CELL`.

    The file holds a list of objects: ``item``, ``system``, ``user`` (texts), ``image`` (a path). There are four
    different images of 1024 px; every item has a file of its own, a link to one of them. ``IMAGEEVALKIT_OUTPUT``
    names the folder of all cells.
    """
    source, items, system, user = _wise(count) or _synthetic(count)
    pngs = make_pngs("real")
    folder.mkdir(parents=True)
    (CELL.folder / "images").mkdir(parents=True)
    for n, png in enumerate(pngs):
        (folder / f"image-{n}").write_bytes(png)
    hashes = [hashlib.sha256(png).hexdigest() for png in pngs]
    questions = []
    with closing(JsonlWriter(CELL.generation)) as records:
        for n, item in enumerate(items):
            image = CELL.folder / f"images/{n + 1}.png"
            image.hardlink_to(folder / f"image-{n % len(pngs)}")
            text = user.replace("{Prompt}", item["Prompt"]).replace("{Explanation}", item["Explanation"])
            questions.append({"item": f"images/{n + 1}", "system": system, "user": text, "image": str(image)})
            made = {"item": f"images/{n + 1}", "path": f"images/{n + 1}.png", "status": "ok", "flat": False}
            records.append({**made, "image_sha256": hashes[n % len(pngs)]})
    (folder / "questions.json").write_text(json.dumps(questions))
    return Items(source, [item["Prompt"] for item in items], len(pngs[0]) / 1e6)


def _wise(count: int) -> tuple[str, list[dict[str, str]], str, str] | None:
    mirror = Path(os.environ.get("SHARED_MIRROR") or REPO.parent / "shared/mirror")
    for path in sorted(mirror.glob(_WISE)):
        prompts = json.loads((path.parents[1] / "judge_prompts.json").read_text(encoding="utf-8"))
        records = json.loads(path.read_text(encoding="utf-8"))
        records.sort(key=lambda record: record["prompt_id"])
        distinct = {record["Prompt"]: record for record in records[:count]}
        fields = ("Prompt", "Explanation")
        items = [{name: record[name] for name in fields} for record in distinct.values()]
        system, user = (prompts[_TEMPLATE + role]["text"] for role in ("system", "user"))
        return "WISE verified", items, system, user
    return None


def _synthetic(count: int) -> tuple[str, list[dict[str, str]], str, str]:
    items = [
        {"Prompt": f"The pastry eaten at festival {n}", "Explanation": f"It is pastry {n}, round. " * 8}
        for n in range(count)
    ]
    return "synthetic", items, _SYSTEM, _USER
