"""The local launcher: real plans of small real jobs, run to their end or stopped half-way."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from imageevalkit.common.errors import ExitStatus
from imageevalkit.jobs import plan as jobs
from imageevalkit.jobs.plan import Job, Plan
from imageevalkit.run import ledger, local
from imageevalkit.run.display import CellSummary, Display, RunSummary
from imageevalkit.run.local import run_plan
from imageevalkit.store.cell import Cell
from tests.support.jobs import ESCAPING, done_job, launcher, marked, python_job
from tests.support.waiting import LONGEST_WAIT, wait_for


def run(
    folder: Path, jobs: list[Job], parallel: bool | None = False, blocked: dict[str, str] | None = None
) -> RunSummary:
    return run_plan(Plan(str(folder), parallel, jobs, blocked or {}), {})


def cell(summary: RunSummary, key: str) -> CellSummary:
    return next(c for c in summary.cells if c.cell == key)


def order(folder: Path, *names: str) -> list[str]:
    """``names`` of stamps in the order in which the jobs wrote them."""
    return sorted(names, key=lambda name: float((folder / name).read_text()))


# States and exit statuses


def test_a_whole_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    jobs = [
        done_job(tmp_path, "generate:m", ["m/a", "m/b"]),
        done_job(tmp_path, "evaluate:m/a", ["m/a"], after=["generate:m"]),
        done_job(tmp_path, "evaluate:m/b", ["m/b"], after=["generate:m"]),
        python_job(tmp_path, "report", "print('made')", ["m/a", "m/b"], after=["evaluate:m/b"], always=True),
    ]
    summary = run(tmp_path, jobs)
    assert summary.status is ExitStatus.COMPLETE
    assert [(c.cell, c.state, c.log) for c in summary.cells] == [
        ("m/a", "complete", jobs[1].logs[0]),
        ("m/b", "complete", jobs[2].logs[0]),
    ]
    assert [job.state for job in summary.jobs] == ["complete"] * 4
    assert Path(jobs[3].logs[0]).read_text().endswith("\nmade\n")
    saved = json.loads((tmp_path / "summary.json").read_text())
    assert saved["status"] == 0 and saved["cells"][1]["stages"][0]["job"] == "generate:m"
    out, err = capfd.readouterr()
    assert re.search(r"^m/a  complete +\S*evaluate_m__a.log$", out, re.M)
    assert "2 results: 2 complete · 0:0" in out and "exit status 0 (complete)" in out
    assert "\x1b" not in out + err, "no terminal here"


LEFT: dict[str, tuple[str, str]] = {
    "outcome(CELL,'generate','incomplete','3 refused'); sys.exit(3)": ("incomplete", "3 refused"),
    "outcome(CELL,'generate','failed','no weights'); sys.exit(1)": ("failed", "generate: no weights"),
    "outcome(CELL,'generate','stale','9 images'); sys.exit(1)": ("stale", "generate: 9 images"),
    "sys.exit(0)": ("failed", "generate: left no outcome, exit status 0"),
    "outcome(CELL,'generate','finished')": ("failed", "unknown state 'finished'"),
    "outcome(CELL,'generate'); OUTCOME.write_text('{')": ("failed", "outcome file is unreadable"),
    "print('loading\\rbroken: \\x1b[31mweights\\x1b[0m\\n\\n', file=sys.stderr); sys.exit(2)": (
        "failed",
        "generate: left no outcome, exit status 2: broken: weights",
    ),
    "outcome(CELL,'generate')": ("complete", ""),
}


def test_what_a_job_leaves_is_its_cells_state(tmp_path: Path) -> None:
    jobs = [
        python_job(
            tmp_path,
            f"generate:m{n}",
            f"CELL, OUTCOME = 'm{n}/a', FOLDER/'outcomes'/'m{n}__a.generate.json'\n{code}",
            [f"m{n}/a"],
        )
        for n, code in enumerate(LEFT)
    ]
    summary = run(tmp_path, jobs)
    for n, (state, message) in enumerate(LEFT.values()):
        found = cell(summary, f"m{n}/a")
        assert (found.state, found.log) == (state, jobs[n].logs[0])
        assert message in found.message
    assert summary.status is ExitStatus.FAILED


def test_a_failed_job_stops_only_what_needs_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    failing = "outcome('m/a','generate'); outcome('m/b','generate','failed','disk full'); sys.exit(1)"
    jobs = [
        python_job(tmp_path, "generate:m", failing, ["m/a", "m/b"]),
        done_job(tmp_path, "evaluate:m/a", ["m/a"], after=["generate:m"]),
        python_job(tmp_path, "evaluate:m/b", "stamp('never')", ["m/b"], after=["generate:m"]),
        python_job(tmp_path, "report", "stamp('report')", [], after=["evaluate:m/b"], always=True),
    ]
    summary = run(tmp_path, jobs, blocked={"x/y": "the benchmark file z is missing"})
    assert {c.cell: c.state for c in summary.cells} == {"m/a": "complete", "m/b": "failed", "x/y": "blocked"}
    skipped = cell(summary, "m/b").stages[1]
    assert (skipped.state, skipped.attempts) == ("skipped", 0)
    assert skipped.message == "not started: generate of m/b is failed"
    assert (tmp_path / "report").exists() and not (tmp_path / "never").exists()
    assert summary.status is ExitStatus.FAILED
    assert "    the benchmark file z is missing\n" in capfd.readouterr().out


def test_why_images_are_missing_is_told_below_what_became_of_those_there_are(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    stopped = "outcome('m/a','generate','incomplete','--max_cost 1 is used up'); sys.exit(3)"
    judged = "outcome('m/a','evaluate','incomplete','14 of 48 judged'); sys.exit(3)"
    jobs = [
        python_job(tmp_path, "generate:m", stopped, ["m/a"]),
        python_job(tmp_path, "evaluate:m/a", judged, ["m/a"], after=["generate:m"]),
    ]
    summary = run(tmp_path, jobs)
    assert summary.status is ExitStatus.INCOMPLETE
    assert cell(summary, "m/a").message == "14 of 48 judged"
    out = capfd.readouterr().out
    assert "    14 of 48 judged\n    generate: --max_cost 1 is used up\n" in out


def test_a_job_that_fails_beside_its_cells_fails_the_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    jobs = [
        python_job(tmp_path, "generate:m", "outcome('m/a','generate'); os.abort()", ["m/a"], retries=2),
        python_job(tmp_path, "report", "sys.exit('no template')", ["m/a"], after=["generate:m"], always=True),
    ]
    summary = run(tmp_path, jobs)
    assert cell(summary, "m/a").state == "complete"
    assert summary.jobs[0].attempts == 1, "nothing was left to retry"
    assert [job.state for job in summary.jobs] == ["failed", "failed"]
    assert summary.status is ExitStatus.FAILED
    out = capfd.readouterr().out
    assert "SIGABRT (although every result has its outcome)" in out
    assert "    exit status 1: no template\n" in out


def test_a_command_that_cannot_run_or_has_no_log_is_told_and_not_retried(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    nowhere = Job(
        "generate:m", "generate", ["/nowhere/python"], ["m/a"], [str(tmp_path / "m.log")], retries=3
    )
    no_log = Job("generate:n", "generate", ["true"], ["n/a"], [str(tmp_path / "file" / "n.log")])
    summary = run(tmp_path, [nowhere, no_log, done_job(tmp_path, "generate:o", ["o/a"])])
    assert summary.jobs[0].attempts == 1
    assert "cannot run /nowhere/python: No such file or directory" in cell(summary, "m/a").message
    assert "cannot start: " in cell(summary, "n/a").message
    assert cell(summary, "o/a").state == "complete"


def test_outcomes_of_an_earlier_run_of_the_plan_do_not_count(tmp_path: Path) -> None:
    assert run(tmp_path, [done_job(tmp_path, "generate:m", ["m/a"])]).status is ExitStatus.COMPLETE
    again = run(tmp_path, [python_job(tmp_path, "generate:m", "", ["m/a"])])
    assert again.status is ExitStatus.FAILED


# Retries


@pytest.mark.parametrize("crash", ["os.kill(os.getpid(), 9)", "sys.exit(137)", "raise RuntimeError('boom')"])
def test_a_crash_is_retried_visibly_and_only_so_often(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], crash: str
) -> None:
    code = f"outcome('m/a','generate'); count('starts'); {crash}"
    summary = run(tmp_path, [python_job(tmp_path, "generate:m", code, ["m/a", "m/b"], retries=1)])
    assert (tmp_path / "starts").stat().st_size == 2
    assert {c.cell: c.state for c in summary.cells} == {"m/a": "complete", "m/b": "failed"}
    assert cell(summary, "m/b").stages[0].attempts == 2
    how = "exit status 1" if "raise" in crash else "SIGKILL"
    err = capfd.readouterr().err
    assert err.count(f"generate:m: attempt 2 of 2 after {how}\n") == 1
    log = Path(summary.jobs[0].log).read_text()
    assert log.count("# imageevalkit: ") == 2, "each attempt is in the log, none overwritten"


def test_a_cell_that_the_next_attempt_saves_is_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "available_cores", lambda: 2)
    code = """
