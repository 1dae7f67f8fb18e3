"""A benchmark that is one file: found, chosen, planned and run without a line elsewhere; a broken one is told."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.support.checkout import find_no_text, make_checkout, needs_driver_env, run_eval

SIGNS = """
from dataclasses import dataclass, field
from typing import Literal

from imageevalkit.benchmark.contract import Benchmark, Measurer, Sample, Settings
from imageevalkit.benchmark.question import measure
from imageevalkit.store.results import Score
from imageevalkit.metrics import mean


@dataclass(frozen=True)
class SignSettings(Settings):
    count: int = 2
    size: Literal["small", "large"] = "small"
    grid: str = field(default="", metadata={"images_elsewhere": True})
    marks: str = field(default="", metadata={"of_one_model": True})


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
    run = run_eval(checkout, "--model_names", "reference-typeset", "--ds_names", ";".join(names))
    assert run.returncode == 0, run.stdout + run.stderr
    for name in names:
        assert (checkout / "output/reference-typeset" / name / "result.json").is_file()
    # a file that can no longer be read leaves the report of all
    (checkout / "benchmarks/street_signs/benchmark.py").write_text("class (:\n")
    again = run_eval(checkout, "--report")
    assert again.returncode == 0, again.stdout + again.stderr
    says = "street-signs: models are not compared: benchmarks/street_signs/benchmark.py cannot be imported: Syntax"
    assert f"\n{says}" in again.stdout
    assert "street-signs" in (checkout / "output/leaderboard.csv").read_text()


@needs_driver_env
def test_settings_are_checked_at_planning_and_reach_every_job(checkout: Path) -> None:
    add(checkout, "signs", SIGNS)
    assert "3 images to generate" in plan(checkout, "street-signs", "--ds_kwargs", "count=3,size=large")[1]
    says = "there is no setting 'cuont' (did you mean 'count'?); known: rules, count, size, grid, marks"
    assert plan(checkout, "street-signs", "--ds_kwargs", "cuont=3") == (
        2,
        f"error: benchmark street-signs: {says}\n",
    )
    (checkout / "config.local.sh").write_text("DS_KWARGS_MAP=([street-signs]='grid=2x2')\n")
    where = "DS_KWARGS_MAP['street-signs'] in config.sh: the setting grid of street-signs is about images made else"
    assert where in plan(checkout, "street-signs")[1]


_BROKEN = [
    (
        "import nobody_has_this",
        "cannot be imported: ModuleNotFoundError: No module named 'nobody_has_this'",
    ),
    (SIGNS.replace('"1"', "1"), "the version of class Signs is 1, and must be a text"),
    (
        SIGNS.replace("version, ", "").replace('"1", ', ""),
        "the version of class Signs is missing, and must be",
    ),
    (SIGNS.replace("def score", "def scores"), "class Signs lacks score"),
    (
        SIGNS.replace("headline =", "headlin ="),
        "class Signs has headlin, which means nothing: is it 'headline'?",
    ),
    (
        "from imageevalkit.benchmark.shapes import YesNo\n\n\nclass Mine(YesNo):\n"
        '    name, version, judge, question, by = "signs", "1", "openai:m", "Is it?", ("kind")\n',
        "the by of class Mine is 'kind', and must be a tuple: ('kind',)",
    ),
    (
        "from imageevalkit.benchmark.shapes import YesNo\n\n\nclass Mine(YesNo):\n"
        '    name, version, judge, questoin = "signs", "1", "openai:m", "Is it {prompt}?"\n',
        "class Mine has questoin, which means nothing: is it 'question'?",
    ),
    (
        "from imageevalkit.benchmark.shapes import Grades\n\n\nclass Mine(Grades):\n"
        '    name, version, judge, question = "signs", "1", "openai:m", "Grade it."\n',
        "class Mine lacks grades",
    ),
    (
        "from imageevalkit.benchmark.contract import Benchmark",
        "holds no benchmark: write a class with a name",
    ),
    ("exit(3)", "its code called exit(3)"),
]
"""Code of a file, and what is wrong with it."""


