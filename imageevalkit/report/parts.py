"""The parts of the site as Python types, and their JSON. ``page/src/data.ts`` has the same types.

A test compares each field with the interface there. A field with a default may be absent from the JSON.
"""

from __future__ import annotations

import json
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Struct, UnsetType, field

from imageevalkit.common.text import to_bytes

CONTRACT = 2
"""Raise this number when the parts of an unchanged cell change: then all cells are written again."""


class Model(Struct, omit_defaults=True):
    name: str
    overall: float | None
    run: str = ""
    step: int | UnsetType = UNSET


class Mean(Struct):
    of: list[str]
    left_out: dict[str, str] = field(name="leftOut")


class Benchmark(Struct):
    name: str
    title: str
    task: str
    cells: list[int]
    prompts: int


class Coverage(Struct):
    expected: int
    judged: int
    missing: dict[str, int]
    flat: int


class Cost(Struct):
    generation_usd: float | None = None
    judge_usd: float | None = None
    seconds_per_image: float | None = None
    usd_per_image: float | None = None


class Figure(Struct, omit_defaults=True):
    value: float | None
    text: str
    interval: str
    low: float | None
    high: float | None
    n: int
    scale: float
    best: bool = False
    group: str = ""
    remark: str = ""
    drift: str = ""
    no_interval: str = field(default="", name="noInterval")


class Failure(Struct):
    outcome: str
    error: str
    count: int
    items: list[str]


class Word(Struct):
    value: str
    count: int


class Cell(Struct, omit_defaults=True):
    model: str
    benchmark: str
    board: int | None
    problem: str
    withheld: bool
    state: str
    notes: list[str]
    coverage: Coverage | None
    figures: dict[str, Figure]
    treatment: str
    evaluator: dict[str, str]
    provenance: dict[str, str]
    cost: Cost
    failures: list[Failure]
    folder: str
    root: int
    path: str
    outcomes: dict[str, int] = {}
    words: list[Word] = []


class Breakdown(Struct):
    name: str
    metrics: list[str]


class Test(Struct):
    metric: str
    first: str
    second: str
    difference: float
    p: float | None
    low: float | None
    high: float | None


class Board(Struct):
    benchmark: str
    version: str
    evaluator: str
    official: bool
    limit: int
    asked: int
    rewriter: str
    label: str
    headline: list[str]
    breakdowns: list[Breakdown]
    smallest: dict[str, float]
    tests: list[Test]


class Point(Struct):
    step: int
    cell: int
    told: bool | None


class Curve(Struct):
    run: str
    board: int
    metric: str
    points: list[Point]


class Kind(Struct):
    label: str
    colour: str
    mark: str


class Link(Struct):
    name: str
    href: str


class RelationPair(Struct, omit_defaults=True):
    first: str
    second: str
    kind: str
    label: str
    certainty: float | None
    n: int
    means: tuple[float, float]
    correlation: float | None
    synergy: float
    bottleneck: float
    above: int
    below: int
    on_line: bool = field(name="onLine", default=False)
    next: tuple[str, float] | UnsetType = UNSET


class RelationMap(Struct, omit_defaults=True):
    cell: int
    metrics: list[str]
    means: dict[str, float]
    correlation: str
    thresholds: dict[str, float]
    pairs: list[RelationPair]
    files: list[Link]
    scatter: str = ""


class Index(Struct):
    made: str
    version: str
    roots: list[str]
    cells: list[Cell]
    boards: list[Board]
    benchmarks: list[Benchmark]
    models: list[Model]
    mean: Mean
    curves: list[Curve]
    relations: list[RelationMap]
    kinds: dict[str, Kind]
    comparisons: list[Link]
    votes: Any
    unreadable: list[str]


class Input(Struct, omit_defaults=True):
    preview: str
    path: str = ""
    cell: int | UnsetType = UNSET
    of: str = ""


class PromptRow(Struct, omit_defaults=True):
    prompt: str
    items: list[str]
    keys: dict[str, str]
    inputs: list[Input] = []


class Prompts(Struct):
    rows: list[PromptRow]
    filters: dict[str, list[str]]


class Item(Struct, omit_defaults=True):
    id: str
    status: str
    judged: str = ""
    values: list[float | None] = []
    preview: str = ""
    file: str = ""
    width: int = 0
    height: int = 0
    remark: str = ""
    seed: int | UnsetType = UNSET
    seed_ignored: bool = field(name="seedIgnored", default=False)


class Items(Struct, omit_defaults=True):
    metrics: list[str]
    scales: list[float]
    size: int
    items: list[Item]
    evaluator: str = ""


class Answer(Struct, omit_defaults=True):
    question: str
    reply: str
    status: str
    who: str
    text: str = ""
    value: str = ""
    score: float | UnsetType = UNSET


class MoreItem(Struct, omit_defaults=True):
    # the page relies on these four: they have no default, so they are never absent
    facts: dict[str, str]
    detail: dict[str, str]
    answers: list[Answer]
    command: str
    error: tuple[str, str] | UnsetType = UNSET
    reason: str = ""
    rewritten: tuple[str, str] | UnsetType = UNSET


class More(Struct):
    items: list[MoreItem]


T = TypeVar("T")
_JSON = msgspec.json.Encoder()


def to_json(data: Any) -> bytes:
    """Return ``data`` as JSON in UTF-8. A lone surrogate (half an emoji) becomes its escape."""
    try:
        return _JSON.encode(data)
    except UnicodeEncodeError:
        return to_bytes(json.dumps(msgspec.to_builtins(data), ensure_ascii=False, separators=(",", ":")))


def of_json(text: bytes, kind: type[T]) -> T:
    """Return the object of type ``kind`` in the JSON ``text``. Raises ValueError if there is none."""
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.DecodeError:  # msgspec refuses lone surrogates, json accepts them
        return msgspec.convert(json.loads(text), kind)


def script_json(data: Any) -> bytes:
    """Return :func:`to_json` with escapes for all characters that could end a script or tag in HTML."""
    text = to_json(data)
    for char in ("<", ">", "&", "\u2028", "\u2029"):
        text = text.replace(char.encode(), b"\\u%04x" % ord(char))
    return text


def script_of(name: str, data: Any) -> bytes:
    """Return the JavaScript file of a part: one call that passes the part to the page."""
    return b"reportPart(%s,%s)\n" % (script_json(name), script_json(data))
