"""The launcher of a cluster before a Slurm that answers late, twice or not at all, in simulated time."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from imageevalkit.common.errors import ExitStatus, UserError
from imageevalkit.common.locks import take_lock
from imageevalkit.common.slurm import SlurmFailed
from imageevalkit.extras.manage import runs
from imageevalkit.generate import job as generation
from imageevalkit.jobs.plan import (
    COMPLETE,
    INCOMPLETE,
    Cluster,
    GenerateOrder,
    Job,
    Outcome,
    Plan,
    ReportOrder,
    cell_of,
    job_words,
    outcome_path,
    stop_path,
    write_outcome,
)
from imageevalkit.plan.config import Config
from imageevalkit.plan.sbatch import words_for, words_for_size
from imageevalkit.run.display import RunSummary
from imageevalkit.slurm import node_job
from imageevalkit.slurm.cluster import NodeFaults, run_plan
from imageevalkit.slurm.commands import Queued, Slurm
from imageevalkit.slurm.submitted import (
    Found,
    Report,
    files_of,
    identity,
    look_around,
    read_report,
    report_path,
)
from imageevalkit.store.cell import lock_cell, log_root

KEYS = ("m/a", "m/b")
POLICY = (
    "Batch job submission failed: Job violates accounting/QOS policy "
    "(job submit limit, user's size and/or time limits)"
)
AWAY = "Unable to contact slurm controller (connect failure)"


class SimulatedSlurm(Slurm):
    """Jobs take ``seconds`` each, all at once, and leave what a node job leaves, but for the outcomes' own files.

    ``trouble`` is called before anything is done, with the words of a job that is submitted.
    """

    def __init__(self, plan: Plan, seconds: float = 20.0) -> None:
        self.plan, self.seconds, self.now = plan, seconds, 0.0
        self.there: dict[str, tuple[Job, str, float, str]] = {}
        self.submitted: list[str] = []
        self.trouble: Callable[[Sequence[str] | None], None] = lambda words: None

    def submit(self, words: Sequence[str], environ: Mapping[str, str]) -> str:
        self.trouble(words)
        return self.take(words)

    def take(self, words: Sequence[str]) -> str:
        told = dict(word.partition("=")[::2] for word in words)
        job, number = self.plan.job(told["--job-name"]), str(len(self.submitted) + 1)
        self.submitted.append(job.name)
        before = [end for _, _, end, _ in self.there.values()] if "--dependency" in told else []
        node = self.node_for(told.get("--exclude", ""))
        self.there[number] = job, told["--comment"], max([self.now, *before]) + self.seconds, node
        return number

    def node_for(self, excluded: str) -> str:
        """The node that a job gets."""
        return "n1"

    def report_of(self, job: Job, node: str) -> Report | None:
        """Returns the report that a job leaves, or None if it leaves none."""
        return Report(0, outcomes={key: Outcome(COMPLETE, "made") for key in job.owed}, node=node)

    def queue(self) -> dict[str, Queued]:
        self.trouble(None)
        ended = {number: one for number, one in self.there.items() if one[2] <= self.now}
        for number, (job, told, _, node) in ended.items():
            del self.there[number]
            path = report_path(Path(told.split(" ")[-1]), job)
            path.parent.mkdir(parents=True, exist_ok=True)
            if report := self.report_of(job, node):
                path.write_text(json.dumps(asdict(report)))
        states = dict.fromkeys(self.there, "RUNNING") | dict.fromkeys(ended, "FAILED")
        return {
            number: Queued(states[number], "", node, job.name, comment)
            for number, (job, comment, _, node) in {**self.there, **ended}.items()
        }

    def cancel(self, numbers: Sequence[str]) -> None:
        self.trouble(None)
        for number in numbers:
            self.there.pop(number, None)

    def start_early(self, numbers: Sequence[str]) -> None:
        raise SlurmFailed("Access/permission denied")

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.setenv("IMAGEEVALKIT_OUTPUT", str(tmp_path / "output"))
    monkeypatch.setenv("IMAGEEVALKIT_LOG", str(tmp_path / "log"))
    jobs = [
        Job("generate:m", "generate", ["g"], list(KEYS), [f"{tmp_path}/{key[-1]}.log" for key in KEYS]),
        *(
            Job(f"evaluate:{key}", "evaluate", ["e"], [key], [f"{tmp_path}/e.log"], after=["generate:m"])
            for key in KEYS
        ),
    ]
    names = [job.name for job in jobs]
    report = ReportOrder(list(KEYS))
    jobs.append(
        Job("report", "report", ["r"], [], [f"{tmp_path}/r.log"], after=names, always=True, order=report)
    )
    made = Plan(
        str(tmp_path / "20261125-101010-1"), None, jobs, cluster=Cluster({job.name: [] for job in jobs}, 120)
    )
    made.save()
    return made


@pytest.fixture(autouse=True)
def signals_as_before() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def run(
    plan: Plan,
    slurm: SimulatedSlurm,
    found: Found = Found(),  # noqa: B008
    detached: bool = False,
) -> RunSummary:
    return run_plan(plan, found, slurm, detached, lambda: slurm.now, slurm.sleep)


def test_outcomes_come_with_the_report_when_their_files_are_not_seen_yet(plan: Plan) -> None:
    summary = run(plan, SimulatedSlurm(plan))
    assert summary.status == ExitStatus.COMPLETE
    assert {cell.cell: (cell.state, cell.message) for cell in summary.cells} == dict.fromkeys(
        KEYS, (COMPLETE, "made")
    )
    assert outcome_path(Path(plan.run_folder), cell_of(KEYS[0]), "generate").exists()


def test_a_controller_that_is_away_for_a_while_fails_nothing(plan: Plan) -> None:
    slurm = SimulatedSlurm(plan)

    def trouble(words: Sequence[str] | None) -> None:
        if (1 <= slurm.now < 90 and len(slurm.submitted) >= 2) or 5 <= slurm.now < 60:
            raise SlurmFailed(AWAY)

    slurm.trouble = trouble
    assert run(plan, slurm).status == ExitStatus.COMPLETE
    assert sorted(slurm.submitted) == sorted(job.name for job in plan.jobs)


@pytest.mark.parametrize(
    "said",
    [
        AWAY,
        "Batch job submission failed: Unexpected missing socket error",
        "slurm_load_jobs error: Message send failure",
        "Message receive failure",
        "Batch job submission failed: Protocol authentication error",
        "Munge encode failed: Failed to connect to /run/munge/munge.socket.2: Connection refused",
        "Communication shutdown failure",
        "Socket timed out on send/recv operation",
    ],
)
def test_a_controller_that_does_not_answer_is_told_from_one_that_refuses(said: str) -> None:
    assert SlurmFailed(said).is_silent
    assert not SlurmFailed("Batch job submission failed: Invalid partition name specified").is_silent


@pytest.mark.parametrize("is_taken", [True, False])
def test_what_sbatch_does_not_say_is_seen_in_the_queue(plan: Plan, is_taken: bool) -> None:
    """sbatch gives no answer to the first question about each job, which it has taken, or has not."""
    slurm, asked = SimulatedSlurm(plan), set[str]()

    def trouble(words: Sequence[str] | None) -> None:
        if words is not None and words[0] not in asked:
            asked.add(words[0])
            if is_taken:
                slurm.take(words)
            raise SlurmFailed("Socket timed out on send/recv operation")

    slurm.trouble = trouble
    assert run(plan, slurm).status == ExitStatus.COMPLETE
    assert sorted(slurm.submitted) == sorted(job.name for job in plan.jobs), "each once"


class OneAfterAnother(SimulatedSlurm):
    """A job waits for the jobs before it, unless the launcher starts it early."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan, seconds=100)
        self.early: dict[str, float] = {}

    def queue(self) -> dict[str, Queued]:
        there = super().queue()
        waits = {"state": "PENDING", "reason": "Dependency", "node": ""}
        return {
            number: one if number == "1" or number in self.early else one._replace(**waits)
            for number, one in there.items()
        }

    def start_early(self, numbers: Sequence[str]) -> None:
        self.early |= dict.fromkeys(numbers, self.now)


