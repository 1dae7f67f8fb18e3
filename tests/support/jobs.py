"""Small real jobs for launcher tests: each is ``python -c`` with what it needs of the library at hand."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from imageevalkit.jobs.plan import Job, Plan
from imageevalkit.store.cell import REPO

_PREAMBLE = """
import json, os, signal, subprocess, sys, time
from pathlib import Path
from imageevalkit.jobs.plan import Outcome, cell_of, write_outcome
from imageevalkit.jobs.progress import Progress, ProgressWriter
FOLDER = Path(os.environ["TEST_RUN_FOLDER"])
def outcome(cell, stage, state="complete", message=""):
    write_outcome(FOLDER, cell_of(cell), stage, Outcome(state, message))
def progress_writer():
    return ProgressWriter(FOLDER / "progress" / (STEM + ".jsonl"))
def stamp(name):
    (FOLDER / name).write_text(str(time.monotonic()))
def count(name):
    with (FOLDER / name).open("a") as file:
        file.write("x")
    return (FOLDER / name).stat().st_size
"""

# A tree that tries to get away: a setsid grandchild and a double-forked daemon, both deaf to SIGTERM.
ESCAPING = """
deaf = "trap '' TERM INT HUP; while :; do sleep 1; done"
subprocess.Popen(["setsid", "sh", "-c", deaf])
subprocess.Popen(["sh", "-c", "(setsid sh -c \\"$0\\" </dev/null >/dev/null 2>&1 &)", deaf])
stamp("escaped")
time.sleep(600)
"""


def python_job(
    folder: Path,
    name: str,
    code: str,
    cells: list[str],
    *,
    after: list[str] | None = None,
    always: bool = False,
    cores: int = 1,
    gpus: int = 0,
    gpus_at_most: int = 0,
    retries: int = 0,
) -> Job:
    """A job that runs ``code``; its stage is the part of ``name`` before the colon."""
    stage = name.partition(":")[0]
    stem = name.replace(":", "_").replace("/", "__")
    return Job(
        name=name,
        stage=stage,
        command=[sys.executable, "-c", f"STEM = {stem!r}\n{_PREAMBLE}{code}"],
        cells=cells,
        logs=[str(folder / "log" / f"{stem}.log")],
        environ={"TEST_RUN_FOLDER": str(folder)},
        after=after or [],
        always=always,
        cores=cores,
        gpus=gpus,
        gpus_at_most=gpus_at_most,
        retries=retries,
    )


def done_job(folder: Path, name: str, cells: list[str], **kwargs: object) -> Job:
    """A job that leaves the outcome "complete" for each of its cells."""
    stage = name.partition(":")[0]
    code = "".join(f"outcome({cell!r}, {stage!r})\n" for cell in cells)
    return python_job(folder, name, code, cells, **kwargs)  # type: ignore[arg-type]


@contextlib.contextmanager
def launcher(plan: Plan, marker: str, **popen: object) -> Iterator[subprocess.Popen[str]]:
    """The launcher as its own process running ``plan``; ``marker`` is in its and its jobs' environment."""
    plan.save()
    code = (
        "import sys; from pathlib import Path\n"
        "from imageevalkit.store.cell import lock_cell; from imageevalkit.jobs.plan import cell_of, load_plan\n"
        "from imageevalkit.common.errors import run_main; from imageevalkit.run.local import run_plan\n"
        "from imageevalkit.common.logs import print_without_fear; print_without_fear()\n"
        "plan = load_plan(Path(sys.argv[1]))\n"
        "locks = {cell: lock_cell(cell_of(cell)) for cell in plan.cells}\n"
        "run_main(lambda: run_plan(plan, locks).status)\n"
    )
    environ = os.environ | {
        "PYTHONPATH": f"{REPO / 'tests/support/fake_nvml'}{os.pathsep}{REPO}",
        "TEST_MARKER": marker,
        "IMAGEEVALKIT_OUTPUT": str(Path(plan.run_folder) / "output"),
    }
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(Path(plan.run_folder) / "plan.json")],
        **{"env": environ, "text": True, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **popen},  # type: ignore[call-overload]
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        for pid in marked(marker):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def commands_in(folder: Path) -> list[tuple[int, list[bytes]]]:
    """Ids and command lines of all living processes that work in ``folder``."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            if (process / "cwd").readlink() == folder:
                found.append((int(process.name), (process / "cmdline").read_bytes().split(b"\0")))
    return found


def is_alive(pid: int) -> bool:
    """Whether a process runs: a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def marked(marker: str) -> list[int]:
    """Ids of live processes that have ``TEST_MARKER=marker`` in their environment."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and folder.name != str(os.getpid()):
            with contextlib.suppress(OSError):
                # a zombie's environment reads empty: it is gone as far as anyone can tell
                if f"TEST_MARKER={marker}\0".encode() in (folder / "environ").read_bytes():
                    found.append(int(folder.name))
    return found
