"""Models and benchmarks whose code does what ends a process: each is told by its own words, all others complete."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.support.api_runs import ApiRuns, text_of
from tests.support.checkout import (
    add_benchmark,
    add_model,
    needs_driver_env,
)

pytestmark = needs_driver_env

HOSTILE = """
import asyncio, os, signal, sys
from imageevalkit.generate.model import ImageModel
from PIL import Image

class Mute(Exception):
    def __str__(self):
        sys.exit(7)

{at_import}

class Hostile(ImageModel):
    is_async = {asynchronous}

    def __init__(self, model_path, number=0):
        self.model_name = "hostile"
        {at_load}

    {kind}def {name}(self, prompt, seed=42):
        {at_generate}
        return Image.new("RGB", (8, 8))
    {generate}
"""
AND_GENERATE = """
    def generate(self, prompt, seed=42):
        raise NotImplementedError
"""


def hostile(checkout: Path, name: str, does: Mapping[str, str]) -> None:
    """Add a model that ``does`` something at_import, at_load, at_generate or in_async."""
    asynchronous = "in_async" in does
    code = HOSTILE.format(
        at_import=does.get("at_import", ""),
        at_load=does.get("at_load", "pass"),
        at_generate=does.get("at_generate") or does.get("in_async") or "pass",
        asynchronous=asynchronous,
        kind="async " * asynchronous,
        name="generate_async" if asynchronous else "generate",
        generate=AND_GENERATE * asynchronous,
    )
    add_model(checkout, name, "Hostile", code, api=True)


def test_what_one_class_raises_is_its_own_failure(api: ApiRuns) -> None:
    does = {
        "exits-at-import": (
            {"at_import": "sys.exit(3)"},
            "model does not load: CodeExit: its code called exit(3)",
        ),
        "exits-at-load": ({"at_load": "sys.exit('no licence')"}, "its code called exit('no licence')"),
        "interrupts": ({"at_generate": "raise KeyboardInterrupt"}, "its code raised KeyboardInterrupt"),
        "stops": ({"at_generate": "raise StopIteration"}, "its code raised StopIteration"),
        "says-nothing": ({"at_generate": "raise Mute"}, "Mute: Mute (0 of 5 images)"),
        "async-exits": ({"in_async": "sys.exit(4)"}, "its code called exit(4)"),
        "async-cancels": ({"in_async": "raise asyncio.CancelledError"}, "its code raised CancelledError"),
    }
    for name, (what, _) in does.items():
        hostile(api.checkout, name, what)
    api.server.latency = 0.2
    run = api.run(models=["model-a", *does, "model-b"], limit=5, workers=2, status=1)
    for name, (_, words) in does.items():
        assert words in told(run, f"{name}/quicktext"), text_of(run)
    for name in ("model-a", "model-b"):
        assert api.statuses(name) == {"ok": 5}
        assert told(run, f"{name}/quicktext").startswith("5 of 5 images"), text_of(run)
    assert {job["attempts"] for job in api.generate_jobs()} == {1}, "nobody's process was ended"
    assert "Traceback" not in text_of(run)


def told(run: subprocess.CompletedProcess[str], cell: str) -> str:
    """Returns the lines below ``cell`` in the table of all cells."""
    lines = run.stdout.splitlines()
    place = next(n for n, line in enumerate(lines) if line.startswith(f"{cell} "))
    return lines[place + 1].strip()


def test_a_class_that_ends_the_common_process_fails_alone(api: ApiRuns) -> None:
    # 3 is what a run that is incomplete ends with
    ends = {"os._exit(3)": "exit status 3", "os.kill(os.getpid(), signal.SIGSEGV)": "SIGSEGV"}
    models = {f"ends-{n}": ended for n, ended in enumerate(ends.values())}
    for n, (name, how) in enumerate(zip(models, ends, strict=True)):
        does = {"at_load": f"print('my last words', flush=True); {how}"} if n % 2 else {"at_generate": how}
        hostile(api.checkout, name, does)
    run = api.run(models=["model-a", *models, "model-b"], limit=4, status=1)
    for name in ("model-a", "model-b"):
        assert api.statuses(name) == {"ok": 4}
        assert told(run, f"{name}/quicktext").startswith("4 of 4 images"), text_of(run)
    for name, ended in models.items():
        assert ended in told(run, f"{name}/quicktext")
    log = next((api.checkout / "log/ends-1").glob("quicktext_generate_*"))
    assert "my last words" in log.read_text()


EXITS = """
import sys

class Exits:
    def __init__(self):
        self.dataset_name, self.dataset_task = "exits", "t2i"

    @property
    def data(self):
        sys.exit("no data today")
"""


def test_a_dataset_that_exits_fails_its_cells_alone(api: ApiRuns) -> None:
    add_benchmark(api.checkout, "exits", "Exits", EXITS)
    run = api.run(models=["model-a"], benchmarks=["exits", "quicktext"], limit=3, status=1)
    assert "CodeExit: its code called exit('no data today')" in told(run, "model-a/exits")
    assert told(run, "model-a/quicktext").startswith("3 of 3 images")
