"""An evaluation that follows the generation of its cell asks early; its result is that of the stages in turn."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from imageevalkit.benchmark import answerer
from imageevalkit.benchmark.question import Answer, Question
from imageevalkit.common.errors import CellFailure, ExitStatus
from imageevalkit.evaluate.following import Generation, follow
from imageevalkit.evaluate.job import EvaluateJob
from imageevalkit.evaluate.scoring import evaluate_cell
from imageevalkit.generate.cell_run import GenerateOptions
from imageevalkit.generate.model import Refused
from imageevalkit.jobs.plan import (
    COMPLETE,
    EARLY_ENV,
    FAILED,
    EvaluateOrder,
    Job,
    Outcome,
    Plan,
    note_opened,
    outcome_of,
    read_outcome,
    write_outcome,
)
from imageevalkit.jobs.progress import ProgressWriter
from imageevalkit.store import fingerprint as fp
from imageevalkit.store.cell import Cell
from imageevalkit.store.records import last_records
from imageevalkit.store.states import StoredImages
from tests.support.generation import SETTING, FakeAsyncModel, FakeDataset, generate, items
from tests.support.red_benchmark import RedBenchmark
from tests.support.waiting import wait_for

CELL = Cell("m", "fake")
N = 12


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answerer, "_PATIENCE", 0.2)


def fingerprint(**kwargs: Any) -> str:
    return fp.fingerprint(fp.settings_of("t2i", {**SETTING, "model_kwargs": kwargs}))


class Paused(FakeAsyncModel):
    """Makes the first ``free`` images, then waits until it may ``go`` on."""

    def __init__(self, free: int, fault: Callable[[str], None] = lambda prompt: None) -> None:
        super().__init__(fault)
        self.go, self._free = threading.Event(), free

    async def generate_async(self, prompt: str, seed: int = 42) -> Any:
        while len(self.calls) >= self._free and not self.go.is_set():
            await asyncio.sleep(0.01)
        return await super().generate_async(prompt, seed)


def goes_on(model: Paused, when: Callable[[], bool]) -> None:
    """Let ``model`` make the rest ``when`` that holds."""

    def wait() -> None:
        try:
            wait_for(when)
        finally:
            model.go.set()

    threading.Thread(target=wait).start()


@contextmanager
def generating(
    model: Any, run_folder: Path, n: int = N, options: GenerateOptions | None = None, **kwargs: Any
) -> Iterator[Generation]:
    """The generate job of the cell in a thread, as a launcher's run has it."""

    def make() -> None:
        outcome = generate(model, FakeDataset(n), options, **kwargs)
        write_outcome(run_folder, CELL, "generate", outcome)

    note_opened(run_folder, CELL, fingerprint(**kwargs))
    thread = threading.Thread(target=make)
    thread.start()
    yield Generation(run_folder, CELL)
    thread.join()


def evaluated(benchmark: RedBenchmark, generation: Generation | None, n: int = N) -> Outcome:
    """Runs the evaluate job, early if ``generation`` continues, else after it; returns the files of the cell."""
    of_cell, progress = items(FakeDataset(n)), ProgressWriter()

    def evaluate() -> Outcome:
        options = EvaluateOrder()
        said = follow(CELL, benchmark, of_cell, progress, options, generation) if generation else None
        wait_for(lambda: not generation or generation.is_made)
        return evaluate_cell(CELL, benchmark, of_cell, progress, options, said)

    return outcome_of(evaluate, print)


def requests() -> list[str]:
    """The hashes of all that was asked, repetitions included."""
    return sorted(json.loads(line)["request"] for line in CELL.judgements.read_text().splitlines())


def left_behind() -> dict[str, Any]:
    """The files of a result, without what tells of the time."""
    result = json.loads(CELL.result.read_text())
    for name in ("time", "run", "generation_seconds"):
        del result["provenance"][name]
    return {
        "result": result,
        "scores": CELL.scores.read_text(),
        "official": {path.name: path.read_bytes() for path in CELL.official.iterdir()},
        "requests": requests(),
    }


def in_turn(
    benchmark: RedBenchmark, model: Any, options: GenerateOptions | None = None
) -> tuple[Outcome, Any]:
    """How the cell is left by one stage after the other, from the beginning."""
    shutil.rmtree(CELL.folder)
    generate(model, FakeDataset(N), options)
    return evaluated(benchmark, None), left_behind()


def lossy(prompt: str) -> None:
    if prompt == "prompt 1":
        raise Refused("policy")
    if prompt == "prompt 2":
        raise ValueError("boom")


def test_images_are_judged_while_others_are_made_and_the_result_is_that_of_the_stages_in_turn(
    tmp_path: Path,
) -> None:
    model, benchmark = (
        Paused(6, lossy),
        RedBenchmark(faults={"images/00003": "hm", "images/00004": "judge down"}),
    )
    with generating(model, tmp_path) as generation:
        goes_on(model, lambda: len(benchmark.asked) == 4)
        outcome = evaluated(benchmark, generation)
    followed = left_behind()
    assert len(benchmark.asked) == N - 2, "each image once, the failed question too"
    plain = RedBenchmark(faults={"images/00003": "hm", "images/00004": "judge down"})
    assert (outcome, followed) == in_turn(plain, FakeAsyncModel(lossy))
    assert sorted(plain.asked) == sorted(benchmark.asked)


