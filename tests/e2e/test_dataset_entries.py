"""Benchmarks whose dataset cannot be used, as a user would add them: a line in --list, in the plan and in a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.checkout import (
    EDITS,
    SLOW_NOISE,
    add_benchmark,
    add_model,
    make_checkout,
    needs_driver_env,
    run_eval,
)

pytestmark = needs_driver_env

BROKEN = """
class Broken:
    def __init__(self):
        self.dataset_name, self.dataset_task = "{name}", "t2i"
        self.data = [
            {{"prompt": f"p {{i}}", "seed": i, "image_save_path": f"<MODEL_NAME>/{name}/{{i}}.png"}}
            for i in range(5)
        ]
        {fault}
        print("loaded")
"""
FAULTS = {
    "prompt": ("self.data[3]['prompt'] = None", "entry 3 (data[3]): prompt is None, and must be a text"),
    "tasked": ("self.dataset_task = 'edit'", "dataset_task of class Broken is 'edit', and must be 't2i'"),
    "raises": (
        "self.data[9]",
        "IndexError: list index out of range (infer/custom_datasets/dataset_cls/t2i/raises.py, line 9)",
    ),
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    checkout = make_checkout(tmp_path / "checkout")
    add_model(checkout, "slow-noise", "SlowNoise", SLOW_NOISE)
    return checkout


def test_what_cannot_be_used_is_told_in_the_list_and_the_run_and_costs_its_own_cells_alone(
    checkout: Path,
) -> None:
    def add(name: str, fault: str = "") -> None:
        add_benchmark(checkout, name, "Broken", BROKEN.format(name=name, fault=fault))

    for name, (fault, _) in FAULTS.items():
        add(name, fault)
    for name in ("fine", "lost"):
        add(name)
    # classes and files that are not there, and a wrong line of the registry beside a plain tuple
    (checkout / "infer/custom_datasets/dataset_cls/t2i/lost.py").write_text("class Borken:\n    pass\n")
    add_model(checkout, "gone", "SlowNoise", SLOW_NOISE)
    (checkout / "infer/custom_models/model_utils/gone.py").unlink()
    registry = checkout / "infer/custom_datasets/load_dataset.py"
    plain = registry.read_text().replace("['fine'] = DatasetSetting(", "['fine'] = (")
    registry.write_text(
        f"{plain}\nDATASET_SETTINGS['tasks'] = ('txt2img', '.dataset_cls.t2i.fine', 'Broken')\n"
    )
    told = {
        "lost": "benchmark 'lost': DATASET_SETTINGS['lost']: infer/custom_datasets/dataset_cls/t2i/lost.py has "
        "no class 'Broken' (did you mean 'Borken'?)",
        "gone": "model 'gone': MODEL_SETTINGS['t2i']['gone']: there is no file infer/custom_models/model_utils/gone.py "
        "for its module '.model_utils.gone'",
        "tasks": "DATASET_SETTINGS['tasks'] in infer/custom_datasets/load_dataset.py: its task is 'txt2img': use t2i, "
        "edit, subject",
    } | {name: says for name, (_, says) in FAULTS.items()}
    listed = run_eval(checkout, "--list")
    assert listed.returncode == 0 and "Traceback" not in listed.stderr, listed.stderr
    assert all(says in listed.stdout for says in told.values())

    names = [*FAULTS, "fine", "lost", "tasks"]
    words = ["--model_names", "slow-noise;gone", "--ds_names", ";".join(names), "--eval", "false"]
    run = run_eval(checkout, *words, "--limit", "2")  # the fault of "prompt" is in an entry beyond
    assert run.returncode == 1 and "Traceback" not in run.stdout + run.stderr, run.stdout + run.stderr
    assert all(says in run.stdout for says in told.values())
    assert not [one for name in FAULTS for one in (checkout / "output").glob(f"*/{name}/*.*g")]
    cells = json.loads(next(checkout.glob("log/runs/*/summary.json")).read_text())["cells"]
    assert [cell["cell"] for cell in cells if cell["state"] == "complete"] == ["slow-noise/fine"]


def test_a_registry_with_branches_in_place_of_lines_works(checkout: Path) -> None:
    """As upstream's, copied over ours."""
    add_benchmark(checkout, "plain", "Broken", BROKEN.format(name="plain", fault=""))
    add_benchmark(checkout, "edits", "Edits", EDITS, "edit")
    (checkout / "infer/custom_datasets/load_dataset.py").write_text(
        """
def load_dataset(dataset_name):
    if dataset_name == "plain":
        from .dataset_cls.t2i.plain import Broken
        return Broken()
    elif dataset_name in ("quicktext", "edits"):
        from custom_datasets.dataset_cls.edit.edits import Edits
        dataset = Edits()
    else:
        raise ValueError(f"unknown dataset {dataset_name}")
    return dataset


if __name__ == "__main__":
    load_dataset("plain")
"""
    )
    words = (
        "--model_names",
        "slow-noise",
        "--ds_names",
        "plain;quicktext",
        "--eval",
        "false",
        "--limit",
        "2",
    )
    run_eval(checkout, *words, status=0)
    assert len(list((checkout / "output/slow-noise/plain").rglob("*.png"))) == 2


def test_a_registry_of_models_of_another_toolkit_is_one_line(checkout: Path) -> None:
    (checkout / "infer/custom_models/load_model.py").write_text(
        "MODEL_SETTINGS = {'t2i': {}, 'edit': {}}\n\n\ndef load_model(model_name, model_task):\n    pass\n"
    )
    run = run_eval(checkout, "--model_names", "reference-noise", "--ds_names", "quicktext")
    assert (run.returncode, run.stderr.count("\n")) == (2, 1)
    assert "infer/custom_models/load_model.py is of another toolkit" in run.stderr
    assert "add your entries to its MODEL_SETTINGS" in run.stderr
