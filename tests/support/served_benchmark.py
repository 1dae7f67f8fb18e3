"""Benchmarks whose judge is served, as a user would add them: three items, one question each."""

from __future__ import annotations

from pathlib import Path

_RULES = """
from imageevalkit.store.results import Metric
from imageevalkit.store.results import Score
from imageevalkit.benchmark.contract import Benchmark, Sample
from imageevalkit.benchmark.question import ask


class Asked(Benchmark):
    name, version, judge, headline = "{name}", "1", "vllm:org/judge", ("score",)
    prompts = {{}}

    def samples(self):
        return [Sample(f"images/{{i}}.png", f"prompt {{i}}", i) for i in range(3)]

    def questions(self, item, image, answers):
        return [ask("score", item.prompt, image, max_tokens=8)]

    def parse(self, question, answer):
        return int(answer.text[-1])

    def score(self, item, answers):
        return Score({{"score": answers["score"].value}})

    def metrics(self, scores):
        values = [score.values["score"] for score in scores]
        return {{"score": Metric(sum(values) / len(values) if values else None, len(values))}}
"""


def add_served_benchmark(checkout: Path, name: str) -> None:
    """Add the benchmark ``name``, whose default judge is ``vllm:org/judge``."""
    folder = checkout / "benchmarks" / name
    folder.mkdir()
    (folder / "benchmark.py").write_text(_RULES.format(name=name))
    (checkout / f"eval/{name}.sh").symlink_to("quicktext.sh")
