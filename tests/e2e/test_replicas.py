"""Worker processes, one per replica: shares, deaths, batches, loading; real processes with fake models."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from imageevalkit.generate import replicas
from imageevalkit.generate.cell_run import CellRun, GenerateOptions
from imageevalkit.generate.concurrent import CellPlan, generate_together
from imageevalkit.generate.replicas import Replicas, environs_of, load_replicated
from imageevalkit.jobs.plan import COMPLETE, FAILED, INCOMPLETE, Outcome
from imageevalkit.jobs.progress import ProgressWriter
from imageevalkit.store.cell import REPO, Cell
from imageevalkit.store.items import items_of
from imageevalkit.store.records import last_records
from tests.support.generation import SETTING, FakeDataset
from tests.support.jobs import is_alive
from tests.support.replica_worker import COMMAND

CELL = Cell("m", "fake")


@pytest.fixture(autouse=True)
def import_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(REPO))


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    return tmp_path / "notes"


class Run:
    """Generation of some cells by worker processes; ``said`` is what the logs got."""

    def __init__(
        self,
        workers: int = 1,
        environs: list[dict[str, str]] | None = None,
        item_timeout: float | None = None,
        progress: Path | None = None,
    ) -> None:
        self.environs, self.item_timeout = environs or [{}] * workers, item_timeout
        self.progress = ProgressWriter(progress)
        self.said: list[str] = []
        self.outcomes: dict[Cell, Outcome] = {}

    def __call__(self, *cells: tuple[Cell, Any], **kwargs: Any) -> list[Outcome]:
        asyncio.run(self._generate([self._planned(*cell, kwargs) for cell in cells]))
        return [self.outcomes[cell] for cell, _ in cells]

    def _planned(self, cell: Cell, dataset: Any, kwargs: dict[str, Any]) -> CellPlan:
        kwargs = {
            name: os.path.relpath(value) if isinstance(value, Path) else value
            for name, value in kwargs.items()
        }

        def open_cell() -> CellRun:
            return CellRun(
                cell,
                items_of(dataset, cell),
                dataset.dataset_task,
                {**SETTING, "model_kwargs": kwargs},
                GenerateOptions(),
                self.progress,
                self.said.append,
            )

        return CellPlan(cell, open_cell, self.said.append)

    async def _generate(self, cells: list[CellPlan]) -> None:
        workers = Replicas(self.environs, COMMAND, self.item_timeout)
        loop = asyncio.get_running_loop()

        def load(run: CellRun) -> Any:
            return asyncio.run_coroutine_threadsafe(load_replicated(workers, run), loop).result()

        try:
            await generate_together([cells], load, 1, self.outcomes.__setitem__)
        finally:
            await workers.close()


def generate(workers: int, n: int, cell: Cell = CELL, **kwargs: Any) -> tuple[Outcome, list[str]]:
    """How a cell of ``n`` items ends with so many workers, and what was said."""
    run = Run(workers)
    (outcome,) = run((cell, FakeDataset(n)), **kwargs)
    return outcome, run.said


def elsewhere(dataset: FakeDataset) -> FakeDataset:
    """The items of benchmark ``other``."""
    for entry in dataset.data:
        entry["image_save_path"] = str(entry["image_save_path"]).replace("/fake/", "/other/")
    return dataset


def lines(notes: Path) -> list[list[str]]:
    return [line.split(" | ") for line in notes.read_text().splitlines()]


def calls(notes: Path) -> list[list[str]]:
    return [line for line in lines(notes) if line[2] != "load"]


def contents(cell: Cell = CELL) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted((cell.folder / "images").iterdir())}


def test_workers_share_the_items_and_load_once(notes: Path) -> None:
    outcome, said = generate(2, 40, notes=notes, seconds=0.04, meets=2)
    assert (outcome.state, outcome.message) == (COMPLETE, "40 of 40 images")
    assert sorted(line[2] for line in calls(notes)) == sorted(f"prompt {n}" for n in range(40))
    shares = Counter(line[0] for line in calls(notes))
    assert len(shares) == 2
    assert Counter(line[0] for line in lines(notes) if line[2] == "load") == dict.fromkeys(shares, 1)
    assert sum("model loaded in" in line for line in said) == 2


def test_which_items_are_made_together_does_not_depend_on_the_workers() -> None:
    """The fake model's pixel (1, 1) holds the size of its batch."""
    generate(1, 22, batch_size=4)
    other = Cell("n", "fake")
    generate(2, 22, cell=other, batch_size=4)
    assert contents() == contents(other)
    sizes = [Image.open(path).getpixel((1, 1))[0] for path in sorted((CELL.folder / "images").iterdir())]  # type: ignore[index]
    assert sizes == [4] * 20 + [2] * 2
    assert last_records(CELL)["images/00000"].extra == {"batch": 4}


