"""What a power cut leaves, and whatever a disk loses of the records later: nothing that was paid for is asked again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from imageevalkit.common.images import sha256_file
from tests.support.api_runs import ApiRuns, prompts, text_of
from tests.support.checkout import environ, make_checkout, needs_driver_env, run_eval
from tests.support.image_server import ImageServer

pytestmark = needs_driver_env

# Writes to $SEEN, in the order in which they are so, what the disk has for sure (with the records that a file held
# when its fsync began) and the files that get their names.
RECORDER = """
import hashlib, json, os, re, sys
LOG = os.environ.get("SEEN")
fsync = os.fsync

def told(event):
    fd = os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(fd, (json.dumps(event) + chr(10)).encode())
    os.close(fd)

def recording_fsync(fd):
    path = os.readlink(f"/proc/self/fd/{fd}") if isinstance(fd, int) else fd.name
    if os.path.isdir(path):
        event = {"folder": path}
    else:
        with open(path, "rb") as file:
            data = file.read()
        items = [i.decode() for i in re.findall(rb'"item":"([^"]+)"', data)]
        event = {"file": path, "items": items, "sha256": hashlib.sha256(data).hexdigest()}
    fsync(fd)
    told(event)

def hook(event, args):
    if event == "os.rename":
        told({"renamed": str(args[0]), "to": str(args[1])})

if LOG:
    os.fsync = recording_fsync
    sys.addaudithook(hook)
