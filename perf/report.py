"""The report of a matrix: 10 models × 12 benchmarks × 1,000 items.

Each item has an image with a preview, a score and three replies. The plain way parses every line of every file, writes
one JSON file for each result, and links each preview; in one process. A second report is built after one result in a
hundred was evaluated again.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from imageevalkit.common.images import thumbnail_of
from imageevalkit.metrics import mean
from imageevalkit.store.cell import Cell
from imageevalkit.store.pictures import thumbnail_path
from imageevalkit.store.results import Coverage, Result, Score, as_object
from perf.harness import Row, Table, at_most, measure, run_program
from perf.toolkit import Toolkit, make_photos
from tests.support.cells import PPOCR, PROVENANCE

_MATRIX, _AGAIN, _MB, _INDEX_MB = at_most(4), at_most(2), at_most(1000), at_most(3)
_REPLY = "Yes. The image shows what the question asks for, as far as one can see in the picture. " * 2
_PLAIN = """
import json, os, sys
from pathlib import Path
root, out = map(Path, sys.argv[1:])
out.mkdir()
for cell in sorted(path.parent for path in root.glob("*/*/result.json")):
    found = {}
    for name in ("generation.jsonl", "scores.jsonl", "judgements.jsonl"):
        found[name] = [json.loads(line) for line in (cell / name).open(encoding="utf-8")]
    (out / f"{cell.parent.name}-{cell.name}.json").write_text(json.dumps(found, ensure_ascii=False), "utf-8")
    for record in found["generation.jsonl"]:
        kept = cell / ".thumbnails" / f"{record['image_sha256']}.webp"
        if kept.stat().st_mtime_ns == (cell / record["path"]).stat().st_mtime_ns:
            os.link(kept, out / f"{record['image_sha256']}.webp")
"""


def write_result(cell: Cell, items: int, png: bytes, preview: bytes) -> None:
    """Writes a complete result. Each image is ``png`` with other bytes at its end, and has ``preview``."""
    (cell.folder / "images").mkdir(parents=True)
    thumbnail_path(cell, "").parent.mkdir()
    rng, names = random.Random(cell.key), [f"images/{n:05}" for n in range(items)]
    scores = [Score({"accuracy": rng.randrange(4) / 3}, item=name) for name in names]
    metrics = {"accuracy": mean(scores, "accuracy")}
    parts = {part.item: {"accuracy": [[part.total, part.weight]]} for part in metrics["accuracy"].parts}
    lines: dict[str, list[object]] = {"generation": [], "scores": [], "judgements": []}
    for n, (name, score) in enumerate(zip(names, scores, strict=True)):
        data, path = png + f"{cell.key} {n}".encode(), cell.folder / f"{name}.png"
        sha256, prompt = hashlib.sha256(data).hexdigest(), f"{n} green croissants beside a wooden chair"
        path.write_bytes(data)
        kept, modified = thumbnail_path(cell, sha256), path.stat().st_mtime_ns
        kept.write_bytes(preview)
        os.utime(kept, ns=(modified, modified))
        made = {"item": name, "path": f"{name}.png", "status": "ok", "prompt": prompt, "seed": n}
        made |= {"prompt_sha256": hashlib.sha256(prompt.encode()).hexdigest(), "image_sha256": sha256}
        lines["generation"].append({**made, "size": [1024, 1024], "seconds": 3.25, "attempts": 1})
        scored = {"item": name, "status": "judged", "values": score.values, "keys": score.keys}
        more = {"evaluator": PPOCR.id, "reason": "", "detail": {"answer": _REPLY}, "parts": parts[name]}
        lines["scores"].append(scored | more)
        asked = {"item": name, "evaluator": PPOCR.id, "status": "ok", "error": None, "parsed": "yes"}
        for q in range(3):
            judgement = {"question": f"vqa/{q}", "request": f"{sha256[:60]}{q:04}", "raw": f"{q}: {_REPLY}"}
            lines["judgements"].append(asked | judgement)
    for file, records in lines.items():
        (cell.folder / f"{file}.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in records))
    counts, fixed = Coverage(items, items, 0, 0, 0, 0, items, 0, 0), ("withhold", None, dict(PROVENANCE))
    result = Result(cell.model, cell.benchmark, "1", PPOCR, counts, metrics, ["accuracy"], *fixed)
    cell.result.write_text(json.dumps(as_object(result)))


def rows(folder: Path, models: int, benchmarks: int, items: int) -> list[Row]:
    """The first report of such a matrix and a second one over the plain way."""
    kit = Toolkit(folder, [])
    os.environ["IMAGEEVALKIT_OUTPUT"] = str(kit.output)
    png = make_photos(64)[0]
    cells = [Cell(f"model-{m}", f"benchmark-{b:02}") for m in range(models) for b in range(benchmarks)]
    for cell in cells:
        write_result(cell, items, png, thumbnail_of(png))
    place: dict[str, Any] = {"cwd": kit.checkout, "environ": kit.environ(), "log": kit.log / "report.log"}
    command = [str(kit.checkout / ".venv/bin/python"), "-P", "-m", "imageevalkit.report"]
    first = measure(command, **place)
    index = (kit.output / "report/index.html").stat().st_size / 1e6
    for cell in cells[::100]:
        os.utime(cell.scores)
    again = measure(command, **place)
    plain = measure([sys.executable, "-c", _PLAIN, str(kit.output), str(folder / "plain")], **place)
    problems = [text for one in (first, again, plain) for text in kit.failure(one)]
    label = f"the report of {models} × {benchmarks} × {items:,} items / a plain way"
    return [
        Row.of(label, first, plain.wall, _MATRIX, problems),
        Row.of("  again, one result in a hundred changed", again, plain.wall, _AGAIN),
        Row("  memory", first.peak_mb, _MB, unit=" MB"),
        Row("  index.html", index, _INDEX_MB, unit=" MB"),
    ]


def main(table: Table, folder: Path, is_small: bool) -> None:
    size = (2, 2, 5) if is_small else (10, 12, 1000)
    # Each try has its own folder: a second report of the same results would be faster.
    table.measure(lambda: rows(Path(tempfile.mkdtemp(dir=folder)), *size))


if __name__ == "__main__":
    run_program(__doc__, main)
