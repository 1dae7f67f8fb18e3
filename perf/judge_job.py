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
from typing import Any

from eval_models.judge.benchmark import JudgedBenchmark
from imageevalkit.benchmark.contract import Judged, Score
from imageevalkit.benchmark.question import Message, Picture, Question, Reply, Sampling
from imageevalkit.cell.items import Item, items_of
from imageevalkit.cell.results import Metric
from imageevalkit.evaluation.judging import AskOptions
from imageevalkit.evaluation.run import evaluate_cell
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


class PerfBenchmark(JudgedBenchmark):
    """WISE's request with a score that costs nothing to read."""

    name, version, headline = "perf", "1", ("answered",)

    def questions(self, item: Item, image: Picture) -> Sequence[Question]:
        picture = image._replace(media_type="image/png")
        messages = (Message("system", (item.data["system"],)), Message("user", (item.data["user"], picture)))
        return [Question(item.id, "score", messages, _SAMPLING)]

    def parse(self, question: Question, reply: Reply) -> int:
        return len(reply.text)

    def score(self, item: Item, parsed: Mapping[str, Any], replies: Mapping[str, Reply]) -> Score:
        return Score(item.id, {"answered": 1.0})

    def aggregate(self, judged: Sequence[Judged]) -> dict[str, Metric]:
        answered = sum(one.score is not None for one in judged)
        return {"answered": Metric(answered / len(judged), len(judged))}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=Path, required=True)
    options = parser.parse_args()
    items = items_of(Questions(json.loads(options.questions.read_text())), CELL)
    benchmark = PerfBenchmark("openai:some-judge", {})
    outcome = evaluate_cell(CELL, benchmark, items, None, False, ProgressWriter(), AskOptions(workers=2))
    print(outcome)
    return int(STATUS_OF_STATE[outcome.state])


if __name__ == "__main__":
    sys.exit(main())
