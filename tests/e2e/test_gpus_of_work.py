"""GPUs by the work that is left: none for a finished cell, which must not wait for what others use."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from imageevalkit.common import images
from imageevalkit.extras.dry_run.describe import gpus_of
from imageevalkit.generate.calls_left import calls_of
from imageevalkit.generate.cell_run import GenerateOptions
from imageevalkit.generate.model import Refused
from imageevalkit.jobs.estimates import Datasets
from imageevalkit.jobs.plan import GenerateOrder, Job, Plan
from imageevalkit.plan import planner as gpus_of_work
from imageevalkit.plan.planner import with_gpus_of_work
from imageevalkit.store.cell import Cell
from tests.support.checkout import make_checkout, needs_driver_env, run_eval
from tests.support.fake_gpus import install_fake_gpus, set_memory
from tests.support.generation import SETTING, FakeDataset, FakeModel, generate

CELL = Cell("m", "fake")


def order(overwrite: bool = False, retry_refused: bool = False, **kwargs: Any) -> GenerateOrder:
    return GenerateOrder(
        False,
        {"m": {"t2i": {**SETTING, "model_kwargs": kwargs}}},
        overwrite=overwrite,
        retry_refused=retry_refused,
        replica_gpus=1,
    )


def left(cells: list[str], given: GenerateOrder, enough: int) -> int:
    job = Job("generate:m", "generate", [], cells, [], gpus=1, gpus_at_most=enough, order=given)
    return calls_of(job, Datasets())


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], FakeDataset]:
    """Registers the benchmark "fake" with so many items."""

    def register(items: int) -> FakeDataset:
        dataset = FakeDataset(items)
        monkeypatch.setattr(
            "imageevalkit.jobs.estimates.load_dataset", lambda name, settings: {"fake": dataset}[name]
        )
        return dataset

    return register


def test_counts_what_is_left_in_calls(benchmark: Callable[[int], FakeDataset]) -> None:
    dataset = benchmark(9)
    assert left(["m/fake"], order(), 100) == 9
    assert left(["m/fake"], order(batch_size=4), 100) == 3
    generate(FakeModel(), dataset)
    assert left(["m/fake"], order(), 100) == 0
    (CELL.folder / "images/00001.png").unlink()
    flipped = bytearray((CELL.folder / "images/00002.png").read_bytes())
    flipped[-20] ^= 1
    (CELL.folder / "images/00002.png").write_bytes(flipped)
    set_age(CELL.folder / "images/00002.png", -60)
    assert left(["m/fake"], order(), 100) == 2, "of the same size, and damaged"
    assert left(["m/fake"], order(guidance_scale=5), 100) == 0, "images are stale: the cell stops"
    assert left(["m/fake"], order(guidance_scale=5, overwrite=True), 100) == 9


def set_age(path: Path, seconds: float) -> None:
    """``path`` was changed so many seconds ago."""
    os.utime(path, (time.time() - seconds,) * 2)


def test_no_image_is_read_that_is_as_old_as_its_record(
    benchmark: Callable[[int], FakeDataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The images of a large run are terabytes, so only the job that may generate them again reads them."""
    generate(FakeModel(), benchmark(4))
    read = list[str]()
    whole = images.bytes_of_file

    def reading(path: Path) -> bytes | None:
        read.append(path.name)
        return whole(path)

    monkeypatch.setattr(images, "bytes_of_file", reading)
    assert left(["m/fake"], order(), 100) == 0 and not read
    set_age(CELL.folder / "images/00001.png", -60)
    (CELL.folder / "images/00002.png").write_bytes(b"")
    assert left(["m/fake"], order(), 100) == 1, "the first has another time, and its bytes"
    assert {*read} == {"00001.png", "00002.png", ".00002.png.part"}


def test_refused_items_count_when_they_are_sent_again(benchmark: Callable[[int], FakeDataset]) -> None:
    def fault(prompt: str) -> None:
        if prompt == "prompt 1":
            raise Refused("no")

    generate(FakeModel(fault), benchmark(3), GenerateOptions())
    assert left(["m/fake"], order(), 100) == 0
    assert left(["m/fake"], order(retry_refused=True), 100) == 1


@pytest.mark.parametrize(
    ("calls", "gpus", "at_most", "shown"),
    [
        (None, 2, 8, "up to 4 replicas × 2 GPUs"),
        (0, 0, 0, "0 GPUs"),
        (3, 2, 6, "up to 3 replicas × 2 GPUs"),
    ],
)
def test_gpus_of_a_job(
    monkeypatch: pytest.MonkeyPatch, calls: int | None, gpus: int, at_most: int, shown: str
) -> None:
    monkeypatch.setattr(
        gpus_of_work, "_calls_left", lambda plan: {} if calls is None else {plan.jobs[0].name: calls}
    )
    given = replace(order(), replica_gpus=2, replicas=5)
    job = Job("generate:m", "generate", [], ["m/fake"], [], gpus=2, gpus_at_most=8, order=given)
    other = Job("evaluate:m/fake", "evaluate", [], ["m/fake"], [], gpus=1)
    plan = with_gpus_of_work(Plan("folder", False, [job, other]))
    assert (plan.jobs[0].gpus, plan.jobs[0].gpus_at_most, gpus_of(plan.jobs[0])) == (gpus, at_most, shown)
    assert plan.jobs[1] == other


@needs_driver_env
def test_a_job_that_cannot_be_counted_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [Job("generate:m", "generate", [], ["m/gone"], [], gpus=1, gpus_at_most=4, order=order())]
    assert with_gpus_of_work(Plan("folder", False, jobs)).jobs == jobs
    monkeypatch.setattr(gpus_of_work, "DRIVER_PYTHON", "/nonexistent")
    assert with_gpus_of_work(Plan("folder", False, jobs)).jobs == jobs


@needs_driver_env
def test_a_finished_run_waits_for_no_gpu(tmp_path: Path) -> None:
    """The run shows the GPUs that it took. Again with all GPUs in use: it ends."""
    checkout = make_checkout(tmp_path / "checkout")
    (checkout / "config.local.sh").write_text("INFER_GPU_MAP['reference-noise']=1\n")
    uuids = [f"GPU-{tmp_path.name}-{n}" for n in range(2)]
    machine = install_fake_gpus(tmp_path / "gpus", uuids)
    words = ["--model_names", "reference-noise", "--ds_names", "quicktext", "--limit", "2", "--eval", "false"]
    first = run_eval(checkout, *words, FAKE_NVML=machine)
    assert "generate:reference-noise on GPUs 0, 1, log " in first.stderr, first.stdout + first.stderr
    set_memory(tmp_path / "gpus", dict.fromkeys(uuids, 70))
    again = run_eval(checkout, *words, FAKE_NVML=machine)
    assert (again.returncode, "waiting" in again.stderr) == (0, False), again.stdout + again.stderr
    for uuid in uuids:
        Path("/tmp/imageevalkit-gpus", uuid).unlink(missing_ok=True)
