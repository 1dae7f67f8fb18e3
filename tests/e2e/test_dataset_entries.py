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
        "entry 4 (data[4]): image_save_path (the file of a Sample) '<MODEL_NAME>/twice/1.jpg' is that of entry 1 too",
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


def test_every_entry_is_checked_before_an_image_is_made(checkout: Path) -> None:
    for name, (fault, _) in FAULTS.items():
        add_benchmark(checkout, name, "Broken", BROKEN.format(name=name, fault=fault))
    add_benchmark(checkout, "fine", "Broken", BROKEN.format(name="fine", fault=""))
    listed = run_eval(checkout, "--list")
    assert listed.returncode == 0 and "Traceback" not in listed.stderr, listed.stderr
    assert re.search(r"\n  fine +t2i +5 +yes +- +- +- +eval/fine\.sh\n", listed.stdout), listed.stdout
    words = ["--model_names", "slow-noise;reference-noise", "--ds_names", ";".join([*FAULTS, "fine"])]
    words += ["--limit", "2", "--eval", "false"]  # the faults are in entries beyond
    dry, run = run_eval(checkout, *words, "--dry_run"), run_eval(checkout, *words)
    assert dry.returncode == run.returncode == 1, run.stdout + run.stderr
    for name, (_, says) in FAULTS.items():
        assert states(listed.stdout)[name].startswith(f"benchmark {name}")
        assert says in states(listed.stdout)[name]
        assert run.stdout.count(says) == dry.stdout.count(says) == 2, "each model's cell has its line"
        assert not list((checkout / "output").glob(f"*/{name}/*.*g"))
    assert len(list((checkout / "output").glob("*/fine/*.png"))) == 4


def test_edits_are_listed_too(checkout: Path) -> None:
    add_benchmark(checkout, "edits", "Edits", EDITS, task="edit")
    add_benchmark(
        checkout, "mute", "Edits", EDITS.replace("edits", "mute").replace('f"make it', '0, f"make it'), "edit"
    )
    listed = states(run_eval(checkout, "--list").stdout)
    assert listed["edits"] == ""
    assert (
        listed["mute"]
        == "benchmark mute, entry 0 (data[0]): input_list[1] is 0, and must be a text or a PIL image"
    )


def test_the_plan_of_many_models_checks_a_dataset_once(checkout: Path) -> None:
    add_benchmark(checkout, "counted", "Counted", COUNTED)
    names = "slow-noise;reference-noise;reference-blank"
    words = ["--model_names", names, "--ds_names", "counted", "--eval", "false"]
    assert run_eval(checkout, *words).returncode == 0
    (checkout / "looks").unlink()
    dry = run_eval(checkout, *words, "--dry_run")
    assert dry.stdout.count("0 images to make, 1 to reuse") == 3, dry.stdout + dry.stderr
    assert (checkout / "looks").read_text() == "look\n"


def test_what_is_not_there_is_not_ready_and_blocks_its_cells(checkout: Path) -> None:
    add_benchmark(checkout, "lost", "Broken", BROKEN.format(name="lost", fault=""))
    add_benchmark(checkout, "moved", "Broken", BROKEN.format(name="moved", fault=""))
    add_benchmark(checkout, "mute", "Broken", BROKEN.format(name="mute", fault=""))
    folder = checkout / "infer/custom_datasets/dataset_cls/t2i"
    (folder / "lost.py").write_text("class Borken:\n    pass\n")
    (folder / "moved.py").rename(folder / "moved2.py")
    (checkout / "eval/mute.sh").unlink()
    add_model(checkout, "gone", "SlowNoise", SLOW_NOISE)
    add_model(checkout, "other", "SlowNoise", SLOW_NOISE.replace("class SlowNoise", "class SlowNoises"))
    (checkout / "infer/custom_models/model_utils/gone.py").unlink()
    listed = states(run_eval(checkout, "--list").stdout)
    expected = {
        "lost": "benchmark 'lost': DATASET_SETTINGS['lost']: infer/custom_datasets/dataset_cls/t2i/lost.py has "
        "no class 'Broken' (did you mean 'Borken'?)",
        "moved": "benchmark 'moved': DATASET_SETTINGS['moved']: there is no file "
        "infer/custom_datasets/dataset_cls/t2i/moved.py for its module '.dataset_cls.t2i.moved' "
        "(did you mean 'moved2'?)",
        "gone": "model 'gone': MODEL_SETTINGS['t2i']['gone']: there is no file infer/custom_models/model_utils/gone.py "
        "for its module '.model_utils.gone'",
        "other": "model 'other': MODEL_SETTINGS['t2i']['other']: infer/custom_models/model_utils/other.py has no class "
        "'SlowNoise' (did you mean 'SlowNoises'?)",
    }
    assert {name: listed[name] for name in expected} == expected
    assert listed["slow-noise"] == listed["quicktext"] == ""
    assert listed["mute"] == "benchmark mute has no evaluation script: eval/mute.sh is missing"
    words = [
        "--model_names",
        "slow-noise;gone;other",
        "--ds_names",
        "quicktext;lost;moved;mute",
        "--limit",
        "1",
    ]
    dry = run_eval(checkout, *words, "--dry_run")
    assert dry.returncode == 1, dry.stderr
    for name, reason in {**expected, "mute": listed["mute"]}.items():
        is_model = name in ("gone", "other")
        cells = [f"{name}/quicktext"] if is_model else [f"{model}/{name}" for model in words[1].split(";")]
        assert f"blocked {', '.join(cells)}: {reason}\n" in dry.stdout
    run = run_eval(checkout, *words, "--eval", "false")
    assert run.returncode == 1
    told = json.loads(next(checkout.glob("log/runs/*/summary.json")).read_text())["cells"]
    assert {cell["cell"] for cell in told if cell["state"] == "complete"} == {
        "slow-noise/quicktext",
        "slow-noise/mute",
    }


