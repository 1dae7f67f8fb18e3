"""One evaluate job for many results: each evaluator loads once, and no result harms another one."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from imageevalkit import registry
from imageevalkit.benchmark.answerer import Answerer, device_lost
from imageevalkit.benchmark.contract import Answers, Benchmark, Measurer, Sample
from imageevalkit.benchmark.question import Answer, JudgeUnusable, Picture, Question, measure
from imageevalkit.common.errors import CellFailure, ExitStatus
from imageevalkit.evaluate.job import EvaluateJob
from imageevalkit.jobs.plan import (
    ATTEMPT_ENV,
    COMPLETE,
    EARLY_ENV,
    FAILED,
    EvaluateOrder,
    Job,
    Outcome,
    Plan,
    note_opened,
    read_outcome,
    write_outcome,
)
from imageevalkit.metrics import mean
from imageevalkit.store import fingerprint as fp
from imageevalkit.store.cell import Cell
from imageevalkit.store.items import Item
from imageevalkit.store.results import Evaluator, Metric, Score
from tests.support.checkout import add_model, make_checkout, needs_driver_env, run_eval
from tests.support.generation import SETTING, FakeAsyncModel, FakeDataset, generate
from tests.support.served_benchmark import add_served_benchmark
from tests.support.tiny_vlm import save_qwen3_vl
from tests.support.waiting import wait_for

N = 3
CELLS = [Cell(f"m{n}", "fake") for n in range(3)]


class Lengths(Answerer):
    """Answers with the length of the file; ``asked`` holds the pictures of each call, and ``faults`` may raise."""

    asked: list[list[str]] = []  # noqa: RUF012 - a fixture empties it
    faults: dict[str, Callable[[], None]] = {}  # noqa: RUF012

    @property
    def evaluator(self) -> Evaluator:
        return Evaluator("lengths", official=False)

    def ask(self, questions: Sequence[Question], workers: int = 1) -> Iterator[Answer]:
        self.asked.append([])
        for question in questions:
            path = question.pictures[0].path
            self.asked[-1].append(path.parts[-4])
            for model, fault in self.faults.items():
                if model in path.parts:
                    fault()
            yield Answer(question, str(path.stat().st_size))


class Weighing(Benchmark):
    name, version, headline, task = "fake", "1", ("size",), "t2i"

    @property
    def measurers(self) -> Mapping[str, Measurer]:
        return {"size": Measurer("tests.e2e.test_evaluate_job:Lengths", {})}

    def samples(self) -> Iterable[Sample]:
        return [Sample(f"images/{n:05d}.png", f"prompt {n}", n) for n in range(N)]

    def questions(self, item: Item, image: Picture, answers: Answers) -> Iterable[Question]:
        return [measure("size", image, item.id)]

    def parse(self, question: Question, answer: Answer) -> int:
        return int(answer.text or "")

    def score(self, item: Item, answers: Answers) -> Score:
        return Score({"size": answers["size"].value})

    def metrics(self, scores: Iterable[Score]) -> Mapping[str, Metric]:
        return {"size": mean(scores, "size", interval=False)}

    unbounded = ("size",)


@pytest.fixture(autouse=True)
def weighing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "make_benchmark", lambda name, settings, judge: Weighing())
    Lengths.asked.clear()
    Lengths.faults.clear()
    yield
    Lengths.faults.clear()


@pytest.fixture
def job(tmp_path: Path) -> tuple[Plan, Job]:
    """A job for three cells, after the jobs that generate them."""
    cells = [cell.key for cell in CELLS]
    generating = [Job(f"generate:{cell}", "generate", [], [cell], [cell]) for cell in cells]
    logs = [str(tmp_path / f"{cell.model}.log") for cell in CELLS]
    after = [one.name for one in generating]
    own = Job("evaluate:all", "evaluate", [], cells, logs, after=after, follows=True, order=EvaluateOrder())
    return Plan(str(tmp_path / "run"), None, [*generating, own]), own


def made(plan: Plan, *cells: Cell) -> None:
    for cell in cells:
        outcome = generate(FakeAsyncModel(), FakeDataset(N), cell=cell)
        write_outcome(Path(plan.run_folder), cell, "generate", outcome)


def in_child(job: tuple[Plan, Job], attempt: int = 1) -> int:
    """The exit status of a start of ``job``, as a launcher makes it."""
    child = os.fork()
    if not child:
        status = 99
        try:
            os.environ[ATTEMPT_ENV] = str(attempt)
            status = EvaluateJob(*job, EvaluateOrder()).run()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def started(job: tuple[Plan, Job]) -> ExitStatus:
    """A start of ``job`` in this process, which prints to its own output again afterwards."""
    own = [os.dup(1), os.dup(2)]
    try:
        with open(1, "w", closefd=False) as out, contextlib.redirect_stdout(out):
            return EvaluateJob(*job, EvaluateOrder()).run()
    finally:
        for number, fd in enumerate(own, 1):
            os.dup2(fd, number)
            os.close(fd)


def states(plan: Plan) -> list[str]:
    outcomes = [read_outcome(Path(plan.run_folder), cell, "evaluate") for cell in CELLS]
    return [outcome.state if outcome else "" for outcome in outcomes]


def test_a_metric_model_is_asked_once_about_all_results(job: tuple[Plan, Job], tmp_path: Path) -> None:
    made(job[0], *CELLS)
    assert started(job) is ExitStatus.COMPLETE
    assert Lengths.asked == [[cell.model for cell in CELLS for _ in range(N)]]
    assert states(job[0]) == [COMPLETE] * 3
    for cell in CELLS:
        assert "=== complete: size" in (tmp_path / f"{cell.model}.log").read_text()
        assert len(cell.judgements.read_text().splitlines()) == N
    alone = CELLS[1].scores.read_text()
    CELLS[1].judgements.unlink()
    plan = Plan(str(tmp_path / "second"), None, [])
    one = Job("evaluate:one", "evaluate", [], [CELLS[1].key], [str(tmp_path / "one.log")])
    assert EvaluateJob(plan, one, EvaluateOrder()).run() is ExitStatus.COMPLETE
    assert CELLS[1].scores.read_text() == alone, "the same as in a job of its own"


def test_a_failure_is_of_its_result_alone(job: tuple[Plan, Job]) -> None:
    made(job[0], CELLS[0], CELLS[2])
    write_outcome(Path(job[0].run_folder), CELLS[1], "generate", Outcome(FAILED, "no model"))
    generate(FakeAsyncModel(), FakeDataset(2), cell=CELLS[1])
    assert started(job) is ExitStatus.FAILED
    assert states(job[0]) == [COMPLETE, FAILED, COMPLETE]
    lost = read_outcome(Path(job[0].run_folder), CELLS[1], "evaluate")
    assert lost and lost.message == "not started: its generate stage failed"


def test_a_metric_model_that_fails_is_told_of_each_result(job: tuple[Plan, Job]) -> None:
    def fail() -> None:
        raise CellFailure("no weights")

    made(job[0], *CELLS)
    Lengths.faults["m0"] = fail
    assert started(job) is ExitStatus.FAILED
    for cell in CELLS:
        outcome = read_outcome(Path(job[0].run_folder), cell, "evaluate")
        assert outcome and outcome.state == FAILED and "no weights" in outcome.message
    assert len(Lengths.asked) == 1


def test_a_result_that_crashes_the_process_is_taken_last_and_given_up(job: tuple[Plan, Job]) -> None:
    made(job[0], *CELLS)
    Lengths.faults["m0"] = lambda: os._exit(9)
    assert in_child(job) == 9 and states(job[0]) == ["", "", ""]
    assert in_child(job, 2) == 9 and states(job[0]) == ["", "", ""]
    assert in_child(job, 3) == 9 and states(job[0]) == ["", COMPLETE, COMPLETE], "it is the last one now"
    assert in_child(job, 4) == ExitStatus.FAILED
    outcome = read_outcome(Path(job[0].run_folder), CELLS[0], "evaluate")
    assert outcome and outcome.message == "the process ended in the middle of it 2 times"


def test_a_gpu_that_fails_fails_one_result_and_another_process_goes_on(job: tuple[Plan, Job]) -> None:
    def fail() -> None:
        device_lost.set()
        raise JudgeUnusable("the GPU failed")

    made(job[0], *CELLS)
    Lengths.faults["m0"] = fail
    assert in_child(job) == ExitStatus.FAILED and states(job[0]) == ["", "", ""]
    assert in_child(job, 2) == ExitStatus.FAILED and states(job[0]) == [FAILED, "", ""]
    assert in_child(job, 3) == ExitStatus.FAILED and states(job[0]) == [FAILED, COMPLETE, COMPLETE]


def test_an_early_start_takes_what_is_there_and_then_what_is_being_made(
    job: tuple[Plan, Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(EARLY_ENV, "1")
    plan = job[0]
    made(plan, CELLS[1])

    def rest() -> None:
        wait_for(lambda: states(plan)[1] == COMPLETE)
        for cell in (CELLS[2], CELLS[0]):
            key = fp.fingerprint(fp.settings_of("t2i", SETTING))
            note_opened(Path(plan.run_folder), cell, key)
            made(plan, cell)

    making = threading.Thread(target=rest)
    making.start()
    assert started(job) is ExitStatus.COMPLETE
    making.join()
    assert states(plan) == [COMPLETE] * 3
    order = list(dict.fromkeys(model for call in Lengths.asked for model in call))
    assert order[0] == "m1" and sum(map(len, Lengths.asked)) == 3 * N


def test_an_early_start_does_not_wait_for_a_generation_that_failed(
    job: tuple[Plan, Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another attempt may succeed; the launcher starts the job again when the generation has ended for good."""
    monkeypatch.setenv(EARLY_ENV, "1")
    made(job[0], CELLS[1], CELLS[2])
    write_outcome(Path(job[0].run_folder), CELLS[0], "generate", Outcome(FAILED, "no model"))
    assert started(job) is ExitStatus.LATER and states(job[0]) == ["", COMPLETE, COMPLETE]
    made(job[0], CELLS[0])
    monkeypatch.delenv(EARLY_ENV)
    asked = sum(map(len, Lengths.asked))
    assert started(job) is ExitStatus.COMPLETE
    assert sum(map(len, Lengths.asked)) == asked + N, "the others keep their outcome"


