"""kill -9 of the generating process at three random moments, then resume: nothing truncated, twice or missing."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from PIL import Image

from custom_models.load_model import MODEL_SETTINGS
from imageevalkit.jobs.plan import GenerateOrder, Job, Plan
from imageevalkit.store.cell import REPO
from imageevalkit.store.pictures import THUMBNAILS
from tests.support.checkout import environ
from tests.support.native_contract import apart

CELL = "shapes-tiny/quickshapes"
KILLS, IMAGES, STEPS = 3, 96, 4


def start(folder: Path) -> subprocess.Popen[bytes]:
    """The generate job of shapes-tiny, in batches of 8, with its results in ``folder``."""
    setting = MODEL_SETTINGS["t2i"]["shapes-tiny"] | {"model_kwargs": {"num_inference_steps": STEPS}}
    order = GenerateOrder(False, {"shapes-tiny": {"t2i": setting}})
    job = Job("generate:m", "generate", [], [CELL], [str(folder / "job.log")], order=order)
    plan = Plan(str(folder / "run"), False, [job]).save()
    command = [sys.executable, "infer/generate.py", "--plan", str(plan), "--job", "generate:m"]
    return subprocess.Popen(command, cwd=REPO, env=environ(REPO, IMAGEEVALKIT_OUTPUT=str(folder)))


def size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def images(folder: Path) -> dict[str, Image.Image]:
    """The images with a final name: each is whole, at every moment."""
    return {path.name: Image.open(path).convert("RGB") for path in (folder / CELL / "images").glob("*.png")}


def test_three_kills(tmp_path: Path) -> None:
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    assert start(undisturbed).wait() == 0
    moments, generation, while_making = random.Random(0), killed / CELL / "generation.jsonl", 0
    for _ in range(KILLS):
        before = size_of(generation)
        process = start(killed)
        while size_of(generation) == before and process.poll() is None:
            time.sleep(0.001)  # until it makes images; then kill it at a random moment of that
        time.sleep(moments.uniform(0.0, 0.2))
        if process.poll() is None:
            process.kill()
            while_making += 1
        process.wait()
        images(killed)
    assert while_making >= KILLS - 1, "most kills must hit a process that is making images"
    assert len(images(killed)) < IMAGES, "and the last one still had some to make"
    assert start(killed).wait() == 0
    whole, resumed = images(undisturbed), images(killed)
    assert whole.keys() == resumed.keys() and len(whole) == IMAGES
    # other batches add up in another order
    assert max(apart(image, resumed[name]) for name, image in whole.items()) <= 2
    records = [json.loads(line) for line in generation.read_text().splitlines()]
    made = Counter(record["item"] for record in records if record["status"] == "ok")
    assert [*made.values()] == [1] * IMAGES, "an item that was recorded is never made again"
    # an image that another batch makes again may have another hash, and the lost one's thumbnail stays half written
    assert not [path for path in (killed / CELL).rglob(".*.part") if path.parent.name != THUMBNAILS]
