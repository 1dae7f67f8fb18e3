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


def plan(checkout: Path, *words: str) -> tuple[int, str]:
    run = run_eval(checkout, "--model_names", "reference-typeset", "--dry_run", *words)
    return run.returncode, run.stdout + run.stderr


@needs_driver_env
def test_one_file_is_a_benchmark_and_its_variant(checkout: Path) -> None:
    add(find_no_text(checkout), "signs", SIGNS)
    listed = run_eval(checkout, "--list").stdout
    for name in ("street-signs", "large-signs"):
        assert re.search(rf"\n  {name} +t2i +2 +yes +- +- +- +ppocr\n", listed), listed
    run = run_eval(checkout, "--model_names", "reference-typeset", "--ds_names", "street-signs;large-signs")
    assert run.returncode == 0, run.stdout + run.stderr
    for name in ("street-signs", "large-signs"):
        assert (checkout / "output/reference-typeset" / name / "result.json").is_file()


@needs_driver_env
def test_one_models_file_is_not_taken_for_those_of_several(checkout: Path) -> None:
    add(checkout, "signs", SIGNS)
    base = ("--ds_names", "street-signs", "--dry_run", "--ds_kwargs")
    for models, given, refused in (
        ("reference-typeset;reference-blank", "/data/m.jsonl", True),
        ("reference-typeset;reference-blank", "/data/<MODEL_NAME>.jsonl", False),
        ("reference-blank", "/data/m.jsonl", False),
    ):
        run = run_eval(checkout, "--model_names", models, *base, f"marks={given}")
        line = (
            "error: --ds_kwargs: the setting marks of street-signs is a path of one model's, but this run has several: "
            "write <MODEL_NAME> where it has their names\n"
        )
        said = run.stdout + run.stderr
        assert (run.returncode, line in run.stderr) == ((2, True) if refused else (0, False)), said


@needs_driver_env
def test_settings_are_checked_at_planning_and_reach_every_job(checkout: Path) -> None:
    add(checkout, "signs", SIGNS)
    base = ("--ds_names", "street-signs", "--ds_kwargs")
    assert "3 images to make" in plan(checkout, *base, "count=3,size=large")[1]
    where = "error: benchmark street-signs: "
    for given, says in {
        "cuont=3": "there is no setting 'cuont' (did you mean 'count'?); known: rules, count, size, grid, marks",
        "count=three": "count must be a whole number, not 'three'",
        "size=larg": "size must be small or large, not 'larg' (did you mean 'large'?)",
        "rules=corrected": "it has official rules only, not corrected",
    }.items():
        assert plan(checkout, *base, given) == (2, f"{where}{says}\n")
    status, said = plan(checkout, *base, "grid=2x2")
    assert (
        status == 2 and "--ds_kwargs: the setting grid of street-signs is about images made elsewhere" in said
    )
    (checkout / "config.local.sh").write_text("DS_KWARGS_MAP=([street-signs]='grid=2x2')\n")
    assert (
        "DS_KWARGS_MAP['street-signs'] in config.sh: the setting grid of street-signs"
        in plan(checkout, "--ds_names", "street-signs")[1]
    )


@needs_driver_env
@pytest.mark.parametrize("headline", ["()", "'read'"])
def test_a_headline_that_names_no_metric_is_told_before_an_image_is_made(
    checkout: Path, headline: str
) -> None:
    add(checkout, "signs", SIGNS.replace('headline = ("read",)', f"headline = {headline}"))
    status, said = plan(checkout, "--ds_names", "street-signs")
    assert status and f"benchmark street-signs: its headline is {headline}, and must name the metrics" in said


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
def test_broken_files_are_told_and_block_their_own_cells_alone(checkout: Path) -> None:
    folders = [f"broken{number}" for number in range(len(_BROKEN))]
    for folder, (code, _) in zip(folders, _BROKEN, strict=True):
        add(checkout, folder, code)
    listed = run_eval(checkout, "--list")
    assert listed.returncode == 0
    status, said = plan(checkout, "--ds_names", ";".join(["quicktext", *folders]))
    assert status == 1
    assert "reference-typeset/quicktext: 48 images to make" in said
    for folder, (_, says) in zip(folders, _BROKEN, strict=True):
        file = f"benchmarks/{folder}/benchmark.py"
        lines = [line for line in listed.stdout.splitlines() if line.startswith(f"  {file}")]
        assert any(says in line for line in lines) and len({*lines}) == len(lines)
        [blocked] = [line for line in said.splitlines() if f"reference-typeset/{folder}: " in line]
        assert f"blocked reference-typeset/{folder}: benchmarks/{folder}" in blocked and says in blocked


