"""The local launcher: real plans of small real jobs, run to their end or stopped half-way."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from imageevalkit.common.errors import ExitStatus
from imageevalkit.jobs.plan import Job, Plan
from imageevalkit.run import guard, local
from imageevalkit.run.display import CellSummary, RunSummary
from imageevalkit.run.local import run_plan
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
    "outcome(CELL,'generate','stale','9 images'); sys.exit(1)": ("stale", "generate: 9 images"),
    "sys.exit(0)": ("failed", "generate: left no outcome, exit status 0"),
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
    assert skipped.message == "not started: its generate stage failed"
    assert (tmp_path / "report").exists() and not (tmp_path / "never").exists()
    assert summary.status is ExitStatus.FAILED
    assert "    the benchmark file z is missing\n" in capfd.readouterr().out


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


def test_a_crash_is_retried_visibly_and_only_so_often(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code = "outcome('m/a','generate'); count('starts'); os.kill(os.getpid(), 9)"
    summary = run(tmp_path, [python_job(tmp_path, "generate:m", code, ["m/a", "m/b"], retries=1)])
    assert (tmp_path / "starts").stat().st_size == 2
    assert {c.cell: c.state for c in summary.cells} == {"m/a": "complete", "m/b": "failed"}
    assert cell(summary, "m/b").stages[0].attempts == 2
    err = capfd.readouterr().err
    assert err.count("generate:m: attempt 2 of 2 after SIGKILL\n") == 1
    log = Path(summary.jobs[0].log).read_text()
    assert log.count("# imageevalkit: ") == 2, "each attempt is in the log, none overwritten"


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
while len(list((FOLDER / "running").iterdir())) < MOST and not (FOLDER / "met").exists():
    time.sleep(0.02)
time.sleep(0.2)  # for one too many
stamp("met")
with (FOLDER / "seen").open("a") as file:
    file.write(f"{len(list((FOLDER / 'running').iterdir()))}\\n")
mine.unlink()
outcome("CELL", "generate")
"""


@pytest.mark.parametrize(("parallel", "cores", "most"), [(None, 1, 1), (True, 2, 2)])
def test_no_more_jobs_at_once_than_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parallel: bool | None, cores: int, most: int
) -> None:
    monkeypatch.setattr(local, "available_cores", lambda: 4)
    code = _OVERLAP.replace("MOST", str(most))
    jobs = [
        python_job(tmp_path, f"generate:{n}", code.replace("CELL", f"{n}/a"), [f"{n}/a"], cores=cores)
        for n in range(most + 1)
    ]
    assert run(tmp_path, jobs, parallel).status is ExitStatus.COMPLETE
    assert max(map(int, (tmp_path / "seen").read_text().split())) == most


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


def test_a_job_that_follows_starts_when_its_cell_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A light one even where others have all cores."""
    monkeypatch.setattr(local, "available_cores", lambda: 1)
    code = "stamp('begun'); time.sleep(0.5); stamp('late'); opened('m/a'); wait_for('following')"
    jobs = following(tmp_path, f"{code}; stamp('made'); outcome('m/a','generate')")
    summary = run(tmp_path, jobs, parallel=True)
    assert summary.status is ExitStatus.COMPLETE and [job.attempts for job in summary.jobs] == [1, 1]
    events = ["begun", "late", "following", "made", "scored"]
    assert order(tmp_path, *sorted(events)) == events


def test_a_job_that_follows_too_early_comes_back_once_when_all_is_there(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
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
outcome("m/a", "evaluate")
"""
    early = python_job(tmp_path, "evaluate:m/a", again, ["m/a"], after=["generate:m"])
    summary = run(tmp_path, [jobs[0], replace(early, follows=True, light=True)], parallel=True)
    assert order(tmp_path, "again", "following", "made") == ["following", "made", "again"]
    assert summary.status is ExitStatus.COMPLETE
    spent = [line for line in capfd.readouterr().err.splitlines() if "spent" in line]
    assert len(spent) == 1 and spent[0].endswith("$1.50"), "what it told before counts once"


def test_nobody_waits_for_an_outcome_that_the_disk_did_not_take(tmp_path: Path) -> None:
    full = "(FOLDER / 'outcomes' / '.m__a.generate.json.part').symlink_to('/dev/full')"
    jobs = following(tmp_path, f"opened('m/a'); wait_for('following'); {full}; sys.exit(1)")
    summary = run(tmp_path, jobs, parallel=True)
    assert "generate: left no outcome" in summary.cells[0].message
    assert [(job.state, job.attempts) for job in summary.jobs] == [("failed", 1), ("skipped", 0)]


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