if count("starts") == 1:
    outcome("m/a", "generate", "failed", "CUDA error")
    time.sleep(0.4)
    os.kill(os.getpid(), 9)
outcome("m/a", "generate")
outcome("m/b", "generate")
"""
    jobs = [
        python_job(tmp_path, "generate:m", code, ["m/a", "m/b"], retries=1),
        done_job(tmp_path, "evaluate:m/a", ["m/a"], after=["generate:m"]),
    ]
    summary = run(tmp_path, jobs, parallel=True)
    assert summary.status is ExitStatus.COMPLETE and summary.jobs[0].attempts == 2


# What a job is given


def test_environment_of_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setenv("API_KEY", "sk-secret-of-this-test")
    monkeypatch.setenv("OTHER_API_KEY", "sk-secret-of-others")
    monkeypatch.setattr(local, "available_cores", lambda: 7)
    seeing = "{**os.environ, 'cwd': os.getcwd(), 'in': sys.stdin.read()}"
    code = f"print(json.dumps({seeing}))\noutcome('m/a','generate')"
    job = replace(python_job(tmp_path, "generate:m", code, ["m/a"], cores=2), secrets=["API_KEY"])
    for parallel, cores in [(False, "7"), (True, "2")]:
        run(tmp_path, [job], parallel)
        seen = json.loads(Path(job.logs[0]).read_text().splitlines()[-1])
        assert seen["IMAGEEVALKIT_CORES"] == cores
    repo = str(Path(local.__file__).parents[2])
    assert (
        seen["PYTHONPATH"] == f"{repo}:{repo}/infer:/elsewhere" and seen["cwd"] == repo and seen["in"] == ""
    )
    assert seen["API_KEY"] == "sk-secret-of-this-test" and "OTHER_API_KEY" not in seen
    assert seen["CUDA_VISIBLE_DEVICES"] == ""
    out, err = capfd.readouterr()
    told = out + err + (tmp_path / "summary.json").read_text()
    assert "sk-secret" not in told


# Order


def test_parallel_evaluates_a_cell_while_its_model_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "available_cores", lambda: 2)
    # generation ends only after it has seen the evaluation of its first cell
    code = """
