"""What an evaluate job would ask, without asking: read by ``--dry_run`` from a job's cell and options on stdin."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from imageevalkit.cell import REPO, Cell
from imageevalkit.errors import ExitStatus, run_main
from imageevalkit.evaluation.benchmark import Benchmark, module_of
from imageevalkit.evaluation.judging import answered_requests
from imageevalkit.evaluation.question import Picture, Question
from imageevalkit.generation.records import OK, last_records
from imageevalkit.items import Item, items_of
from imageevalkit.jobs import cell_of
from imageevalkit.secrets import one_line

# What a judge's text costs is known well enough, what an image costs is up to the provider: 1024 px are about a
# thousand tokens for Qwen-VL (spec of GenEval 2, section 9) and for GPT-4o.
_CHARACTERS_PER_TOKEN = 4
_TOKENS_PER_IMAGE = 1000


def forecast(key: str, request: dict[str, Any]) -> str:
    """One line for the cell ``key``; only reads."""
    from custom_datasets.load_dataset import load_dataset

    cell = cell_of(key)
    module = module_of(cell.benchmark)
    if module is None:
        return f"{key}: a script of its own, which does not tell what it asks"
    benchmark: Benchmark = module.make(request["judge"])
    items = items_of(load_dataset(cell.benchmark), cell, request["limit"])
    questions, waiting = _questions(cell, benchmark, items)
    said = f"{len(waiting)} of {len(questions)} questions to ask of {benchmark.evaluator.id}"
    tokens = sum(map(_tokens, waiting))
    return f"{key}: {said}" + (f", about {tokens / 1e6:.2f} million tokens" if request["is_judge"] else "")


def _questions(cell: Cell, benchmark: Benchmark, items: list[Item]) -> tuple[list[Question], list[Question]]:
    """All questions about ``items``, and those without an answer on record or without an image yet."""
    records, answered = last_records(cell), answered_requests(cell)
    evaluator = benchmark.evaluator
    questions, waiting = [], []
    for item in items:
        record = records.get(item.id, {})
        sha256 = record.get("image_sha256") if record.get("status") == OK else None
        for question in benchmark.questions(item, Picture(item.path, sha256 or "")):
            questions.append(question)
            if not sha256 or question.request_hash(evaluator) not in answered:
                waiting.append(question)
    return questions, waiting


def _tokens(question: Question) -> float:
    return len(question.text) / _CHARACTERS_PER_TOKEN + _TOKENS_PER_IMAGE * len(question.pictures)


def main() -> ExitStatus:
    """One line per cell of the request on stdin; a cell that cannot be read is one line too, and status 1."""
    sys.path.insert(0, str(REPO / "infer"))
    request = json.load(sys.stdin)
    os.environ.update(request["environ"])
    status = ExitStatus.COMPLETE
    for key in request["cells"]:
        try:
            print(forecast(key, request))
        except Exception as error:  # a fault in one benchmark must not hide the other cells
            print(f"{key}: questions unknown: {type(error).__name__}: {one_line(error, 300)}")
            status = ExitStatus.FAILED
    return status


if __name__ == "__main__":
    run_main(main)