MODEL = """
from PIL import Image


class Plain:
    def __init__(self, model_path):
        self.model_name = "plain"

    def generate(self, prompt, seed=42):
        return Image.new("RGB", (64, 64), (seed % 256, 0, 0))
"""


@needs_driver_env
def test_two_models_on_two_benchmarks_load_the_local_judge_once(tmp_path: Path) -> None:
    checkout = make_checkout(tmp_path / "checkout")
    save_qwen3_vl(tmp_path / "judge")
    for name in ("alpha", "beta"):
        add_served_benchmark(checkout, name)
        rules = checkout / f"benchmarks/{name}/benchmark.py"
        text = rules.read_text().replace("int(answer.text[-1])", "len(answer.text) % 2")
        rules.write_text(text.replace("vllm:org/judge", f"transformers:{tmp_path / 'judge'}"))
    models = [f"plain-{n}" for n in range(2)]
    for model in models:
        add_model(checkout, model, "Plain", MODEL)
    run_eval(
        checkout,
        *("--model_names", ";".join(models), "--ds_names", "alpha;beta"),
        *("--judge_kwargs", f"environment={sys.prefix},dtype=float32"),
        CUDA_VISIBLE_DEVICES="",
        status=0,
    )
    for model in models:
        for name in ("alpha", "beta"):
            result = json.loads((checkout / f"output/{model}/{name}/result.json").read_text())
            assert result["state"] == "complete" and result["coverage"]["judged"] == 3
            [log] = (checkout / "log" / model).glob(f"{name}_evaluate_*.log")
            assert "=== complete" in log.read_text()
    logs = "".join(path.read_text() for path in (checkout / "log").glob("*/*_evaluate_*.log"))
    assert logs.count("judge: loading") == 1
