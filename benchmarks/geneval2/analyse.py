"""The analysis of score lists in the official format, whoever made them.

    python -m benchmarks.geneval2.analyse --score_data output/MODEL/geneval2/official/score_lists_soft_tifa.json

The first part is, number by number, what the official ``soft_tifa_analysis.py`` prints.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks.geneval2.benchmark import ATOMICITIES, SKILLS, by_atomicity, by_skill, prompt_score
from imageevalkit.assets import data_folder
from imageevalkit.cell.jsonl import is_number
from imageevalkit.cell.results import Metric, Score
from imageevalkit.errors import ExitStatus, UserError, run_main, show
from imageevalkit.metrics import mean
from imageevalkit.secrets import one_line

_DATA = data_folder("geneval2") / "geneval2_data.jsonl"
_REMEDY = "get it with: bash utils/prefetch.sh --ds_names geneval2"


def main() -> ExitStatus:
    """Print the analysis and the total scores."""
    parser = argparse.ArgumentParser(description="Analyse score lists of GenEval 2, made here or elsewhere.")
    parser.add_argument(
        "--score_data", required=True, type=Path, help="JSON list with a list of scores per prompt"
    )
    parser.add_argument("--benchmark_data", default=_DATA, type=Path, help="data file, if another one")
    args = parser.parse_args()
    show(analysis(read_scores(args.score_data, args.benchmark_data)))
    return ExitStatus.COMPLETE


def read_scores(score_data: Path, benchmark_data: Path) -> list[Score]:
    """The scores of ``score_data`` with the skills and atomicities of the prompts in ``benchmark_data``.

    Raises:
        UserError: a file is unreadable or malformed, or the two do not belong together.
    """
    prompts, lists = _read_prompts(benchmark_data), read_score_lists(score_data)
    if len(lists) != len(prompts):
        raise UserError(
            f"{score_data} has scores of {len(lists)} prompts, but {benchmark_data} has {len(prompts)} prompts"
        )
    if all(len(scores) == 1 for scores in lists):
        raise UserError(
            f"{score_data} holds one score per prompt, as VQAScore gives: there are no atoms to analyse; "
            "use the lists of Soft-TIFA or TIFA (score_lists_soft_tifa.json, score_lists_tifa.json)"
        )
    found = []
    for number, (scores, (atomicity, skills)) in enumerate(zip(lists, prompts, strict=True)):
        if len(scores) != len(skills):
            raise UserError(
                f"{score_data}: prompt {number} has {len(scores)} scores, but {len(skills)} atoms"
            )
        found.append(prompt_score(atomicity, skills, [{"p": score} for score in scores]))
    return found


def analysis(prompts: list[Score]) -> str:
    """The text to print; a group without prompts, where the official script fails, is a dash."""
    lines = ["Per Atom Type Analysis (Soft-TIFA AM)"]
    skills, atomicities = by_skill(prompts), by_atomicity(prompts)
    for skill in SKILLS:
        lines += [f"{skill.capitalize()}:", _percent(skills.get(f"skill/{skill}"))]
    lines += ["", "Per Atomicity Analysis (Soft-TIFA GM)"]
    for atomicity in ATOMICITIES:
        metric = atomicities.get(f"atomicity/{atomicity}")
        lines += [f"Results for Atomicity={atomicity}", _percent(metric)]
    am, gm = (mean(prompts, f"soft_tifa_{kind}", percent=True).value or 0.0 for kind in ("am", "gm"))
    lines += ["", f"Total over {len(prompts)} prompts", f"AM: {am}", f"GM: {gm}"]
    return "\n".join(lines)


def _percent(metric: Metric | None) -> str:
    return "–" if metric is None or metric.value is None else str(round(metric.value, 2))


def read_score_lists(path: Path) -> list[list[float]]:
    """The scores of each prompt, in the order of the data file: the official ``--output_file``.

    A score may exceed 1: the official sum counts a token twice where a tokenizer begins two answers with it.

    Raises:
        UserError: the file cannot be read, or is no list of lists of numbers that are not negative.
    """
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise UserError(f"{path} is no JSON ({one_line(error)})") from None
    if not isinstance(raw, list) or not raw:
        raise UserError(f"{path} is no JSON list with a list of scores per prompt")
    for number, scores in enumerate(raw):
        if not isinstance(scores, list) or not scores or not all(is_number(s) and s >= 0 for s in scores):
            raise UserError(
                f"{path}: entry {number} is no list of scores: {one_line(json.dumps(scores), 60)}"
            )
    return raw


def _read_prompts(path: Path) -> list[tuple[int, list[str]]]:
    try:
        records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except FileNotFoundError:
        raise UserError(f"{path} is not there; {_REMEDY}") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise UserError(f"{path} is not JSON Lines ({error})") from None
    prompts = []
    for number, record in enumerate(records, 1):
        try:
            atomicity, skills = record["atom_count"], record["skills"]
            known = atomicity in ATOMICITIES and all(skill in SKILLS for skill in skills)
        except (KeyError, TypeError):
            known = False
        if not known:
            raise UserError(
                f"{path}, line {number} has no atom_count from 3 to 10 or no skills of {', '.join(SKILLS)}"
            )
        prompts.append((atomicity, skills))
    return prompts


if __name__ == "__main__":
    run_main(main)
