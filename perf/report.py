"""The report of a matrix: models × benchmarks × items, each with a preview that is kept, a score and three replies.

The plain way is what any report takes: every line of every file through ``json.loads``, one file of JSON written for
each cell, and a link made to each preview; in one process. "again" has one cell in a hundred evaluated anew.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import sys
from pathlib import Path
from typing import Any

from imageevalkit.common.images import encoded, thumbnail_of
from imageevalkit.metrics import groups, mean
from imageevalkit.store.cell import Cell
from imageevalkit.store.pictures import thumbnail_path
from imageevalkit.store.results import Coverage, Metric, Result, Score, as_object
from perf.harness import USAGE, Row, Table, at_most, measure, run_program
from perf.toolkit import Toolkit
from tests.support.cells import PPOCR, PROVENANCE, Made, paint

_RATIO, _WHOLE_S, _AGAIN_S, _MB, _INDEX_MB = (
    at_most(4.0),
    at_most(60),
    at_most(30),
    at_most(1000),
    at_most(3),
)
_SKILLS = ("count", "colour", "position", "text", "texture", "relation")
_MODIFIED = 1_750_000_000_000_000_000  # of every image, and of the previews kept of them
_REPLY = (
    "Yes. The image shows what the question asks for, as far as it can be told from the picture alone. " * 2
)
_PLAIN = """
import json, os, sys, time
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


def write_matrix(models: int, benchmarks: int, items: int) -> None:
    """Write so many cells below the output root."""
    picture = encoded(paint(Made("one", "one")), Path("a.png"))
    preview = thumbnail_of(picture.data)
    for m in range(models):
        for b in range(benchmarks):
            _write_cell(Cell(f"model-{m}", f"benchmark-{b:02}"), items, picture.data, preview)


def _write_cell(cell: Cell, items: int, image: bytes, preview: bytes) -> None:
    rng = random.Random(cell.key)
    (cell.folder / "images").mkdir(parents=True)
    thumbnail_path(cell, "").parent.mkdir()
    # names for one file: what a report reads of an image that nobody changed is its time
    one, kept = cell.folder / "image.png", thumbnail_path(cell, "one")
    for path, data in ((one, image), (kept, preview)):
        path.write_bytes(data)
        os.utime(path, ns=(_MODIFIED, _MODIFIED))
    scores, lines = list[Score](), dict[str, list[str]]({"generation": [], "scores": [], "judgements": []})
    for n in range(items):
        item, prompt = f"images/{n:05}", f"{n} green croissants beside a wooden chair, seen from above"
        sha256 = hashlib.sha256(f"{cell.key} {n}".encode()).hexdigest()
        os.link(one, cell.folder / f"{item}.png")
        os.link(kept, thumbnail_path(cell, sha256))
        about: dict[str, Any] = {
            "item": item,
            "path": f"{item}.png",
            "status": "ok",
            "placeholder": False,
            "prompt": prompt,
        }
        about |= {
            "prompt_sha256": hashlib.sha256(prompt.encode()).hexdigest(),
            "seed": n,
            "seed_honoured": True,
        }
        about |= {"requested_size": None, "size": [1024, 1024], "image_sha256": sha256, "seconds": 3.25}
        about |= {"attempts": 1, "error": None, "tokens": {"input": 12, "output": 272}, "price": 0.011}
        about |= {"fingerprint": "f" * 16, "time": "2026-11-01T09:00:00.000+00:00"}
        lines["generation"].append(json.dumps(about, separators=(",", ":")))
        score = Score({"accuracy": rng.randrange(4) / 3}, {"skill": _SKILLS[n % len(_SKILLS)]}, item=item)
        scores.append(score)
        asked: dict[str, Any] = {
            "item": item,
            "evaluator": PPOCR.id,
            "status": "ok",
            "error": None,
            "seconds": 0.5,
        }
        asked |= {"attempts": 1, "tokens": {"input": 900, "output": 40}, "usd": 0.001, "parsed": "yes"}
        for q in range(3):
            said = {"question": f"vqa/{q}", "request": f"{sha256[:60]}{q:04}", "raw": f"{q}: {_REPLY}"}
            lines["judgements"].append(json.dumps({**asked, **said}, separators=(",", ":")))
    metrics = {"accuracy": mean(scores, "accuracy")}
    metrics |= {
        f"skill/{name}": mean(of, "accuracy") for name, of in groups(scores, "skill", _SKILLS).items()
    }
    parts = dict[str, dict[str, list[list[float]]]]()
    for name, metric in metrics.items():
        for part in metric.parts:
            parts.setdefault(part.item, {}).setdefault(name, []).append([part.total, part.weight])
    for score in scores:
        record: dict[str, Any] = {
            "item": score.item,
            "status": "judged",
            "image_sha256": None,
            "attempted": True,
        }
        record |= {"values": score.values, "keys": score.keys, "evaluator": PPOCR.id, "reason": ""}
        points = [{"values": {"met": 1}, "keys": {}}] * 3
        record |= {"detail": {"answer": _REPLY}, "points": points, "parts": parts[score.item]}
        lines["scores"].append(json.dumps(record, separators=(",", ":")))
    for name, of_file in lines.items():
        text = "".join(f"{line}\n" for line in of_file)
        (cell.folder / f"{name}.jsonl").write_text(text)
    _write_result(cell, metrics, items)


