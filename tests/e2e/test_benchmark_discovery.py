"""A benchmark that is one file: found, chosen, planned and run without a line elsewhere; a broken one is told."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.support.checkout import find_no_text, make_checkout, needs_driver_env, run_eval

SIGNS = """
from dataclasses import dataclass
from typing import Literal

from imageevalkit.benchmark.contract import Benchmark, Sample, Settings
from imageevalkit.benchmark.question import measure
from imageevalkit.store.results import Score
from imageevalkit.metrics import mean


@dataclass(frozen=True)
class SignSettings(Settings):
    count: int = 2
    size: Literal["small", "large"] = "small"


class Signs(Benchmark):
    name, version, judge, takes = "street-signs", "1", "ppocr", "reader"
    headline = ("read",)
    settings_class = SignSettings

    def samples(self):
        return [Sample(f"images/{n}.png", f'a {self.settings.size} sign that says "STOP {n}"')
                for n in range(self.settings.count)]

    def questions(self, item, image, answers):
        return [measure("read", image)]

    def score(self, item, answers):
        return Score({"read": float("STOP" in answers["read"].value)})

    def metrics(self, scores):
        return {"read": mean(scores, "read")}


class LargeSigns(Signs):
    name = "large-signs"
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return make_checkout(tmp_path / "kit")


def add(checkout: Path, folder: str, code: str) -> None:
    (checkout / "benchmarks" / folder).mkdir()
    (checkout / "benchmarks" / folder / "benchmark.py").write_text(code)


def signs(name: str, *changes: str) -> str:
    """SIGNS under another name, without its variant; ``changes`` are texts and what stands for them, in turn."""
    code = SIGNS.partition("\n\nclass LargeSigns")[0].replace("street-signs", name)
    for old, new in zip(changes[::2], changes[1::2], strict=True):
        assert old in code
        code = code.replace(old, new)
    return code


def plan(checkout: Path, benchmarks: str, *words: str) -> tuple[int, str]:
    given = ("--model_names", "reference-typeset", "--ds_names", benchmarks, "--dry_run", *words)
    run = run_eval(checkout, *given)
    return run.returncode, run.stdout + run.stderr


@needs_driver_env
def test_one_file_is_a_benchmark_and_its_variant(checkout: Path) -> None:
    add(find_no_text(checkout), "street_signs", SIGNS)
    registry = checkout / "infer/custom_datasets/load_dataset.py"
    line = 'DATASET_SETTINGS["quicktext"] = DatasetSetting("edit", ".dataset_cls.mine", "Mine")'
    registry.write_text(f"{registry.read_text()}\n{line}\n")
    listed = run_eval(checkout, "--list").stdout
    for name, items in (("street-signs", 2), ("large-signs", 2), ("quicktext", 48)):
        assert re.search(rf"\n  {name} +t2i +{items} +yes +- +- +- +ppocr\n", listed), listed
    assert "'quicktext' is the benchmark in benchmarks/quicktext/benchmark.py: use another name" in listed
    names = ("street-signs", "large-signs")
    run_eval(checkout, "--model_names", "reference-typeset", "--ds_names", ";".join(names), status=0)
    for name in names:
        assert (checkout / "output/reference-typeset" / name / "result.json").is_file()


_BROKEN = [
    ("import nobody_has_this", "cannot be imported: ModuleNotFoundError: No module named 'nobody_has_this'"),
    (SIGNS.replace('"1"', "1"), "the version of class Signs is 1, and must be a text"),
    (SIGNS.replace("def score", "def scores"), "class Signs lacks score"),
    (SIGNS.replace("headline =", "headlin ="), "has headlin, which means nothing: is it 'headline'?"),
    (
        "from imageevalkit.benchmark.contract import Benchmark",
        "holds no benchmark: write a class with a name",
    ),
]
"""Code of a file, and what is wrong with it."""


@needs_driver_env
def test_faults_are_told_and_block_their_own_cells_alone(checkout: Path) -> None:
    add(checkout, "signs", SIGNS)
    folders = [f"broken{number}" for number in range(len(_BROKEN))]
    for folder, (code, _) in zip(folders, _BROKEN, strict=True):
        add(checkout, folder, code.replace("street-signs", folder).replace("large-signs", f"large-{folder}"))
    # what blocks a cell, by its benchmark
    judge = "benchmark judged (benchmarks/judged/benchmark.py): judge 'opnai:fake': no backend 'opnai'"
    twice = (
        "benchmark 'twin' is in benchmarks/a_copy/benchmark.py and in benchmarks/b_copy/benchmark.py: give"
    )
    told = {"judged": judge, "twin": twice}
    add(checkout, "judged", signs("judged", '"ppocr"', '"opnai:fake"'))
    # two of one name, whose folder is called like a benchmark that is usable
    for folder in ("a_copy", "b_copy"):
        add(checkout, folder, f'{signs("twin")}\n\nclass Own(Signs):\n    name = "{folder}"\n')
    # what is found when its items are counted
    add(checkout, "asks", signs("asks", "return [measure(", "return [].no_such_thing, [measure("))

    usable = ("quicktext", "street-signs", "large-signs", "a_copy", "b_copy")
    status, said = plan(checkout, ";".join([*usable, *folders, *told, "asks"]))
    assert status == 1
    assert "reference-typeset/quicktext: 48 images to generate" in said
    for folder, (_, says) in zip(folders, _BROKEN, strict=True):
        [blocked] = [line for line in said.splitlines() if f"reference-typeset/{folder}: " in line]
        assert f"blocked reference-typeset/{folder}: benchmarks/{folder}/" in blocked and says in blocked
    for name, says in told.items():
        [blocked] = [line for line in said.splitlines() if f"blocked reference-typeset/{name}: " in line]
        assert says in blocked
    says = (
        "questions() of item images/0 fails: AttributeError: 'list' object has no attribute 'no_such_thing'"
    )
    assert f"{says} (benchmarks/asks/benchmark.py, line " in said
    assert said.count("\nblocked ") == len(folders) + len(told), "those usable are not among them"
    status, said = plan(checkout, "street-signs", "--ds_kwargs", "cuont=3")
    says = "there is no setting 'cuont' (did you mean 'count'?); known: rules, count, size"
    assert (status, said) == (2, f"error: benchmark street-signs: {says}\n")


def test_a_fresh_machine_plans_in_the_environment_that_it_has_just_made(checkout: Path) -> None:
    (checkout / ".venv").unlink(missing_ok=True)
    (checkout / "utils/make_env.sh").write_text(
        f"cd {checkout}; mkdir -p .venv/bin; [ ! -e .venv/.imageevalkit-requirements ] || exit 0\n"
        f'printf \'#!/bin/sh\\necho "$*" >>{checkout}/runs.txt\\nexec {sys.executable} "$@"\\n\' >.venv/bin/python\n'
        "chmod +x .venv/bin/python; echo made >.venv/.imageevalkit-requirements\n"
    )
    status, said = plan(checkout, "quicktext", "--eval", "false")
    assert (status, "48 images to generate" in said) == (0, True), said
    assert "-P -m imageevalkit.cli --config-fd 3 --model_names" in (checkout / "runs.txt").read_text()
