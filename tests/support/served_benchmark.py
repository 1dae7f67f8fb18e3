"""Benchmarks whose judge is served, as a user would add them: three items, one question each."""

from __future__ import annotations

from pathlib import Path

from tests.support.checkout import add_benchmark

_DATASET = """
class Asked:
    def __init__(self):
        self.dataset_name = "{name}"
        self.dataset_task = "t2i"
        self.data = [
            {{"prompt": f"prompt {{i}}", "seed": i, "image_save_path": f"<MODEL_NAME>/{name}/images/{{i}}.png"}}
            for i in range(3)
        ]
"""

_RULES = """
from eval_models.judge.benchmark import JudgedBenchmark
from eval_models.judge.registry import choose
from imageevalkit.benchmark.contract import Score
from imageevalkit.benchmark.question import Message, Question, Sampling
from imageevalkit.cell.results import Metric


def check_judge(judge):
    return choose(judge or "vllm:org/judge").full_name


def make(judge):
    return Asked(judge, {{}})


class Asked(JudgedBenchmark):
    name = "{name}"
    version = "1"
    headline = ("score",)

    def questions(self, item, image):
        return [Question(item.id, "score", (Message("user", (item.prompt, image)),), Sampling(8))]

    def parse(self, question, reply):
        return int(reply.text[-1])

    def score(self, item, parsed, replies):
        return Score(item.id, {{"score": parsed["score"]}})

    def aggregate(self, judged):
        values = [each.score.values["score"] for each in judged if each.score]
        return {{"score": Metric(sum(values) / len(values) if values else None, len(values))}}
"""


def add_served_benchmark(checkout: Path, name: str) -> None:
    """Add the benchmark ``name``, whose default judge is ``vllm:org/judge``."""
    add_benchmark(checkout, name, "Asked", _DATASET.format(name=name))
    folder = checkout / "benchmarks" / name
    folder.mkdir()
    (folder / "benchmark.py").write_text(_RULES.format(name=name))
    script = checkout / f"eval/{name}.sh"
    script.unlink()
    script.symlink_to("quicktext.sh")
