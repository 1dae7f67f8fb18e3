"""Items of one cell that several machines make: which are whose, their records, and what becomes of these."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest
from PIL import Image

from imageevalkit.common.errors import ExitStatus, UserError
from imageevalkit.common.images import encoded
from imageevalkit.common.locks import take_lock, why_of_one_machine
from imageevalkit.generate.cell_run import CellRun, GenerateOptions
from imageevalkit.generate.concurrent import CellPlan
from imageevalkit.generate.model import ItemFailed
from imageevalkit.jobs.plan import Job, Plan, write_outcome
from imageevalkit.jobs.progress import ProgressWriter
from imageevalkit.run.display import Display
from imageevalkit.run.ledger import Ledger
from imageevalkit.store import fingerprint as fp
from imageevalkit.store.cell import Cell, lock_cell, lock_shard
from imageevalkit.store.items import Item
from imageevalkit.store.records import OK, Record, RecordWriter, last_records, merge_shards
from imageevalkit.store.shards import FOLDER, Shard, own_file
from imageevalkit.store.states import survey
from tests.support.generation import SETTING, FakeModel, settle

SETTINGS = {"task": "t2i", "class": "m:M", "model_path": "m"}


@pytest.fixture
def cell() -> Cell:
    return Cell("m", "b")


def items(cell: Cell, count: int = 8) -> list[Item]:
    paths = [cell.folder / "images" / f"{n}.png" for n in range(count)]
    return [Item(f"images/{n}", path, 43 + n, f"prompt {n}", None, {}) for n, path in enumerate(paths)]


def make(cell: Cell, shard: Shard | None, made: list[Item]) -> None:
    """Store an image of each item, as the job with that shard does."""
    key = fp.remember(own_file(cell.fingerprints, shard), SETTINGS, {"torch": "2.13.0"})
    writer = RecordWriter(cell, key, shard)
    for item in made:
        writer.save(
            item, Record.of(item, OK), encoded(Image.new("RGB", (8, 8), (item.seed, 0, 0)), item.path)
        )
    writer.close()


def split(cell: Cell, total: int) -> dict[Shard, list[Item]]:
    shards = [Shard(number, total) for number in range(1, total + 1)]
    return {shard: [item for item in items(cell) if shard.has(item.id)] for shard in shards}


def files(cell: Cell) -> set[str]:
    return {
        path.name for path in cell.folder.iterdir() if path.is_file() and not path.name.startswith(".lock")
    }


def test_each_item_falls_to_one_shard_whatever_else_there_is() -> None:
    ids = [f"images/{n:05}" for n in range(1000)]
    for total in (1, 2, 3, 8):
        shares = [[name for name in ids if Shard(n, total).has(name)] for n in range(1, total + 1)]
        assert sorted(name for share in shares for name in share) == ids
        assert min(map(len, shares)) > 0.75 * len(ids) / total
    assert Shard.of(str(Shard(2, 4))) == Shard(2, 4)
    assert Shard.of("") is None


def test_records_of_shards_count_at_once_and_are_gathered_once(cell: Cell) -> None:
    for shard, own in split(cell, 3).items():
        make(cell, shard, own)
    assert not cell.generation.exists()
    assert {*last_records(cell)} == {item.id for item in items(cell)}
    assert survey(cell, items(cell), SETTINGS).counts == {"reuse": 8}
    merge_shards(cell)
    assert files(cell) == {"generation.jsonl", "fingerprints.jsonl"}
    assert not (cell.folder / FOLDER).exists()
    lines = [json.loads(line) for line in cell.generation.read_text().splitlines()]
    assert sorted(line["item"] for line in lines) == sorted(item.id for item in items(cell))
    assert len(cell.fingerprints.read_text().splitlines()) == 1, "all of them had the same settings"
    assert survey(cell, items(cell), SETTINGS).counts == {"reuse": 8}


def test_what_is_killed_while_it_gathers_is_done_by_the_next(
    cell: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    for shard, own in split(cell, 2).items():
        make(cell, shard, own)
    unlink = Path.unlink

    def killed(path: Path, missing_ok: bool = False) -> None:
        if path.name == "generation.jsonl":
            raise KeyboardInterrupt
        unlink(path, missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", killed)
        with pytest.raises(KeyboardInterrupt):
            merge_shards(cell)
    assert (cell.folder / FOLDER).exists()
    merge_shards(cell)
    assert len(cell.generation.read_text().splitlines()) == 8, "none is there twice"
    assert not (cell.folder / FOLDER).exists()


@pytest.mark.parametrize("written", [1, 8])
def test_a_power_cut_while_shards_are_gathered_loses_and_repeats_no_record(cell: Cell, written: int) -> None:
    """The cell's file has some of the lines, and half of the next one; the shards still have all of theirs."""
    for shard, own in split(cell, 2).items():
        make(cell, shard, own)
    lines = [
        line
        for shard in split(cell, 2)
        for line in own_file(cell.generation, shard).read_bytes().splitlines(keepends=True)
    ]
    cell.generation.write_bytes(b"".join([*lines[:written], b"".join(lines[written:])[:100]]))
    merge_shards(cell)
    found = cell.generation.read_bytes().splitlines(keepends=True)
    assert sorted(line for line in found if line in lines) == sorted(lines)
    assert survey(cell, items(cell), SETTINGS).counts == {"reuse": 8}
    assert not (cell.folder / FOLDER).exists()