outcome("m/a", "generate")
while not (FOLDER / "evaluated").exists():
    time.sleep(0.05)
stamp("generated")
outcome("m/b", "generate")
"""
    first = "stamp('evaluated'); outcome('m/a','evaluate')"
    second = "stamp('second'); outcome('m/b','evaluate')"
    jobs = [
        python_job(tmp_path, "generate:m", code, ["m/a", "m/b"]),
        python_job(tmp_path, "evaluate:m/a", first, ["m/a"], after=["generate:m"]),
        python_job(tmp_path, "evaluate:m/b", second, ["m/b"], after=["generate:m"]),
    ]
    assert run(tmp_path, jobs, parallel=True).status is ExitStatus.COMPLETE
    assert order(tmp_path, "second", "generated", "evaluated") == ["evaluated", "generated", "second"]


_OVERLAP = """
(FOLDER / "running" ).mkdir(exist_ok=True)
mine = FOLDER / "running" / str(os.getpid())
mine.touch()
time.sleep(SECONDS)
with (FOLDER / "seen").open("a") as file:
    file.write(f"{len(list((FOLDER / 'running').iterdir()))}\\n")
mine.unlink()
outcome("CELL", "generate")
"""


@pytest.mark.parametrize(
    ("parallel", "cores", "most"), [(None, 1, 1), (True, 1, 4), (True, 2, 2), (True, 99, 1)]
)
def test_no_more_jobs_at_once_than_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parallel: bool | None, cores: int, most: int
) -> None:
    monkeypatch.setattr(local, "available_cores", lambda: 4)
    # long enough for all that may run to have started, on a machine that is busy
    code = _OVERLAP.replace("SECONDS", "3" if most > 1 else "0.2")
    jobs = [
        python_job(tmp_path, f"generate:{n}", code.replace("CELL", f"{n}/a"), [f"{n}/a"], cores=cores)
        for n in range(most + 1)
    ]
    assert run(tmp_path, jobs, parallel).status is ExitStatus.COMPLETE
    assert max(map(int, (tmp_path / "seen").read_text().split())) == most


def test_serial_runs_in_the_order_of_the_plan(tmp_path: Path) -> None:
    names = [f"generate:{n}" for n in (3, 1, 2)]
    code = "stamp(%r); outcome(%r,'generate')"
    run(tmp_path, [python_job(tmp_path, n, code % (n, n + "/a"), [n + "/a"]) for n in names])
    assert order(tmp_path, *sorted(names)) == names


_OPENS = """
from imageevalkit.jobs.plan import note_opened, read_outcome
def opened(cell):
    note_opened(FOLDER, cell_of(cell), "0" * 16)
