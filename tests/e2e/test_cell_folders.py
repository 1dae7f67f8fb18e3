"""Folders of cells: names that would lie in each other, folders removed in mid-run, locks, and a full disk of logs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from imageevalkit.common.errors import UserError
from imageevalkit.store.cell import Cell, lock_cell, output_root
from tests.support.api_runs import ApiRuns, message, text_of
from tests.support.checkout import needs_driver_env
from tests.support.commands import eval_here
from tests.support.image_server import Received
from tests.support.waiting import LONGEST_WAIT

pytestmark = needs_driver_env


# Names


def refusal(*models: str, benchmarks: str = "quicktext") -> str:
    """Why a run of models behind an API is refused before anything starts; empty: it is not."""
    words = ("--model_names", ";".join(models), "--ds_names", benchmarks, "--use_api", "true")
    return eval_here(*words, "--eval", "false", "--dry_run").error


@pytest.mark.parametrize(
    ("models", "says"),
    [
        (("org/m", "org/m/wise"), "give one of them another name"),
        (("m/quicktext",), "where the images of model 'm' for benchmark quicktext are"),
        (("m/wise", "google/gemini-3-pro-image", "google"), ""),
        (("m" * 201,), "has more than 200 bytes"),
        (("rewrites",), "output/rewrites is for other files of the runs"),
    ],
)
def test_names_whose_folders_would_lie_in_each_other_are_refused(models: tuple[str, ...], says: str) -> None:
    records = output_root() / "m/quicktext/generation.jsonl"
    records.parent.mkdir(parents=True)
    records.touch()
    said = refusal(*models, benchmarks="quicktext;wise" if "org/m" in models else "quicktext")
    assert says in said and bool(said) == bool(says)


# Folders that go


def test_a_cell_that_loses_files_while_it_is_written_is_not_complete(api: ApiRuns) -> None:
    losses = {"whole": "", "one": "one image"}
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
    assert api.run(models=[*losses], limit=12).returncode == 0
    for model in losses:
        assert api.statuses(model) == {"ok": 12}
        assert api.images_agree(model)


# Locks

HOLDER = """
import os, time
from imageevalkit.store.cell import Cell, lock_cell
lock_cell(Cell("m", "x"))
child = os.fork()
if child:
    print(os.getpid(), child, flush=True)
    os._exit(0)
time.sleep(600)
"""


def test_the_process_that_is_named_lives_and_holds_the_lock() -> None:
    command = [sys.executable, "-c", HOLDER]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    parent, child = map(int, process.stdout.readline().split())
    process.wait(LONGEST_WAIT)
    says = f"by process {child}, which is left of a run whose process {parent} has ended; end it"
    try:
        with pytest.raises(UserError, match=says):
            lock_cell(Cell("m", "x"), grace=0.5)
    finally:
        os.kill(child, signal.SIGKILL)
    os.close(lock_cell(Cell("m", "x")))


# A full disk of logs


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


def test_a_disk_of_logs_that_fills_up_costs_no_image_and_is_told(api: ApiRuns, small_log: Path) -> None:
    def choose(request: Received, attempt: int) -> str:
        if len(api.server.requests) == 3:
            with (small_log / "filler").open("ab", buffering=0) as file, contextlib.suppress(OSError):
                while file.write(bytes(512)):
                    pass
        return "ok"

    api.server.choose = choose
    api.server.latency = 0.1
    run = api.run("--eval", "true", limit=8, workers=2, status=1)
    words = f"the disk of {small_log} is full: free some space and run the same command again"
    assert words in message(run, "generate: "), text_of(run)
    assert "Traceback" not in text_of(run) and "attempt 2" not in run.stderr
    assert api.statuses() == {"ok": 8}
    assert len(api.server.requests) == 8
