"""The relations of the puzzles, as an evaluation of the raw prompts leaves them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from imageevalkit.extras.relations import files as relation_files
from imageevalkit.extras.relations.relations import Relations

RELATIONS = {
    "IQ-R_TA-C": 0,
    "IQ-R_TA-S": 3,
    "TA-C_TA-S": -2,
    "IQ-O_R-B": 1,
    "D-K_D-A": -1,
    "IQ-A_TA-C": 2,
}


def relations(path: Path, codes: Any = None) -> None:
    """Writes the files that an evaluation of the raw prompts leaves."""
    path.mkdir(parents=True, exist_ok=True)
    both = {
        **RELATIONS,
        **{"_".join(reversed(p.split("_"))): -c if abs(c) == 2 else c for p, c in RELATIONS.items()},
    }
    found = {"metrics": [*RELATIONS], "correlation_matrix": [], "quadrant_analysis": {}, "insights": []}
    (path / "result.json").write_text(json.dumps({**found, "relationship_codes": codes or both}))


def certainty(path: Path, limit: int | None) -> None:
    """Writes the certainty beside them, for 84 items that a judge answered."""
    given = {"preset": "official"}
    found = Relations("key", "some-judge@1", ["a"], False, given, {}, "spearman", 1000, {}, [], 84, limit)
    for name in (*relation_files.OFFICIAL, *relation_files.PICTURES):
        (path / name).touch()
    (path / relation_files.CERTAINTY).write_text(json.dumps({"schema": relation_files.SCHEMA, **vars(found)}))
