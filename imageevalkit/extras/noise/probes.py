"""The probes of a judge: questions about generated images, asked before it judges, that show changes.

The first replies to the probes are the reference for later runs. They are stored in
``output/judges/<judge>/<host>/probes.jsonl``: one folder for each judge and form of its questions, and in it
one for each host. If two hosts serve different models under one name, the later host is reported. Deleting a
file accepts the judge's present state on that host.

The images are drawn with integers only and stored without compression, so that no library affects their
bytes.
"""

from __future__ import annotations

import functools
import hashlib
import re
import struct
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal, NamedTuple, NotRequired, TypedDict

from imageevalkit.benchmark.answerer import digest, without_packages
from imageevalkit.benchmark.question import Answer, Message, Picture, PixelRule, Question, Sampling
from imageevalkit.benchmark.thoughts import answer_in, without_thoughts
from imageevalkit.common.locks import held
from imageevalkit.extras.noise.drift import BEFORE, Reply, Series, drift_of
from imageevalkit.judges.choice import Judge
from imageevalkit.store.cell import JUDGES, output_root
from imageevalkit.store.jsonl import JsonlWriter, Number, Reader, read_jsonl
from imageevalkit.store.results import Drift, folder_name

_SIDE = 128  # pixels
_COLOURS = {
    "white": b"\xff\xff\xff",
    "black": b"\x00\x00\x00",
    "red": b"\xdd\x11\x11",
    "green": b"\x11\xaa\x33",
    "blue": b"\x11\x44\xdd",
    "yellow": b"\xf2\xd0\x11",
    "purple": b"\x88\x22\xaa",
    "grey": b"\x80\x80\x80",
    "pale": b"\xec\xe6\xe6",
}
_NUMBERS = {name: number for number, name in enumerate(_COLOURS)}


class _Box(NamedTuple):
    colour: str
    left: int
    top: int
    right: int
    bottom: int

    def holds(self, x: int, y: int) -> bool:
        return self.left <= x < self.right and self.top <= y < self.bottom


class _Disc(NamedTuple):
    colour: str
    x: int
    y: int
    radius: int

    def holds(self, x: int, y: int) -> bool:
        return (x - self.x) ** 2 + (y - self.y) ** 2 <= self.radius**2


_DRAWN: Mapping[str, Sequence[_Box | _Disc]] = {
    "circle": [_Disc("red", 64, 64, 36)],
    "squares": [_Box("blue", left, 52, left + 26, 78) for left in (12, 51, 90)],
    "dots": [_Disc("black", x, y, 11) for x, y in ((30, 30), (98, 26), (64, 62), (26, 100), (102, 98))],
    "sides": [_Box("green", 14, 46, 50, 82), _Disc("yellow", 94, 64, 19)],
    "stack": [_Box("red", 46, 14, 82, 50), _Box("blue", 46, 76, 82, 112)],
    "cross": [_Box("purple", 54, 18, 74, 110), _Box("purple", 18, 54, 110, 74)],
    "letters": [
        *(_Box("black", left, 28, left + 14, 100) for left in (18, 56, 92)),
        _Box("black", 18, 57, 70, 71),
    ],
    "stripes": [_Box("black", left, 0, left + 12, _SIDE) for left in (10, 42, 74, 106)],
    "plain": [_Box("grey", 0, 0, _SIDE, _SIDE)],
    "mixed": [
        *(_Disc("green", x, y, 13) for x, y in ((26, 28), (66, 24), (34, 92), (100, 100))),
        *(_Box("red", x, y, x + 24, y + 24) for x, y in ((90, 12), (58, 60))),
    ],
    "faint": [_Disc("pale", 64, 64, 40)],
    "hidden": [_Disc("yellow", 54, 64, 34), _Box("blue", 58, 30, 112, 98)],
}
_YES, _COUNT = ("Yes", "yes", "No", "no"), ("1", "2", "3", "4", "5", "6", "7", "8", "9")
_ENDS = {
    _YES: "Answer with yes or no only.",
    _COUNT: "Answer with one number only.",
}
_GRADE = (
    "From 1 (not at all) to 5 (completely), how well does the image match this description: {}? "
    "Answer with one number only."
)


