"""The replies of judges and metric models about each item of a cell, by question."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import Struct

from imageevalkit.common.errors import CellFailure
from imageevalkit.report.collect import ItemView, natural, text_of
from imageevalkit.report.parts import Answer
from imageevalkit.store.cell import Cell
from imageevalkit.store.jsonl import file_bytes, parse
from imageevalkit.store.results import Result


class _Reply(Struct):
    """The fields of a line of judgements.jsonl that the report shows."""

    item: str
    question: str
    status: Literal["ok", "unparsed", "failed"]
    evaluator: str = ""
    raw: str | None = None
    parsed: Any = None
    error: str | None = None


_READER = msgspec.json.Decoder(_Reply)


class LastReplies(NamedTuple):
    """The last reply to each question about an item (``last``), and the last one with a value (``read``)."""

    last: dict[str, _Reply]
    read: dict[str, _Reply]


def replies(cell: Cell, result: Result | None) -> dict[str, LastReplies]:
    """Return the replies of the evaluators of ``result`` by item, or of all evaluators if there is no result.

    The mapping is empty if the file cannot be read."""
    who = _evaluators(result)
    found = dict[str, LastReplies]()
    for reply in _read(cell):
        if not who or reply.evaluator in who:
            last_replies = found.get(reply.item)
            if last_replies is None:
                last_replies = found[reply.item] = LastReplies({}, {})
            last_replies.last[reply.question] = reply
            if reply.status == "ok":
                last_replies.read[reply.question] = reply
    return found


def _read(cell: Cell) -> Iterator[_Reply]:
    try:
        lines = file_bytes(cell.judgements).split(b"\n")
    except CellFailure:  # the next evaluation of the cell reports the unreadable file
        return
    for line in lines:
        try:
            yield _READER.decode(line)
        except ValueError:
            if line.strip():
                # the line has half a surrogate pair, which parse() accepts; or it is not a record
                with contextlib.suppress(ValueError):
                    yield msgspec.convert(parse(line), _Reply)


def _evaluators(result: Result | None) -> set[str]:
    """Return the ids of all evaluators of ``result``. "" matches replies that name no evaluator."""
    if result is None:
        return set()
    answerers = result.evaluator.details.get("answerers")
    parts = answerers.values() if isinstance(answerers, dict) else ()
    return {result.evaluator.id, "", *(str(part.get("id")) for part in parts if isinstance(part, dict))}


def answers_of(item: ItemView, last_replies: LastReplies | None, scales: Mapping[str, float]) -> list[Answer]:
    """Return the answers about ``item``: wrong, failed, without a score, right, in this order.

    ``scales`` has the largest possible value of each score, by name."""
    if last_replies is None or item.judged not in ("judged", "unparsed", "judge_failed"):
        return []
    # a retry of a question may fail: then the earlier value still counts
    records = {**last_replies.last, **last_replies.read} if item.judged == "judged" else last_replies.last
    in_order = [records[name] for name in sorted(records, key=natural)]
    return sorted(_answers(item, in_order, scales), key=_wrong_first)


def _wrong_first(answer: Answer) -> int:
    if answer.status != "ok":
        return 1
    return 2 if not isinstance(answer.score, float) else 0 if answer.score < 0.5 else 3


def _answers(item: ItemView, records: Sequence[_Reply], scales: Mapping[str, float]) -> list[Answer]:
    """Return the answers, with scores only if it is certain which score belongs to which answer.

    The scores are certain if there are as many points as answers, or as values in the only answer. They are
    also certain with one answer and one value.
    """
    points = [one for one in item.points if one is not None and 0 <= one <= 1]
    is_certain = item.judged == "judged" and len(points) == len(item.points)
    answers = [
        Answer(
            record.question,
            text_of(record.raw or record.error),
            record.status,
            record.evaluator,
            value="" if record.parsed in (None, record.raw) else text_of(record.parsed),
        )
        for record in records
    ]
    if not is_certain or not records:
        return answers
    if points and len(points) == len(answers):
        for answer, score in zip(answers, points, strict=True):
            answer.score = score
    elif len(answers) == 1 and points:
        answers = [*_lines(item, answers[0], records[0].parsed, points), *answers]
    elif len(answers) == 1 and len(item.values) == 1:
        [(name, value)] = item.values.items()
        if 0 <= value <= scales.get(name, -1):
            answers[0].score = value / scales[name]
    return answers


def _lines(item: ItemView, answer: Answer, parsed: Any, points: Sequence[float]) -> list[Answer]:
    """Split one reply to several questions into an answer for each; empty if the numbers do not match."""
    values = parsed if isinstance(parsed, list) else [*parsed.values()] if isinstance(parsed, dict) else []
    if len(values) != len(points):
        return []
    values_as_text = [text_of(value) for value in values]
    names = (
        [*parsed]
        if isinstance(parsed, dict)
        else [f"{answer.question}/{n + 1}" for n in range(len(values_as_text))]
    )
    # the detail of an item begins with the questions if the benchmark records them
    details = [*item.detail.items()][: len(values_as_text)]
    texts = (
        [text for text, _ in details]
        if [value for _, value in details] == values_as_text
        else [""] * len(values_as_text)
    )
    return [
        Answer(name, reply, answer.status, answer.who, text=text, score=score)
        for name, reply, text, score in zip(names, values_as_text, texts, points, strict=True)
    ]
