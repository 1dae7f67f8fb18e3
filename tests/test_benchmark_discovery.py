"""A benchmark that is one file: found, chosen, planned and run without a line elsewhere; a broken one is told."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.checkout import make_checkout, needs_driver_env, run_eval

SIGNS = """
from dataclasses import dataclass, field
from typing import Literal

from imageevalkit.benchmark.contract import Benchmark, Measurer, Sample, Settings
from imageevalkit.benchmark.question import measure
from imageevalkit.cell.results import Score
from imageevalkit.metrics import mean


@dataclass(frozen=True)
class SignSettings(Settings):
    count: int = 2
    size: Literal["small", "large"] = "small"
    grid: str = field(default="", metadata={"images_elsewhere": True})


class Signs(Benchmark):
    name, version, judge, takes_readers = "street-signs", "1", "ppocr", True
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
    add(checkout, "signs", SIGNS)
    listed = run_eval(checkout, "--list").stdout
    assert (
        "\n  street-signs   t2i        ready\n" in listed
        and "\n  large-signs    t2i        ready\n" in listed
    )
    run = run_eval(checkout, "--model_names", "reference-typeset", "--ds_names", "street-signs;large-signs")
    assert run.returncode == 0, run.stdout + run.stderr
    for name in ("street-signs", "large-signs"):
        assert (checkout / "output/reference-typeset" / name / "result.json").is_file()


@needs_driver_env
def test_settings_are_checked_at_planning_and_reach_every_job(checkout: Path) -> None:
    add(checkout, "signs", SIGNS)
    base = ("--ds_names", "street-signs", "--ds_kwargs")
    assert "3 images to make" in plan(checkout, *base, "count=3,size=large")[1]
    where = "error: benchmark street-signs: "
    for given, says in {
        "cuont=3": "there is no setting 'cuont' (did you mean 'count'?); known: rules, count, size, grid",
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
@pytest.mark.parametrize(
    ("code", "says"),
    [
        (
            "import nobody_has_this",
            "cannot be imported: ModuleNotFoundError: No module named 'nobody_has_this'",
        ),
        (SIGNS.replace('"1"', "1"), "class Signs needs texts as name and version"),
        (SIGNS.replace("def score", "def scores"), "class Signs lacks score"),
        (SIGNS.replace('"street-signs"', '"quicktext"'), "is in benchmarks/quicktext/benchmark.py too"),
        ("exit(3)", "its code called exit(3)"),
    ],
)
def test_a_broken_file_is_told_and_blocks_its_own_cells_alone(checkout: Path, code: str, says: str) -> None:
    add(checkout, "signs", code)
    listed = run_eval(checkout, "--list")
    assert listed.returncode == 0
    [line] = [
        line for line in listed.stdout.splitlines() if line.startswith("  benchmarks/signs/benchmark.py")
    ]
    assert says in line
    status, said = plan(checkout, "--ds_names", "quicktext;signs")
    assert status == 1 and says in said and "blocked reference-typeset/signs: benchmarks/signs" in said
    assert "reference-typeset/quicktext: 48 images to make" in said


@needs_driver_env
def test_missing_weights_of_who_measures_block_the_cell(checkout: Path) -> None:
    measurers = '    measurers = {"read": Measurer("dreamsim")}'
    add(checkout, "signs", f"{SIGNS}{measurers}\n")
    status, said = plan(checkout, "--ds_names", "large-signs")
    assert status == 1 and "eval_models/weights/dreamsim" in said
    benchmark = checkout / "benchmarks/signs/benchmark.py"
    benchmark.write_text(benchmark.read_text().replace("dreamsim", "dreamsin"))
    status, said = plan(checkout, "--ds_names", "large-signs")
    assert (
        status == 1
        and "benchmark large-signs: unknown measurer 'dreamsin' (did you mean 'dreamsim'?)" in said
    )


def test_a_fresh_machine_plans_in_the_environment_that_it_has_just_made(checkout: Path) -> None:
    (checkout / ".venv").unlink(missing_ok=True)
    (checkout / "utils/make_env.sh").write_text(
        "mkdir -p .venv/bin; [ ! -e .venv/.imageevalkit-requirements ] || exit 0\n"
        f'printf \'#!/bin/sh\\necho "$*" >>runs.txt\\nexec {sys.executable} "$@"\\n\' >.venv/bin/python\n'
        "chmod +x .venv/bin/python; echo made >.venv/.imageevalkit-requirements\n"
    )
    status, said = plan(checkout, "--ds_names", "quicktext", "--eval", "false")
    assert (status, "48 images to make" in said) == (0, True), said
    assert "-P -m imageevalkit.launch --config-fd 3 --model_names" in (checkout / "runs.txt").read_text()