def test_an_evaluation_waits_for_the_images_of_its_own_benchmark_alone(plan: Plan) -> None:
    slurm, folder = OneAfterAnother(plan), Path(plan.run_folder)

    def trouble(words: Sequence[str] | None) -> None:
        if 10 < slurm.now < 20:
            write_outcome(folder, cell_of(KEYS[0]), "generate", Outcome(COMPLETE))
        if 30 < slurm.now < 40:
            write_outcome(folder, cell_of(KEYS[1]), "generate", Outcome("failed"))

    slurm.trouble = trouble
    run(plan, slurm)
    assert slurm.submitted[1] == "evaluate:m/a"
    assert [*slurm.early] == ["2"] and 10 < slurm.early["2"] < 20


def test_what_is_submitted_after_its_images_are_there_waits_for_nothing(plan: Plan) -> None:
    assert plan.cluster
    plan = replace(plan, cluster=replace(plan.cluster, max_jobs=2))
    plan.jobs.sort(key=lambda job: job.name != "generate:m" and job.name != f"evaluate:{KEYS[1]}")
    slurm, told = SimulatedSlurm(plan, seconds=100), list[Sequence[str]]()

    def trouble(words: Sequence[str] | None) -> None:
        if words:
            told.append(words)
        if words is None and 10 < slurm.now < 20:
            write_outcome(Path(plan.run_folder), cell_of(KEYS[0]), "generate", Outcome(COMPLETE))
        if words is None and 30 < slurm.now < 40:  # makes room
            slurm.there.pop("2", None)
            report_path(Path(plan.run_folder), plan.jobs[1]).write_text(json.dumps(asdict(Report(1))))

    slurm.trouble = trouble
    run(plan, slurm)
    [late] = [words for words in told if words and words[0] == "--job-name=evaluate:m/a"]
    assert not [word for word in late if word.startswith("--dependency")]


