"""``--watch``: checkpoints as a trainer writes them, evaluated by a real run of eval.sh that signals end."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from custom_models.model_settings.own import CHECKPOINTS
from tests.support.checkout import add_model, environ, make_checkout, needs_driver_env
from tests.support.checkpoints import TRAINED, begin_checkpoint, end_checkpoint
from tests.support.fake_vllm import install, starts
from tests.support.jobs import marked
from tests.support.served_benchmark import add_served_benchmark
from tests.support.waiting import LONGEST_WAIT, wait_for

pytestmark = needs_driver_env


class Watching:
    """``bash eval.sh --watch`` in the background; ``said`` is what it has printed."""

    def __init__(self, checkout: Path, folder: Path, *words: str, **env: str) -> None:
        self.output, self._file = checkout / "output", checkout / "said.txt"
        command = ["bash", str(checkout / "eval.sh"), "--model_names", "run", "--ds_names", "alpha"]
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
        path = self.output / f"run@{step}/alpha/result.json"
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
        add_model(self.checkout, "run", "Trained", TRAINED)
        self._started = list[Watching]()

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
    watching = tree.watch(**conda)
    watching.until("0 checkpoints evaluated")
    end_checkpoint(tree.folder / "tmp-checkpoint-600", 9)
    begin_checkpoint(tree.folder / "checkpoint-700")
    begin_checkpoint(tree.folder / "checkpoint-500")
    watching.until("run@500 waits: model.safetensors has 1000 bytes instead of")
    watching.until("run@700 waits:")
    watching.until("2 not complete yet")
    shutil.rmtree(tree.folder / "checkpoint-700")
    watching.until("run@700 was deleted before it was complete: skipped")
    assert not starts(starts_file)
    end_checkpoint(tree.folder / "checkpoint-500", 40)
    watching.is_evaluated(500)
    end_checkpoint(tree.folder / "checkpoint-1000", 80)
    watching.is_evaluated(1000)
    watching.until("2 checkpoints evaluated")
    assert watching.stop() == 0, watching.said
    assert len(starts(starts_file)) == 1, "the judge is loaded once"
    assert not marked(tree.marker)
    assert sorted(path.name for path in watching.output.glob("run@*")) == ["run@1000", "run@500"]
    steps = (watching.output / "leaderboard.md").read_text().partition("## By training step")[2]
    assert steps.index("| 500") < steps.index("| 1000")

    # another start goes on: what is done is not done again
    again = tree.watch(**conda)
    again.until("run@500, run@1000: complete, and evaluated before")
    again.until("2 checkpoints evaluated; ")
    assert len(starts(starts_file)) == 1

    assert again.stop(signal.SIGINT) == 0
    assert "Traceback" not in again.said + watching.said


def test_what_was_under_way_is_gone_on_with(tree: Tree, tmp_path: Path) -> None:
    install(tmp_path / "conda/envs/vllm")
    conda = {"CONDA_BASE": str(tmp_path / "conda")}
    end_checkpoint(tree.folder / "1000", 40)
    watching = tree.watch("--custom_model_kwargses", "seconds=30", **conda)
    watching.until("running     generate run@1000/alpha 0/3")
    assert watching.stop() == 143
    assert not marked(tree.marker)
    again = tree.watch(**conda)
    again.is_evaluated(1000)
    again.until("1 checkpoint evaluated")
    assert again.stop() == 0
    assert "Traceback" not in again.said


def test_the_curve_of_a_training_rises(tree: Tree) -> None:
    names = ("--model_names", "shapes-tiny", "--ds_names", "quickshapes")
    watching = tree.watch(*names, "--limit", "12")
    for number, (step, weights) in enumerate({"step-001000": "early", "step-020000": "late"}.items()):
        watching.until(f"{number} checkpoint")
        shutil.copytree(CHECKPOINTS / weights, tree.folder / step)
    watching.until("2 checkpoints evaluated")
    assert watching.stop() == 0, watching.said
    table = (watching.output / "leaderboard.md").read_text().partition("## By training step")[2]
    first, last = re.findall(r"^\| (?:1000|20000 \\\*) \| ([\d.]+)", table, re.M)
    assert float(last) - float(first) > 0.3, table