@needs_driver_env
@pytest.mark.parametrize(
    ("line", "method"),
    [("return [measure(", "questions() of item images/0"), ('return [Sample(f"', "samples()")],
)
def test_an_error_in_its_code_names_the_file_and_the_line(checkout: Path, line: str, method: str) -> None:
    code = SIGNS.replace(line, f"return [].no_such_thing, {line[7:]}")
    number = next(n for n, text in enumerate(code.splitlines(), 1) if "no_such_thing" in text)
    add(checkout, "signs", code)
    said = plan(checkout, "--ds_names", "street-signs")[1]
    place = f"(benchmarks/signs/benchmark.py, line {number})"
    assert f"{method} fails: AttributeError: 'list' object has no attribute 'no_such_thing' {place}\n" in said


@needs_driver_env
def test_a_plan_tells_that_more_questions_may_follow_the_answers(checkout: Path) -> None:
    asked = '[measure("read", image)]'
    add(checkout, "signs", SIGNS.replace(asked, f'{asked} + [measure("more", image)] * ("read" in answers)'))
    add(checkout, "plain", SIGNS.replace("street-signs", "plain").replace("large-signs", "large-plain"))
    said = plan(checkout, "--ds_names", "street-signs;plain")[1]
    assert "street-signs: 2 of 2 questions to ask of ppocr-v4; their answers may lead to more\n" in said
    assert "plain: 2 of 2 questions to ask of ppocr-v4\n" in said


@needs_driver_env
def test_a_reader_where_a_judge_is_asked_is_told_so(checkout: Path) -> None:
    add(checkout, "signs", SIGNS.replace('"ppocr", "reader"', '"openai:gpt-4o", ""'))
    status, said = plan(checkout, "--ds_names", "street-signs", "--judges", "street-signs=ppocr")
    says = "error: benchmark street-signs does not take 'ppocr' (takes in benchmark.py)"
    assert status == 2 and said.startswith(says) and "openai:ppocr" not in said


@needs_driver_env
@pytest.mark.parametrize("copy", ["a_copy", "signs2"])
def test_two_of_one_name_are_both_told_and_block_that_name_alone(checkout: Path, copy: str) -> None:
    add(checkout, "signs", SIGNS)
    own_name = SIGNS.replace(
        "large-signs", copy
    )  # a benchmark called like a folder that has a fault is usable
    add(checkout, copy, own_name)
    files = " and in ".join(f"benchmarks/{folder}/benchmark.py" for folder in sorted(["signs", copy]))
    says = f"benchmark 'street-signs' is in {files}: give one of them another name"
    assert run_eval(checkout, "--list").stdout.count(f"\n  {says}\n") == 1
    status, said = plan(checkout, "--ds_names", f"street-signs;large-signs;{copy}")
    assert status == 1 and said.count("\nblocked ") == 1
    assert f"blocked reference-typeset/street-signs: {says}" in said


@needs_driver_env
def test_a_file_of_another_name_is_told(checkout: Path) -> None:
    add(checkout, "signs", SIGNS)
    (checkout / "benchmarks/signs/benchmark.py").rename(checkout / "benchmarks/signs/bench.py")
    says = (
        "there is no benchmarks/signs/benchmark.py, where the class of a benchmark goes, but bench.py: "
        "rename the file"
    )
    add(checkout, ".ipynb_checkpoints", SIGNS)  # an editor's copy
    listed = run_eval(checkout, "--list").stdout
    assert f"\n  {says}" in listed and "checkpoints" not in listed and "street-signs" not in listed
    status, said = plan(checkout, "--ds_names", "quicktext;signs")
    assert status == 1 and f"blocked reference-typeset/signs: {says}" in said


