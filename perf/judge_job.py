"""An evaluate job: ``python -m perf.judge_job --questions FILE``.

The whole stage as ``imageevalkit.evaluation`` runs it, on a benchmark that asks what FILE holds: images surveyed,
questions asked, answers recorded, scores, aggregate, provenance and result written. Options of the judge come from
the environment.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from imageevalkit.benchmark.contract import Answers, Benchmark, Sample, Scores
from imageevalkit.benchmark.question import Answer, Message, Picture, Question, Sampling
from imageevalkit.cell.items import Item, items_of
from imageevalkit.cell.results import Metric, Score
from imageevalkit.evaluation.engine import evaluate_cell
from imageevalkit.evaluation.interview import EvaluateOptions
from imageevalkit.jobs import STATUS_OF_STATE
from imageevalkit.progress import ProgressWriter
from perf.judge_questions import CELL

_SAMPLING = Sampling(500, 0.0, extra={"chat_template_kwargs": {"enable_thinking": False}})


class Questions:
    """The items of FILE as a dataset."""

    dataset_task = "t2i"

    def __init__(self, questions: Sequence[Mapping[str, str]]) -> None:
        self.data = [
            {
                **each,
                "prompt": each["user"],
                "seed": 0,
                "image_save_path": f"<MODEL_NAME>/perf/{each['item']}.png",
            }
            for each in questions
        ]


class PerfBenchmark(Benchmark):
    """WISE's request with a score that costs nothing to read; its items come from FILE."""

    name, version, headline, judge = "perf", "1", ("answered",), "openai:some-judge"
    prompts: Mapping[str, str] = {}

    def samples(self) -> Sequence[Sample]:
        return []

    def questions(self, item: Item, image: Picture, answers: Answers) -> Sequence[Question]:
        picture = image._replace(media_type="image/png")
        messages = (Message("system", (item.data["system"],)), Message("user", (item.data["user"], picture)))
        return [Question("score", messages, _SAMPLING)]

    def parse(self, question: Question, answer: Answer) -> int:
        return len(answer.text or "")

    def score(self, item: Item, answers: Answers) -> Score:
        return Score({"answered": 1.0})

    def metrics(self, scores: Scores) -> dict[str, Metric]:
        return {"answered": Metric(len(scores) / len(scores.items), len(scores.items))}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=Path, required=True)
    options = parser.parse_args()
    items = items_of(Questions(json.loads(options.questions.read_text())), CELL)
    benchmark = PerfBenchmark()
    outcome = evaluate_cell(CELL, benchmark, items, ProgressWriter(), EvaluateOptions(workers=2))
    print(outcome)
    return int(STATUS_OF_STATE[outcome.state])


if __name__ == "__main__":
    sys.exit(main())
