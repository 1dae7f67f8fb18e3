"""What ``judgements.jsonl`` holds of a cell's questions, and the hash that a question is known by."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from typing import Any, Literal

from imageevalkit.atomic import sync_folder
from imageevalkit.benchmark.question import Picture, Question
from imageevalkit.cell import Cell
from imageevalkit.cell.jsonl import Shape, Tell, tell_nobody
from imageevalkit.cell.kept_twice import KeptTwiceWriter, copy_of, read_kept
from imageevalkit.cell.results import Evaluator
from imageevalkit.text import to_bytes

RECORD = Shape(
    must={"request": str, "status": Literal["ok", "unparsed", "failed"]},
    may={
        "evaluator": str,
        "raw": str | None,
        "probabilities": dict[str, float] | None,
        "outside": float | None,
        "tokens": dict[str, float] | None,
        "usd": float | None,
    },
)
"""A line of ``judgements.jsonl``."""


def request_hash(question: Question, evaluator: Evaluator) -> str:
    """Identifies what is asked of whom: two questions with one hash have one answer.

    It covers the evaluator with its versions and settings, every word, every image's bytes and the sampling; not the
    item, its path, or where the evaluator is reached.
    """
    messages = [
        [m.role, [p.request if isinstance(p, Picture) else p for p in m.parts]] for m in question.messages
    ]
    request = json.dumps(
        [messages, vars(question.sampling), question.choices], sort_keys=True, ensure_ascii=False
    )
    return hashlib.sha256(to_bytes(f"[{evaluator.as_json}, {request[1:]}")).hexdigest()


def judgement_records(cell: Cell, tell: Tell = tell_nobody) -> Iterator[dict[str, Any]]:
    """What was answered about ``cell`` so far; none where the file was deleted, which is how a user has all asked anew.

    Raises CellFailure: the file cannot be read.
    """
    return read_kept(cell.judgements, RECORD, tell) if os.path.lexists(cell.judgements) else iter(())


def judgement_writer(cell: Cell) -> KeptTwiceWriter:
    """For more of them."""
    if not os.path.lexists(cell.judgements):
        copy_of(cell.judgements).unlink(missing_ok=True)
    writer = KeptTwiceWriter(cell.judgements, RECORD)
    sync_folder(cell.folder)
    return writer
