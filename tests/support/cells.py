"""Finished cells as the generate and evaluate stages leave them, made of small real images."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image, ImageDraw

from imageevalkit.common.images import encode
from imageevalkit.metrics import mean
from imageevalkit.store.cell import Cell
from imageevalkit.store.results import Coverage, Evaluator, Metric, Result, Score, as_object

PPOCR = Evaluator("ppocr-v4", official=False, details={"engine": "rapidocr-onnxruntime 1.4.4"})
QWEN = Evaluator("qwen2.5-vl-7b", official=True)
PROVENANCE = {
    "git_commit": "0123abcd",
    "data_sha256": {"prompts.jsonl": "ab" * 32},
    "time": "2026-11-01T10:00:00+00:00",
}


class Made(NamedTuple):
    """One item and what became of it; ``outcome`` is ok, refused, failed, blank or absent (no record)."""

    id: str
    prompt: str
    outcome: str = "ok"
    value: float | None = None
    keys: Mapping[str, str] = {}
    read: str = ""
    error: tuple[str, str] = ("ItemFailed", "HTTP 500 after 3 attempts")
    judged: str = "judged"
    seed: int = 43


def paint(item: Made) -> Image.Image:
    """A small picture that differs from item to item."""
    tint = hashlib.sha256(f"{item.id}{item.seed}{item.prompt}".encode()).digest()
    image = Image.new("RGB", (64, 48), tuple(tint[:3]))
    ImageDraw.Draw(image).ellipse((8, 8, 40, 40), fill=tuple(tint[3:6]))
    return image


def write_items(
    cell: Cell,
    items: Sequence[Made],
    draw: Callable[[Made], Image.Image] = paint,
    suffix: str = ".png",
    evaluator: Evaluator = PPOCR,
) -> None:
    """Write the images, ``generation.jsonl`` and ``scores.jsonl`` of ``cell``."""
    cell.folder.mkdir(parents=True, exist_ok=True)
    generation = [record for item in items if (record := _generation(cell, item, draw, suffix))]
    cell.generation.write_text("".join(generation))
    cell.scores.write_text("".join(_score(item, evaluator) for item in items))


def _generation(cell: Cell, item: Made, draw: Callable[[Made], Image.Image], suffix: str) -> str:
    if item.outcome == "absent":
        return ""
    path = cell.folder / f"{item.id}{suffix}"
    record: dict[str, Any] = {
        "item": item.id,
        "path": f"{item.id}{suffix}",
        "status": "failed" if item.outcome == "blank" else item.outcome,
        "placeholder": item.outcome == "blank",
        "prompt": item.prompt,
        "prompt_sha256": hashlib.sha256(item.prompt.encode()).hexdigest(),
        "seed": item.seed,
        "seed_honoured": True,
        "requested_size": None,
        "size": None,
        "image_sha256": None,
        "seconds": 1.25,
        "attempts": 1,
        "error": None,
        "tokens": None,
        "price": None,
        "fingerprint": "f" * 12,
        "time": "2026-11-01T09:00:00.000+00:00",
    }
    if item.outcome in ("ok", "blank"):
        image = draw(item) if item.outcome == "ok" else Image.new("RGB", (64, 48), "white")
        data = encode(image, path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        if item.outcome == "ok":
            record |= {"size": image.size, "image_sha256": hashlib.sha256(data).hexdigest()}
    if item.outcome != "ok":
        record["error"] = {"class": item.error[0], "text": item.error[1]}
    return json.dumps(record, ensure_ascii=False) + "\n"


def _score(item: Made, evaluator: Evaluator) -> str:
    judged = item.outcome == "ok" and item.judged == "judged"
    record = {
        "item": item.id,
        "status": item.judged if item.outcome == "ok" else "not_generated",
        "values": {"accuracy": item.value} if judged and item.value is not None else {},
        "keys": dict(item.keys) if judged else {},
        "evaluator": evaluator.id,
        "detail": {"expected": item.prompt, "read": item.read} if judged else {},
        "reason": "" if judged else item.judged,
    }
    return json.dumps(record, ensure_ascii=False) + "\n"


def coverage_of(items: Sequence[Made]) -> Coverage:
    """Returns the coverage that the evaluate stage counts for ``items``."""
    ok = [item for item in items if item.outcome == "ok"]

    def count(*outcomes: str) -> int:
        return sum(item.outcome in outcomes for item in items)

    verdicts = {name: sum(i.judged == name for i in ok) for name in ("judged", "unparsed", "judge_failed")}
    return Coverage(
        expected=len(items),
        generated=len(ok),
        refused=count("refused"),
        failed=count("failed", "absent"),
        blank=count("blank"),
        corrupt=0,
        **verdicts,
    )


def write_cell(
    model: str,
    benchmark: str,
    items: Sequence[Made],
    metrics: Mapping[str, Metric],
    *,
    evaluator: Evaluator = PPOCR,
    version: str = "1",
    headline: Sequence[str] = ("accuracy",),
    treatment: str = "withhold",
    limit: int | None = None,
    draw: Callable[[Made], Image.Image] = paint,
    suffix: str = ".png",
) -> Cell:
    """Write a whole cell; its headline is withheld when an item is missing and ``treatment`` says so."""
    cell = Cell(model, benchmark)
    write_items(cell, items, draw, suffix, evaluator)
    coverage = coverage_of(items)
    withheld = not coverage.complete and treatment == "withhold"
    result = Result(
        model=model,
        benchmark=benchmark,
        benchmark_version=version,
        evaluator=evaluator,
        coverage=coverage,
        metrics=dict(metrics),
        headline=[] if withheld else list(headline),
        treatment=treatment,
        limit=limit,
        provenance=dict(PROVENANCE),
        withheld=f"incomplete: {coverage.problems()}" if withheld else "",
    )
    cell.result.write_text(json.dumps(as_object(result)))
    return cell


def write_scored(
    cell: Cell,
    values: Mapping[str, float],
    *,
    evaluator: Evaluator = PPOCR,
    prompts: Callable[[str], str] = "a picture of {}".format,
    version: str = "1",
    top: float = 1.0,
    folder: Path | None = None,
    with_parts: bool = True,
    metric: str = "accuracy",
    more: Mapping[str, Any] = {},
) -> Cell:
    """Write a cell of whose items only the scores are there, as of results that were copied: ``values`` by item, whose
    mean is the headline ``metric``. ``folder``: of its result; ``more``: fields of ``result.json``."""
    scores = [Score({metric: value}, item=item) for item, value in values.items()]
    found = mean(scores, metric, top=top)
    parts = {part.item: {metric: [[part.total, part.weight]]} for part in found.parts}
    folder = folder or cell.folder
    folder.mkdir(parents=True, exist_ok=True)
    records, made = [], []
    for score in scores:
        item, prompt = score.item, prompts(score.item)
        record = {"item": item, "status": "judged", "values": score.values, "keys": {}, "detail": {}}
        records.append({**record, "parts": parts[item]} if with_parts else record)
        hash = hashlib.sha256(prompt.encode()).hexdigest()
        made.append({"item": item, "status": "ok", "prompt": prompt, "prompt_sha256": hash})
    (folder / "scores.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in records))
    cell.generation.write_text("".join(f"{json.dumps(one)}\n" for one in made))
    n = len(values)
    coverage = Coverage(n, n, 0, 0, 0, 0, n, 0, 0)
    result = Result(
        cell.model,
        cell.benchmark,
        version,
        evaluator,
        coverage,
        {metric: found},
        [metric],
        "withhold",
        None,
        dict(PROVENANCE),
    )
    (folder / "result.json").write_text(json.dumps({**as_object(result), **more}))
    return cell


def image_of(cell: Cell, item: str) -> Path:
    """The PNG of an item."""
    return cell.folder / f"{item}.png"


HUNDRED = {f"p/{n:04}": float(n % 2) for n in range(100)}


def changed(values: Mapping[str, float], **to: float) -> dict[str, float]:
    """The first items set to 1 (``up``) that were 0, or to 0 (``down``) that were 1: so many."""
    found = dict(values)
    for direction, value in (("up", 1.0), ("down", 0.0)):
        for item in [item for item, was in values.items() if was != value][: int(to.get(direction, 0))]:
            found[item] = value
    return found
