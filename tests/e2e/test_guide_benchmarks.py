"""The benchmarks that docs/how-to/own-benchmark.md shows run through ``eval.sh`` as they are printed."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

from imageevalkit.store.cell import REPO
from tests.support.checkout import make_checkout, needs_driver_env, run_eval
from tests.support.image_server import Received
from tests.support.judge_server import ReplyServer

GUIDE = "docs/how-to/own-benchmark.md"
_EXAMPLE = re.compile(r"^`(benchmarks/[\w/.]+)`[^\n]*[:：]\n\n```\w+\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def examples(page: str) -> dict[str, str]:
    """Returns the files of ``benchmarks/`` that a page prints, by their path."""
    return dict(_EXAMPLE.findall((REPO / page).read_text(encoding="utf-8")))


def add_examples(folder: Path) -> Path:
    """A checkout in ``folder`` with the page's files."""
    checkout = make_checkout(folder)
    for path, text in examples(GUIDE).items():
        (checkout / path).parent.mkdir(exist_ok=True)
        (checkout / path).write_text(text, encoding="utf-8")
    return checkout


def metrics_of(checkout: Path, benchmark: str) -> dict[str, float]:
    result = json.loads((checkout / "output/reference-noise" / benchmark / "result.json").read_text())
    return {name: round(metric["value"], 4) for name, metric in result["metrics"].items()}


def test_both_languages_print_the_same_files() -> None:
    assert examples(GUIDE) == examples("docs/how-to/own-benchmark.zh.md")
    assert len(examples(GUIDE)) == 4


@needs_driver_env
def test_yes_or_no_grades_and_a_class_in_full(tmp_path: Path) -> None:
    checkout = add_examples(tmp_path / "kit")
    objects = checkout / "benchmarks/my_objects"
    assert sorted(path.name for path in objects.iterdir()) == ["benchmark.py", "prompts.json"]
    shutil.copy(objects / "prompts.json", checkout / "benchmarks/my_looks")

    def reply(request: Received) -> str:
        if "Grade it" in request.prompt:
            return "Alignment: 4\nBeauty: 3"
        if request.prompt == "Describe this image.":
            return "a red bus"
        return "No" if "show rain" in request.prompt or "clocks" in request.prompt else "Yes."

    with ReplyServer() as judge:
        judge.reply = reply
        # as the page calls it, with a model that needs no key and the judge at an address of ours
        words = ["--model_names", "reference-noise", "--ds_names", "my-objects;my-looks;my-scenes"]
        run_eval(checkout, *words, API_KEY="EMPTY", BASE_URL=judge.base_url, NO_PROXY="127.0.0.1", status=0)
    assert metrics_of(checkout, "my-objects") == {
        "accuracy": 0.6667,
        "accuracy/category/counting": 0.5,
        "accuracy/category/position": 1.0,
    }
    assert metrics_of(checkout, "my-looks") == {"overall": 3.5, "Alignment": 4, "Beauty": 3}
    scenes = metrics_of(checkout, "my-scenes")
    assert 0.3 < scenes.pop("light") < 0.7
    assert scenes == {"points": 0.5, "sign": 0, "points/colour": 1, "points/weather": 0}
    assert {
        "Does this image show three red apples on a plate? Answer yes or no.",
        *(f"An image shows: a red bus Does it show {what}? Yes or no." for what in ("red bus", "rain")),
    } <= {request.prompt for request in judge.requests}