class Probe(NamedTuple):
    """A question about the image ``drawn``, with one of ``choices`` as its answer."""

    name: str
    drawn: str
    words: str
    choices: Sequence[str]


def _asked(name: str, drawn: str, words: str, choices: Sequence[str]) -> Probe:
    return Probe(name, drawn, f"{words} {_ENDS[tuple(choices)]}", choices)


def _graded(name: str, drawn: str, described: str) -> Probe:
    return Probe(name, drawn, _GRADE.format(described), _COUNT)


PROBES: Sequence[Probe] = (
    _asked("colour", "circle", "Is there a red circle in the image?", _YES),
    _asked("wrong colour", "circle", "Is there a blue circle in the image?", _YES),
    _asked("three squares", "squares", "How many squares are in the image?", _COUNT),
    _asked("not four", "squares", "Are there exactly four squares in the image?", _YES),
    _asked("five dots", "dots", "How many dots are in the image?", _COUNT),
    _asked("left", "sides", "Is the green square to the left of the yellow circle?", _YES),
    _asked("not left", "sides", "Is the yellow circle to the left of the green square?", _YES),
    _asked("above", "stack", "Is the red square above the blue square?", _YES),
    _graded("swapped", "stack", "a blue square above a red square"),
    _graded("right", "cross", "a purple cross on a white background"),
    _asked("text", "letters", "Does the image show the word HI in capital letters?", _YES),
    _graded("other text", "letters", "the word HO in capital letters"),
    _asked("stripes", "stripes", "How many black stripes are in the image?", _COUNT),
    _asked("nothing", "plain", "Is there any shape in the image?", _YES),
    _asked("some of two kinds", "mixed", "How many circles are in the image?", _COUNT),
    _graded("one too many", "mixed", "three green circles and two red squares"),
    # answers that a judge is unsure of change first
    _asked("faint", "faint", "Is there a circle in the image?", _YES),
    _graded("half hidden", "hidden", "a yellow circle in front of a blue rectangle"),
)


@functools.cache
def drawing(name: str) -> bytes:
    """Returns the PNG ``name`` of 128 × 128 pixels.

    The PNG has a palette and uncompressed zlib blocks (RFC 1950, RFC 1951 section 3.2.4), because two
    compression libraries may produce different bytes.
    """
    shapes = _DRAWN[name]

    def colour(x: int, y: int) -> int:
        return next((_NUMBERS[one.colour] for one in reversed(shapes) if one.holds(x, y)), 0)

    rows = b"".join(b"\0" + bytes(colour(x, y) for x in range(_SIDE)) for y in range(_SIDE))
    stored = b"\x78\x01\x01" + struct.pack("<HH", len(rows), len(rows) ^ 0xFFFF) + rows
    chunks = {
        b"IHDR": struct.pack(">IIBBBBB", _SIDE, _SIDE, 8, 3, 0, 0, 0),
        b"PLTE": b"".join(_COLOURS.values()),
        b"IDAT": stored + struct.pack(">I", zlib.adler32(rows)),
        b"IEND": b"",
    }
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks.items()
    )