def test_a_stopped_run_leaves_no_process(tmp_path: Path) -> None:
    with launcher(escaping_plan(tmp_path), str(tmp_path)) as process:
        wait_for((tmp_path / "escaped").exists)
        # one of them may just be between fork and exec, when nothing marks it
        wait_for(lambda: len(marked(str(tmp_path))) >= 5)
        assert holds_lock(tmp_path)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=LONGEST_WAIT)
        assert marked(str(tmp_path)) == [] and not holds_lock(tmp_path)
        assert process.returncode == 143
    assert re.search(r"^m/a      interrupted +\S*generate_m.log$", out, re.M)
    assert "quick/a  complete" in out and "exit status 143" in out
    assert "stopped by SIGTERM" in out
    assert "attempt 2" not in err and not (tmp_path / "never").exists()
    saved = json.loads((tmp_path / "summary.json").read_text())
    assert saved["status"] == 143 and saved["jobs"][3]["state"] == "interrupted"


def test_the_second_ctrl_c_kills_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher and the guard of this test would wait for ever after the first one."""
    patient = Path(guard.__file__).read_text().replace("GRACE_ASKED = 5.0", "GRACE_ASKED = 1e9")
    (tmp_path / "guard.py").write_text(patient)
    monkeypatch.setattr(guard, "__file__", str(tmp_path / "guard.py"))
    monkeypatch.setattr(local, "_STOP_LIMIT", 1e9)
    monkeypatch.setattr(local, "_SECOND_SIGNAL_AFTER", 0.0)
    code = (
        f"signal.signal(signal.SIGTERM, lambda *_: stamp('asked')); stamp('deaf'); time.sleep({LONGEST_WAIT})"
    )

    def press_twice() -> None:
        for seen in ("deaf", "asked"):
            wait_for((tmp_path / seen).exists)
            os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press_twice, daemon=True).start()
    summary = run(tmp_path, [python_job(tmp_path, "generate:m", code, ["m/a"])])
    assert (summary.status, summary.jobs[0].exit) == (130, "SIGKILL")


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


def test_a_terminal_shows_every_cell_of_a_job_and_its_money(tmp_path: Path) -> None:
    cells = ["gpt/a", "gpt/long-name", "own/a", "gpt/quick"]
    shown = _on_terminal(tmp_path, python_job(tmp_path, "generate:apis", _MANY_CELLS, cells))
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
    assert re.fullmatch(rf"0/4 results done · \d:\d\d · spent {re.escape(spent)} of \$20.00", early[0])
    names = [[line.split()[1] for line in block[1:]] for block in (early, late)]
    assert names == [["gpt/a", "gpt/long-name", "own/a"], ["gpt/long-name", "own/a", "gpt/quick"]]
    # the run's sum outlives its block: 1.50 + 6.00 + 3.00
    assert re.search(r"spent +\$10.50 of \$20.00\r?\n", shown)


def _blocks(shown: str) -> list[list[str]]:
    """The lines of each live block drawn."""
    plain = re.sub(r"\x1b\[[\d;?]*[mlh]", "", shown)
    drawn = re.split(r"\r\x1b\[2K(?:\x1b\[1A\x1b\[2K)*|(?:\r\x1b\[1A\x1b\[2K)+", plain)
    blocks = [[line.rstrip() for line in block.splitlines()] for block in drawn if "results done" in block]
    return [[line for line in block if line] for block in blocks]


def _on_terminal(folder: Path, job: Job) -> str:
    """Everything that a run of ``job``, which fails, writes to a terminal of 90 columns and 20 lines."""
    main, terminal = pty.openpty()
    code = (
        "import sys; from pathlib import Path\n"
        "from imageevalkit.jobs.plan import load_plan; from imageevalkit.run.local import run_plan\n"
        "sys.exit(int(run_plan(load_plan(Path(sys.argv[1])), {}).status))\n"
    )
    size = {"TERM": "xterm", "COLUMNS": "90", "LINES": "20"}
    paths = {"PYTHONPATH": str(Path(local.__file__).parents[2]), "PYTHONIOENCODING": "utf-8"}
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(Plan(str(folder), False, [job]).save())],
        stdout=terminal,
        stderr=terminal,
        env=os.environ | size | paths,
    )
    os.close(terminal)
    shown = _read_all(main)
    assert process.wait(LONGEST_WAIT) == 1
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
