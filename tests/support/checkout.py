"""A private copy of the tree, for tests that edit config.sh or register models and benchmarks as a user would."""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]

needs_driver_env = pytest.mark.skipif(
    not (REPO / ".venv/bin/python").exists(), reason="no .venv: bash utils/make_env.sh --driver makes it"
)
"""For tests that run ``eval.sh``; ``test.sh`` makes that environment first, so that none is skipped there."""

SLOW_NOISE = '''
import time
from PIL import Image
import random


class SlowNoise:
    """Written as the extension guide says: model_name, generate(prompt, seed)."""

    def __init__(self, model_path, seconds=0.0, side=48):
        self.model_name = "slow-noise"
        self.seconds, self.side = seconds, side

    def generate(self, prompt, seed=42):
        time.sleep(self.seconds)
        noise = random.Random(f"{prompt}{seed}").randbytes(self.side * self.side * 3)
        return Image.frombytes("RGB", (self.side, self.side), noise)
'''

FAILING = """
class Failing:
    def __init__(self, model_path, at="generate"):
        self.model_name = "failing"
        if at == "load":
            raise OSError("no file named model.safetensors in checkpoints/failing")

    def generate(self, prompt, seed=42):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
"""

MANY = '''
import os


class Many:
    """Written as the extension guide says: dataset_name, dataset_task, data."""

    def __init__(self):
        self.dataset_name = "many"
        self.dataset_task = "t2i"
        self.data = [
            {
                "prompt": f"prompt {i}",
                "seed": i % 4,
                "image_save_path": os.path.join("<MODEL_NAME>", "many", f"{i:04d}.png"),
            }
            for i in range(400)
        ]
'''


EDITS = '''
from PIL import Image


class Edits:
    """An edit benchmark written as the extension guide says."""

    def __init__(self):
        self.dataset_name = "edits"
        self.dataset_task = "edit"
        self.data = [
            {
                "input_list": [Image.new("RGB", (64 + 16 * i, 48), (40 * i, 90, 20)), f"make it number {i}"],
                "seed": 0,
                "image_save_path": f"<MODEL_NAME>/edits/images/{i}.png",
            }
            for i in range(3)
        ]
'''


@functools.cache
def _files() -> list[Path]:
    """All tracked and new files that a run may read, and what test.sh has compiled of them."""
    files = [REPO / name for name in _names()]
    compiled = [Path(importlib.util.cache_from_source(str(f))) for f in files if f.suffix == ".py"]
    return [file for file in files + compiled if file.is_file()]


def _names() -> list[str]:
    """The files that git would commit, relative to the tree; without git's folder, those of the toolkit's folders."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard", "-z", ":!tests", ":!perf"],
            cwd=REPO,
            capture_output=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return [
            str(path.relative_to(REPO))
            for part in (
                "benchmarks",
                "eval",
                "eval_models",
                "imageevalkit",
                "infer",
                "requirements",
                "utils",
            )
            for path in (REPO / part).rglob("*")
            if not {"__pycache__", "node_modules", "checkpoints"} & {*path.parts} and not path.is_dir()
        ] + ["config.sh", "eval.sh"]
    return list(filter(None, listed.stdout.decode().split("\0")))


def make_checkout(folder: Path) -> Path:
    """Copy the tree to ``folder`` and share the driver's environment, if there is one."""
    for source in _files():
        target = folder / source.relative_to(REPO)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target, follow_symlinks=False)
    # the first place where a run looks for modules: the GPUs of this machine are nothing to a test
    shutil.copy2(REPO / "tests/support/fake_nvml/pynvml.py", folder)
    if (REPO / ".venv").exists():
        (folder / ".venv").symlink_to(REPO / ".venv")
    return folder


def find_no_text(checkout: Path) -> Path:
    """Let the text reader of ``checkout`` find none in whole images, for tests of all else: its models take seconds."""
    reader = checkout / "eval_models/ocr.py"
    reader.write_text(f"{reader.read_text()}\n\nPPOCR.read = lambda self, data: decode(data) and ''\n")
    return checkout


def add_model(
    checkout: Path, name: str, class_name: str, code: str, task: str = "t2i", **entry: object
) -> None:
    """Add a model as the guide says: one class file, one entry in MODEL_SETTINGS."""
    stem = name.replace("-", "_")
    _write(checkout / f"infer/custom_models/model_utils/{stem}.py", code)
    registry = checkout / "infer/custom_models/load_model.py"
    setting = {"model_path": "", "module": f".model_utils.{stem}", "class": class_name, "gpus": 0, **entry}
    registry.write_text(f"{registry.read_text()}\nMODEL_SETTINGS[{task!r}][{name!r}] = {setting!r}\n")


def add_benchmark(checkout: Path, name: str, class_name: str, code: str, task: str = "t2i") -> None:
    """Add a benchmark as the guide says: one dataset class, one registry line, one script (here without scores)."""
    _write(checkout / f"infer/custom_datasets/dataset_cls/{task}/{name}.py", code)
    registry = checkout / "infer/custom_datasets/load_dataset.py"
    line = f"DatasetSetting({task!r}, '.dataset_cls.{task}.{name}', {class_name!r})"
    registry.write_text(f"{registry.read_text()}\nDATASET_SETTINGS[{name!r}] = {line}\n")
    (checkout / f"eval/{name}.sh").write_text("exit 0\n")


def environ(checkout: Path, **more: str) -> dict[str, str]:
    """The environment of a user of ``checkout``: its own output and log, no key."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("IMAGEEVALKIT_")}
    paths = f"{checkout}{os.pathsep}{checkout / 'infer'}"
    return {**kept, "PYTHONPATH": paths, "PYTHON": sys.executable, **more}


def run_eval(
    checkout: Path, *words: str, status: int | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    """``bash eval.sh`` in ``checkout``; see :func:`run_command`."""
    return run_command(["bash", checkout / "eval.sh", *words], env=environ(checkout, **env), status=status)


def start_eval(checkout: Path, *words: str, **env: str) -> subprocess.Popen[str]:
    """Starts ``bash eval.sh`` in ``checkout``, in a session of its own; stdout has all that it prints."""
    return subprocess.Popen(
        ["bash", str(checkout / "eval.sh"), *words],
        env=environ(checkout, **env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def run_command(
    command: Sequence[str | Path],
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    status: int | None = None,
) -> subprocess.CompletedProcess[str]:
    """Runs a command that reads nothing, to its end; with ``status``, it must end so."""
    done = subprocess.run(
        [*map(str, command)],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert status in (None, done.returncode), done.stdout + done.stderr
    return done


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