class Form(NamedTuple):
    """The form of a benchmark's questions, which its judge's probes also have.

    ``first_token``: the probabilities of the first token are requested, for the ``likeliest`` tokens or, if
    that is 0, for the choices.
    """

    sampling: Sampling
    first_token: bool = False
    likeliest: int = 0
    pixels: PixelRule | None = None

    @classmethod
    def of(cls, questions: Iterable[Question], pixels: PixelRule | None) -> Form | None:
        """Returns the most frequent form of ``questions``; None if there are no questions."""
        forms = defaultdict[str, list[Form]](list)
        for one in questions:
            form = cls(one.sampling, one.of_first_token, one.likeliest, pixels)
            forms[digest(form.identity)].append(form)
        return max(sorted(forms.items()), key=lambda pair: len(pair[1]))[1][0] if forms else None

    @property
    def identity(self) -> list[Any]:
        """The parts that affect an answer, as JSON."""
        sampling = {**vars(self.sampling), "extra": dict(self.sampling.extra)}
        return [sampling, self.first_token, self.likeliest, self.pixels and self.pixels.name]

    def question(self, probe: Probe, number: int) -> Question:
        """Returns the question of ``probe`` for its repetition ``number``."""
        data = drawing(probe.drawn)
        # every program decodes a palette image to the same pixels
        picture = Picture(
            Path(), hashlib.sha256(data).hexdigest(), "image/png", pixels=self.pixels, data=data
        )
        choices = tuple(probe.choices) if self.first_token and not self.likeliest else ()
        message = Message("user", (picture, probe.words))
        name = f"probe/{probe.name}"
        return Question(
            name, (message,), self.sampling, choices, item=f"probe {number}", likeliest=self.likeliest
        )


class _Record(TypedDict):
    """A line of ``probes.jsonl``."""

    probe: str
    run: str
    status: Literal["ok", "failed"]
    value: str | None
    raw: NotRequired[str | None]
    probabilities: NotRequired[dict[str, Number] | None]
    replied: NotRequired[str]
    cell: NotRequired[str]
    host: NotRequired[str]
    tokens: NotRequired[dict[str, Number] | None]
    usd: NotRequired[Number | None]


_RECORD = Reader(_Record)

_SAID = re.compile(r"\b(?:yes|no)\b|\d+")
_MOST_KEPT = 200  # characters of a reply without yes, no or a number


def value_of(text: str) -> str:
    """Returns "yes", "no" or the number in a reply without thoughts; else the reply's first characters."""
    said = text.strip().lower()
    found = _SAID.search(said)
    return found[0] if found else said[:_MOST_KEPT]