def wait_for(name):
    while not (FOLDER / name).exists():
        time.sleep(0.05)
def generated(cell):
    while (found := read_outcome(FOLDER, cell_of(cell), "generate")) is None:
        time.sleep(0.05)
    return found.state
"""
_FOLLOWING = (
    _OPENS
    + """
stamp("following")
if generated("m/a") == "complete":
    stamp("scored")
    outcome("m/a", "evaluate")
else:
    sys.exit(75)
"""
)


def following(folder: Path, code: str, **job: object) -> list[Job]:
    """A generate job, and an evaluate job that may follow it."""
    evaluate = python_job(folder, "evaluate:m/a", _FOLLOWING, ["m/a"], after=["generate:m"])
    fields = {"follows": True, "light": True, **job}
    return [
        python_job(folder, "generate:m", _OPENS + code, ["m/a"]),
        replace(evaluate, **fields),  # type: ignore[arg-type]
    ]


@pytest.mark.parametrize("parallel", [True, None])
def test_a_job_that_follows_starts_when_its_cell_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parallel: bool | None
) -> None:
    """A light one even where others have all cores."""
    monkeypatch.setattr(local, "available_cores", lambda: 1)
    code = "stamp('begun'); time.sleep(0.5); stamp('late'); opened('m/a'); wait_for('following')"
    jobs = following(tmp_path, f"{code}; stamp('made'); outcome('m/a','generate')")
    summary = run(tmp_path, jobs, parallel)
    assert summary.status is ExitStatus.COMPLETE and [job.attempts for job in summary.jobs] == [1, 1]
    events = ["begun", "late", "following", "made", "scored"]
    assert order(tmp_path, *sorted(events)) == events


@pytest.mark.parametrize(
    ("parallel", "job"),
    [
        (False, {}),
        (True, {"follows": False}),
        (None, {"light": False}),
    ],
)
def test_else_it_waits_for_the_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parallel: bool | None, job: dict[str, bool]
) -> None:
    """One at a time; a job that does not follow; one that needs the cores that another has."""
    monkeypatch.setattr(local, "available_cores", lambda: 1)
    code = "opened('m/a'); time.sleep(0.5); stamp('made'); outcome('m/a','generate')"
    assert run(tmp_path, following(tmp_path, code, **job), parallel).status is ExitStatus.COMPLETE
    assert order(tmp_path, "following", "made", "scored") == ["made", "following", "scored"]


def test_beside_a_job_that_follows_no_other_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after another: the next model waits until the judge of the one before has ended."""
    monkeypatch.setattr(local, "available_cores", lambda: 4)
    code = "opened('m/a'); wait_for('following'); stamp('made'); outcome('m/a','generate')"
    generate, evaluate = following(tmp_path, code)
    slow = python_job(
        tmp_path,
        evaluate.name,
        f"{_OPENS}\nstamp('following'); generated('m/a'); time.sleep(0.5); stamp('scored'); "
        "outcome('m/a', 'evaluate')",
        ["m/a"],
        after=["generate:m"],
    )
    late = python_job(tmp_path, "generate:n", "stamp('next'); outcome('n/a','generate')", ["n/a"])
    jobs = [generate, late, replace(slow, follows=True, light=True)]
    assert run(tmp_path, jobs, parallel=None).status is ExitStatus.COMPLETE
    events = ["following", "made", "scored", "next"]
    assert order(tmp_path, *sorted(events)) == events


def test_a_job_that_follows_one_that_fails_counts_as_not_started(tmp_path: Path) -> None:
    code = "opened('m/a'); wait_for('following'); outcome('m/a','generate','failed','the key is rejected')"
    summary = run(tmp_path, following(tmp_path, code), parallel=True)
    (cell,) = summary.cells
    assert (cell.state, cell.message) == ("failed", "generate: the key is rejected")
    assert [stage.message for stage in cell.stages][1] == "not started: generate of m/a is failed"
    assert [job.attempts for job in summary.jobs] == [1, 0]


