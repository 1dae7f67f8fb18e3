"""Entries of MODEL_SETTINGS that no model can be loaded by: one line each, their cells alone, all others run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from imageevalkit.common.errors import remedy_of_import
from imageevalkit.store.cell import REPO
from tests.support.checkout import (
    EDITS,
    SLOW_NOISE,
    add_benchmark,
    add_model,
    make_checkout,
    needs_driver_env,
    run_eval,
)

WITHOUT_GENERATE = """
from imageevalkit.generate.model import ImageModel

class Mute:
    def __init__(self, model_path):
        self.model_name = "mute"

class MuteModel(ImageModel):
    def __init__(self, model_path):
        self.model_name = "mute"

class MuteHeir(MuteModel):
    pass

class MuteAsync(MuteModel):
    is_async = True
"""
FOUND = """
from .slow_noise import SlowNoise as Imported
Assigned = Imported
if True:
    class Nested(Imported):
        pass
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    checkout = make_checkout(tmp_path / "checkout")
    add_model(checkout, "slow-noise", "SlowNoise", SLOW_NOISE)
    return checkout


def register(checkout: Path, name: str, entry: object, task: str = "t2i") -> None:
    registry = checkout / "infer/custom_models/load_model.py"
    registry.write_text(f"{registry.read_text()}\nMODEL_SETTINGS[{task!r}][{name!r}] = {entry!r}\n")