def test_out_of_memory_lowers_the_batch_and_says_so(notes: Path) -> None:
    outcome, said = generate(1, 16, notes=notes, batch_size=8, fits=3)
    assert outcome.state == COMPLETE
    assert [line for line in said if "out of memory" in line] == [
        "out of memory with a batch of 8: continuing with 4",
        "out of memory with a batch of 4: continuing with 2",
    ]
    assert sum(line[2] == "too large" for line in calls(notes)) == 2, "the smaller batch is kept"
    assert {(record.extra or {})["batch"] for record in last_records(CELL).values()} == {2}


def test_an_item_that_fails_a_batch_does_not_take_the_others_along() -> None:
    outcome, said = generate(1, 8, batch_size=4, fails_on="prompt 5")
    assert (outcome.state, outcome.message.split(";")[0]) == (INCOMPLETE, "7 of 8 images, 1 failed")
    assert last_records(CELL)["images/00005"].error == {
        "class": "ValueError",
        "text": "cannot draw prompt 5",
    }
    assert (
        "a batch of 4 failed (ValueError: cannot draw prompt 5): its items are generated one by one" in said
    )


def test_failures_keep_their_class_and_words() -> None:
    dataset = FakeDataset(4)
    dataset.data[1]["prompt"], dataset.data[2]["prompt"] = "refused", "late"
    run = Run()
    (outcome,) = run((CELL, dataset), fails_on="prompt 3")
    assert outcome.message.startswith("1 of 4 images, 1 refused, 2 failed")
    last = last_records(CELL)
    assert last["images/00001"].error == {"class": "Refused", "text": "no"}
    assert last["images/00002"].attempts == 4
    assert any("Traceback" in line and "cannot draw prompt 3" in line for line in run.said)


def test_a_worker_that_dies_gives_its_items_back_and_is_started_again(notes: Path) -> None:
    run = Run(2)
    (outcome,) = run((CELL, FakeDataset(30)), notes=notes, seconds=0.002, dies_on="prompt 7")
    assert (outcome.state, outcome.message.split(";")[0]) == (INCOMPLETE, "29 of 30 images, 1 failed")
    error = last_records(CELL)["images/00007"].error
    assert error == {"class": "WorkerDied", "text": "its process was ended by SIGKILL (out of main memory?)"}
    assert sum(line[2] == "prompt 7" for line in calls(notes)) == 2, "a second worker had a try"
    assert any(line.startswith("a worker died, and is started again") for line in run.said)


def test_killing_one_of_two_workers_loses_nothing(notes: Path) -> None:
    run = Run(2)
    killed: list[int] = []

    async def generate_and_kill() -> None:
        generating = asyncio.ensure_future(
            run._generate([run._planned(CELL, FakeDataset(60), {"notes": str(notes), "seconds": 0.02})])
        )
        while not notes.exists() or len(calls(notes)) < 10 or len({line[0] for line in calls(notes)}) < 2:
            await asyncio.sleep(0.01)
        killed.append(int(calls(notes)[-1][0]))
        os.kill(killed[0], signal.SIGKILL)
        await generating

    asyncio.run(generate_and_kill())
    assert run.outcomes[CELL] == Outcome(COMPLETE, "60 of 60 images")
    assert len(contents()) == 60
    records = CELL.generation.read_text().splitlines()
    assert len(records) == 60, "no item is made twice, none is missing"


def test_a_cuda_error_ends_the_process_though_it_lingers_and_a_new_one_goes_on(notes: Path) -> None:
    outcome, _ = generate(1, 6, notes=notes, breaks_on="prompt 2", lingers=True)
    assert outcome.message.startswith("5 of 6 images, 1 failed")
    error = last_records(CELL)["images/00002"].error
    assert error and error["class"] == "RuntimeError"
    assert error["text"].startswith("CUDA error: an illegal memory access")
    assert len({line[0] for line in lines(notes)}) == 3, "one process, and one more for each error"


def test_the_first_image_of_a_process_and_of_a_batch_size_may_take_longer() -> None:
    run = Run(item_timeout=3.0)
    (outcome,) = run((CELL, FakeDataset(5)), batch_size=2, compiles=8.0)
    assert outcome == Outcome(COMPLETE, "5 of 5 images")


def test_a_first_image_that_hangs_is_ended_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "_FIRST_CALL_SECONDS", 6.0)
    monkeypatch.setattr(replicas, "_FIRST_CALL_FACTOR", 1)
    run = Run(item_timeout=3.0)
    (outcome,) = run((CELL, FakeDataset(3)), slow_on="prompt 0", slow_seconds=3600.0)
    assert (outcome.state, outcome.message.split(";")[0]) == (INCOMPLETE, "2 of 3 images, 1 failed")
    error = last_records(CELL)["images/00000"].error
    assert error and error["text"] == "no image within 6 s, the limit of a first call (ITEM_TIMEOUT is 3)"


