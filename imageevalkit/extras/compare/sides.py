"""Resolve the two words of ``--compare``: folders of results, models, cells, or evaluators of one cell."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from imageevalkit.common.errors import UserError, suggest
from imageevalkit.common.text import some
from imageevalkit.metrics import grouped
from imageevalkit.report.collect import cells_there
from imageevalkit.report.comparison import Measured
from imageevalkit.report.reading import Scored, may_compare, read_all, read_below, why_not
from imageevalkit.store.cell import Cell, output_root, short_path
from imageevalkit.store.jsonl import Tell

FOLDER, MODEL, CELL = "a folder of results", "a model", "a result"


class Side(NamedTuple):
    """The meaning of one of the two words.

    ``results`` are grouped by the key that matches the two sides (cell, benchmark, or empty), latest
    evaluator first. ``evaluator`` is the evaluator that the word names, or empty."""

    name: str
    kind: str
    results: Mapping[str, Sequence[Scored]]
    evaluator: str = ""


class Pair(NamedTuple):
    """Two comparable results of one benchmark. With ``judges``, two evaluators scored the same cell."""

    before: Scored
    after: Scored
    judges: bool = False

    @property
    def other_prompts(self) -> frozenset[str]:
        """The items with different prompts: the data changed, so their scores say nothing of the model."""
        mine, theirs = self.before.hashes, self.after.hashes
        return frozenset(item for item in mine.keys() & theirs.keys() if mine[item] != theirs[item])

    def measured(
        self, metric: str, names: tuple[str, str] = ("before", "now")
    ) -> tuple[Measured | None, Measured | None]:
        """Return ``metric`` of both results under ``names``, without the items of :attr:`other_prompts`.

        A result without a value gives None. An item with the same image and the same score in both results
        adds no judge noise to the difference. So the noise is multiplied by the square root of the share of
        the other items (its variance is a sum over the replies). If two judges are compared, an unknown noise
        counts as 0: one judge's noise says nothing about the other's.
        """
        sides, left_out = (self.before, self.after), self.other_prompts
        one, other = (side.measured(name, metric, left_out) for side, name in zip(sides, names, strict=True))
        if not one or not other:
            return one, other
        if self.judges:
            return one._replace(noise=one.noise or 0.0), other._replace(noise=other.noise or 0.0)
        mine, theirs = self.before.images, self.after.images
        same = {part for part in {*one.metric.parts} & {*other.metric.parts} if part.item in mine}
        kept = sum(mine[part.item] == theirs.get(part.item) for part in same)
        share = math.sqrt(1 - kept / max(1, len(one.metric.parts)))
        one, other = (each._replace(noise=each.noise and share * each.noise) for each in (one, other))
        return one, other


# ---- the meaning of a word


def find_sides(words: Sequence[str], here: Path, tell: Tell) -> tuple[Side, Side]:
    """Return the sides that the two ``words`` mean for a user whose current folder is ``here``.

    Raises UserError if a word is unknown or ambiguous, or if the two sides are of different kinds."""
    known: list[Cell] | None = None
    sides = []
    for word in words:
        path = Path(word).expanduser()
        if path.is_absolute() or word.startswith(("./", "../")) or word in (".", ".."):
            sides.append(_by_path(word, here / path, tell))
            continue
        if known is None:
            known = cells_there(tell)
        sides.append(_by_name(word, here / path, known, tell))
    one, other = sides
    if one.kind != other.kind:
        raise UserError(
            f"'{one.name}' is {one.kind}, '{other.name}' is {other.kind}: give two of a kind (--compare A B)"
        )
    return one, other


def _by_path(word: str, path: Path, tell: Tell) -> Side:
    for place, evaluator in _splits(word, path):
        if place.exists():
            root, found = read_all(place, tell)
            return _chosen(_side_of_path(word, place, root, found), evaluator)
    raise UserError(
        f"'{word}' does not exist: --compare takes models, folders of results, or MODEL/BENCHMARK@EVALUATOR"
    )


def _splits(word: str, path: Path) -> Iterator[tuple[Path, str]]:
    """Yield ``path`` without an evaluator, then its splits into path and evaluator at each "@".

    Names of folders and of evaluators may contain "@" themselves."""
    yield path, ""
    for at, char in enumerate(str(path)):
        if char == "@":
            yield Path(str(path)[:at]), str(path)[at + 1 :]


def _side_of_path(word: str, path: Path, root: Path, found: Sequence[Scored]) -> Side:
    if (path.is_file() and path.name != "result.json") or path.absolute() == root:
        return Side(word, FOLDER, grouped(found, lambda one: one.cell.key))
    folder = path.parent if path.name == "result.json" else path
    parts = folder.absolute().relative_to(root).parts
    if all(Path(one.cell.key).parts == parts for one in found):
        return Side(word, CELL, grouped(found, lambda one: ""))
    if all(Path(one.cell.model).parts == parts for one in found):
        return Side(word, MODEL, grouped(found, lambda one: one.cell.benchmark))
    # the folder of an organization holds several models (org/model)
    return Side(word, FOLDER, grouped(found, lambda one: "/".join(Path(one.cell.key).parts[len(parts) :])))


def _by_name(word: str, path: Path, known: Sequence[Cell], tell: Tell) -> Side:
    named = _named(word, known)
    at_path = next((place for place, _ in _splits(word, path) if place.exists()), None)
    if named and at_path and at_path.resolve() != named.folder.resolve():
        raise UserError(
            f"'{word}' is {named.kind} in {short_path(output_root())} and a path from here: "
            f"write ./{word} for the path, or go to another folder"
        )
    if named:
        # a model's folder may hold other models (org/model below the model org): leave their results out
        problems = list[str]()
        found = [
            one
            for one in read_below(named.folder, problems.append)
            if named.name in (one.cell.model, one.cell.key)
        ]
        if not found:
            raise UserError(problems[0] if problems else f"'{word}' has no result yet")
        for problem in problems:
            tell(problem)
        by = grouped(found, lambda one: one.cell.benchmark if named.kind == MODEL else "")
        return _chosen(Side(word, named.kind, by), named.evaluator)
    if at_path:
        return _by_path(word, path, tell)
    names = dict.fromkeys([*(one.model for one in known), *(one.key for one in known)])
    there = f"{short_path(output_root())} has {some([*dict.fromkeys(one.model for one in known)], ', ')}"
    raise UserError(
        f"'{word}' is no model, result or folder with results{suggest(word.partition('@')[0], names)}; "
        f"{there if known else f'{short_path(output_root())} has no results'}"
    )


class _Named(NamedTuple):
    """A model or a result in output/, with the evaluator that the word names (or empty)."""

    kind: str
    name: str
    evaluator: str

    @property
    def folder(self) -> Path:
        return output_root() / self.name


def _named(word: str, known: Sequence[Cell]) -> _Named | None:
    places = [len(word), *(at for at, char in enumerate(word) if char == "@")]
    for name, evaluator in ((word[:at], word[at + 1 :]) for at in places):
        if any(one.model == name for one in known):
            return _Named(MODEL, name, evaluator)
        if any(one.key == name for one in known):
            return _Named(CELL, name, evaluator)
    return None


def _chosen(side: Side, evaluator: str) -> Side:
    """Return ``side`` with the results of ``evaluator`` only, or ``side`` itself if ``evaluator`` is empty.

    A unique beginning of the evaluator's id is enough. Raises UserError if it matches none or several."""
    if not evaluator:
        return side
    ids = dict.fromkeys(one.evaluator for results in side.results.values() for one in results)
    meant = [one for one in ids if one == evaluator] or [one for one in ids if one.startswith(evaluator)]
    if len(meant) != 1:
        what = "is more than one evaluator" if meant else "is no evaluator"
        near = "" if meant else suggest(evaluator, ids)
        raise UserError(
            f"'{evaluator}' in '{side.name}' {what}{near}; there are {some([*(meant or ids)], ', ')}"
        )
    of_it = {key: [one for one in all_ if one.evaluator == meant[0]] for key, all_ in side.results.items()}
    return Side(side.name, side.kind, {key: one for key, one in of_it.items() if one}, meant[0])


