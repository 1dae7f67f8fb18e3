"""``--watch``: checkpoints as a trainer writes them, evaluated by a real run of eval.sh that signals end."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from custom_models.model_settings.own import CHECKPOINTS
from tests.support.checkout import environ, make_checkout, needs_driver_env
from tests.support.fake_vllm import install, starts
from tests.support.jobs import marked
from tests.support.served_benchmark import add_served_benchmark
from tests.support.waiting import LONGEST_WAIT, wait_for

pytestmark = needs_driver_env
WEIGHTS = "unet/diffusion_pytorch_model.safetensors"


class Watching:
    """``bash eval.sh --watch`` in the background; ``said`` is what it has printed."""

    def __init__(self, checkout: Path, folder: Path, *words: str, **env: str) -> None:
        self.output, self._file = checkout / "output", checkout / "said.txt"
        command = ["bash", str(checkout / "eval.sh"), "--model_names", "shapes-tiny"]
        with self._file.open("w") as out:
            self.process = subprocess.Popen(
                [*command, "--watch", str(folder), *words],
                env=environ(checkout, CUDA_VISIBLE_DEVICES="", **env),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def said(self) -> str:
        return self._file.read_text()

    def until(self, text: str) -> None:
        wait_for(lambda: text in self.said or self.process.poll() is not None)
        assert text in self.said, self.said

    def is_evaluated(self, step: int) -> None:
        path = self.output / f"shapes-tiny@{step}/alpha/result.json"
        wait_for(lambda: path.exists() or self.process.poll() is not None)
        assert json.loads(path.read_text())["state"] == "complete", self.said

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(LONGEST_WAIT)


class Tree:
    def __init__(self, folder: Path) -> None:
        self.checkout = make_checkout(folder / "checkout")
        self.folder, self.marker = folder / "runs/one", str(folder)
        self.folder.parent.mkdir()
        add_served_benchmark(self.checkout, "alpha")
        self._started = list[Watching]()

    def add(self, name: str, weights: str, half: bool = False) -> None:
        """Adds a checkpoint, or one whose last file is not complete."""
        begun = shutil.copytree(CHECKPOINTS / weights, self.folder.parent / "begun")
        if half:
            os.truncate(begun / WEIGHTS, 100_000)
        self.folder.mkdir(exist_ok=True)
        begun.rename(self.folder / name)

    def watch(self, *words: str, **env: str) -> Watching:
        self._started.append(Watching(self.checkout, self.folder, *words, TEST_MARKER=self.marker, **env))
        return self._started[-1]

    def close(self) -> None:
        for one in self._started:
            if one.process.poll() is None:
                one.process.kill()


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    made = Tree(tmp_path)
    yield made
    made.close()


def test_checkpoints_are_evaluated_as_they_become_whole_by_one_server(tree: Tree, tmp_path: Path) -> None:
    starts_file = install(tmp_path / "conda/envs/vllm")
    conda = {"CONDA_BASE": str(tmp_path / "conda")}
    words = ("--ds_names", "alpha;quickshapes", "--limit", "12")
    watching = tree.watch(*words, **conda)
    watching.until("0 checkpoints evaluated")
    tree.add("tmp-checkpoint-600", "early")
    tree.add("checkpoint-700", "early", half=True)
    tree.add("checkpoint-500", "early", half=True)
    watching.until(
        "shapes-tiny@500 waits: unet/diffusion_pytorch_model.safetensors has 100000 bytes instead of"
    )
    watching.until("shapes-tiny@700 waits:")
    watching.until("2 not complete yet")
    shutil.rmtree(tree.folder / "checkpoint-700")
    watching.until("shapes-tiny@700 was deleted before it was complete: skipped")
    assert not starts(starts_file)
    shutil.copy(CHECKPOINTS / "early" / WEIGHTS, tree.folder / "checkpoint-500" / WEIGHTS)
    watching.is_evaluated(500)
    tree.add("checkpoint-1000", "late")
    watching.is_evaluated(1000)
    watching.until("2 checkpoints evaluated")
    assert watching.stop() == 0, watching.said
    assert len(starts(starts_file)) == 1, "the judge is loaded once"
    assert not marked(tree.marker)
    assert sorted(path.name for path in watching.output.glob("shapes-*")) == [
        "shapes-tiny@1000",
        "shapes-tiny@500",
    ]
    steps = (watching.output / "leaderboard.md").read_text().partition("### shapes-tiny on quickshapes")[2]
    first, last = re.findall(r"^\| (?:500|1000 \\\*) \| ([\d.]+)", steps, re.M)
    assert float(last) - float(first) > 0.3, "the curve of the training rises"

    # another start goes on: what is done is not done again
    again = tree.watch(*words, **conda)
    again.until("shapes-tiny@500, shapes-tiny@1000: complete, and evaluated before")
    again.until("2 checkpoints evaluated; ")
    assert len(starts(starts_file)) == 1

    assert again.stop(signal.SIGINT) == 0
    assert "Traceback" not in again.said + watching.said


def test_what_was_under_way_is_gone_on_with(tree: Tree) -> None:
    tree.add("1000", "late")
    words = ("--ds_names", "quickshapes", "--limit", "24")
    watching = tree.watch(*words)
    watching.until("running     generate shapes-tiny@1000/quickshapes")
    assert watching.stop() == 143
    assert not marked(tree.marker)
    again = tree.watch(*words)
    again.until("1 checkpoint evaluated")
    assert again.stop() == 0
    assert "Traceback" not in again.said