def _write_result(cell: Cell, metrics: dict[str, Metric], items: int) -> None:
    result = Result(
        model=cell.model,
        benchmark=cell.benchmark,
        benchmark_version="1",
        evaluator=PPOCR,
        coverage=Coverage(items, items, 0, 0, 0, 0, items, 0, 0),
        metrics=metrics,
        headline=["accuracy"],
        treatment="withhold",
        limit=None,
        provenance=dict(PROVENANCE),
    )
    cell.result.write_text(json.dumps(as_object(result)))


def rows(kit: Toolkit, models: int, benchmarks: int, items: int) -> list[Row]:
    """The report of such a matrix, made by the driver's environment as a run makes it."""
    kit.forget()
    os.environ["IMAGEEVALKIT_OUTPUT"] = str(kit.output)
    write_matrix(models, benchmarks, items)
    command = [str(kit.checkout / ".venv/bin/python"), "-P", "-m", "imageevalkit.report"]
    place: dict[str, Any] = {
        "cwd": kit.checkout,
        "environ": kit.environ(),
        "log": kit.log / "report.log",
    }
    first = measure(command, **place)
    index = (kit.output / "report/index.html").stat().st_size / 1e6
    for n in range(0, models * benchmarks, 100):
        os.utime(Cell(f"model-{n % models}", "benchmark-00").scores)
    again = measure(command, **place)
    plain = measure(
        [sys.executable, "-c", _PLAIN, str(kit.output), str(kit.output.parent / "plain")], **place
    )
    label = f"the report of {models} × {benchmarks} × {items:,} items"
    return [
        Row(
            f"{label}, to the plain way",
            first.wall / plain.wall,
            _RATIO,
            first.figures,
            kit.failure(first),
            first.others,
        ),
        kit.seconds_row("  seconds", first, _WHOLE_S),
        kit.seconds_row("  seconds, again", again, _AGAIN_S),
        Row("  memory", first.peak_mb, _MB, {}, unit=" MB"),
        Row("  index.html", index, _INDEX_MB, {}, unit=" MB"),
        Row("  the plain way", plain.wall, None, plain.figures, kit.failure(plain), plain.others, " s"),
    ]


def main(options: argparse.Namespace, folder: Path) -> Table:
    table = Table("seconds and megabytes", *USAGE[:3], tries=options.tries)
    table.measure(rows, Toolkit(folder, []), options.models, options.benchmarks, options.items)
    return table


if __name__ == "__main__":
    run_program(
        __doc__,
        main,
        models=(10, "in the matrix"),
        benchmarks=(12, "in the matrix"),
        items=(1000, "of each cell"),
    )
