"""Benchmarks whose judge is served, as a user would add them: three items, one question each."""

from __future__ import annotations

import shutil
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
import json
import time
import urllib.error
import urllib.request

from eval_models.judge.options import JudgeOptions
from eval_models.judge.registry import choose
from eval_models.judge.served import problem, wait_for_address
from imageevalkit.evaluation.benchmark import Benchmark, Score
from imageevalkit.evaluation.question import Answer, JudgeUnusable, Message, Question, Reply, Sampling
from imageevalkit.results import Evaluator, Metric


def check_judge(judge):
    return choose(judge or "vllm:org/judge").full_name


def make(judge):
    return Asked(judge)


class Asked(Benchmark):
    name = "{name}"
    version = "1"
    headline = ("score",)

    def __init__(self, judge):
        self._choice = choose(judge)
        self._options = JudgeOptions.from_environment()

    @property
    def evaluator(self):
        details = {{"served": dict(self._options.served)}}
        return Evaluator(f"{{self._choice.name}}/vllm/00000000", False, details)

    def questions(self, item, image):
        return [Question(item.id, "score", (Message("user", (item.prompt, image)),), Sampling(8))]

    def ask(self, questions, workers):
        for question in questions:
            while True:
                try:
                    yield Answer(question, Reply(self._post(question)))
                    break
                except urllib.error.HTTPError as error:
                    raise JudgeUnusable(f"the server says {{error}}")
                except OSError:
                    if why := problem(self._options.address_file):
                        raise JudgeUnusable(why)
                    time.sleep(0.1)

    def _post(self, question):
        url = self._options.kwargs.get("base_url") or wait_for_address(self._options.address_file)
        body = {{"model": self._choice.setting.model_path, "messages": question.text}}
        request = urllib.request.Request(url + "/chat/completions", json.dumps(body).encode())
        with urllib.request.urlopen(request) as reply:
            return json.load(reply)["choices"][0]["message"]["content"]

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
    shutil.copy(checkout / "eval/quicktext.sh", script)
    script.write_text(script.read_text().replace("quicktext", name))