def blocked(run: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """The reasons in the table of all cells, by cell."""
    lines = run.stdout.splitlines()
    return {
        line.split()[0]: lines[n + 1].strip()
        for n, line in enumerate(lines)
        if " blocked" in line and "/" in line
    }


ENTRY = {"model_path": "", "module": ".model_utils.slow_noise", "class": "SlowNoise", "gpus": 0}
MUTE = {**ENTRY, "module": ".model_utils.mute", "class": "Mute"}
WRONG: dict[str, tuple[object, str]] = {
    "no-module": ({k: v for k, v in ENTRY.items() if k != "module"}, "lacks 'module'"),
    "no-class": ({k: v for k, v in ENTRY.items() if k != "class"}, "lacks 'class'"),
    "no-path": ({k: v for k, v in ENTRY.items() if k != "model_path"}, "lacks 'model_path'"),
    "no-dict": ("SlowNoise", "is 'SlowNoise', and must be a dict"),
    "nothing": (None, "is None, and must be a dict"),
    "number": ({**ENTRY, "class": 7}, "'class' is 7, and must be a string"),
    "other-file": (
        {**ENTRY, "module": ".model_utils.slow_nose"},
        "there is no file infer/custom_models/model_utils/slow_nose.py for its module '.model_utils.slow_nose' "
        "(did you mean 'slow_noise'?)",
    ),
    "other-class": (
        {**ENTRY, "class": "SlowNose"},
        "infer/custom_models/model_utils/slow_noise.py has no class 'SlowNose' (did you mean 'SlowNoise'?)",
    ),
    "outside": ({**ENTRY, "module": "...secrets"}, "module '...secrets' is outside of infer/custom_models"),
    "kwargs": ({**ENTRY, "model_kwargs": ["seconds"]}, "'model_kwargs' is ['seconds'], and must be a dict"),
    "sets": ({**ENTRY, "model_kwargs": {"seconds": {1, 2}}}, "'model_kwargs' holds what is no JSON value"),
    "slip": (
        {**ENTRY, "patern": []},
        "'patern' is unknown (did you mean 'patterns'?); an entry has model_path, ",
    ),
    "gpus": ({**ENTRY, "gpus": "two"}, "'gpus' is 'two', and must be a whole number"),
    "batch": (
        {**ENTRY, "model_kwargs": {"batch_size": 0}},
        "'batch_size' is 0, and must be a whole number of at least 1",
    ),
    "patterns": ({**ENTRY, "patterns": "*.json"}, "'patterns' is '*.json', and must be a list"),
    "globs": ({**ENTRY, "patterns": [7]}, "'patterns' is [7], and must be a list of strings"),
    "assets": ({**ENTRY, "assets": 3}, "'assets' is 3, and must be a list"),
    "mute": (
        MUTE,
        "class 'Mute' in infer/custom_models/model_utils/mute.py has no method generate(prompt, seed",
    ),
    "mute-model": ({**MUTE, "class": "MuteModel"}, "mute.py has no method generate(prompt, seed=42)"),
    "asset": ({**ENTRY, "assets": ["org/weights"]}, "'assets', entry 0: lacks 'licence'"),
}


@needs_driver_env
def test_each_wrong_entry_is_a_line_and_blocks_its_cells_alone(checkout: Path) -> None:
    """Classes that are imported, assigned or nested are found."""
    classes = checkout / "infer/custom_models/model_utils"
    (classes / "mute.py").write_text(WITHOUT_GENERATE)
    (classes / "found.py").write_text(FOUND)
    (classes / "starred.py").write_text("from .found import *\n")
    (classes / "packed").mkdir()
    (classes / "packed/__init__.py").write_text("from ..found import Nested\n")
    for name, (entry, _) in WRONG.items():
        register(checkout, name, entry)
    right = {"Imported": "found", "Assigned": "starred", "Nested": "packed"}
    for name, module in right.items():
        register(checkout, name.lower(), {**ENTRY, "module": f".model_utils.{module}", "class": name})
    names = ";".join([*list(WRONG)[:5], *map(str.lower, right), *list(WRONG)[5:]])
    words = ["--model_names", names, "--ds_names", "quicktext", "--limit", "2", "--eval", "false"]
    run = run_eval(checkout, *words)
    assert run.returncode == 1, run.stdout + run.stderr
    told = blocked(run)
    assert told.keys() == {f"{name}/quicktext" for name in WRONG}
    for name, (_, words_of) in WRONG.items():
        line = f"model '{name}': MODEL_SETTINGS['t2i']['{name}']"
        assert told[f"{name}/quicktext"].startswith(line)
        assert words_of in told[f"{name}/quicktext"]
    assert run.stdout.count("2 of 2 images") == len(right)
    assert "Traceback" not in run.stdout + run.stderr


def test_a_missing_package_names_the_map_that_chooses_another_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    missing, elsewhere = (
        ModuleNotFoundError("No module named 'torch'", name="torch"),
        str(tmp_path / "envs/mine"),
    )
    monkeypatch.setattr(sys, "prefix", str(REPO / ".venv"))
    assert "the driver's environment .venv: name one with that package in INFER_ENV_MAP (config.sh)" in (
        remedy_of_import(missing, "INFER_ENV_MAP")
    )
    monkeypatch.setattr(sys, "prefix", elsewhere)
    assert f"install that package in {elsewhere}, or name another environment in EVAL_ENV_MAP" in (
        remedy_of_import(missing, "EVAL_ENV_MAP")
    )
    assert remedy_of_import(ImportError("cannot import name 'x'"), "INFER_ENV_MAP") == ""


@needs_driver_env
def test_what_only_the_environment_shows_is_a_line_when_it_loads(checkout: Path) -> None:
    add_model(checkout, "mute", "MuteHeir", WITHOUT_GENERATE)
    add_model(checkout, "mute-api", "MuteAsync", WITHOUT_GENERATE, api=True)
    register(checkout, "elsewhere", {**ENTRY, "module": "no_such_package.models"})
    base = ["--ds_names", "quicktext", "--limit", "2", "--eval", "false"]
    for words in (["mute;slow-noise;elsewhere"], ["mute-api;slow-noise", "--use_api", "true"]):
        run = run_eval(
            checkout, "--model_names", *words, *base, API_KEY="EMPTY", BASE_URL="http://127.0.0.1:9/v1"
        )
        assert run.returncode == 1, run.stdout + run.stderr
        has_no = (
            "MuteAsync has no method generate_async"
            if "--use_api" in words
            else "MuteHeir has no method generate"
        )
        assert f"model does not load: class {has_no}(prompt, seed=42)" in run.stdout
        if "elsewhere" in words[0]:
            assert (
                "model does not load: ModuleNotFoundError: No module named 'no_such_package'; it runs in the driver's "
                "environment .venv: name one with that package in INFER_ENV_MAP (config.sh)" in run.stdout
            )
            assert "2 of 2 images" in run.stdout
        assert "Traceback" not in run.stdout + run.stderr


@needs_driver_env
def test_a_task_that_a_model_does_not_do_blocks_these_cells_alone(checkout: Path) -> None:
    add_benchmark(checkout, "edits", "Edits", EDITS, task="edit")
    words = ["--model_names", "slow-noise;reference-blank", "--ds_names", "edits;quicktext", "--limit", "2"]
    run = run_eval(checkout, *words, "--eval", "false")
    assert run.returncode == 1, run.stdout + run.stderr
    assert blocked(run) == {"slow-noise/edits": "model 'slow-noise' does t2i, not edit"}
    summary = json.loads(next(checkout.glob("log/runs/*/summary.json")).read_text())
    states = {cell["cell"]: cell["state"] for cell in summary["cells"]}
    assert states.pop("slow-noise/edits") == "blocked"
    assert states == dict.fromkeys(
        ["slow-noise/quicktext", "reference-blank/edits", "reference-blank/quicktext"], "complete"
    )
