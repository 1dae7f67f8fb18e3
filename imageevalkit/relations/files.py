"""The files of relations: ``result.json`` and ``relationship_codes.csv`` as the official program has them, and
``certainty.json`` with all else, which also says what they were made from."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, fields
from itertools import combinations
from pathlib import Path
from typing import Any

from imageevalkit.cell.jsonl import Shape, parse
from imageevalkit.relations.rules import KINDS, NONE, TILT, Pair, Relations, Settings, reversed_code

SCHEMA = "imageevalkit.relations/1"
CERTAINTY = "certainty.json"
OFFICIAL = ("result.json", "relationship_codes.csv")
PICTURES = ("dtm.png", "dtm.svg", "scatter.png", "scatter.svg", "scatter.webp")

_RELATIONS, _SETTINGS = Shape.of(Relations), Shape.of(Settings)
_CODES = {str(code) for code in KINDS}


def texts(relations: Relations) -> dict[str, str]:
    """The files that are texts, by name; the last says that all are there."""
    record = {"schema": SCHEMA, **asdict(relations)}
    return {
        "result.json": json.dumps(official_result(relations), indent=4) + "\n",
        "relationship_codes.csv": official_table(relations),
        CERTAINTY: json.dumps(record, indent=1, ensure_ascii=False) + "\n",
    }


def read(folder: Path) -> Relations | None:
    """The relations on record in ``folder``; None where there are none, or their files are damaged or not all there."""
    with contextlib.suppress(OSError, ValueError):
        raw = parse((folder / CERTAINTY).read_bytes())
        found = _RELATIONS.read(raw)
        is_whole = all((folder / name).is_file() for name in (*OFFICIAL, *PICTURES))
        if raw.get("schema") == SCHEMA and is_whole and _is_understood(found):
            return found
    return None


def _is_understood(found: Relations) -> bool:
    """Whether settings and codes are those of this version. Raises ValueError: a setting has no such value."""
    _SETTINGS.read(found.settings)
    codes = {code for pair in found.pairs for code in (str(pair.code), *pair.codes)}
    names = {name for pair in found.pairs for name in (pair.first, pair.second)}
    return (
        found.settings.keys() <= {each.name for each in fields(Settings)}
        and codes <= _CODES
        and found.means.keys() == names
    )


def official_result(relations: Relations) -> dict[str, Any]:
    """The object of ``result.json``: of the matrix, which is over pairs, the diagonal is filled alone.

    A correlation that is not defined is null, so that the file is JSON. The texts of ``insights`` are ours.
    """
    codes, insights = dict[str, int](), list[dict[str, Any]]()
    for one, other in combinations(relations.dimensions, 2):
        pair = relations.pair(one, other)
        code = pair.code_of(one) if pair else NONE
        codes |= {f"{one}_{other}": code, f"{other}_{one}": reversed_code(code)}
        insights.append(_insight(one, other, code, pair))
    size = len(relations.pairs)
    matrix: list[list[float | None]] = [[0.0] * size for _ in range(size)]
    for n, pair in enumerate(relations.pairs):
        matrix[n][n] = pair.correlation
    return {
        "metrics": [pair.name for pair in relations.pairs],
        "correlation_matrix": matrix,
        "quadrant_analysis": {},
        "relationship_codes": codes,
        "insights": insights,
    }


def official_table(relations: Relations) -> str:
    """The text of ``relationship_codes.csv``: codes above the diagonal, means on it, the means of each pair below."""
    names = relations.dimensions
    rows = [["", *names], *([row, *(_field(relations, row, column) for column in names)] for row in names)]
    return "".join(",".join(row) + "\n" for row in rows)


def _field(relations: Relations, row: str, column: str) -> str:
    if row == column:
        return f"{relations.means[row]:.3f}"
    pair = relations.pair(row, column)
    if column > row:
        return str(pair.code_of(row) if pair else NONE)
    return f"[{pair.mean_of(row):.3f}-{pair.mean_of(column):.3f}]" if pair else "NULL"


def _insight(one: str, other: str, code: int, pair: Pair | None) -> dict[str, Any]:
    dominant, other_one = (one, other) if code == TILT else (other, one)
    description, suggestion = {
        "synergy": (
            f"Where {one} is high, {other} often is too.",
            "The two can be raised together.",
        ),
        "bottleneck": (
            f"{one} and {other} are often low in the same images.",
            "Look for a cause that holds both back.",
        ),
        "dominance": (
            f"{dominant} dominates {other_one}: most images lie on its side of the regression line.",
            f"Raise {other_one} where {dominant} is good already.",
        ),
        "tradeoff": (
            f"{one} and {other} do not rise together.",
            "Choose images, prompts or settings that balance the two.",
        ),
        "undefined": (
            f"{one} and {other} show none of the four relations.",
            "Look at the scatter of the pair.",
        ),
    }[KINDS[code].type]
    if pair is None:
        description, suggestion = f"No item is scored for both {one} and {other}.", "None."
    return {
        "type": KINDS[code].type,
        "metrics": [one, other],
        "description": description,
        "suggestion": suggestion,
    }