@pytest.mark.parametrize("then", ["outcome('m/a', 'evaluate')", "sys.exit(75)"])
def test_a_job_that_follows_too_early_comes_back_once_when_all_is_there(
    tmp_path: Path, then: str, capfd: pytest.CaptureFixture[str]
) -> None:
    code = "opened('m/a'); wait_for('following'); time.sleep(0.5); stamp('made'); outcome('m/a','generate')"
    jobs = following(tmp_path, code)
    again = f"""
{_OPENS}
if count("starts") == 1:
    progress_writer().report(Progress("m/a", "evaluate", 1, 2, cost=1.5), force=True)
    stamp("following")
    sys.exit(75)
stamp("again")
{then}
"""
    early = python_job(tmp_path, "evaluate:m/a", again, ["m/a"], after=["generate:m"])
    summary = run(tmp_path, [jobs[0], replace(early, follows=True, light=True)], parallel=True)
    assert order(tmp_path, "again", "following", "made") == ["following", "made", "again"]
    assert summary.status is (ExitStatus.FAILED if "exit" in then else ExitStatus.COMPLETE)
    spent = [line for line in capfd.readouterr().err.splitlines() if "spent" in line]
    assert len(spent) == 1 and spent[0].endswith("$1.50"), "what it told before counts once"


def test_a_job_that_followed_a_failed_attempt_comes_back_after_the_next(tmp_path: Path) -> None:
    code = """
opened("m/a")
if count("starts") == 1:
    wait_for("following")
    os.kill(os.getpid(), 9)
time.sleep(0.3)
outcome("m/a", "generate")
"""
    jobs = following(tmp_path, code)
    summary = run(tmp_path, [replace(jobs[0], retries=1), jobs[1]], parallel=True)
    assert summary.status is ExitStatus.COMPLETE and (tmp_path / "scored").exists()


@pytest.mark.parametrize(("light", "cores"), [(True, 1), (False, 2)])
def test_jobs_that_follow_leave_room_for_what_can_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, light: bool, cores: int
) -> None:
    """Two cells are slow, and the third is evaluated meanwhile."""
    monkeypatch.setattr(local, "available_cores", lambda: cores)
    generate = """
for cell in ("a", "b", "c"):
    opened(f"{cell}/d")
wait_for("following-a")
time.sleep(0.5)
outcome("c/d", "generate")
for _ in range(200):
    if not (FOLDER / "scored-c").exists():
        time.sleep(0.05)
stamp("made")
outcome("a/d", "generate")
outcome("b/d", "generate")
"""
    evaluate = """
stamp("following-CELL")
generated("CELL/d")
stamp("scored-CELL")
outcome("CELL/d", "evaluate")
"""
    cells = [f"{cell}/d" for cell in "abc"]
    jobs = [replace(python_job(tmp_path, "generate:api", _OPENS + generate, cells), light=True)]
    for cell in "abc":
        code = _OPENS + evaluate.replace("CELL", cell)
        job = python_job(tmp_path, f"evaluate:{cell}/d", code, [f"{cell}/d"], after=["generate:api"])
        jobs.append(replace(job, follows=True, light=light))
    assert run(tmp_path, jobs, parallel=True).status is ExitStatus.COMPLETE
    events = ["following-a", "scored-c", "made", "scored-a"]
    assert order(tmp_path, *sorted(events)) == events


def test_later_is_no_end_of_a_job_that_has_all_it_needs(tmp_path: Path) -> None:
    """Somebody's code has left it with that status."""
    generate, evaluate = following(tmp_path, "outcome('m/a','generate')")
    code = "if count('starts') < 5: sys.exit(75)\noutcome('m/a','evaluate')"
    evaluate = python_job(tmp_path, evaluate.name, code, ["m/a"], after=["generate:m"])
    summary = run(tmp_path, [generate, replace(evaluate, follows=True, light=True)])
    assert [job.exit for job in summary.jobs] == ["exit status 0", "exit status 75"]
    assert summary.status is ExitStatus.FAILED and (tmp_path / "starts").stat().st_size == 1


@pytest.mark.parametrize(
    "no_room", ["symlink_to('/dev/full')", "mkdir()"], ids=["full", "one that takes no file"]
)
def test_nobody_waits_for_an_outcome_that_the_disk_did_not_take(tmp_path: Path, no_room: str) -> None:
    part = "(FOLDER / 'outcomes' / '.m__a.generate.json.part')"
    jobs = following(tmp_path, f"opened('m/a'); wait_for('following'); {part}.{no_room}; sys.exit(1)")
    summary = run(tmp_path, jobs, parallel=True)
    assert "generate: left no outcome" in summary.cells[0].message
    assert [(job.state, job.attempts) for job in summary.jobs] == [("failed", 1), ("skipped", 0)]


