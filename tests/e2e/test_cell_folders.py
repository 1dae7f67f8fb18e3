"""Folders of cells: names that would lie in each other, folders removed in mid-run, locks, and a full disk of logs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from imageevalkit.common.errors import UserError
from imageevalkit.store.cell import Cell, lock_cell
from tests.support.api_runs import ApiRuns, message, text_of
from tests.support.checkout import add_model, find_no_text, make_checkout, needs_driver_env
from tests.support.image_server import ImageServer, Received
from tests.support.waiting import LONGEST_WAIT

pytestmark = needs_driver_env


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ApiRuns]:
    with ImageServer() as server:
        yield ApiRuns(find_no_text(make_checkout(tmp_path / "checkout")), server)


# Names


@pytest.mark.parametrize(
    ("models", "benchmarks"),
    [
        (["m", "m/quicktext"], ["quicktext"]),
        (["m/quicktext/evaluators", "m"], ["quicktext"]),
        (["org/m/wise", "org/m"], ["quicktext", "wise"]),
    ],
)
def test_cells_that_would_lie_in_each_other_are_refused_before_anything_starts(
    api: ApiRuns, models: list[str], benchmarks: list[str]
) -> None:
    run = api.run(models=models, benchmarks=benchmarks, limit=1)
    assert run.returncode == 2
    inner, outer = sorted(models, key=len, reverse=True)
    assert run.stderr.startswith(f"error: model '{inner}' has its folder in {api.checkout}/output/{outer}/")
    assert f"where the images of model '{outer}' for benchmark" in run.stderr
    assert "give one of them another name" in run.stderr
    assert run.stderr.count("\n") == 1
    assert not api.server.requests
    assert not (api.checkout / "output").exists()


def test_so_are_those_of_an_earlier_run_and_other_slashes_are_not(api: ApiRuns) -> None:
    assert api.run(models=["m"], limit=1).returncode == 0
    later = api.run(models=["m/quicktext"], limit=1)
    assert later.returncode == 2
    assert "where the images of model 'm' for benchmark quicktext are" in later.stderr
    fine = api.run("--eval", "true", models=["m/wise", "google/gemini-3-pro-image", "google"], limit=1)
    assert fine.returncode == 0, text_of(fine)
    around = api.run(models=["m"], benchmarks=["wise"], limit=1)
    assert around.returncode == 2
    assert "the folder of model 'm/wise'" in around.stderr
    report = (api.checkout / "output/leaderboard.csv").read_text()
    assert all(name in report for name in ("m/wise", "google/gemini-3-pro-image"))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("m" * 201, "has more than 200 bytes"),
        ("report.html", "output/report.html is a report of the run"),
        ("rewrites", "output/rewrites holds rewritten prompts"),
    ],
)
def test_a_name_that_no_folder_can_have_is_refused(api: ApiRuns, name: str, says: str) -> None:
    run = api.run(models=[name], limit=1)
    assert (run.returncode, run.stderr.count("\n")) == (2, 1)
    assert says in run.stderr
    assert not (api.checkout / "output").exists()


def test_what_is_in_the_way_of_images_is_met_before_any_is_paid_for(api: ApiRuns) -> None:
    folder = api.checkout / "output/m/quicktext/images"
    folder.mkdir(parents=True)
    (folder / "en").write_text("a file")
    run = api.run(models=["m"], limit=4)
    assert run.returncode == 1
    assert f"no image can be stored in {folder}/en: File exists; remove or mend what is there" in text_of(run)
    assert not api.server.requests


# Folders that go


@pytest.mark.parametrize("what", ["", "images", "one image", "generation.jsonl"])
def test_a_cell_that_loses_files_while_it_is_written_is_not_complete(api: ApiRuns, what: str) -> None:
    cell = api.checkout / "output/model-a/quicktext"

    def choose(request: Received, attempt: int) -> str:
        if len(api.server.requests) == 8:
            if what == "one image":
                next((cell / "images").rglob("*.jpg")).unlink()
            elif (cell / what).is_dir():
                # at once: else an image that is stored meanwhile may stay behind without its record
                (cell / what).rename(api.checkout / "gone")
            else:
                (cell / what).unlink()
        return "ok"

    api.server.choose, api.server.latency = choose, 0.1
    run = api.run(limit=12, workers=2)
    assert run.returncode == 1, text_of(run)
    assert f"{cell}" in message(run, "removed")
    assert "the same command" in message(run, "removed")
    assert "Traceback" not in text_of(run)
    api.server.choose = lambda request, attempt: "ok"
    again = api.run(limit=12)
    if what == "generation.jsonl":
        # nothing says how the images were made: they are not paid for again unasked
        assert again.returncode == 1 and "images are stale" in text_of(again), text_of(again)
        again = api.run("--overwrite", limit=12)
    assert again.returncode == 0, text_of(again)
    assert api.statuses() == {"ok": 12}
    assert api.images_agree()


# Locks

HOLDER = """
import os, sys, time
from imageevalkit.store.cell import Cell, lock_cell
fd = lock_cell(Cell("m", "x"))
child = os.fork()
if child and sys.argv[1] == "dies":
    print(os.getpid(), child, flush=True)
    os._exit(0)
