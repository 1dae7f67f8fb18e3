"""The launcher of a cluster before a Slurm that answers late, twice or not at all, in simulated time."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import pytest

from imageevalkit.common.errors import ExitStatus, UserError
from imageevalkit.extras.adopt.order import AdoptOrder
from imageevalkit.extras.rewrite.order import RewriteOrder
from imageevalkit.jobs.plan import (
    COMPLETE,
    VERSION,
    Cluster,
    EvaluateOrder,
    GenerateOrder,
    Job,
    Outcome,
    Plan,
    ReportOrder,
    ServeOrder,
    cell_of,
    load_plan,
    outcome_path,
    stop_path,
    write_outcome,
)
from imageevalkit.judges.choice import JudgeOptions
from imageevalkit.plan.config import Config
from imageevalkit.run.display import RunSummary
from imageevalkit.slurm import node_job
from imageevalkit.slurm.cluster import run_plan
from imageevalkit.slurm.commands import (
    Found,
    Queued,
    Report,
    Slurm,
    SlurmFailed,
    identity,
    look_around,
    read_report,
    report_path,
    sbatch_words,
    words_for,
    words_for_size,
)
from imageevalkit.store.cell import lock_cell
from imageevalkit.store.results import Until

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
def plan(tmp_path: Path) -> Plan:
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
    made = Plan(str(tmp_path / "20261125-101010-1"), None, jobs, cluster=Cluster(120))
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
    words: Sequence[str] = (),
) -> RunSummary:
    options = dict.fromkeys((job.name for job in plan.jobs), words)
    return run_plan(plan, found, slurm, options, detached, lambda: slurm.now, slurm.sleep)


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


@pytest.mark.parametrize("said", [AWAY, "Message receive failure"])
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
                return Report(None, "not started: its generate stage failed", skipped=True, node=node)
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


@pytest.mark.parametrize(
    "report",
    [
        Report(1, outcomes=dict.fromkeys(KEYS, Outcome("failed", "12 images failed")), node="n1"),
        Report(1, outcomes=dict.fromkeys(KEYS, Outcome("stale", "needs --overwrite")), node="n1", idle=True),
    ],
    ids=["it has paid for something", "no node would do it"],
)
def test_a_failure_that_is_no_nodes_is_not_tried_elsewhere(plan: Plan, report: Report) -> None:
    slurm = BadNode(plan, lambda job: report if job.stage == "generate" else Report(1, node="n1"))
    assert run(plan, slurm).status == ExitStatus.FAILED
    assert sorted(slurm.submitted) == sorted(job.name for job in plan.jobs)


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


def test_a_signal_ends_a_detached_launcher_and_no_job(plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    """A login node that is rebooted sends SIGTERM to every process."""
    slurm = SimulatedSlurm(plan, seconds=1000)
    slurm.trouble = lambda words: os.kill(os.getpid(), signal.SIGTERM) if slurm.now > 5 else None
    assert run(plan, slurm, detached=True).status == ExitStatus.TERMINATED
    assert len(slurm.there) == len(plan.jobs) and slurm.now < 60
    told = capsys.readouterr().err
    assert "SIGTERM: this launcher ends, and 4 jobs continue in Slurm's queue" in told
    assert "bash eval.sh --cancel ends it" in told
    assert not (Path(plan.run_folder) / "summary.json").exists(), "the run has not ended"


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


def test_a_full_queue_is_tried_again(plan: Plan) -> None:
    """Also where none of the jobs that fill it is the run's."""
    slurm = SimulatedSlurm(plan)

    def trouble(words: Sequence[str] | None) -> None:
        if words and slurm.now < 100:
            raise SlurmFailed(f"QOSMaxSubmitJobPerUserLimit; {POLICY}")

    slurm.trouble = trouble
    assert run(plan, slurm).status == ExitStatus.COMPLETE
    assert 100 < slurm.now < 250


def test_what_a_policy_forbids_for_good_fails(plan: Plan) -> None:
    """Its words are those of a full queue."""
    slurm = SimulatedSlurm(plan)

    def trouble(words: Sequence[str] | None) -> None:
        if words and words[0] == "--job-name=generate:m":
            raise SlurmFailed(f"QOSMaxWallDurationPerJobLimit; {POLICY}")

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
        ("--depend=after:1", "--depend=after:1"),
        ("--array 1-4", "--array"),
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


def test_a_misspelt_key_of_a_map_is_refused(plan: Plan) -> None:
    """Its job would go to another partition."""
    for variable in ("SLURM_MEM_MAP", "SLURM_ARGS_MAP"):
        with pytest.raises(
            UserError, match=rf"^{variable} .* names unknown key 'generat' \(did you mean 'generate'"
        ):
            sbatch_words(Config(maps={variable: {"generat": "1G"}}), plan)
    assert sbatch_words(Config(maps={"SLURM_MEM_MAP": {"vistory": "1G"}}), plan)["report"] == []


@pytest.mark.parametrize(
    ("job", "words", "expected"),
    [
        ({}, [], ["--cpus-per-task=4"]),
        ({"gpus": 2, "gpus_at_most": 8}, [], ["--gpus-per-node=8", "--cpus-per-task=16"]),
        ({"gpus": 1, "gpus_at_most": 4}, ["--cpus-per-task=3"], ["--gpus-per-node=4"]),
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


@pytest.mark.parametrize("version", ["", '"version": 0, '])
def test_a_plan_of_another_version_is_refused(plan: Plan, version: str) -> None:
    """A job that waited while the toolkit was updated would read orders that mean something else."""
    written = json.dumps(json.loads(plan.path.read_text()))
    assert load_plan(plan.path) == plan and written.startswith('{"version": ')
    plan.path.write_text(re.sub(r'"version": \d+, ', version, written, count=1))
    with pytest.raises(
        UserError, match=r"a readable plan \(another version of ImageEvalKit wrote it: start the run"
    ):
        load_plan(plan.path)


def test_the_reason_of_an_invalid_order_is_told(plan: Plan) -> None:
    plan.path.write_text(plan.as_json.replace('"kind": "report"', '"kind": "tell"'))
    with pytest.raises(UserError, match=r"'jobs\.3\.order': an order has the unknown kind 'tell'"):
        load_plan(plan.path)


def test_a_change_of_what_jobs_read_has_a_version_of_its_own() -> None:
    orders = (GenerateOrder, EvaluateOrder, ServeOrder, ReportOrder, AdoptOrder, RewriteOrder)
    kinds = (Plan, Cluster, Job, *orders, JudgeOptions, Until)
    told = repr([(kind.__name__, [(each.name, each.type) for each in fields(kind)]) for kind in kinds])
    known = (VERSION, hashlib.sha256(told.encode()).hexdigest()[:12])
    assert known == (1, "cf207307790b"), "raise VERSION in jobs/plan.py, and write both here"