@needs_driver_env
def test_a_wrong_judge_of_a_class_blocks_its_cells_and_a_typed_one_the_command(checkout: Path) -> None:
    add(checkout, "signs", SIGNS.replace('"ppocr"', '"opnai:fake"'))
    status, said = plan(checkout, "--ds_names", "quicktext;street-signs")
    where = "benchmark street-signs (benchmarks/signs/benchmark.py): judge 'opnai:fake': no backend 'opnai'"
    assert status == 1 and f"blocked reference-typeset/street-signs: {where}" in said
    assert "reference-typeset/quicktext: 48 images to make" in said
    status, said = plan(checkout, "--ds_names", "street-signs", "--judges", "street-signs=opnai:fake")
    assert (status, said.count("\n")) == (2, 1) and said.startswith("error: judge 'opnai:fake': no backend")


@needs_driver_env
def test_a_benchmark_that_can_no_longer_be_read_leaves_the_report_of_all(checkout: Path) -> None:
    find_no_text(checkout)
    add(checkout, "street_signs", SIGNS)
    run = ("--model_names", "reference-typeset", "--ds_names", "street-signs")
    assert run_eval(checkout, *run).returncode == 0
    (checkout / "benchmarks/street_signs/benchmark.py").write_text("class (:\n")
    again = run_eval(
        checkout, "--model_names", "reference-typeset", "--ds_names", "quicktext", "--eval", "false"
    )
    assert again.returncode == 0, again.stdout + again.stderr
    says = "street-signs: models are not compared: benchmarks/street_signs/benchmark.py cannot be imported: Syntax"
    assert f"\n{says}" in again.stdout
    board = (checkout / "output/leaderboard.csv").read_text()
    assert "street-signs" in board and (checkout / "output/report.html").is_file()


@needs_driver_env
def test_missing_weights_of_who_measures_block_the_cell(checkout: Path) -> None:
    measurers = '    measurers = {"read": Measurer("dreamsim")}'
    add(checkout, "signs", f"{SIGNS}{measurers}\n")
    status, said = plan(checkout, "--ds_names", "large-signs")
    assert status == 1 and "eval_models/weights/dreamsim" in said
    benchmark = checkout / "benchmarks/signs/benchmark.py"
    benchmark.write_text(benchmark.read_text().replace("dreamsim", "dreamsimm"))
    status, said = plan(checkout, "--ds_names", "large-signs")
    assert (
        status == 1
        and "(benchmarks/signs/benchmark.py): unknown metric model 'dreamsimm' (did you mean 'dreamsim'?)"
        in said
    )


def test_a_fresh_machine_plans_in_the_environment_that_it_has_just_made(checkout: Path) -> None:
    (checkout / ".venv").unlink(missing_ok=True)
    (checkout / "utils/make_env.sh").write_text(
        f"cd {checkout}; mkdir -p .venv/bin; [ ! -e .venv/.imageevalkit-requirements ] || exit 0\n"
        f'printf \'#!/bin/sh\\necho "$*" >>{checkout}/runs.txt\\nexec {sys.executable} "$@"\\n\' >.venv/bin/python\n'
        "chmod +x .venv/bin/python; echo made >.venv/.imageevalkit-requirements\n"
    )
    status, said = plan(checkout, "--ds_names", "quicktext", "--eval", "false")
    assert (status, "48 images to make" in said) == (0, True), said
    assert "-P -m imageevalkit.cli --config-fd 3 --model_names" in (checkout / "runs.txt").read_text()


@needs_driver_env
def test_a_foreign_one_of_a_name_that_is_taken_is_told_and_hides_nothing(checkout: Path) -> None:
    registry = checkout / "infer/custom_datasets/load_dataset.py"
    line = 'DATASET_SETTINGS["quicktext"] = DatasetSetting("edit", ".dataset_cls.mine", "Mine")'
    registry.write_text(f"{registry.read_text()}\n{line}\n")
    listed = run_eval(checkout, "--list").stdout
    assert re.search(r"\n  quicktext +t2i +48 +yes +- +- +- +ppocr\n", listed), listed
    assert "'quicktext' is the benchmark in benchmarks/quicktext/benchmark.py: use another name" in listed
    assert plan(checkout, "--ds_names", "quicktext")[0] == 0