def test_another_number_of_shards_goes_on_with_what_there_is(cell: Cell) -> None:
    """The latest record counts, even if another shard has the item now."""
    for shard, own in split(cell, 2).items():
        make(cell, shard, own)
    merge_shards(cell)  # as a run does before it splits the cell anew
    for shard, own in split(cell, 3).items():
        assert survey(cell, own, SETTINGS, mend=True, shard=shard).counts["reuse"] == len(own)
    first = items(cell)[0]
    owner = next(shard for shard in split(cell, 3) if shard.has(first.id))
    before = last_records(cell)[first.id].image_sha256
    writer = RecordWriter(cell, "f", owner)
    writer.save(first, Record.of(first, OK), encoded(Image.new("RGB", (8, 8), "white"), first.path))
    writer.close()
    assert last_records(cell)[first.id].image_sha256 != before
    merge_shards(cell)
    assert last_records(cell)[first.id].fingerprint == "f"


def test_shards_share_a_cell_that_nobody_else_has(cell: Cell) -> None:
    first = lock_shard(cell, "1of2", grace=0.0)
    second = lock_shard(cell, "2of2", grace=0.0)
    with pytest.raises(UserError, match="is being written by"):
        lock_cell(cell, grace=0.0)
    with pytest.raises(UserError, match="is being written by"):
        lock_shard(cell, "2of2", grace=0.0)
    with pytest.raises(BlockingIOError):
        take_lock(first[0], cell.folder)
    os.close(second[0])
    take_lock(os.dup(first[0]), cell.folder)  # the last has the cell to itself
    for fd in (*first, second[1]):
        os.close(fd)


def test_a_cell_is_not_made_half_anew(cell: Cell) -> None:
    """Other settings than those of the images of another shard: nothing is made without --overwrite."""
    first, second = split(cell, 2)
    make(cell, first, split(cell, 2)[first])
    merge_shards(cell)
    other = {"module": "m", "class": "M", "model_path": "m", "model_kwargs": {"steps": 4}}
    progress = ProgressWriter(cell.folder / "progress.jsonl")
    for shard in (first, second):
        run = CellRun(cell, items(cell), "t2i", other, GenerateOptions(), progress, print, shard=shard)
        assert run.outcome and run.outcome.state == "stale"
    run = CellRun(cell, items(cell), "t2i", other, GenerateOptions(True), progress, print, shard=second)
    assert not run.outcome and {item.id for item in run.todo} == {item.id for item in split(cell, 2)[second]}


@pytest.mark.parametrize("lost", [8, 7])
def test_a_cell_of_whose_shards_none_has_an_image_has_failed(cell: Cell, tmp_path: Path, lost: int) -> None:
    """Though one shard by itself may lose all of its few items."""

    def fault(prompt: str) -> None:
        if int(prompt.split()[1]) < lost:
            raise ItemFailed("HTTP 500")

    generating = [
        Job(f"generate:m {shard}", "generate", ["true"], [cell.key], ["log"], shard=str(shard))
        for shard in split(cell, 3)
    ]
    books = Ledger(Plan(str(tmp_path / "run"), True, generating), Display(io.StringIO()))
    for job, (shard, own) in zip(generating, split(cell, 3).items(), strict=True):

        def open_cell(shard: Shard = shard) -> CellRun:
            options = GenerateOptions()
            return CellRun(cell, items(cell), "t2i", SETTING, options, ProgressWriter(), print, shard=shard)

        outcome = settle(CellPlan(cell, open_cell, print), lambda run: FakeModel(fault))
        assert own and outcome.state == (
            "complete" if all(one.id == "images/7" for one in own) else "incomplete"
        )
        write_outcome(tmp_path / "run", cell, job.step, outcome)
        books.collect({job.name: 1})
        books.job_ended(job, 1, 1.0, 3, "", "")
    summary = books.close([], 1.0, None)
    assert summary.cells[0].state == ("failed" if lost == 8 else "incomplete")
    assert summary.status == (ExitStatus.FAILED if lost == 8 else ExitStatus.INCOMPLETE)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ("rw,vers=4.2,hard,local_lock=none", ""),
        ("rw,vers=3,nolock,local_lock=none", "nfs4 with nolock"),
        ("rw,local_lock=flock", "nfs4 with local_lock=flock"),
    ],
)
def test_locks_of_one_machine_are_known_by_their_mount(tmp_path: Path, options: str, why: str) -> None:
    place = str(tmp_path.resolve()).replace(" ", "\\040")
    mounts = (
        f"/dev/sda / ext4 rw 0 0\nserver:/x {place} nfs4 {options} 0 0\nserver:/y /elsewhere nfs nolock 0 0\n"
    )
    assert why_of_one_machine(tmp_path / "output", mounts) == why
    assert why_of_one_machine(Path("/"), mounts) == ""