class Forgetful(SimulatedSlurm):
    """After ten seconds the controller loses its state, and gives the old numbers to jobs of somebody else."""

    cancelled: Sequence[str] = ()

    def cancel(self, numbers: Sequence[str]) -> None:
        self.cancelled = numbers

    def queue(self) -> dict[str, Queued]:
        there = super().queue()
        if self.now < 10:
            return there
        other = Queued("RUNNING", "", "n2", "generate:m", "imageevalkit 0123456789abcdef /other/run")
        return dict.fromkeys(map(str, range(1, 9)), other)


def test_a_job_with_the_number_of_an_old_one_is_not_taken_for_it(plan: Plan) -> None:
    slurm = Forgetful(plan, seconds=1000)
    summary = run(plan, slurm)
    assert summary.status == ExitStatus.FAILED and slurm.now < 500
    assert "generate: Slurm job 1 is not in the queue any more" in str(summary.cells[0])


def test_a_job_with_the_number_of_an_old_one_is_not_cancelled(plan: Plan) -> None:
    slurm = Forgetful(plan, seconds=1000)
    slurm.trouble = lambda words: stop_path(Path(plan.run_folder)).touch() if slurm.now > 20 else None
    assert run(plan, slurm).status == ExitStatus.TERMINATED
    assert not slurm.cancelled


def test_a_site_that_writes_comments_of_its_own_keeps_no_job_from_being_watched(plan: Plan) -> None:
    class OwnComments(SimulatedSlurm):
        def queue(self) -> dict[str, Queued]:
            return {
                number: one._replace(comment="billing: vision") for number, one in super().queue().items()
            }

    assert run(plan, OwnComments(plan, seconds=200)).status == ExitStatus.COMPLETE


class BadNode(SimulatedSlurm):
    """Every job goes to the node n1 that is not kept from it, and fails there in the way ``fails``."""

    def __init__(
        self, plan: Plan, fails: Callable[[Job], Report | None], bad: Sequence[str] = ("n1",)
    ) -> None:
        super().__init__(plan)
        self.fails, self.bad, self.nodes = fails, bad, list[tuple[str, str]]()

    def take(self, words: Sequence[str]) -> str:
        told = dict(word.partition("=")[::2] for word in words)
        if {"n1", "n2"} <= {*told.get("--exclude", "").split(",")}:
            raise SlurmFailed("Batch job submission failed: Requested node configuration is not available")
        return super().take(words)

    def node_for(self, excluded: str) -> str:
        return "n2" if "n1" in excluded.split(",") else "n1"

    def report_of(self, job: Job, node: str) -> Report | None:
        self.nodes.append((job.name, node))
        folder = Path(self.plan.run_folder)
        for before in map(self.plan.job, job.after):
            if not job.always and not read_report(folder, before):
                return Report(None, "not started: generate of m/a is failed", skipped=True, node=node)
        report = self.fails(job) if node in self.bad else super().report_of(job, node)
        for key, outcome in report.outcomes.items() if report else ():
            write_outcome(folder, cell_of(key), job.step, outcome)
        return report


