"""Runs on a test cluster, and what they leave."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.slurm.cluster import lacking
from tests.support.checkout import add_model, environ, make_checkout, needs_driver_env

needs_cluster = [needs_driver_env, pytest.mark.skipif(bool(lacking()), reason=lacking() or "a cluster")]

_VARIANTS = """
from benchmarks.quicktext.benchmark import QuickText


class Other(QuickText):
    name = "quicktext-b"
"""
BENCHMARKS = ("quicktext", "quicktext-b")
MODELS = ("reference-typeset", "reference-noise", "reference-blank")
ON_GPUS = "declare -gA INFER_GPU_MAP=({})\n".format(" ".join(f"['{name}']=1" for name in MODELS))
# the models of the text reader take seconds; this one's scores are those of the bytes of each image, too
_READER = """

import hashlib
PPOCR.read = lambda self, data: decode(data) and hashlib.sha256(data).hexdigest()
"""
_SLOW_NOISE = """
import random
import time
from pathlib import Path

from PIL import Image


class SlowNoise:
    def __init__(self, model_path):
        self.model_name = "{name}"

    def generate(self, prompt, seed=42):
        time.sleep(float(Path("{name}.seconds").read_text() or 0))
        return Image.frombytes("RGB", (48, 48), random.Random(f"{{prompt}}{{seed}}").randbytes(48 * 48 * 3))
"""
# a queue that nobody else looks at, on this machine
_QUICK = """

_TICK, _LOOK_EVERY, _TAKEN_WITHIN = 0.2, 0.5, 5.0
"""


def make_cluster_checkout(folder: Path) -> Path:
    """With two benchmarks of text, and models that take a GPU each, whether they use it or not."""
    checkout = make_checkout(folder)
    variants = checkout / "benchmarks" / "variants"
    variants.mkdir()
    (variants / "benchmark.py").write_text(_VARIANTS)
    shutil.copy2(checkout / "benchmarks/quicktext/data/prompts.jsonl", variants)
    (checkout / "config.local.sh").write_text(ON_GPUS)
    for name, more in (("eval_models/ocr.py", _READER), ("imageevalkit/slurm/cluster.py", _QUICK)):
        with (checkout / name).open("a") as file:
            file.write(more)
    return checkout


def add_slow_model(checkout: Path, name: str = "slow", gpus: int = 1, seconds: float = 1.0) -> list[str]:
    """Words for a model of noise, each image of which takes ``seconds``, until :func:`hurry` is called."""
    (checkout / f"{name}.seconds").write_text(str(seconds))
    code = _SLOW_NOISE.format(name=name)
    add_model(checkout, name, "SlowNoise", code, gpus=gpus)
    return ["--model_names", name, "--ds_names", "quicktext"]


def hurry(checkout: Path, *names: str) -> None:
    """From now on images of these models take no time."""
    for name in names or ("slow",):
        (checkout / f"{name}.seconds").write_text("0")


def start(checkout: Path, *words: str) -> subprocess.Popen[str]:
    """``bash eval.sh --launcher slurm`` in ``checkout``."""
    return subprocess.Popen(
        ["bash", str(checkout / "eval.sh"), *words, "--launcher", "slurm"],
        env=environ(checkout) | {"SLURM_CONF": os.environ["SLURM_CONF"]},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )


def records(checkout: Path, model: str) -> list[dict[str, Any]]:
    """Returns the records of the images of ``model`` and quicktext."""
    path = checkout / "output" / model / "quicktext" / "generation.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def count(checkout: Path, model: str) -> int:
    return len(records(checkout, model))


def run_folder(checkout: Path) -> Path:
    """Returns the folder of the last run."""
    return max((checkout / "log" / "runs").iterdir(), key=lambda folder: folder.stat().st_mtime_ns)


def states(checkout: Path) -> dict[str, str]:
    """How each cell of the last run ended."""
    summary = json.loads((run_folder(checkout) / "summary.json").read_text())
    return {cell["cell"]: cell["state"] for cell in summary["cells"]}


def log_of(checkout: Path, job: str) -> str:
    """Returns the output of ``job`` (``generate_slow``) on its nodes, without the stage's own output."""
    return (run_folder(checkout) / "slurm" / f"{job}.log").read_text()


def processes(checkout: Path) -> list[list[str]]:
    """Returns the processes of jobs and launchers of ``checkout``."""
    found = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    return [words for words in found if str(checkout) in " ".join(words)]
