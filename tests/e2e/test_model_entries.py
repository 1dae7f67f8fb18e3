"""Entries of MODEL_SETTINGS that no model can be loaded by: one line each, their cells alone, all others run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from imageevalkit.common.errors import remedy_of_import
from imageevalkit.store.cell import REPO
from tests.support.checkout import (
    SLOW_NOISE,
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
"""


def register(checkout: Path, name: str, entry: object) -> None:
    registry = checkout / "infer/custom_models/load_model.py"
    registry.write_text(f"{registry.read_text()}\nMODEL_SETTINGS['t2i'][{name!r}] = {entry!r}\n")


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
    "no-class": ({k: v for k, v in ENTRY.items() if k != "class"}, "lacks 'class'"),
    "no-dict": ("SlowNoise", "is 'SlowNoise', and must be a dict"),
    "other-class": (
        {**ENTRY, "class": "SlowNose"},
        "infer/custom_models/model_utils/slow_noise.py has no class 'SlowNose' (did you mean 'SlowNoise'?)",
    ),
    "outside": ({**ENTRY, "module": "...secrets"}, "module '...secrets' is outside of infer/custom_models"),
    "slip": (
        {**ENTRY, "patern": []},
        "'patern' is unknown (did you mean 'patterns'?); an entry has model_path, ",
    ),
    "gpus": ({**ENTRY, "gpus": "two"}, "'gpus' is 'two', and must be a whole number"),
    "mute": (MUTE, "'Mute' in infer/custom_models/model_utils/mute.py has no method generate(prompt, seed"),
    "asset": ({**ENTRY, "assets": ["org/weights"]}, "'assets', entry 0: lacks 'licence'"),
}


@needs_driver_env
def test_each_wrong_entry_is_a_line_and_blocks_its_cells_alone(tmp_path: Path) -> None:
    """So is one where only the environment shows what is wrong."""
    checkout = make_checkout(tmp_path / "checkout")
    add_model(checkout, "slow-noise", "SlowNoise", SLOW_NOISE)
    (checkout / "infer/custom_models/model_utils/mute.py").write_text(WITHOUT_GENERATE)
    for name, (entry, _) in WRONG.items():
        register(checkout, name, entry)
    register(checkout, "heir", {**MUTE, "class": "MuteHeir"})
    register(checkout, "elsewhere", {**ENTRY, "module": "no_such_package.models"})
    names = ";".join([*WRONG, "heir", "elsewhere", "slow-noise"])
    words = ["--model_names", names, "--ds_names", "quicktext", "--limit", "2", "--eval", "false"]
    run = run_eval(checkout, *words, status=1)
    told = blocked(run)
    assert told.keys() == {f"{name}/quicktext" for name in WRONG}
    for name, (_, words_of) in WRONG.items():
        assert told[f"{name}/quicktext"].startswith(f"model '{name}': MODEL_SETTINGS['t2i']['{name}']")
        assert words_of in told[f"{name}/quicktext"]
    assert "model does not load: class MuteHeir has no method generate(prompt, seed=42)" in run.stdout
    assert (
        "model does not load: ModuleNotFoundError: No module named 'no_such_package'; it runs in the driver's "
        "environment .venv: name one with that package in INFER_ENV_MAP (config.sh)" in run.stdout
    )
    assert run.stdout.count("2 of 2 images") == 1
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