def test_what_is_on_record_is_not_asked_again(tmp_path: Path) -> None:
    generate(FakeAsyncModel(lossy), FakeDataset(N))
    evaluated(RedBenchmark(), None)
    before, again = requests(), RedBenchmark()
    with generating(FakeAsyncModel(), tmp_path, options=GenerateOptions(retry_refused=True)) as generation:
        assert evaluated(again, generation).state == COMPLETE
    assert sorted(again.asked) == ["images/00001", "images/00002"] and again.answered_before
    assert len(requests()) == len(before) + 2


def test_an_image_that_is_replaced_is_never_judged_in_its_old_form(tmp_path: Path) -> None:
    generate(FakeAsyncModel(), FakeDataset(N), guidance=1)
    old = {record.image_sha256 for record in last_records(CELL).values()}
    CELL.judgements.unlink(missing_ok=True)

    class Watching(RedBenchmark):
        def __init__(self) -> None:
            super().__init__()
            self.seen = set[str]()

        def ask(self, questions: Sequence[Question]) -> Iterator[Answer]:
            for answer in super().ask(questions):
                self.seen |= {answer.question.pictures[0].sha256}
                yield answer

    class Other(Paused):
        def generate(self, prompt: str, seed: int = 42) -> Any:
            return super().generate(prompt, seed + 100)

    model, benchmark = Other(3), Watching()
    overwrite = GenerateOptions(overwrite=True)
    with generating(model, tmp_path, N, overwrite, guidance=2) as generation:
        goes_on(model, lambda: len(benchmark.asked) == 3)
        assert evaluated(benchmark, generation).state == COMPLETE
    assert len(benchmark.asked) == N and not old & benchmark.seen


def test_only_whole_records_of_whole_images_of_these_settings_count(tmp_path: Path) -> None:
    """A line or an image that is half there is waited for; one of other settings, or of another prompt, is none."""
    generate(FakeAsyncModel(), FakeDataset(4))
    lines = CELL.generation.read_bytes().splitlines(keepends=True)
    images = [CELL.folder / json.loads(line)["path"] for line in lines]
    whole = [path.read_bytes() for path in images]
    for path in [CELL.generation, *images]:
        path.unlink()
    stored = StoredImages(CELL, items(FakeDataset(4)), fingerprint())
    assert stored.new(9) == []
    other = json.loads(lines[3]) | {"fingerprint": "0" * 16}
    images[3].write_bytes(whole[3])
    CELL.generation.write_bytes(json.dumps(other).encode() + b"\n" + lines[0] + lines[1][:-9])
    assert stored.new(9) == [], "it has no file yet"
    images[0].write_bytes(whole[0][:-5])
    images[1].write_bytes(whole[1])
    assert stored.new(9) == [], "half an image, and half a line"
    images[0].write_bytes(whole[0])
    assert [state.path for state in stored.new(9)] == [images[0]]
    with CELL.generation.open("ab") as file:
        file.write(lines[1][-9:] + b'{"item": "torn\n' + lines[2])
    images[2].write_bytes(whole[2])
    assert [state.path for state in stored.new(1)] == [images[1]]
    assert [state.path for state in stored.new(9)] == [images[2]]
    replaced = json.loads(lines[3]) | {"prompt_sha256": "0" * 64}
    (tmp_path / "anew").write_bytes(lines[0] + json.dumps(replaced).encode() + b"\n" + lines[3])
    (tmp_path / "anew").replace(CELL.generation)
    assert [state.path for state in stored.new(9)] == [images[0], images[3]]


def test_a_generation_that_fails_ends_the_following_without_a_result(tmp_path: Path) -> None:
    """Its answers stay, and the same command continues from them."""

    def breaks(prompt: str) -> None:
        if prompt == "prompt 7":
            raise CellFailure("the disk is full")

    benchmark = RedBenchmark()
    with generating(FakeAsyncModel(breaks), tmp_path) as generation:
        follow(CELL, benchmark, items(FakeDataset(N)), ProgressWriter(), EvaluateOrder(), generation)
        assert generation.outcome and generation.outcome.state == FAILED
    assert not CELL.result.exists() and len(requests()) == len(benchmark.asked) > 0
    again = RedBenchmark()
    (tmp_path / "second").mkdir()
    with generating(FakeAsyncModel(), tmp_path / "second") as generation:
        assert evaluated(again, generation).state == COMPLETE
    assert len(again.asked) + len(benchmark.asked) == N and not set(again.asked) & set(benchmark.asked)


def test_a_job_that_cannot_begin_ends_at_once_and_fails_when_all_images_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job("evaluate:m/fake", "evaluate", [], [CELL.key], ["log"], follows=True)
    plan, order = Plan(str(tmp_path), True, [job]), EvaluateOrder()
    note_opened(tmp_path, CELL, fingerprint())
    monkeypatch.setenv(EARLY_ENV, "1")
    assert EvaluateJob(plan, job, order).run() is ExitStatus.LATER, "no such benchmark"
    assert read_outcome(tmp_path, CELL, "evaluate") is None
    write_outcome(tmp_path, CELL, "generate", Outcome(COMPLETE))
    monkeypatch.delenv(EARLY_ENV)
    assert EvaluateJob(plan, job, order).run() is ExitStatus.FAILED
    left = read_outcome(tmp_path, CELL, "evaluate")
    assert left and left.state == FAILED and "'fake' has no scoring rules" in left.message