def broken_gpu(job: Job) -> Report:
    why = Outcome("failed", "model does not load: RuntimeError: CUDA error: no device")
    return Report(1, outcomes=dict.fromkeys(job.owed, why), node="n1", idle=True)


@pytest.mark.parametrize("fails", [broken_gpu, lambda job: None], ids=["a broken GPU", "no shared disk"])
def test_what_one_node_fails_another_one_does(
    plan: Plan, fails: Callable[[Job], Report | None], capsys: pytest.CaptureFixture[str]
) -> None:
    slurm = BadNode(plan, fails)
    summary = run(plan, slurm)
    assert summary.status == ExitStatus.COMPLETE
    assert {cell.state for cell in summary.cells} == {COMPLETE}
    assert slurm.nodes[-1] == ("report", "n2"), "it comes after all others"
    told = capsys.readouterr().err
    assert "generate:m on node n1, job 1 (" in told and "it is submitted again for another node" in told
    assert re.search(r"node n1 failed \d jobs that another node completed: have it checked", told)


def test_jobs_that_left_between_two_looks_are_submitted_again(plan: Plan) -> None:
    """The evaluations began when the images had failed, and were gone before the launcher looked again."""

    class Quick(BadNode):
        def take(self, words: Sequence[str]) -> str:
            number = super().take(words)
            if self.now < 10:  # all of the first tries
                self.there[number] = (*self.there[number][:2], self.seconds, self.there[number][3])
            return number

        def queue(self) -> dict[str, Queued]:
            waits = {"state": "PENDING", "reason": "Dependency"}
            there = super().queue()
            behind = {n: there[n]._replace(**waits) for n in "234" if n in self.there}
            return there | behind

    slurm = Quick(plan, broken_gpu)
    assert run(plan, slurm).status == ExitStatus.COMPLETE
    assert slurm.submitted.count("generate:m") == 2


@pytest.mark.parametrize("bad", [("n1", "n2"), ("n1",)])
def test_what_no_other_node_does_fails_by_its_own_reason(plan: Plan, bad: Sequence[str]) -> None:
    """There are two bad nodes; or one good one, which config.sh excludes."""
    assert plan.cluster
    words = {name: ["--exclude=n2"] if len(bad) == 1 else [] for name in plan.cluster.sbatch}
    plan = replace(plan, cluster=replace(plan.cluster, sbatch=words))
    slurm = BadNode(plan, broken_gpu, bad)
    summary = run(plan, slurm)
    assert summary.status == ExitStatus.FAILED and slurm.now < 500
    assert {cell.message for cell in summary.cells} == {
        "generate: model does not load: RuntimeError: CUDA error: no device"
    }
    assert slurm.submitted.count("generate:m") == len(bad)


@pytest.mark.parametrize(
    "report",
    [
        Report(1, outcomes=dict.fromkeys(KEYS, Outcome("failed", "12 images failed")), node="n1"),
        Report(1, outcomes={KEYS[0]: Outcome(COMPLETE)}, node="n1", idle=True),
        Report(1, outcomes=dict.fromkeys(KEYS, Outcome("stale", "needs --overwrite")), node="n1", idle=True),
    ],
    ids=["it has paid for something", "it has done something", "no node would do it"],
)
def test_a_failure_that_is_no_nodes_is_not_tried_elsewhere(plan: Plan, report: Report) -> None:
    slurm = BadNode(plan, lambda job: report if job.stage == "generate" else Report(1, node="n1"))
    assert run(plan, slurm).status == ExitStatus.FAILED
    assert sorted(slurm.submitted) == sorted(job.name for job in plan.jobs)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--mem=8G"], ["--mem=8G", "--exclude=n1"]),
        (["--exclude=a,b", "--exclusive"], ["--exclusive", "--exclude=a,b,n1"]),
        (["-x", "a", "-xb", "-wn3"], ["-wn3", "--exclude=b,n1"]),
    ],
)
def test_a_nodes_exclusion_adds_to_those_of_config_sh(words: list[str], expected: list[str]) -> None:
    faults = NodeFaults()
    assert faults.words("generate:m", words) == words
    assert faults.may_try_elsewhere("generate:m", "n1") and not faults.may_try_elsewhere("generate:m", "n2")
    assert faults.words("generate:m", words) == expected


