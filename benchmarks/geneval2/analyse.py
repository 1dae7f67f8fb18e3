"""Prints the analysis of score lists in the official format, from this toolkit or from the official program.

    python -m benchmarks.geneval2.analyse --score_data output/MODEL/geneval2/official/score_lists_soft_tifa.json

The numbers of the first part equal the output of the official ``soft_tifa_analysis.py``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.geneval2 import benchmark as geneval2
from imageevalkit.common.errors import ExitStatus, UserError, run_main, show
from imageevalkit.common.redaction import one_line
from imageevalkit.metrics import mean
from imageevalkit.store.jsonl import is_number
from imageevalkit.store.results import Metric


def main() -> ExitStatus:
    """Prints the analysis and the total scores. Raises UserError if the file of score lists is invalid."""
    parser = argparse.ArgumentParser(
        description="Analyse score lists of GenEval 2, from this toolkit or the official program."
    )
    parser.add_argument(
        "--score_data", required=True, type=Path, help="JSON list with a list of scores per prompt"
    )
    path = parser.parse_args().score_data
    records = geneval2.GenEval2().read_jsonl("geneval2_data.jsonl", geneval2.GenEval2.prompt_count)
    try:
        show(analysis(json.loads(path.read_bytes()), records))
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise UserError(f"{path}: {one_line(error)}") from None
    return ExitStatus.COMPLETE


def analysis(lists: Any, records: Sequence[Mapping[str, Any]]) -> str:
    """Returns the analysis as text. ``lists`` holds the scores of each prompt, in the order of ``records``.

    A score may exceed 1: if two accepted answers begin with the same token, the official sum counts it twice.
    A group without prompts shows a dash; the official script fails there. Raises ValueError if the lists do
    not match the prompts.
    """
    if not isinstance(lists, list) or not all(isinstance(scores, list) and scores for scores in lists):
        raise ValueError("it is no JSON list with a list of scores per prompt")
    if not all(is_number(score) and score >= 0 for scores in lists for score in scores):
        raise ValueError("a score is a number that is not negative")
    if len(lists) != len(records):
        raise ValueError(f"it has scores of {len(lists)} prompts, but there are {len(records)}")
    if all(len(scores) == 1 for scores in lists):
        raise ValueError(
            "it holds one score per prompt, as from VQAScore, and no atoms to analyse; use the lists of "
            "Soft-TIFA or TIFA (score_lists_soft_tifa.json, score_lists_tifa.json)"
        )
    prompts = []
    for number, (scores, record) in enumerate(zip(lists, records, strict=True)):
        if len(scores) != len(record["skills"]):
            raise ValueError(f"prompt {number} has {len(scores)} scores, but {len(record['skills'])} atoms")
        atoms = [{"p": score} for score in scores]
        prompts.append(geneval2.prompt_score(record["atom_count"], record["skills"], atoms))
    lines = ["Per Atom Type Analysis (Soft-TIFA AM)"]
    skills, atomicities = geneval2.by_skill(prompts), geneval2.by_atomicity(prompts)
    for skill in geneval2.SKILLS:
        lines += [f"{skill.capitalize()}:", _percent(skills.get(f"skill/{skill}"))]
    lines += ["", "Per Atomicity Analysis (Soft-TIFA GM)"]
    for atomicity in geneval2.ATOMICITIES:
        metric = atomicities.get(f"atomicity/{atomicity}")
        lines += [f"Results for Atomicity={atomicity}", _percent(metric)]
    am, gm = (mean(prompts, f"soft_tifa_{kind}", percent=True).value for kind in ("am", "gm"))
    return "\n".join([*lines, "", f"Total over {len(prompts)} prompts", f"AM: {am}", f"GM: {gm}"])


def _percent(metric: Metric | None) -> str:
    return "–" if metric is None or metric.value is None else str(round(metric.value, 2))


if __name__ == "__main__":
    run_main(main)