def test_of_thousands_of_cells_only_what_is_new_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten times a second, perhaps over a network; some disks there keep no time of a folder."""
    read = list[str]()

    def read_outcome(folder: Path, cell: Cell, stage: str) -> jobs.Outcome | None:
        read.append(cell.model)
        return jobs.read_outcome(folder, cell, stage)

    monkeypatch.setattr(ledger, "read_outcome", read_outcome)
    monkeypatch.setattr(ledger, "_LOOK_EVERY", 0.05)
    cells = [f"{n}/d" for n in range(100)]
    generate = Job("generate:api", "generate", ["true"], cells, ["log"])
    evaluate = [
        Job(f"evaluate:{cell}", "evaluate", ["true"], [cell], ["log"], after=["generate:api"], follows=True)
        for cell in cells
    ]
    books = ledger.Ledger(Plan(str(tmp_path), True, [generate, *evaluate]), Display(io.StringIO()))
    folder = jobs.outcomes_of(tmp_path)

    def leave(cell: str) -> None:
        jobs.write_outcome(tmp_path, jobs.cell_of(cell), "generate", jobs.Outcome("complete"))
        os.utime(folder, (1, 1))

    def ready() -> int:
        books.collect({"generate:api": 1})
        return sum(books.verdict(job).ready for job in evaluate)

    jobs.note_opened(tmp_path, jobs.cell_of("7/d"), "0" * 16)
    assert ready() == 0 and books.verdict(evaluate[7]).follows and not books.verdict(evaluate[8]).follows
    for count, cell in enumerate(["7/d", "8/d"], start=1):
        leave(cell)
        wait_for(lambda count=count: ready() == count)  # type: ignore[misc]
    assert ready() == 2 and read == ["7", "8"]


# Stopping


def escaping_plan(folder: Path) -> Plan:
    jobs = [
        done_job(folder, "generate:quick", ["quick/a"]),
        python_job(folder, "generate:m", ESCAPING, ["m/a"], retries=3),
        python_job(folder, "evaluate:m/a", "stamp('never')", ["m/a"], after=["generate:m"]),
        python_job(folder, "report", "stamp('never')", [], after=["evaluate:m/a"], always=True),
    ]
    return Plan(str(folder), False, jobs)


def holds_lock(folder: Path) -> bool:
    with (folder / "output" / "m" / "a" / ".lock").open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_run_leaves_no_process(tmp_path: Path, number: signal.Signals, status: int) -> None:
    with launcher(escaping_plan(tmp_path), str(tmp_path)) as process:
        wait_for((tmp_path / "escaped").exists)
        # one of them may just be between fork and exec, when nothing marks it
        wait_for(lambda: len(marked(str(tmp_path))) >= 5)
        assert holds_lock(tmp_path)
        process.send_signal(number)
        out, err = process.communicate(timeout=LONGEST_WAIT)
        assert marked(str(tmp_path)) == [] and not holds_lock(tmp_path)
        assert process.returncode == status
    assert re.search(r"^m/a      interrupted +\S*generate_m.log$", out, re.M)
    assert "quick/a  complete" in out and f"exit status {status}" in out
    assert f"stopped by {number.name}" in out
    assert "attempt 2" not in err and not (tmp_path / "never").exists()
    saved = json.loads((tmp_path / "summary.json").read_text())
    assert saved["status"] == status and saved["jobs"][3]["state"] == "interrupted"


def test_what_must_be_killed_to_stop_is_not_taken_for_out_of_memory(tmp_path: Path) -> None:
    """Its own process is deaf to SIGTERM: the guard ends it with SIGKILL."""
    code = "signal.signal(signal.SIGTERM, signal.SIG_IGN); stamp('deaf'); time.sleep(600)"
    plan = Plan(str(tmp_path), False, [python_job(tmp_path, "generate:m", code, ["m/a"])])
    with launcher(plan, str(tmp_path)) as process:
        wait_for((tmp_path / "deaf").exists)
        process.send_signal(signal.SIGTERM)
        time.sleep(0.8)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=LONGEST_WAIT)
    [job] = json.loads((tmp_path / "summary.json").read_text())["jobs"]
    assert (job["state"], job["exit"]) == ("interrupted", "SIGKILL")
    assert "out of memory" not in out + err


def test_the_second_ctrl_c_kills_at_once(tmp_path: Path) -> None:
    with launcher(escaping_plan(tmp_path), str(tmp_path)) as process:
        wait_for((tmp_path / "escaped").exists)
        process.send_signal(signal.SIGINT)
        time.sleep(0.8)
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.wait(LONGEST_WAIT) == 130
        assert time.monotonic() - began < 4, "the guard would wait five seconds since the first signal"
        assert marked(str(tmp_path)) == []


def test_kill_9_of_the_launcher_leaves_no_process(tmp_path: Path) -> None:
    with launcher(escaping_plan(tmp_path), str(tmp_path)) as process:
        wait_for((tmp_path / "escaped").exists)
        process.kill()
        free_too_early = False
        began = time.monotonic()
        while marked(str(tmp_path)):
            assert time.monotonic() - began < LONGEST_WAIT
            free_too_early = free_too_early or (not holds_lock(tmp_path) and bool(marked(str(tmp_path))))
            time.sleep(0.05)
        assert not free_too_early
        wait_for(lambda: not holds_lock(tmp_path))  # until the guard itself has ended


# What the user sees

_REPORTING = """
writer = progress_writer()
writer.report(Progress("m/a", "generate", 2, 10, reused=2, note="loading model"), force=True)
time.sleep(0.5)
for done in range(2, 11):
    writer.report(Progress("m/a", "generate", done, 10, reused=2, failed=1), force=True)
    time.sleep(0.2)
