"""GenEval 2 with a judge that is a function: small data sets, the real one, and cells of images to judge."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from PIL import Image

import eval_models.judge.asked
from benchmarks.geneval2.benchmark import GenEval2Benchmark, make
from custom_datasets.dataset_cls.t2i.geneval2 import GenEval2
from imageevalkit import assets
from imageevalkit.benchmark.question import Question, Reply
from imageevalkit.cell import REPO, Cell
from imageevalkit.cell.items import Item, items_of
from imageevalkit.cell.results import Result, read_result
from imageevalkit.evaluation.run import evaluate_cell
from imageevalkit.jobs import Outcome
from imageevalkit.progress import ProgressWriter
from tests.support.function_judge import Answering, FunctionJudge

CELL = Cell("m", "geneval2")
TEMPLATES = {
    "evaluation.py::soft_tifa": "In a word: {}",
    "evaluation.py::tifa": "In a word: {}",
    "evaluation.py::vqa_score": "Is this '{}'?",
}
_UPSTREAM = "facebookresearch/GenEval2/a6e82d2289e8d418f27f0adee77908b07060eea3"


class Prompt(NamedTuple):
    """A prompt and the questions, answers and skills of its atoms."""

    text: str
    atomicity: int
    atoms: Sequence[tuple[str, str, str]]


class SmallDataset:
    """A data set of our own in the shape of the real one."""

    dataset_name = "geneval2"
    dataset_task = "t2i"

    def __init__(self, prompts: Sequence[Prompt]) -> None:
        self.data = [
            {
                "prompt": prompt.text,
                "seed": 0,
                "image_save_path": f"<MODEL_NAME>/geneval2/images/{index:03d}.png",
                "index": index,
                "atom_count": prompt.atomicity,
                "vqa_list": [[question, answer] for question, answer, _ in prompt.atoms],
                "skills": [skill for *_, skill in prompt.atoms],
            }
            for index, prompt in enumerate(prompts)
        ]


def soft_reply(question: Question, score: float, text: str = "?", outside: float | None = 0.0) -> Reply:
    """A reply in which the first accepted answer has all the probability of the right ones."""
    probabilities = dict.fromkeys(question.wanted, 0.0)
    probabilities[question.wanted[0]] = score
    return Reply(text, probabilities, outside)


def judged_by(
    answering: Answering, monkeypatch: pytest.MonkeyPatch, templates: Mapping[str, str] | None = TEMPLATES
) -> tuple[GenEval2Benchmark, FunctionJudge]:
    """The benchmark with such a judge; ``templates`` None: with the prompts of its data folder."""
    judge = FunctionJudge(answering)
    monkeypatch.setattr(eval_models.judge.asked, "make_judge", lambda name, options: judge)
    name = "transformers:qwen3-vl-8b"
    return make(name) if templates is None else GenEval2Benchmark(name, templates), judge


def items(dataset: Any, limit: int | None = None) -> list[Item]:
    """The items of the usual cell."""
    return items_of(dataset, CELL, limit)


def write_images(made: Sequence[Item]) -> None:
    """A small image of its own for each item."""
    for number, item in enumerate(made):
        item.path.parent.mkdir(parents=True, exist_ok=True)
        image = Image.new("RGB", (2, 2), (number % 256, number // 256, 0))
        image.putpixel((0, 0), (9, 9, 9))
        image.save(item.path)


def evaluate(
    benchmark: GenEval2Benchmark, judged: Sequence[Item], limit: int | None = None, official: bool = False
) -> tuple[Outcome, Result]:
    """Evaluate the usual cell, whatever data the repository holds."""
    outcome = evaluate_cell(CELL, benchmark, judged, limit, official, ProgressWriter())
    return outcome, read_result(CELL.result)


def use_benchmarks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let benchmarks live in ``folder``; GenEval 2's (still empty) folder there, without its list of assets."""
    monkeypatch.setattr(assets, "BENCHMARKS", folder)
    own = folder / "geneval2"
    (own / "data").mkdir(parents=True)
    monkeypatch.setattr(GenEval2, "folder", own / "data")
    return own


def use_real_data(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the real data and judge prompts below ``folder``; skips the test where there is no mirror."""
    mirror = Path(os.environ.get("SHARED_MIRROR") or REPO.parent / "shared" / "mirror")
    upstream = mirror / _UPSTREAM
    if not upstream.is_dir():
        pytest.skip(f"GenEval 2's data is not in {mirror} (set SHARED_MIRROR)")
    own = use_benchmarks(folder, monkeypatch)
    shutil.copyfile(REPO / "benchmarks" / "geneval2" / "assets.json", own / "assets.json")
    shutil.copyfile(upstream / "geneval2_data.jsonl", own / "data" / "geneval2_data.jsonl")
    prompts = json.loads((upstream / "judge_prompts.json").read_text(encoding="utf-8"))
    texts = {key: prompt["text"] for key, prompt in prompts.items()}
    (own / "data" / "judge_prompts.json").write_text(json.dumps(texts), encoding="utf-8")
