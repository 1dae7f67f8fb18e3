"""Folders of cells: names that would lie in each other, folders removed in mid-run, locks, and a full disk of logs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from imageevalkit.cli.command_line import parse
from imageevalkit.common.errors import UserError
from imageevalkit.plan.config import Config
from imageevalkit.plan.options import resolve
from imageevalkit.plan.planner import make_plan
from imageevalkit.store.cell import Cell, lock_cell, output_root
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


def refusal(*models: str, benchmarks: str = "quicktext") -> str:
    """Why a run of models behind an API is refused before anything starts; empty: it is not."""
    words = [
        "--model_names",
        ";".join(models),
        "--ds_names",
        benchmarks,
        "--use_api",
        "true",
        "--eval",
        "false",
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("API_KEY", "EMPTY")
        try:
            make_plan(resolve(parse(words), Config()), Config())
        except UserError as error:
            assert "\n" not in str(error)
            return str(error)
    return ""


@pytest.mark.parametrize(
    ("inner", "outer"),
    [("m/quicktext", "m"), ("m/quicktext/evaluators", "m"), ("org/m/wise", "org/m")],
)
def test_cells_that_would_lie_in_each_other_are_refused_before_anything_starts(
    inner: str, outer: str
) -> None:
    said = refusal(outer, inner, benchmarks="quicktext;wise")
    assert said.startswith(f"model '{inner}' has its folder in {output_root()}/{outer}/")
    assert f"where the images of model '{outer}' for benchmark" in said
    assert "give one of them another name" in said


def test_so_are_those_of_an_earlier_run_and_other_slashes_are_not() -> None:
    for key in ("m/quicktext", "m/wise/quicktext"):
        records = output_root() / key / "generation.jsonl"
        records.parent.mkdir(parents=True)
        records.touch()
    assert "where the images of model 'm' for benchmark quicktext are" in refusal("m/quicktext")
    assert refusal("m/wise", "google/gemini-3-pro-image", "google") == ""
    assert "the folder of model 'm/wise'" in refusal("m", benchmarks="wise")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("m" * 201, "has more than 200 bytes"),
        ("report.html", "output/report.html is for other files of the runs"),
        ("rewrites", "output/rewrites is for other files of the runs"),
    ],
)
def test_a_name_that_no_folder_can_have_is_refused(name: str, says: str) -> None:
    assert says in refusal(name)


def test_what_is_in_the_way_of_images_is_met_before_any_is_paid_for(api: ApiRuns) -> None:
    folder = api.checkout / "output/m/quicktext/images"
    folder.mkdir(parents=True)
    (folder / "en").write_text("a file")
    run = api.run(models=["m"], limit=4)
    assert run.returncode == 1
    assert f"no image can be stored in {folder}/en: File exists; remove or repair it" in text_of(run)
    assert not api.server.requests


# Folders that go


def test_a_cell_that_loses_files_while_it_is_written_is_not_complete(api: ApiRuns) -> None:
    losses = {"whole": "", "images": "images", "one": "one image", "record": "generation.jsonl"}
    cells = {model: api.checkout / f"output/{model}/quicktext" for model in losses}
    waiting = set(losses)

    def choose(request: Received, attempt: int) -> str:
        model = request.fields["model"]
        made = [*(cells[model] / "images").rglob("*.jpg")]
        if model in waiting and len(made) >= 4:
            waiting.remove(model)
            path = made[0] if model == "one" else cells[model] / losses[model]
            # at once: else an image that is stored meanwhile may stay behind without its record
            path.rename(api.checkout / f"gone-{model}")
        return "ok"

    api.server.choose, api.server.latency = choose, 0.1
    run = api.run(models=[*losses], limit=12, workers=2)
    assert run.returncode == 1 and not waiting, text_of(run)
    for cell in cells.values():
        assert "the same command" in message(run, f"{cell}")
    assert "Traceback" not in text_of(run)
    again = api.run(models=[*losses], limit=12)
    # nothing says how the images of one were made: they are not paid for again unasked
    assert again.returncode == 1 and message(again, "images are stale"), text_of(again)
    assert api.run("--overwrite", models=["record"], limit=12).returncode == 0
    for model in losses:
        assert api.statuses(model) == {"ok": 12}
        assert api.images_agree(model)


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