def test_what_slurm_refuses_fails_its_cells_alone(plan: Plan) -> None:
    slurm = SimulatedSlurm(plan)

    def trouble(words: Sequence[str] | None) -> None:
        if words and words[0] == "--job-name=evaluate:m/b":
            raise SlurmFailed("Batch job submission failed: Invalid partition name specified")

    slurm.trouble = trouble
    summary = run(plan, slurm)
    assert summary.status == ExitStatus.FAILED
    assert [cell.state for cell in summary.cells] == [COMPLETE, "failed"]
    assert "sbatch: Batch job submission failed: Invalid partition" in summary.cells[1].message


def test_the_file_stop_ends_a_run_wherever_its_launcher_is(plan: Plan) -> None:
    slurm = SimulatedSlurm(plan, seconds=1000)
    slurm.trouble = lambda words: stop_path(Path(plan.run_folder)).touch() if slurm.now > 5 else None
    summary = run(plan, slurm)
    assert summary.status == ExitStatus.TERMINATED
    assert not slurm.there and slurm.now < 60
    assert {cell.state for cell in summary.cells} == {"interrupted"}


@pytest.fixture
def hangup_is_not_ignored() -> Iterator[None]:
    """Tests may run under nohup, and a launcher leaves SIGHUP alone if it is ignored."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.usefixtures("hangup_is_not_ignored")
def test_a_signal_ends_a_detached_launcher_and_no_job(
    plan: Plan, number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    """A login node that is rebooted sends SIGTERM to every process."""
    slurm = SimulatedSlurm(plan, seconds=1000)
    slurm.trouble = lambda words: os.kill(os.getpid(), number) if slurm.now > 5 else None
    assert run(plan, slurm, detached=True).status == ExitStatus.TERMINATED
    assert len(slurm.there) == len(plan.jobs) and slurm.now < 60
    told = capsys.readouterr().err
    assert f"{number.name}: this launcher ends, and 4 jobs continue in Slurm's queue" in told
    assert "bash eval.sh --cancel ends it" in told
    assert not (Path(plan.run_folder) / "summary.json").exists(), "the run has not ended"


def test_a_fault_of_a_detached_launcher_ends_no_job(plan: Plan) -> None:
    def trouble(words: Sequence[str] | None) -> None:
        if slurm.now > 5:
            raise OSError("no space left on device")

    slurm = SimulatedSlurm(plan, seconds=1000)
    slurm.trouble = trouble
    with pytest.raises(OSError, match="no space left"):
        run(plan, slurm, detached=True)
    assert len(slurm.there) == len(plan.jobs)


def test_cancel_ends_a_detached_run(plan: Plan) -> None:
    """It leaves the file "stop", and then sends SIGTERM."""

    def trouble(words: Sequence[str] | None) -> None:
        if slurm.now > 5 and not stop_path(Path(plan.run_folder)).exists():
            stop_path(Path(plan.run_folder)).touch()
            os.kill(os.getpid(), signal.SIGTERM)

    slurm = SimulatedSlurm(plan, seconds=1000)
    slurm.trouble = trouble
    summary = run(plan, slurm, detached=True)
    assert summary.status == ExitStatus.TERMINATED and not slurm.there
    assert {cell.state for cell in summary.cells} == {"interrupted"}


@pytest.mark.parametrize(("answers", "left", "by_number"), [(1, "1 job", ""), (2, "2 jobs", " (scancel 1)")])
def test_what_a_controller_that_stays_away_may_have_left_is_told(
    plan: Plan, capsys: pytest.CaptureFixture[str], answers: int, left: str, by_number: str
) -> None:
    """It is gone while a job is submitted, the first or the second one; then the run is stopped."""
    slurm, asked = SimulatedSlurm(plan, seconds=1000), list[object]()

    def trouble(words: Sequence[str] | None) -> None:
        asked.append(words)
        if len(asked) > answers:
            stop_path(Path(plan.run_folder)).touch()
            slurm.now += 9  # as long as commands try
            raise SlurmFailed(AWAY)

    slurm.trouble = trouble
    assert run(plan, slurm).status == ExitStatus.TERMINATED
    assert slurm.now < 120
    what = (
        "of this run may be in Slurm's queue yet: bash eval.sh --cancel ends the others, once Slurm answers"
    )
    assert f"{left} {what}{by_number}\n" in capsys.readouterr().err


def test_what_lets_a_held_job_go_on_is_told(plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    class Holding(SimulatedSlurm):
        def queue(self) -> dict[str, Queued]:
            there = super().queue()
            is_held = {"state": "PENDING", "reason": "launch failed requeued held", "node": ""}
            held = {number: there[number]._replace(**is_held) for number in there if number == "1"}
            return there | held if self.now < 10 else there

    assert run(plan, Holding(plan)).status == ExitStatus.COMPLETE
    what = "generate:m in Slurm's queue (launch failed requeued held), job 1: scontrol release 1 lets it continue"
    assert what in capsys.readouterr().err


def test_one_launcher_at_a_time_has_a_cell(plan: Plan) -> None:
    """Jobs that it holds back are in no queue; those on their nodes have the cell's own lock meanwhile."""
    slurm = SimulatedSlurm(plan)
    found = look_around(plan, slurm)
    with pytest.raises(UserError, match="m/a is being written by another run"):
        look_around(plan, SimulatedSlurm(plan))
    os.close(lock_cell(cell_of(KEYS[0]), grace=0.0))
    assert run(plan, slurm, found).status == ExitStatus.COMPLETE
    for lock in found.locks.values():
        os.close(lock)
    for lock in look_around(plan, slurm).locks.values():
        os.close(lock)