outcome("m/a", "generate", "incomplete", "1 refused")
sys.exit(3)
"""


def test_plain_lines_where_there_is_no_terminal(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, [python_job(tmp_path, "generate:m", _REPORTING, ["m/a"])])
    when = r"^\[\d\d:\d\d:\d\d\] (\S+) +"
    lines = [re.sub(when, r"\1 ", line) for line in capfd.readouterr().err.splitlines()]
    log = f"{tmp_path}/log/generate_m.log"
    assert lines == [
        f"started generate:m, log {log}",
        "running generate m/a 2/10 loading model",
        f"incomplete generate m/a: 1 refused, log {log}",
        lines[3],
    ]
    assert lines[3].startswith("incomplete generate:m, exit status 3, 0:0")


def test_a_terminal_shows_a_live_block(tmp_path: Path) -> None:
    job = python_job(tmp_path, "generate:m", _REPORTING, ["m/a"])
    shown = _on_terminal(tmp_path, [job], 3)
    uncoloured = re.sub(r"\x1b\[[\d;]*m", "", shown)
    assert re.search(r"generate m/a [━╸╺ ]{16} [3-9]/10 [\d.]+/s ETA 0:0\d 1 failed", uncoloured)
    rates = [float(rate) for rate in re.findall(r" ([\d.]+)/s ", shown)]
    # a busy machine is slower; with reused items it would be faster than it can be
    assert all(0 < rate < 6 for rate in rates), "reused items do not count"
    assert "\x1b[33mincomplete" in shown
    assert "$" not in shown, "no price, no money"
    # the block is gone at the end, and the table stands alone
    assert re.search(r"\x1b\[1A\x1b\[2K[^\x1b]*m/a  ", uncoloured)
    assert "\x1b[?25l\x1b[?25h" in shown, "the cursor stays, should the run be killed"
    lines = re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", shown))
    assert max(len(line) for line in lines if "ETA" in line) < 70


_MANY_CELLS = """
writer = progress_writer()
cells = ["gpt/a", "gpt/long-name", "own/a"]
for done in range(1, 11):
    for n, cell in enumerate(cells):
        cost = None if cell == "own/a" else 0.3 * done * (n + 1)
        if (n, done) != (0, 6):
            writer.report(Progress(cell, "generate", done, 10 + n, cost=cost, max_cost=20.0), force=True)
        else:  # the cell stops half-way and says so
            outcome(cell, "generate", "failed", "no quota")
            cells[0] = "gpt/quick"
    time.sleep(0.3)
for cell in ("gpt/long-name", "own/a", "gpt/quick"):
    outcome(cell, "generate")
