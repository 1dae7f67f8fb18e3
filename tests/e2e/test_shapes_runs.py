"""Runs of eval.sh with the project's own diffusion model: its last checkpoint is better than an early one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from PIL import Image

from custom_models.model_settings.own import CHECKPOINTS
from tests.support.checkout import make_checkout, needs_driver_env, run_eval
from tests.support.native_contract import apart

pytestmark = needs_driver_env


class Runs:
    """Runs of one checkout, each with an output folder of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._checkout = folder, make_checkout(folder / "kit")
        self.baseline = folder / "baseline.zip"
        done = self.run("late", "--limit", "24", "--save_baseline", str(self.baseline))
        assert done.returncode == 0, done.stdout + done.stderr

    def run(self, output: str, *words: str) -> CompletedProcess[str]:
        names = ("--model_names", "shapes-tiny", "--ds_names", "quickshapes")
        return run_eval(self._checkout, *names, *words, IMAGEEVALKIT_OUTPUT=str(self._folder / output))

    def result(self, output: str, model: str = "shapes-tiny") -> dict[str, Any]:
        path = self._folder / output / model / "quickshapes/result.json"
        found: dict[str, Any] = json.loads(path.read_text())
        return found

    def images(self, output: str) -> dict[str, Image.Image]:
        paths = (self._folder / output / "shapes-tiny/quickshapes/images").iterdir()
        return {path.name: Image.open(path).convert("RGB") for path in paths}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """After a run of the last checkpoint, which saved a baseline."""
    yield Runs(tmp_path_factory.mktemp("shapes"))


def test_two_replicas_make_the_images_of_one(runs: Runs) -> None:
    done = runs.run("replicas", "--limit", "24", "--replicas", "2", "--eval", "false")
    assert done.returncode == 0, done.stdout + done.stderr
    alone, shared = runs.images("late"), runs.images("replicas")
    assert alone.keys() == shared.keys() and len(alone) == 24
    # workers may have other numbers of threads, which round otherwise
    assert max(apart(image, shared[name]) for name, image in alone.items()) <= 2


def test_the_gate_stops_weights_of_an_earlier_step(runs: Runs) -> None:
    weights = f"model_path={CHECKPOINTS / 'early'}"
    words = ("--custom_model_kwargses", weights, "--gate", str(runs.baseline))
    done = runs.run("early", "--limit", "24", *words)
    assert done.returncode == 4, done.stdout + done.stderr
    assert re.search(r"^fell +shapes-tiny/quickshapes/overall ", done.stdout, re.M)
    late, early = (runs.result(output)["metrics"]["overall"]["value"] for output in ("late", "early"))
    assert late - early > 0.3


def test_a_comparison_ends_before_all_items_are_made(runs: Runs) -> None:
    names = ("--model_names", "shapes-tiny;shapes-tiny-early")
    done = runs.run("until", *names, "--until", "shapes-tiny vs shapes-tiny-early")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "overall: shapes-tiny > shapes-tiny-early, settled after" in done.stdout
    for model in ("shapes-tiny", "shapes-tiny-early"):
        coverage = runs.result("until", model)["coverage"]
        assert coverage["judged"] + coverage["unasked"] == 96 and coverage["judged"] <= 48