def test_items_that_hang_cost_no_worker_however_many_they_are(
    notes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas, "_MOST_DEATHS", 2)
    monkeypatch.setattr(replicas, "_MOST_DEATHS_IN_ALL", 2)
    dataset = FakeDataset(6)
    for n in (2, 3):
        dataset.data[n]["prompt"] = "endless"
    progress = tmp_path / "progress.jsonl"
    run = Run(item_timeout=2.0, progress=progress)
    (outcome,) = run((CELL, dataset), notes=notes, seconds=0.02, slow_on="endless", slow_seconds=3600.0)
    assert (outcome.state, outcome.message.split(";")[0]) == (INCOMPLETE, "4 of 6 images, 2 failed")
    error = last_records(CELL)["images/00002"].error
    assert error == {"class": "WorkerDied", "text": "no image within 2 s (ITEM_TIMEOUT)"}
    assert sum(line[2] == "endless" for line in calls(notes)) == 4, "each had two tries"
    assert sum(line.startswith("a worker died, and is started again") for line in run.said) == 4
    told = "worker deaths, the last: no image within 2 s (ITEM_TIMEOUT)"
    assert any(note.endswith(told) for note in remarks(progress))


def test_what_a_model_has_started_ends_with_its_worker(notes: Path) -> None:
    """Its GPU memory would be missing to the next load."""
    run = Run()
    still_there: list[int] = []

    def look_back(line: str) -> None:
        if "model loaded in" in line:
            *before, _ = (int(line[3]) for line in lines(notes) if line[2] == "started")
            still_there.extend(filter(is_alive, before))

    run.said = Listener(look_back)
    (outcome,) = run((CELL, FakeDataset(4)), notes=notes, starts=True, dies_on="prompt 2")
    assert outcome.message.startswith("3 of 4 images, 1 failed")
    started = [int(line[3]) for line in lines(notes) if line[2] == "started"]
    assert len(started) == 3
    assert still_there == []
    assert not any(map(is_alive, started)), "at the end too"


class Listener(list[str]):
    def __init__(self, listen: Callable[[str], None]) -> None:
        super().__init__()
        self._listen = listen

    def append(self, line: str) -> None:
        super().append(line)
        self._listen(line)


def remarks(progress: Path) -> list[str]:
    """Returns the notes of the progress."""
    return [json.loads(line)["note"] for line in progress.read_text().splitlines()]


def test_a_worker_that_only_dies_is_given_up(notes: Path) -> None:
    dataset = FakeDataset(100)
    for entry in dataset.data:
        entry["prompt"] = "deadly"
    run = Run(2)
    second = elsewhere(FakeDataset(3))
    outcome, other = run((CELL, dataset), (Cell("m", "other"), second), notes=notes, dies_on="deadly")
    assert (outcome.state, other.state) == (FAILED, FAILED)
    assert "every worker died" in other.message, "whoever comes later is not left waiting"
    assert "SIGKILL" in outcome.message
    assert len(calls(notes)) <= 12
    assert sum("is given up" in line for line in run.said) <= 2


def test_a_model_that_does_not_load_is_one_clear_line_and_tried_once(notes: Path) -> None:
    second = elsewhere(FakeDataset(3))
    run = Run(2)
    outcomes = run((CELL, FakeDataset(3)), (Cell("m", "other"), second), notes=notes, unloadable=True)
    assert outcomes == [Outcome(FAILED, "model does not load: no such folder: /nowhere")] * 2
    assert len(lines(notes)) == 2, "once in each worker"
    assert not CELL.generation.exists()


def test_each_worker_sees_its_own_gpus(notes: Path) -> None:
    environs = environs_of(2, None, {"CUDA_VISIBLE_DEVICES": "3,GPU-a,5,7,1"})
    assert [e["CUDA_VISIBLE_DEVICES"] for e in environs] == ["3,GPU-a", "5,7"]
    Run(environs=environs)((CELL, FakeDataset(20)), notes=notes, meets=2)
    assert {line[1] for line in calls(notes)} == {"3,GPU-a", "5,7"}


@pytest.mark.parametrize(
    ("per_replica", "most", "given", "expected"),
    [
        (1, 2, "0,1,2", ["0", "1"]),
        (0, 3, "", [None] * 3),
    ],
)
def test_shares_of_the_gpus(
    per_replica: int, most: int | None, given: str, expected: list[str | None]
) -> None:
    environs = environs_of(per_replica, most, {"CUDA_VISIBLE_DEVICES": given})
    assert [e.get("CUDA_VISIBLE_DEVICES") for e in environs] == expected