@needs_driver_env
def test_faults_are_told_and_block_their_own_cells_alone(checkout: Path) -> None:
    add(checkout, "signs", SIGNS)
    add(checkout, "shelf", signs("foreign", '"ppocr", "reader"', '"openai:gpt-4o", ""'))
    folders = [f"broken{number}" for number in range(len(_BROKEN))]
    for folder, (code, _) in zip(folders, _BROKEN, strict=True):
        add(checkout, folder, code.replace("street-signs", folder).replace("large-signs", f"large-{folder}"))
    # what blocks a cell, by its benchmark
    told = {}
    for n, headline in enumerate(("()", "'read'")):
        add(checkout, f"head{n}", signs(f"head{n}", '("read",)', headline))
        told[f"head{n}"] = f"benchmark head{n}: its headline is {headline}, and must name the metrics"
    add(checkout, "judged", signs("judged", '"ppocr"', '"opnai:fake"'))
    told["judged"] = (
        "benchmark judged (benchmarks/judged/benchmark.py): judge 'opnai:fake': no backend 'opnai'"
    )
    for name, says in (
        ("dreamsim", "eval_models/weights/dreamsim"),
        ("dreamsimm", ": unknown metric model 'dreamsimm' (did you mean 'dreamsim'?)"),
    ):
        add(checkout, name, f'{signs(name)}\n    measurers = {{"read": Measurer("{name}")}}\n')
        told[name] = says
    # two of one name, whose folder is called like a benchmark that is usable
    for folder in ("a_copy", "b_copy"):
        add(checkout, folder, f'{signs("twin")}\n\nclass Own(Signs):\n    name = "{folder}"\n')
    files = "benchmarks/a_copy/benchmark.py and in benchmarks/b_copy/benchmark.py"
    told["twin"] = twice = f"benchmark 'twin' is in {files}: give one of them another name"
    add(checkout, "renamed", SIGNS)
    (checkout / "benchmarks/renamed/benchmark.py").rename(checkout / "benchmarks/renamed/bench.py")
    told["renamed"] = away = (
        "there is no benchmarks/renamed/benchmark.py, where the class of a benchmark goes, but bench.py: "
        "rename the file"
    )
    add(checkout, ".ipynb_checkpoints", SIGNS)  # an editor's copy
    # what is found when its items are counted
    lines = {}
    for name, line, method in (
        ("asks", "return [measure(", "questions() of item images/0"),
        ("samples", 'return [Sample(f"', "samples()"),
    ):
        code = signs(name, line, f"return [].no_such_thing, {line[7:]}")
        number = next(n for n, text in enumerate(code.splitlines(), 1) if "no_such_thing" in text)
        add(checkout, name, code)
        place = f"(benchmarks/{name}/benchmark.py, line {number})"
        lines[name] = (
            f"{method} fails: AttributeError: 'list' object has no attribute 'no_such_thing' {place}\n"
        )
    asked = '[measure("read", image)]'
    add(checkout, "more", signs("more", asked, f'{asked} + [measure("more", image)] * ("read" in answers)'))

    listed = run_eval(checkout, "--list")
    assert listed.returncode == 0
    for says in (twice, away):
        assert listed.stdout.count(f"\n  {says}") == 1
    assert "checkpoints" not in listed.stdout
    usable = ("quicktext", "street-signs", "large-signs", "a_copy", "b_copy", "more")
    status, said = plan(checkout, ";".join([*usable, *folders, *told, *lines]))
    assert status == 1
    assert "reference-typeset/quicktext: 48 images to generate" in said
    for folder, (_, says) in zip(folders, _BROKEN, strict=True):
        found = [line for line in listed.stdout.splitlines() if line.startswith(f"  benchmarks/{folder}/")]
        assert any(says in line for line in found) and len({*found}) == len(found)
        [blocked] = [line for line in said.splitlines() if f"reference-typeset/{folder}: " in line]
        assert f"blocked reference-typeset/{folder}: benchmarks/{folder}/" in blocked and says in blocked
    for name, says in told.items():
        [blocked] = [line for line in said.splitlines() if f"blocked reference-typeset/{name}: " in line]
        assert says in blocked
    assert all(line in said for line in lines.values()), said
    assert said.count("\nblocked ") == len(folders) + len(told), "those usable are not among them"
    assert "/more: 2 of 2 questions to ask of ppocr-v4; their answers may lead to more\n" in said
    assert "/street-signs: 2 of 2 questions to ask of ppocr-v4\n" in said
    status, said = plan(checkout, "street-signs", "--judges", "street-signs=opnai:fake")
    assert (status, said.count("\n")) == (2, 1) and said.startswith("error: judge 'opnai:fake': no backend")
    status, said = plan(checkout, "foreign", "--judges", "foreign=ppocr")
    says = "error: benchmark foreign does not take 'ppocr' (takes in benchmark.py)"
    assert status == 2 and said.startswith(says) and "openai:ppocr" not in said


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