def test_a_line_of_the_registry_may_be_a_plain_tuple_and_a_wrong_one_blocks_its_cells_alone(
    checkout: Path,
) -> None:
    add_benchmark(checkout, "plain", "Broken", BROKEN.format(name="plain", fault=""))
    registry = checkout / "infer/custom_datasets/load_dataset.py"
    lines = {
        "dicts": {"task": "t2i", "module": ".dataset_cls.t2i.plain", "class": "Broken"},
        "tasks": ("txt2img", ".dataset_cls.t2i.plain", "Broken"),
        "pairs": ("t2i", ".dataset_cls.t2i.plain"),
    }
    added = "".join(f"DATASET_SETTINGS[{name!r}] = {line!r}\n" for name, line in lines.items())
    plain = registry.read_text().replace("['plain'] = DatasetSetting(", "['plain'] = (")
    registry.write_text(f"{plain}\n{added}")
    like = ', and must be like ("t2i", ".dataset_cls.t2i.mybench", "MyBench")'
    where = "in infer/custom_datasets/load_dataset.py"
    expected = {
        "dicts": f"DATASET_SETTINGS['dicts'] {where} is {lines['dicts']!r}{like}",
        "tasks": f"DATASET_SETTINGS['tasks'] {where}: its task is 'txt2img': use t2i, edit, subject",
        "pairs": f"DATASET_SETTINGS['pairs'] {where} is {lines['pairs']!r}{like}",
    }
    listed = run_eval(checkout, "--list")
    assert listed.returncode == 0, listed.stderr
    assert all(f"\n  {line}\n" in f"{listed.stdout}\n" for line in expected.values())
    names = ";".join(["plain", *lines])
    run = run_eval(checkout, "--model_names", "slow-noise", "--ds_names", names, "--eval", "false")
    assert run.returncode == 1 and "Traceback" not in run.stdout + run.stderr
    told = json.loads(next(checkout.glob("log/runs/*/summary.json")).read_text())["cells"]
    assert {cell["cell"]: cell["message"] for cell in told if cell["state"] == "blocked"} == {
        f"slow-noise/{name}": line for name, line in expected.items()
    }
    assert {cell["cell"] for cell in told if cell["state"] == "complete"} == {"slow-noise/plain"}
    assert "nothing in" not in run.stdout, "the table has told why"


def test_a_registry_without_its_lines_is_one_line(checkout: Path) -> None:
    (checkout / "infer/custom_datasets/load_dataset.py").write_text("DATASETS = {}\n")
    listed = run_eval(checkout, "--list")
    says = "DATASET_SETTINGS of infer/custom_datasets/load_dataset.py is None, and must be a dict"
    assert (listed.returncode, listed.stderr.count("\n")) == (2, 1) and says in listed.stderr


def test_one_cell_is_no_cells(checkout: Path) -> None:
    words = ["--model_names", "slow-noise", "--ds_names", "quicktext", "--limit", "1", "--eval", "false"]
    assert run_eval(checkout, *words, "--dry_run").stdout.startswith("plan: 1 cell, 2 jobs, ")
    assert "\n1 cell, 2 jobs; run folder " in "\n" + run_eval(checkout, *words).stdout


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