class Probing:
    """Asks the probes of ``judge`` in a ``form``, and records the replies by run and ``cell`` (its key)."""

    def __init__(self, judge: Judge, form: Form, cell: str) -> None:
        self._judge, self._form, self._cell = judge, form, cell
        identity = [without_packages(judge.identity), form.identity]
        who = f"{judge.label.replace('/', ' ')} {digest(identity)[:8]}"
        self.folder = output_root() / JUDGES / folder_name(who)
        self.path = self.folder / folder_name(judge.host or "here") / "probes.jsonl"
        self.usd: float | None = None

    @property
    def paid(self) -> list[_Record]:
        """The records of the probes that were asked for this cell, in all runs."""
        return [one for one in read_jsonl(self.path, _RECORD) if one.get("cell") == self._cell]

    def _series(self, run: str) -> dict[str, Series]:
        """Returns the replies to each probe in the first run and in ``run``."""
        said = _records_by_run(self.path)
        return _compared(said, said, run)

    def _elsewhere(self, run: str) -> tuple[str, dict[str, Series]]:
        """Returns the host with the earliest replies, if not this one, and the series between both.

        A series has the first replies there, and the replies here in ``run``.
        """
        known = [_records_by_run(path) for path in self.folder.glob("*/probes.jsonl") if path != self.path]
        mine = _records_by_run(self.path)
        firsts = [(_first_of(said), said) for said in known if _first_of(said)]
        if not firsts:
            return "", {}
        records, said = min(firsts, key=lambda one: str(one[0][0].get("replied", "")))
        if any(str(one.get("replied", "")) <= str(records[0].get("replied", "")) for one in _first_of(mine)):
            return "", {}
        return str(records[0].get("host") or "this machine"), _compared(said, mine, run)

    def drift(self, run: str = "") -> Drift | None:
        """Returns the drift of the replies in ``run`` (empty: the last recorded run).

        Returns None if there are no earlier replies to compare with.
        """
        if not run:
            run = next((record["run"] for record in reversed([*read_jsonl(self.path, _RECORD)])), "")
        here = drift_of(self._series(run).values())
        host, series = self._elsewhere(run)
        there = None if here and here.found else drift_of(series.values())
        return replace(there, host=host) if there and there.found else here

    def ask(self, run: str, workers: int) -> Iterator[int]:
        """Asks the probes that ``run`` has not asked yet. Yields the number of answers still to come.

        A lock ensures that only one job of the run asks. Raises JudgeUnusable and CellFailure as
        :class:`Answerer` does. Raises OSError or UserError: the lock cannot be used.
        """
        self._judge.ready()  # before the lock: else other jobs would wait for the server's start
        with held(self.path.with_name(".lock")):
            failed = set[str]()
            while wanted := {n: count for n, count in self._wanted(run).items() if count and n not in failed}:
                of_name = {probe.name: probe for probe in PROBES}
                questions = [
                    self._form.question(of_name[name], number)
                    for name, count in wanted.items()
                    for number in range(count)
                ]
                yield len(questions)
                failed |= wanted.keys()  # each name is removed when it is answered
                with closing(JsonlWriter(self.path)) as writer:
                    for left, answer in enumerate(self._judge.ask(questions, workers), 1):
                        name = answer.question.name.removeprefix("probe/")
                        record = self._record(name, run, answer)
                        writer.append(record)
                        if record["status"] == "ok":
                            failed.discard(name)
                        yield len(questions) - left

    def _wanted(self, run: str) -> dict[str, int]:
        _, elsewhere = self._elsewhere(run)
        return {
            name: max(one.wanted, elsewhere[name].wanted if name in elsewhere else 0)
            for name, one in self._series(run).items()
        }

    def _record(self, name: str, run: str, answer: Answer) -> dict[str, Any]:
        if answer.usd is not None:
            self.usd = (self.usd or 0.0) + answer.usd
        raw, answer = answer.text, without_thoughts(answer)
        return {
            "probe": name,
            "run": run,
            "cell": self._cell,
            "host": self._judge.host,
            "replied": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
            "status": "failed" if answer.text is None else "ok",
            "raw": raw,
            "value": None if answer.text is None else value_of(answer.text),
            "probabilities": answer.probabilities and dict(answer.probabilities),
            "error": answer.error or None,
            "tokens": answer.tokens,
            "usd": answer.usd,
        }


_Runs = dict[str, dict[str, list[_Record]]]
"""Records by probe and run, in the order of the file."""


def _records_by_run(path: Path) -> _Runs:
    found: _Runs = {probe.name: defaultdict(list) for probe in PROBES}
    for record in read_jsonl(path, _RECORD):
        thinks = answer_in(record.get("raw") or "") is None
        if record["status"] == "ok" and record["probe"] in found and not thinks:
            found[record["probe"]][record["run"]].append(record)
    return found


def _first_of(by_probe: _Runs) -> list[_Record]:
    """Returns the first record of each probe."""
    return [next(iter(runs.values()))[0] for runs in by_probe.values() if runs]


def _compared(before: _Runs, now: _Runs, run: str) -> dict[str, Series]:
    """Returns each probe's replies in the first run of ``before`` and in ``run`` of ``now``."""

    def replies(records: Iterable[_Record]) -> list[Reply]:
        return [Reply(one["value"], one.get("probabilities")) for one in records]

    found = dict[str, Series]()
    for name, runs in before.items():
        first = next(iter(runs), run)
        known = runs[first][:BEFORE] if first in runs and (first != run or before is not now) else []
        since = known[0].get("replied", "") if known else ""
        found[name] = Series(name, replies(known), replies(now[name].get(run, ())), since)
    return found