def test_jobs_of_an_earlier_run_are_found_and_others_refused(plan: Plan, tmp_path: Path) -> None:
    slurm = SimulatedSlurm(plan)
    for _ in range(2):  # a second one that does the same changes nothing
        slurm.take([f"--job-name={plan.jobs[0].name}", comment(plan, plan.jobs[0])])
    again = replace(plan, run_folder=str(tmp_path / "20261125-101010-2"))
    found = look_around(again, slurm)
    told = comment(plan, plan.jobs[0]).partition("=")[2]
    assert found.jobs == {"generate:m": ("1", Path(plan.run_folder).absolute(), plan.jobs[0], told)}
    assert run(again, slurm, found).status == ExitStatus.COMPLETE
    assert slurm.submitted[2:] == ["evaluate:m/a", "evaluate:m/b", "report"]
    for lock in found.locks.values():
        os.close(lock)
    slurm.take([f"--job-name={plan.jobs[0].name}", comment(plan, plan.jobs[0])])
    other = [Job("adopt:m", "adopt", ["a"], [KEYS[1]], [f"{tmp_path}/a.log"])]
    with pytest.raises(UserError, match=r"m/b is being worked on by Slurm job \d \(generate:m\)"):
        look_around(replace(plan, run_folder=str(tmp_path / "20261125-101010-3"), jobs=other), slurm)


def test_what_an_earlier_run_has_left_in_the_queue_ends_before_others_begin(
    plan: Plan, tmp_path: Path
) -> None:
    """Only an evaluation is left: the images are looked at again after it, which has the cell."""
    slurm = SimulatedSlurm(plan, seconds=500)
    slurm.take([f"--job-name=evaluate:{KEYS[0]}", comment(plan, plan.jobs[1])])
    with pytest.raises(UserError, match="earlier run, whose generate:m is not complete: wait, or end it"):
        look_around(replace(plan, run_folder=str(tmp_path / "20261125-101010-3")), slurm)
    write_outcome(Path(plan.run_folder), cell_of(KEYS[0]), "generate", Outcome(COMPLETE))
    again = replace(plan, run_folder=str(tmp_path / "20261125-101010-2"))
    asked = list[Sequence[str]]()
    slurm.trouble = lambda words: asked.append(words) if words else None
    assert run(again, slurm, look_around(again, slurm)).status == ExitStatus.COMPLETE
    [generate] = [words for words in asked if words[0] == "--job-name=generate:m"]
    assert "--dependency=afterany:1" in generate


