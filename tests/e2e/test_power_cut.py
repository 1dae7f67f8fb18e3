"""What a power cut leaves, and whatever a disk loses of the records later: no image that was paid for is lost."""

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


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "first line": without(0),
    "lines in the middle": without(2, 3, 4),
    "last line": without(-1),
    "first line torn": torn(0),
    "middle torn": torn(3),
    "zeros in the middle": zeros(1500),
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
def test_an_image_whose_record_is_lost_stays_and_is_not_asked_for_again(
    paid: ApiRuns, cell: Path, damage: str
) -> None:
    generation = cell / "generation.jsonl"
    before, images = paid.all_records(), {path: sha256_file(path) for path in cell.rglob("images/*/*.*")}
    generation.write_bytes(DAMAGES[damage](generation.read_bytes()))
    kept = whole_records(generation)
    last = {record["item"]: record["status"] for record in kept}
    run = paid.run(kwargs="max_attempts=1", limit=MADE + REFUSED)
    # what has no image by the records that are left: refused items, and one that failed before it was made
    lost = {r["item"]: r["path"] for r in before if r["status"] == "ok" and r["item"] not in last}
    made = {r["prompt"] for r in before if r["item"] in lost or last.get(r["item"]) == "ok"}
    assert not made & {request.prompt for request in paid.server.requests}, text_of(run)
    assert ("no record says how the image was made" in run.stdout) == bool(lost)
    assert all(sha256_file(cell / path) == images[cell / path] for path in lost.values())
    assert whole_records(generation)[: len(kept)] == kept


def is_json(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def whole_records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines() if is_json(line)]


def test_what_follows_a_torn_last_line_starts_on_a_line_of_its_own(paid: ApiRuns, cell: Path) -> None:
    """The item of the torn line, whose image has not got its name, is made again, and only it."""
    generation = cell / "generation.jsonl"
    lines = generation.read_bytes().splitlines(keepends=True)
    last = next(line for line in reversed(lines) if json.loads(line)["status"] == "ok")
    image = cell / json.loads(last)["path"]
    image.rename(image.with_name(f".{image.name}.part"))
    others = [line for line in lines if line != last]
    generation.write_bytes(b"".join([*others, last[: len(last) // 2]]))
    run = paid.run(kwargs="max_attempts=1", limit=MADE + REFUSED)
    assert [request.prompt for request in paid.server.requests] == [json.loads(last)["prompt"]], text_of(run)
    written = generation.read_bytes().splitlines(keepends=True)
    assert written[: len(others)] == others and len(written) == len(others) + 2
    made = next(r for r in whole_records(generation)[len(others) :])
    assert made["item"] == json.loads(last)["item"] and sha256_file(image) == made["image_sha256"]


def test_lost_settings_make_no_image_stale_unless_others_are_asked_for(paid: ApiRuns, cell: Path) -> None:
    for damaged in (b"", (cell / "fingerprints.jsonl").read_bytes()[:40]):
        (cell / "fingerprints.jsonl").write_bytes(damaged)
        run_again(paid)
        changed = paid.run(kwargs="max_attempts=1,quality=high", limit=MADE + REFUSED)
        assert f"model settings unknown: {MADE} images are stale" in changed.stdout
    assert not paid.server.requests


def test_the_hidden_copy_of_an_older_version_is_ignored(paid: ApiRuns, cell: Path) -> None:
    before = paid.all_records()
    (cell / ".generation.jsonl.copy").write_bytes(b"00000000 {}\n")
    run_again(paid)
    assert paid.all_records() == before
    assert (cell / ".generation.jsonl.copy").read_bytes() == b"00000000 {}\n"


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
    records = str(cell / "generation.jsonl")
    events = events_of(seen)
    named = [n for n, event in enumerate(events) if event.get("to", "").startswith(str(cell / "images"))]
    assert len(named) == 24
    for n in named:
        before, part, image = events[:n], events[n]["renamed"], Path(events[n]["to"])
        item = image.relative_to(cell).with_suffix("").as_posix()
        synced = {e["file"]: (i, e) for i, e in enumerate(before) if "file" in e}
        assert item in synced[records][1]["items"]
        assert synced[part][1]["sha256"] == sha256_file(image)
        folders = {e["folder"]: i for i, e in enumerate(before) if "folder" in e}
        assert folders[str(image.parent)] > synced[part][0], "the name it has so far is on the disk too"
        assert {str(cell), str(cell.parent), str(checkout / "output")} <= folders.keys()
        assert str(cell / "fingerprints.jsonl") in synced, "and what its record refers to"
