"""Benchmarks whose dataset cannot be used, as a user would add them: a line in --list, in the plan and in a run."""

from __future__ import annotations

import json
import re
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
    "seed": ("self.data[4]['seed'] = 0.9", "entry 4 (data[4]): seed is 0.9, and must be a whole number"),
    "gif": (
        "self.data[3]['image_save_path'] = '<MODEL_NAME>/gif/3.gif'",
        "entry 3 (data[3]): image_save_path (the file of a Sample) '<MODEL_NAME>/gif/3.gif': no image is saved with "
        "the suffix '.gif', only ",
    ),
    "twice": (
        "self.data[4]['image_save_path'] = '<MODEL_NAME>/twice/1.jpg'",
        "entry 4 (data[4]): image_save_path (the file of a Sample) '<MODEL_NAME>/twice/1.jpg' is "
        "also the path of entry 1",
    ),
    "named": ("self.dataset_name = 'other'", "dataset_name of class Broken is 'other', and must be 'named'"),
    "tasked": ("self.dataset_task = 'edit'", "dataset_task of class Broken is 'edit', and must be 't2i'"),
    "raises": (
        "self.data[9]",
        "IndexError: list index out of range (infer/custom_datasets/dataset_cls/t2i/raises.py, line 9)",
    ),
    "empty": ("self.data = []", "its data is [], and must be a list of dicts"),
}
COUNTED = """
from pathlib import Path


class Entry(dict):
    def __contains__(self, key):
        if key == "seed":
            with Path("looks").open("a") as file:
                file.write("look\\n")
        return super().__contains__(key)


class Counted:
    def __init__(self):
        self.dataset_name, self.dataset_task = "counted", "t2i"
        path = "<MODEL_NAME>/counted/1.png"
        self.data = [Entry(prompt="a red cat", seed=1, image_save_path=path)]
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    checkout = make_checkout(tmp_path / "checkout")
    add_model(checkout, "slow-noise", "SlowNoise", SLOW_NOISE)
    return checkout


def states(listed: str) -> dict[str, str]:
    """Why a name that ``--list`` shows cannot be used, on the line below it; empty: it can."""
    found: dict[str, str] = {}
    for line in listed.splitlines():
        if line.startswith("      "):
            found[[*found][-1]] = line.strip()
        elif line.startswith("  "):
            found[line.split()[0]] = ""
    return found


def test_what_cannot_be_used_is_told_in_the_list_the_plan_and_the_run_and_costs_its_own_cells_alone(
    checkout: Path,
) -> None:
    def add(name: str, fault: str = "") -> None:
        add_benchmark(checkout, name, "Broken", BROKEN.format(name=name, fault=fault))

    for name, (fault, _) in FAULTS.items():
        add(name, fault)
    for name in ("fine", "lost", "moved", "mute"):
        add(name)
    add_benchmark(checkout, "counted", "Counted", COUNTED)
    add_benchmark(checkout, "edits", "Edits", EDITS, task="edit")
    half = EDITS.replace("edits", "half").replace('f"make it', '0, f"make it')
    add_benchmark(checkout, "half", "Edits", half, task="edit")
    # classes and files that are not there
    folder = checkout / "infer/custom_datasets/dataset_cls/t2i"
    (folder / "lost.py").write_text("class Borken:\n    pass\n")
    (folder / "moved.py").rename(folder / "moved2.py")
    (checkout / "eval/mute.sh").unlink()
    add_model(checkout, "gone", "SlowNoise", SLOW_NOISE)
    add_model(checkout, "other", "SlowNoise", SLOW_NOISE.replace("class SlowNoise", "class SlowNoises"))
    (checkout / "infer/custom_models/model_utils/gone.py").unlink()
    # lines of the registry: a plain tuple, and wrong ones
    registry = checkout / "infer/custom_datasets/load_dataset.py"
    lines = {
        "dicts": {"task": "t2i", "module": ".dataset_cls.t2i.fine", "class": "Broken"},
        "tasks": ("txt2img", ".dataset_cls.t2i.fine", "Broken"),
        "pairs": ("t2i", ".dataset_cls.t2i.fine"),
    }
    added = "".join(f"DATASET_SETTINGS[{name!r}] = {line!r}\n" for name, line in lines.items())
    plain = registry.read_text().replace("['fine'] = DatasetSetting(", "['fine'] = (")
    registry.write_text(f"{plain}\n{added}")

    absent = {
        "lost": "benchmark 'lost': DATASET_SETTINGS['lost']: infer/custom_datasets/dataset_cls/t2i/lost.py has "
        "no class 'Broken' (did you mean 'Borken'?)",
        "moved": "benchmark 'moved': DATASET_SETTINGS['moved']: there is no file "
        "infer/custom_datasets/dataset_cls/t2i/moved.py for its module '.dataset_cls.t2i.moved' "
        "(did you mean 'moved2'?)",
        "gone": "model 'gone': MODEL_SETTINGS['t2i']['gone']: there is no file infer/custom_models/model_utils/gone.py "
        "for its module '.model_utils.gone'",
        "other": "model 'other': MODEL_SETTINGS['t2i']['other']: infer/custom_models/model_utils/other.py has no class "
        "'SlowNoise' (did you mean 'SlowNoises'?)",
        "mute": "benchmark mute has no evaluation script: eval/mute.sh is missing",
    }
    like = ', and must be like ("t2i", ".dataset_cls.t2i.mybench", "MyBench")'
    where = "in infer/custom_datasets/load_dataset.py"
    wrong = {
        "dicts": f"DATASET_SETTINGS['dicts'] {where} is {lines['dicts']!r}{like}",
        "tasks": f"DATASET_SETTINGS['tasks'] {where}: its task is 'txt2img': use t2i, edit, subject",
        "pairs": f"DATASET_SETTINGS['pairs'] {where} is {lines['pairs']!r}{like}",
    }
    listed = run_eval(checkout, "--list")
    assert listed.returncode == 0 and "Traceback" not in listed.stderr, listed.stderr
    assert re.search(r"\n  fine +t2i +5 +yes +- +- +- +eval/fine\.sh\n", listed.stdout), listed.stdout
    told = states(listed.stdout)
    assert {name: told[name] for name in absent} == absent
    assert told["slow-noise"] == told["quicktext"] == told["edits"] == ""
    says = "benchmark half, entry 0 (data[0]): input_list[1] is 0, and must be a text or a PIL image"
    assert told["half"] == says
    for name, (_, says) in FAULTS.items():
        assert told[name].startswith(f"benchmark {name}") and says in told[name]
    assert all(f"\n  {line}\n" in f"{listed.stdout}\n" for line in wrong.values())

    names = [*FAULTS, "fine", "counted", "lost", "moved", "mute", *wrong]
    words = ["--model_names", "slow-noise;reference-noise;gone;other", "--ds_names", ";".join(names)]
    words += ["--limit", "2"]  # the faults are in entries beyond
    (checkout / "looks").unlink(missing_ok=True)
    run = run_eval(checkout, *words, "--eval", "false")
    (checkout / "looks").unlink()
    dry = run_eval(checkout, *words, "--dry_run")
    assert dry.returncode == run.returncode == 1, run.stdout + run.stderr
    assert "Traceback" not in run.stdout + run.stderr
    for name, (_, says) in FAULTS.items():
        assert run.stdout.count(says) == dry.stdout.count(says) == 2, "each model's cell has its line"
        assert not list((checkout / "output").glob(f"*/{name}/*.*g"))
    for name, says in {**absent, **wrong}.items():
        [line] = [line for line in dry.stdout.splitlines() if line.startswith("blocked ") and says in line]
        assert f"{name}/quicktext" in line or f"{name}/" in line or f"slow-noise/{name}" in line
    assert dry.stdout.count("0 images to generate, 1 to reuse") == 2, dry.stdout + dry.stderr
    assert (checkout / "looks").read_text() == "look\n", "a dataset is checked once for all models"
    cells = json.loads(next(checkout.glob("log/runs/*/summary.json")).read_text())["cells"]
    assert {cell["cell"] for cell in cells if cell["state"] == "complete"} == {
        f"{model}/{name}"
        for model in ("slow-noise", "reference-noise")
        for name in ("fine", "counted", "mute")
    }


def test_a_registry_without_its_lines_is_one_line(checkout: Path) -> None:
    (checkout / "infer/custom_datasets/load_dataset.py").write_text("DATASETS = {}\n")
    listed = run_eval(checkout, "--list")
    says = "DATASET_SETTINGS of infer/custom_datasets/load_dataset.py is None, and must be a dict"
    assert (listed.returncode, listed.stderr.count("\n")) == (2, 1) and says in listed.stderr


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
    elif dataset_name == "odd":
        dataset = object()
    else:
        raise ValueError(f"unknown dataset {dataset_name}")
    return dataset


if __name__ == "__main__":
    load_dataset("plain")
"""
    )
    listed = run_eval(checkout, "--list")
    assert listed.returncode == 0, listed.stderr
    assert "the branch of 'odd' uses no class that is imported from dataset_cls.t2i" in listed.stdout
    assert listed.stdout.count("the branch of ") == 1
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
    run = run_eval(checkout, *words)
    assert run.returncode == 0, run.stdout + run.stderr
    assert len(list((checkout / "output/slow-noise/plain").rglob("*.png"))) == 2


def test_a_registry_of_models_of_another_toolkit_is_one_line(checkout: Path) -> None:
    (checkout / "infer/custom_models/load_model.py").write_text(
        "MODEL_SETTINGS = {'t2i': {}, 'edit': {}}\n\n\ndef load_model(model_name, model_task):\n    pass\n"
    )
    run = run_eval(checkout, "--model_names", "reference-noise", "--ds_names", "quicktext")
    assert (run.returncode, run.stderr.count("\n")) == (2, 1)
    assert "infer/custom_models/load_model.py is of another toolkit" in run.stderr
    assert "add your entries to its MODEL_SETTINGS" in run.stderr