@pytest.mark.parametrize("is_alive", [True, False])
def test_a_run_whose_launcher_is_elsewhere_is_ended_while_it_has_no_job_in_the_queue(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_alive: bool
) -> None:
    """A full queue has held all of them back; or that launcher was killed."""
    folder = log_root() / "runs" / "20261125-101010-1"
    replace(plan, run_folder=str(folder)).save()
    files_of(folder).mkdir()
    monkeypatch.setattr(runs, "Slurm", lambda: SimulatedSlurm(plan))
    (folder / "launcher.json").write_text(json.dumps({"host": "login2", "pid": 1, "began": "1"}))
    with (folder / "launcher.lock").open("w") as lock:
        if is_alive:
            take_lock(lock.fileno(), Path(lock.name))
        runs.cancel({}, Config(), Path())
    told = capsys.readouterr().out
    assert ("cancelled: run " in told and "watched from login2" in told) == is_alive
    assert ("no run is under way" in told) != is_alive
    assert stop_path(folder).exists() == is_alive


def test_a_full_queue_is_tried_again(plan: Plan) -> None:
    """Also where none of the jobs that fill it is the run's."""
    slurm = SimulatedSlurm(plan)

    def trouble(words: Sequence[str] | None) -> None:
        if words and slurm.now < 100:
            raise SlurmFailed(f"QOSMaxSubmitJobPerUserLimit; {POLICY}")

    slurm.trouble = trouble
    assert run(plan, slurm).status == ExitStatus.COMPLETE
    assert 100 < slurm.now < 250


@pytest.mark.parametrize("why", ["QOSMaxWallDurationPerJobLimit; ", ""])
def test_what_a_policy_forbids_for_good_fails(plan: Plan, why: str) -> None:
    """Its words are those of a full queue; where nothing else is said, only the run's own jobs may make room."""
    slurm = SimulatedSlurm(plan)

    def trouble(words: Sequence[str] | None) -> None:
        if words and words[0] == "--job-name=generate:m":
            raise SlurmFailed(why + POLICY)

    slurm.trouble = trouble
    summary = run(plan, slurm)
    assert summary.status == ExitStatus.FAILED and slurm.now < 250
    assert "job submit limit, user's size and/or time limits" in str(summary.cells[0])


def comment(plan: Plan, job: Job) -> str:
    return f"--comment=imageevalkit {identity(plan, job)} {Path(plan.run_folder).absolute()}"


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        ("--constraint=h200 --exclude=node07 --nodelist=n1 -wn2 --exclusive --gres=gpu:2 -q high", ""),
        ("--comment=mine", "--comment=mine"),
        ("--depend=after:1", "--depend=after:1"),
        ("--exclusive -d after:1", "-d"),
        ("--array 1-4", "--array"),
        ("-N2", "-N2"),
    ],
)
def test_words_that_are_the_launchers_own_are_refused(words: str, wrong: str) -> None:
    job = Job("generate:m", "generate", ["g"], ["m/a"], ["a.log"])
    config = Config(maps={"SLURM_ARGS_MAP": {"*": words}})
    if not wrong:
        assert words_for(config, job) == shlex.split(words)
        return
    with pytest.raises(
        UserError, match=re.escape(f"SLURM_ARGS_MAP in config.sh: '{wrong}' is reserved for the launcher")
    ):
        words_for(config, job)


@pytest.mark.parametrize(
    ("job", "words", "expected"),
    [
        ({}, [], ["--cpus-per-task=4"]),
        ({"light": True}, [], ["--cpus-per-task=2"]),
        ({"gpus": 2, "gpus_at_most": 8}, [], ["--gpus-per-node=8", "--cpus-per-task=16"]),
        ({"gpus": 2}, ["--gres=gpu:h200:2"], ["--cpus-per-task=4"]),
        ({"gpus": 1, "gpus_at_most": 4}, ["--cpus-per-task=3"], ["--gpus-per-node=4"]),
        ({"gpus": 1, "gpus_at_most": 4}, ["-c3"], ["--gpus-per-node=4"]),
        ({"gpus": 1, "gpus_at_most": 4}, ["--cpus-per-gpu=3"], ["--gpus-per-node=4"]),
        ({"order": GenerateOrder(False, {}, replicas=3)}, [], ["--cpus-per-task=12"]),
    ],
)
def test_a_job_asks_for_the_cpus_of_its_replicas(
    job: dict[str, Any], words: list[str], expected: list[str]
) -> None:
    assert words_for_size(Job("generate:m", "generate", ["g"], ["m/a"], ["a.log"], **job), words) == expected