# ---- which results may be compared


def pairs_of(one: Side, other: Side, tell: Tell) -> list[Pair]:
    """Return the pairs of results that may be compared, one for each key that both sides have.

    Each key without a pair is reported to ``tell`` in one line. Raises UserError if there is nothing to
    compare."""
    keys = [key for key in one.results if key in other.results]
    if not keys:
        raise UserError(
            f"'{one.name}' and '{other.name}' have nothing in common: results of {some([*one.results], ', ')}; "
            f"of {some([*other.results], ', ')}"
        )
    found, reasons = [], []
    for key in keys:
        pair = _pair(one, other, key)
        if isinstance(pair, str):
            reasons.append(f"{key or one.results[key][0].cell.benchmark}: not compared: {pair}")
        else:
            found.append(pair)
    for side, lacks in ((one, other), (other, one)):
        if alone := [key for key in side.results if key not in lacks.results]:
            reasons.append(f"only '{side.name}' has {some([*alone], ', ')}")
    if not found:
        raise UserError("; ".join(reasons))
    for line in reasons:
        tell(line)
    return found


def _pair(one: Side, other: Side, key: str) -> Pair | str:
    """Return the pair of results under ``key`` that may be compared, or the reason why there is none."""
    mine, theirs = one.results[key], other.results[key]
    if mine[0].cell.benchmark != theirs[0].cell.benchmark:
        return f"{mine[0].cell.benchmark} and {theirs[0].cell.benchmark} are different benchmarks"
    if one.evaluator and other.evaluator and one.evaluator != other.evaluator:
        if _cell_of(mine[0].source).resolve() == _cell_of(theirs[0].source).resolve():
            return Pair(mine[0], theirs[0], judges=True)
        return f"{one.evaluator} and {other.evaluator} did not judge the same images"
    for before in mine:
        for after in theirs:
            if may_compare(before.result, after.result) and before.source.resolve() != after.source.resolve():
                return Pair(before, after)
    before, after = mine[0], theirs[0]
    if before.source.resolve() == after.source.resolve():
        return "both are the same result"
    return why_not(before.result, after.result)


def _cell_of(source: Path) -> Path:
    """Return the folder of the cell whose result is ``source``, there or in its evaluators/<evaluator>/."""
    return source.parent.parent.parent if source.parent.parent.name == "evaluators" else source.parent