sys.exit(3)
"""
_ALL_CELLS = ["gpt/a", "gpt/long-name", "own/a", "gpt/quick"]


def test_a_terminal_shows_every_cell_of_a_job_and_its_money(tmp_path: Path) -> None:
    job = python_job(tmp_path, "generate:apis", _MANY_CELLS, _ALL_CELLS)
    shown = _on_terminal(tmp_path, [job], 1, COLUMNS="90")
    blocks = _blocks(shown)
    # a first one may be drawn before any cell has told how far it is
    early = [block for block in blocks if block[1:] and block[1].startswith("generate gpt/a ")][-1]
    late = next(block for block in blocks if block[-1].startswith("generate gpt/quick"))
    rest = r"[━╸╺ ]{16} (\d)/1\d .*/s ETA \d:\d\d"
    first = re.fullmatch(rf"generate gpt/a         {rest} \$(\d\.\d\d)", early[1])
    second = re.fullmatch(rf"generate gpt/long-name {rest} \$(\d\.\d\d)", early[2])
    assert first and second and re.fullmatch(f"generate own/a         {rest}", early[3])
    assert float(first[2]) == pytest.approx(0.3 * int(first[1]))
    spent = f"${float(first[2]) + float(second[2]):.2f}"
    assert re.fullmatch(rf"0/4 cells done · 0:0\d · spent {re.escape(spent)} of \$20.00", early[0])
    names = [[line.split()[1] for line in block[1:]] for block in (early, late)]
    assert names == [["gpt/a", "gpt/long-name", "own/a"], ["gpt/long-name", "own/a", "gpt/quick"]]
    # the run's sum outlives its block: 1.50 + 6.00 + 3.00
    assert re.search(r"spent +\$10.50 of \$20.00\r?\n", shown)


def test_more_cells_than_lines_are_told_as_a_number(tmp_path: Path) -> None:
    job = python_job(tmp_path, "generate:apis", _MANY_CELLS, _ALL_CELLS)
    shown = _on_terminal(tmp_path, [job], 1, COLUMNS="90", LINES="5", NO_COLOR="1")
    assert "\x1b[33m" not in shown and "\x1b[32m" not in shown
    crowded = [block for block in _blocks(shown) if block[1:] and block[1].startswith("generate gpt/a ")]
    assert crowded and {(len(block), block[-1]) for block in crowded if " 1/10 " not in block[1]} == {
        (3, "… and 2 more")
    }


def test_plain_lines_of_several_cells(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, [python_job(tmp_path, "generate:apis", _MANY_CELLS, _ALL_CELLS)])
    lines = [re.sub(r"^\[[\d:]+\] (\S+) +", r"\1 ", line) for line in capfd.readouterr().err.splitlines()]
    running = [line for line in lines if line.startswith("running ")]
    assert re.fullmatch(r"running generate gpt/a \d/10 .*\$\d\.\d\d", running[0])
    assert [line.split()[2] for line in running] == ["gpt/a", "gpt/long-name", "own/a", "gpt/quick"]
    assert "$" not in running[2]
    assert lines[-1] == "spent $10.50 of $20.00", "what was spent last is told"


def _blocks(shown: str) -> list[list[str]]:
    """The lines of each live block drawn."""
    plain = re.sub(r"\x1b\[[\d;?]*[mlh]", "", shown)
    drawn = re.split(r"\r\x1b\[2K(?:\x1b\[1A\x1b\[2K)*|(?:\r\x1b\[1A\x1b\[2K)+", plain)
    blocks = [[line.rstrip() for line in block.splitlines()] for block in drawn if "cells done" in block]
    return [[line for line in block if line] for block in blocks]


def _on_terminal(folder: Path, jobs: list[Job], status: int, **environ: str) -> str:
    """Everything that a run of ``jobs`` writes to a terminal of 70 columns and 20 lines."""
    main, terminal = pty.openpty()
    code = (
        "import sys; from pathlib import Path\n"
        "from imageevalkit.jobs.plan import load_plan; from imageevalkit.run.local import run_plan\n"
        "sys.exit(int(run_plan(load_plan(Path(sys.argv[1])), {}).status))\n"
    )
    size = {"TERM": "xterm", "COLUMNS": "70", "LINES": "20"}
    paths = {"PYTHONPATH": str(Path(local.__file__).parents[2]), "PYTHONIOENCODING": "utf-8"}
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(Plan(str(folder), False, jobs).save())],
        stdout=terminal,
        stderr=terminal,
        env=os.environ | size | paths | environ,
    )
    os.close(terminal)
    shown = _read_all(main)
    assert process.wait(LONGEST_WAIT) == status
    return shown


def _read_all(fd: int) -> str:
    data = b""
    while select.select([fd], [], [], 20)[0]:
        try:
            chunk = os.read(fd, 65536)
        except OSError:  # the last writer has closed the terminal
            break
        if not chunk:
            break
        data += chunk
    os.close(fd)
    return data.decode()


def test_a_closed_stderr_does_not_stop_the_run(tmp_path: Path) -> None:
    plan = Plan(str(tmp_path), False, [done_job(tmp_path, "generate:m", ["m/a"])])
    reader, writer = os.pipe()
    os.close(reader)
    with launcher(plan, str(tmp_path), stdout=writer, stderr=writer) as process:
        os.close(writer)
        assert process.wait(LONGEST_WAIT) == 0
    assert json.loads((tmp_path / "summary.json").read_text())["status"] == 0