def test_a_job_that_another_machine_has_taken_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_job, "_LOOK_AT_CLAIM_EVERY", 0.0)
    path = tmp_path / "job.claim"
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    first = node_job._Claim(path)
    assert first.take() == "" and first.is_ours()
    monkeypatch.setenv("SLURMD_NODENAME", "n2")
    second = node_job._Claim(path)
    before = second.take()
    assert before.startswith("n1 ") and not second.has_left(before)
    assert second.is_ours() and not first.is_ours()
    first.let_go()
    assert second.has_left(before) and second.is_ours()
    second.let_go()
    assert node_job._Claim(path).take() == "", "it was let go"
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    assert node_job._Claim(tmp_path / "other.claim").has_left("n1 999999999 1"), "its process is gone"


@pytest.mark.parametrize(("answers", "is_requeued"), [(AWAY, True), ("Invalid job id specified", False)])
def test_a_job_asks_a_controller_that_is_away_again_to_requeue_it(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, answers: str, is_requeued: bool
) -> None:
    asked = list[str]()

    def requeue(slurm: Slurm, number: str) -> None:
        asked.append(number)
        if len(asked) < 3:
            raise SlurmFailed(answers)
        job._stop(signal.SIGTERM, None)

    monkeypatch.setattr(Slurm, "requeue", requeue)
    monkeypatch.setattr(node_job, "_ASK_AGAIN_AFTER", 0.0)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    job = node_job._NodeJob(plan, plan.jobs[0])
    job._back_in_queue("its time limit came")
    report = read_report(Path(plan.run_folder), plan.jobs[0])
    assert (report is None) == is_requeued and len(asked) == (3 if is_requeued else 1)


def test_a_job_drops_the_lock_of_a_result_whose_images_are_there(plan: Plan) -> None:
    """Its evaluation takes the lock on another node, and a second start of the job does not wait for it."""
    done, open_ = map(cell_of, KEYS)
    first = node_job._NodeJob(plan, plan.jobs[0])
    locks = first._locks()
    write_outcome(Path(plan.run_folder), done, "generate", Outcome(COMPLETE))
    first._drop_locks_of_done(locks)
    evaluation = lock_cell(done, grace=0.0)
    with pytest.raises(UserError, match="m/b is being written"):
        lock_cell(open_, grace=0.0)
    for fds in locks.values():
        os.close(fds[0])
    again = node_job._NodeJob(plan, plan.jobs[0])._locks()
    assert [*again] == [open_.key]
    for fd in (evaluation, *again[open_.key]):
        os.close(fd)


def test_a_second_start_leaves_a_result_alone_whose_evaluation_may_have_begun(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no lock of that result. A script of an export completes all results, and has all locks."""
    write_outcome(Path(plan.run_folder), cell_of(KEYS[0]), "generate", Outcome(INCOMPLETE, "3 of 4 images"))
    asked = list[list[str]]()

    def run(made: object, keys: Sequence[str]) -> ExitStatus:
        asked.append([*keys])
        return ExitStatus.COMPLETE

    monkeypatch.setattr(generation._Generation, "run", run)
    for cluster_, expected in ((plan.cluster, [KEYS[1]]), (None, [*KEYS])):
        jobs = [replace(plan.jobs[0], order=GenerateOrder(False, {})), *plan.jobs[1:]]
        one = replace(plan, jobs=jobs, cluster=cluster_)
        one.save()
        monkeypatch.setattr(sys, "argv", ["generate.py", *job_words(one.path, "generate:m")])
        status = generation.main(dict)
        assert status == (ExitStatus.INCOMPLETE if cluster_ else ExitStatus.COMPLETE)
        locks = node_job._NodeJob(one, one.jobs[0])._locks()
        assert asked.pop() == [*locks] == expected
        for fds in locks.values():
            os.close(fds[0])
