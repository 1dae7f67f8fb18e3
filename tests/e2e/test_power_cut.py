"""After a power cut, no image that was paid for is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from imageevalkit.common.images import sha256_file
from tests.support.api_runs import prompts
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
        run_eval(checkout, *words, status=3, **env)
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