if child:
    print(os.getpid(), child, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("how", ["dies", "lives"])
def test_the_process_that_is_named_lives_and_holds_the_lock(how: str) -> None:
    command = [sys.executable, "-c", HOLDER, how]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    parent, child = map(int, process.stdout.readline().split())
    try:
        if how == "dies":
            process.wait(LONGEST_WAIT)
        with pytest.raises(UserError) as refused:
            lock_cell(Cell("m", "x"), grace=0.5)
        said = str(refused.value)
        if how == "lives":
            assert f"being written by another run (process {parent}); wait" in said
        else:
            assert (
                f"by process {child}, which is left of a run whose process {parent} has ended; end it" in said
            )
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    os.close(lock_cell(Cell("m", "x")))


def test_a_number_that_another_process_has_by_now_is_not_named() -> None:
    cell = Cell("m", "x")
    with subprocess.Popen(["sleep", "600"]) as other:
        fd = lock_cell(cell)
        try:
            os.ftruncate(fd, 0)
            os.pwrite(fd, str(other.pid).encode(), 0)
            with pytest.raises(UserError) as refused:
                lock_cell(cell, grace=0.5)
            assert f"by process {os.getpid()}, " in str(refused.value)
        finally:
            os.close(fd)
            other.kill()


# A full disk of logs

CHATTY = """
import os
from PIL import Image


class Chatty:
    def __init__(self, model_path, filler):
        self.model_name, self.filler = "chatty", filler

    def generate(self, prompt, seed=42):
        with open(self.filler, "ab", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(512))
            except OSError:
                pass
        print("drawing", prompt, "x" * 9000)
        return Image.new("RGB", (64, 64), (seed, 2, 3))
"""


@pytest.fixture
def small_log(api: ApiRuns) -> Iterator[Path]:
    """log/ on a disk of its own, of 256 KB."""
    log = api.checkout / "log"
    log.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(log)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small tmpfs needs root")
    yield log
    subprocess.run(["umount", str(log)], check=True)


def fill(log: Path) -> None:
    with (log / "filler").open("ab", buffering=0) as file:
        try:
            while file.write(bytes(512)):
                pass
        except OSError:
            return


def test_a_disk_of_logs_that_fills_up_costs_no_image_and_is_told(api: ApiRuns, small_log: Path) -> None:
    def choose(request: Received, attempt: int) -> str:
        if len(api.server.requests) == 3:
            fill(small_log)
        return "ok"

    api.server.choose = choose
    api.server.latency = 0.1
    run = api.run("--eval", "true", limit=8, workers=2)
    assert run.returncode == 1, text_of(run)
    assert_told(run, small_log)
    assert api.statuses() == {"ok": 8}
    assert len(api.server.requests) == 8
    (small_log / "filler").unlink()
    again = api.run(limit=8)
    assert again.returncode == 0, text_of(again)
    assert len(api.server.requests) == 8


def test_what_a_local_model_prints_then_fails_none_of_its_items(api: ApiRuns, small_log: Path) -> None:
    add_model(api.checkout, "chatty", "Chatty", CHATTY, model_kwargs={"filler": str(small_log / "filler")})
    run = api.run("--use_api", "false", models=["chatty"], limit=6)
    assert run.returncode == 1, text_of(run)
    assert_told(run, small_log)
    assert api.statuses("chatty") == {"ok": 6}


def assert_told(run: subprocess.CompletedProcess[str], log: Path) -> None:
    words = f"the disk of {log} is full: free some space and run the same command again"
    assert words in message(run, "generate: "), text_of(run)
    assert "Traceback" not in text_of(run)
    assert "attempt 2" not in run.stderr


def test_a_disk_of_logs_that_is_full_before_is_a_line(api: ApiRuns, small_log: Path) -> None:
    fill(small_log)
    run = api.run(limit=2)
    assert run.returncode == 2, text_of(run)
    assert (
        "log/ cannot be written: disk full" in run.stderr or f"the disk of {small_log} is full" in run.stderr
    )
    assert run.stderr.count("\n") == 1
    assert not api.server.requests
