"""The local launcher and GPUs: real jobs of several runs on one machine with fake GPUs."""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from imageevalkit.common.errors import ExitStatus
from imageevalkit.jobs.plan import Job, Plan
from imageevalkit.plan.gpus import Gpu
from imageevalkit.run import local
from imageevalkit.run.display import Display, RunSummary, View
from imageevalkit.run.gpu_pool import LEASES, Lease, lock
from imageevalkit.run.local import run_plan
from tests.support.fake_gpus import fail_memory, install_fake_gpus
from tests.support.jobs import ESCAPING, launcher, marked, python_job
from tests.support.waiting import LONGEST_WAIT, wait_for

UUIDS = [f"GPU-test-{os.getpid()}-{n}" for n in range(4)]
_SEES = "print('sees', os.environ['CUDA_VISIBLE_DEVICES']); time.sleep(%s); outcome(%r,'generate')"


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a machine with four GPUs."""
    folder = tmp_path / "gpus"
    monkeypatch.setenv("FAKE_NVML", install_fake_gpus(folder, UUIDS))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(local, "available_cores", lambda: 8)
    yield folder
    for uuid in UUIDS:
        (LEASES / uuid).unlink(missing_ok=True)


def gpu_job(folder: Path, model: str, gpus: int, at_most: int = 0, seconds: float = 0.0) -> Job:
    code = _SEES % (seconds, f"{model}/a")
    return python_job(folder, f"generate:{model}", code, [f"{model}/a"], gpus=gpus, gpus_at_most=at_most)


def run(folder: Path, jobs: list[Job], parallel: bool = False, **plan: object) -> RunSummary:
    return run_plan(Plan(str(folder), parallel, jobs, **plan), {})  # type: ignore[arg-type]


def seen(job: Job) -> str:
    """Returns the job's CUDA_VISIBLE_DEVICES."""
    found = re.search(r"^sees (.*)$", Path(job.logs[0]).read_text(), re.M)
    assert found, Path(job.logs[0]).read_text()
    return found[1]


@contextlib.contextmanager
def held(uuid: str) -> Iterator[Callable[[], None]]:
    """Another run has this GPU, until the end or until it is told to release it."""
    fd = lock(Gpu("", uuid))
    assert fd is not None
    lease = Lease([], [fd])
    try:
        yield lease.release
    finally:
        lease.release()


def test_jobs_side_by_side_never_have_the_same_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"1,{UUIDS[0]}")
    counts = [("one", 1), ("other", 1), ("both", 2), ("none", 0), ("three", 3)]
    jobs = [gpu_job(tmp_path, model, gpus) for model, gpus in counts]
    meet = "stamp(STEM)\nwhile not (FOLDER / STEM.replace(*{!r})).exists():\n    time.sleep(0.02)\n"
    for n, pair in enumerate((("one", "other"), ("other", "one"))):  # each goes on when the other runs, too
        *python, code = jobs[n].command
        code = code.replace("print('sees'", f"{meet.format(pair)}print('sees'")
        jobs[n] = replace(jobs[n], command=[*python, code])
    summary = run(tmp_path, jobs, parallel=True)
    assert [seen(job) for job in jobs[:4]] == ["1", UUIDS[0], f"1,{UUIDS[0]}", ""]
    assert [cell.state for cell in summary.cells] == ["complete"] * 4 + ["failed"]
    assert "needs 3 GPUs, but this machine shows 2 (its driver and" in summary.cells[4].message
    assert summary.jobs[4].attempts == 0


