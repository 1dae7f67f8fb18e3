"""Whatever a disk loses of the records of a cell: no image that was paid for is lost, or made twice."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from imageevalkit.common.images import sha256_file
from imageevalkit.generate.model import Refused
from imageevalkit.jobs.plan import Outcome
from imageevalkit.store.cell import Cell
from tests.support.generation import FakeDataset, FakeModel, generate

CELL = Cell("m", "fake")
MADE, REFUSED = 6, 2


def without(*places: int) -> Callable[[bytes], bytes]:
    def damage(data: bytes) -> bytes:
        lines = data.splitlines(keepends=True)
        gone = {place % len(lines) for place in places}
        return b"".join(line for n, line in enumerate(lines) if n not in gone)

    return damage


def torn(place: int) -> Callable[[bytes], bytes]:
    """The first half of a line, without its newline: the next one is glued to it."""

    def damage(data: bytes) -> bytes:
        lines = data.splitlines(keepends=True)
        lines[place] = lines[place][: len(lines[place]) // 2]
        return b"".join(lines)

    return damage


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "first line": without(0),
    "last line": without(-1),
    "middle torn": torn(3),
    # a block that was allocated and never written
    "zeros in the middle": lambda data: data[:1500] + bytes(900) + data[2400:],
}


@pytest.fixture(autouse=True)
def paid() -> None:
    """A finished cell: some items made, some refused, one made after a run in which it failed."""

    def fault(prompt: str) -> None:
        if prompt in ("prompt 1", "prompt 4"):
            raise Refused("no")
        if prompt == "prompt 2":
            raise ValueError("cannot draw it")

    generate(FakeModel(fault), FakeDataset(MADE + REFUSED))
    again = run_again()
    assert again.calls == ["prompt 2"] and len(records()) == MADE + REFUSED + 1


class Run(FakeModel):
    outcome: Outcome


def run_again(**kwargs: Any) -> Run:
    """The same command again. Returns the model with its calls."""
    model = Run()
    model.outcome = generate(model, FakeDataset(MADE + REFUSED), **kwargs)
    return model


def records() -> list[dict[str, Any]]:
    """The whole records."""

    def is_json(line: bytes) -> bool:
        try:
            return isinstance(json.loads(line), dict)
        except ValueError:
            return False

    return [json.loads(line) for line in CELL.generation.read_bytes().splitlines() if is_json(line)]


@pytest.mark.parametrize("damage", DAMAGES)
def test_an_image_whose_record_is_lost_stays_and_is_not_made_again(damage: str) -> None:
    before = records()
    images = {path: sha256_file(path) for path in (CELL.folder / "images").iterdir()}
    CELL.generation.write_bytes(DAMAGES[damage](CELL.generation.read_bytes()))
    kept = records()
    last = {record["item"]: record["status"] for record in kept}
    run = run_again()
    # what has no image by the records that are left: refused items, and one that failed before it was made
    lost = {r["item"]: r["path"] for r in before if r["status"] == "ok" and r["item"] not in last}
    made = {r["prompt"] for r in before if r["item"] in lost or last.get(r["item"]) == "ok"}
    assert not made & {*run.calls}
    assert ("no record describes the generation of the image" in run.outcome.message) == bool(lost)
    assert all(sha256_file(CELL.folder / path) == images[CELL.folder / path] for path in lost.values())
    assert records()[: len(kept)] == kept


def test_what_follows_a_torn_last_line_starts_on_a_line_of_its_own() -> None:
    """The item of the torn line, whose image has not got its name, is made again, and only it."""
    lines = CELL.generation.read_bytes().splitlines(keepends=True)
    last = next(line for line in reversed(lines) if json.loads(line)["status"] == "ok")
    image = CELL.folder / json.loads(last)["path"]
    image.rename(image.with_name(f".{image.name}.part"))
    others = [line for line in lines if json.loads(line)["item"] != json.loads(last)["item"]]
    CELL.generation.write_bytes(b"".join([*others, last[: len(last) // 2]]))
    assert run_again().calls == [json.loads(last)["prompt"]]
    written = CELL.generation.read_bytes().splitlines(keepends=True)
    assert written[: len(others)] == others and len(written) == len(others) + 2
    made = json.loads(written[-1])
    assert made["item"] == json.loads(last)["item"] and sha256_file(Path(image)) == made["image_sha256"]


def test_lost_settings_make_no_image_stale_unless_others_are_asked_for() -> None:
    for damaged in (b"", CELL.fingerprints.read_bytes()[:40]):
        CELL.fingerprints.write_bytes(damaged)
        assert not run_again().calls
        changed = run_again(quality="high")
        assert not changed.calls
        assert f"model settings unknown: {MADE} images are stale" in changed.outcome.message