"""


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


def zeros(place: int) -> Callable[[bytes], bytes]:
    """A block that was allocated and never written."""

    def damage(data: bytes) -> bytes:
        at = place % len(data)
        return data[:at] + bytes(900) + data[at + 900 :]

    return damage


def altered(data: bytes) -> bytes:
    """A line that is still JSON, but tells of another image."""
    lines = data.splitlines(keepends=True)
    record = json.loads(lines[1])
    record["image_sha256"] = "0" * 64
    lines[1] = json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
    return b"".join(lines)


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "first line": without(0),
    "lines in the middle": without(2, 3, 4),
    "last line": without(-1),
    "first line torn": torn(0),
    "middle torn": torn(3),
    "zeros in the middle": zeros(1500),
    "another hash": altered,
    "all lines": lambda data: b"",
}
MADE = 6
REFUSED = 2


@pytest.fixture(scope="module")
def paid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiRuns]:
    """A finished cell: some items made, some refused, one made after two failed attempts of another run."""
    checkout = make_checkout(tmp_path_factory.mktemp("paid") / "checkout")
    with ImageServer() as server:
        api = ApiRuns(checkout, server)
        for number in (1, 4):
            server.script(prompts()[number], "refuse")
        server.script(prompts()[2], "garbage", "ok")
        assert api.run(kwargs="max_attempts=1", limit=MADE + REFUSED).returncode == 3
        run = api.run(kwargs="max_attempts=1", limit=MADE + REFUSED)
        assert run.returncode == 3, text_of(run)
        assert api.statuses() == {"ok": MADE, "refused": REFUSED}
        shutil.copytree(checkout / "output", checkout / "kept")
        yield api


@pytest.fixture
def cell(paid: ApiRuns) -> Path:
    """The folder of the cell, as it was left."""
    shutil.rmtree(paid.checkout / "output")
    shutil.copytree(paid.checkout / "kept", paid.checkout / "output")
    paid.server.requests.clear()
    return paid.checkout / "output/model-a/quicktext"


def run_again(api: ApiRuns) -> None:
    """The same command sends nothing and finds all there is."""
    again = api.run("--overwrite", kwargs="max_attempts=1", limit=MADE + REFUSED)
    assert not api.server.requests, text_of(again)
    assert f"{MADE} of {MADE + REFUSED} images, {REFUSED} refused" in again.stdout
    assert api.images_agree()


@pytest.mark.parametrize("damage", DAMAGES)
def test_records_lost_anywhere_come_back_and_nothing_is_sent(paid: ApiRuns, cell: Path, damage: str) -> None:
    generation = cell / "generation.jsonl"
    before = paid.all_records()
    generation.write_bytes(DAMAGES[damage](generation.read_bytes()))
    run_again(paid)
    assert paid.all_records() == before


def test_a_records_file_that_is_gone_comes_back(paid: ApiRuns, cell: Path) -> None:
    before = paid.all_records()
    (cell / "generation.jsonl").unlink()
    dry = paid.run("--dry_run", kwargs="max_attempts=1", limit=MADE + REFUSED)
    assert f"0 images to make, {MADE} to reuse, 0 to repair, {REFUSED} refused before" in dry.stdout
    assert not (cell / "generation.jsonl").exists()
    run_again(paid)
    assert paid.all_records() == before


@pytest.mark.parametrize("damage", ["all lines", "middle torn", "first line"])
def test_the_copy_may_be_damaged_too(paid: ApiRuns, cell: Path, damage: str) -> None:
    before = paid.all_records()
    (copy,) = cell.glob(".generation*")
    generation = cell / "generation.jsonl"
    copy.write_bytes(DAMAGES[damage](copy.read_bytes()))
    if damage != "all lines":
        generation.write_bytes(DAMAGES["last line"](generation.read_bytes()))
    run_again(paid)
    assert paid.all_records() == before
    generation.unlink()  # and it is whole again
    run_again(paid)
    assert paid.all_records() == before


def test_an_image_that_has_not_got_its_name_and_whose_record_is_torn_is_not_asked_for_again(
    paid: ApiRuns, cell: Path
) -> None:
    generation = cell / "generation.jsonl"
    last = next(r for r in reversed(paid.all_records()) if r["status"] == "ok")
    image = cell / last["path"]
    image.rename(image.with_name(f".{image.name}.part"))
    lines = generation.read_bytes().splitlines(keepends=True)
    place = next(n for n, line in enumerate(lines) if json.loads(line) == last)
    generation.write_bytes(b"".join([*lines[:place], lines[place][:100], b"\n", *lines[place + 1 :]]))
    before = sha256_file(image.with_name(f".{image.name}.part"))
    again = paid.run(kwargs="max_attempts=1", limit=MADE + REFUSED)
    assert not paid.server.requests, text_of(again)
    assert sha256_file(image) == before
    assert paid.images_agree()


def test_lost_settings_make_no_image_stale_and_are_told_again(paid: ApiRuns, cell: Path) -> None:
    for damaged in (b"", (cell / "fingerprints.jsonl").read_bytes()[:40]):
        (cell / "fingerprints.jsonl").write_bytes(damaged)
        run_again(paid)
        (cell / "fingerprints.jsonl").write_bytes(damaged)
        changed = paid.run(kwargs="max_attempts=1,quality=high", limit=MADE + REFUSED)
        assert f"quality (unset) → high: {MADE} images are stale" in changed.stdout
    assert not paid.server.requests


def test_a_cell_from_before_there_were_copies_gets_one(paid: ApiRuns, cell: Path) -> None:
    for copy in [*cell.glob(".generation*"), *cell.glob(".fingerprints*")]:
        copy.unlink()
    before = paid.all_records()
    run_again(paid)
    (cell / "generation.jsonl").unlink()
    run_again(paid)
    assert paid.all_records() == before


def events_of(seen: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in seen.read_text().splitlines()]


def test_an_image_gets_its_name_when_its_record_is_on_the_disk(tmp_path: Path) -> None:
    checkout = make_checkout(tmp_path / "checkout")
    (tmp_path / "recorder").mkdir()
    (tmp_path / "recorder/sitecustomize.py").write_text(RECORDER)
    (checkout / "config.local.sh").write_text("GENERATE_BLANK_IMAGE_ON_ERROR=true\n")
    seen = tmp_path / "seen"
    path = f"{tmp_path / 'recorder'}:{environ(checkout)['PYTHONPATH']}"
    with ImageServer(latency=0.02) as server:
        server.script(prompts()[3], "garbage")
        env = {"API_KEY": "EMPTY", "BASE_URL": server.base_url, "SEEN": str(seen), "PYTHONPATH": path}
        words = ["--model_names", "model-a", "--ds_names", "quicktext", "--use_api", "true", "--limit", "24"]
        words += ["--custom_model_kwargses", "max_attempts=1", "--num_workers", "8", "--eval", "false"]
        run = run_eval(checkout, *words, **env)
    assert run.returncode == 3, run.stdout + run.stderr
    cell = checkout / "output/model-a/quicktext"
    records, copy = str(cell / "generation.jsonl"), str(cell / ".generation.jsonl.copy")
    events = events_of(seen)
    named = [n for n, event in enumerate(events) if event.get("to", "").startswith(str(cell / "images"))]
    assert len(named) == 24
    for n in named:
        before, part, image = events[:n], events[n]["renamed"], Path(events[n]["to"])
        item = image.relative_to(cell).with_suffix("").as_posix()
        synced = {e["file"]: (i, e) for i, e in enumerate(before) if "file" in e}
        assert item in synced[records][1]["items"]
        assert item in synced[copy][1]["items"]
        assert synced[part][1]["sha256"] == sha256_file(image)
        folders = {e["folder"]: i for i, e in enumerate(before) if "folder" in e}
        assert folders[str(image.parent)] > synced[part][0], "the name it has so far is on the disk too"
        assert {str(cell), str(cell.parent), str(checkout / "output")} <= folders.keys()
        assert str(cell / "fingerprints.jsonl") in synced, "and what its record refers to"