def test_jobs_one_after_another_have_all_gpus_that_they_can_use(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    jobs = [gpu_job(tmp_path, "m", 1, 4), gpu_job(tmp_path, "n", 3, 3), gpu_job(tmp_path, "o", 1, 2)]
    with held(UUIDS[1]):
        assert run(tmp_path, jobs).status is ExitStatus.COMPLETE
    assert [seen(job) for job in jobs] == ["0,2,3", "0,2,3", "0,2"], "nobody waits for a larger share"
    assert "started     generate:m on GPUs 0, 2, 3, log " in capfd.readouterr().err


def test_jobs_that_start_together_share_fairly(tmp_path: Path) -> None:
    jobs = [gpu_job(tmp_path, "m", 1, 4, 0.5), gpu_job(tmp_path, "n", 2, 4, 0.5), gpu_job(tmp_path, "o", 0)]
    after = python_job(tmp_path, "evaluate:m/a", "print('sees', os.environ['CUDA_VISIBLE_DEVICES'])", ["m/a"])
    late = Job(**{**vars(after), "after": ["generate:m"], "gpus": 1, "gpus_at_most": 4})
    run(tmp_path, [*jobs, late], parallel=True)
    assert [seen(job) for job in jobs] == ["0,3", "1,2", ""]
    assert len(seen(late).split(",")) >= 2, "it was not ready when they started, and takes what is free"


def test_waits_for_gpus_of_another_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [gpu_job(tmp_path, "m", 4), gpu_job(tmp_path, "n", 0)]
    refresh = Display.refresh
    with held(UUIDS[2]) as release:

        def released_when_told(display: Display, view: View) -> None:
            refresh(display, view)
            if view.waiting:
                release()

        monkeypatch.setattr(Display, "refresh", released_when_told)
        assert run(tmp_path, jobs).status is ExitStatus.COMPLETE
    err = capfd.readouterr().err
    assert err.count("generate:m needs 4 GPUs; GPU 2: held by another run") == 1
    assert err.index("started     generate:m") < err.index("started     generate:n"), "one after another"


def test_a_driver_that_fails_while_the_run_goes_on(tmp_path: Path, machine: Path) -> None:
    fail_memory(machine, "GPU is lost")
    summary = run(tmp_path, [gpu_job(tmp_path, "m", 1), gpu_job(tmp_path, "n", 0)])
    assert [cell.state for cell in summary.cells] == ["failed", "complete"]
    assert summary.cells[0].message.startswith("generate: NVML failed (GPU is lost); repair the driver")


# Owners that die, runs beside each other


def test_a_dead_launcher_keeps_its_gpus_until_its_job_is_gone(tmp_path: Path) -> None:
    job = python_job(tmp_path, "generate:m", ESCAPING, ["m/a"], gpus=1, gpus_at_most=4)
    gpus = [Gpu("", uuid) for uuid in UUIDS]

    def are_free() -> bool:
        fds = [lock(gpu) for gpu in gpus]
        for fd in fds:
            if fd is not None:
                os.close(fd)
        return None not in fds

    with launcher(Plan(str(tmp_path), False, [job]), str(tmp_path)) as process:
        wait_for((tmp_path / "escaped").exists)
        process.kill()
        free_too_early = False
        began = time.monotonic()
        while marked(str(tmp_path)):
            assert time.monotonic() - began < LONGEST_WAIT
            free_too_early = free_too_early or (are_free() and bool(marked(str(tmp_path))))
            time.sleep(0.05)
        assert not free_too_early
    wait_for(are_free)


# Each job puts a file into a folder for every GPU that it sees; one that is there belongs to a job that runs.
_CLAIM = """
claims = Path(os.environ["TEST_CLAIMS"])
mine = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
for gpu in mine:
    os.close(os.open(claims / gpu, os.O_CREAT | os.O_EXCL))
time.sleep(0.15)
for gpu in mine:
    (claims / gpu).unlink()
print("sees", ",".join(mine))
outcome("CELL", "generate")
"""


def test_two_runs_never_share_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "claims").mkdir()
    monkeypatch.setenv("TEST_CLAIMS", str(tmp_path / "claims"))
    with contextlib.ExitStack() as stack:
        runs = []
        for name, parallel in (("first", True), ("second", True), ("third", False)):
            folder = tmp_path / name
            folder.mkdir()
            jobs = [
                python_job(
                    folder,
                    f"generate:{n}",
                    _CLAIM.replace("CELL", f"{n}/a"),
                    [f"{n}/a"],
                    gpus=1 + n % 2,
                    gpus_at_most=2 * (1 + n % 2),
                )
                for n in range(3)
            ]
            plan = Plan(str(folder), parallel, jobs)
            runs.append((folder, jobs, stack.enter_context(launcher(plan, str(folder)))))
        for folder, jobs, process in runs:
            out, err = process.communicate(timeout=LONGEST_WAIT)
            assert process.returncode == 0, out + err
            assert all(seen(job) for job in jobs)
            saved = json.loads((folder / "summary.json").read_text())
            assert [job["attempts"] for job in saved["jobs"]] == [1] * 3
    assert list((tmp_path / "claims").iterdir()) == []


@pytest.mark.parametrize(("spare", "events"), [(1, ["made", "followed"]), (0, ["followed", "made"])])
def test_a_job_that_follows_leaves_the_gpu_that_the_next_model_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spare: int, events: list[str]
) -> None:
    """One of two GPUs generates images; the other stays free for the model that waits for its prompts, if
    there is one.
    """
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    make = """
from imageevalkit.jobs.plan import note_opened
note_opened(FOLDER, cell_of("m/a"), "0" * 16)
for _ in range(PATIENCE):
    if not (FOLDER / "followed").exists():
        time.sleep(0.1)
stamp("made")
outcome("m/a", "generate")
"""
    rewrite = "while not (FOLDER / 'made').exists(): time.sleep(0.05)\noutcome('n/a','rewrite')"
    evaluate = "stamp('followed'); outcome('m/a','evaluate')"
    jobs = [
        python_job(
            tmp_path, "generate:m", make.replace("PATIENCE", "10" if spare else "2400"), ["m/a"], gpus=1
        ),
        python_job(tmp_path, "rewrite:w", rewrite, ["n/a"]),
        python_job(
            tmp_path, "generate:n", "outcome('n/a','generate')", ["n/a"], gpus=spare, after=["rewrite:w"]
        ),
        replace(
            python_job(tmp_path, "evaluate:m/a", evaluate, ["m/a"], gpus=1, after=["generate:m"]),
            follows=True,
        ),
    ]
    assert run(tmp_path, jobs, parallel=True).status is ExitStatus.COMPLETE
    assert sorted(events, key=lambda name: float((tmp_path / name).read_text())) == events
