"""What a large cell costs a report: a small gallery alone, and beside a cell of many items, both for the second time.

    PYTHONPATH=. .venv-test/bin/python perf/report.py [ITEMS]

The small cells have 48 items, the large one ITEMS (50,000), each with an image of its own as its records say it; 200 of
these are there.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from imageevalkit.cell.results import Metric
from imageevalkit.report.__main__ import main as report
from tests.support.cells import Made, write_cell

_SMALL, _DISTINCT, _DETAIL = 48, 200, "what the judge said of it, in a sentence or two. " * 8


def cell(model: str, benchmark: str, count: int) -> None:
    """A finished cell of ``count`` prompts: the images of the first are drawn."""
    drawn = [
        Made(f"images/{n:06}", f"prompt {n}", value=0.5, read=_DETAIL) for n in range(min(count, _DISTINCT))
    ]
    folder = write_cell(model, benchmark, drawn, {"accuracy": Metric(0.5, count)}).folder
    for name in ("generation.jsonl", "scores.jsonl"):
        lines = (folder / name).read_text().splitlines()
        with (folder / name).open("a") as file:
            for n in range(len(drawn), count):
                text = lines[n % len(drawn)].replace(f'prompt {n % len(drawn)}"', f'prompt {n}"')
                record = json.loads(text) | {"item": f"images/{n:06}"}
                if "prompt_sha256" in record:
                    record["prompt_sha256"] = record["image_sha256"] = f"{n:064x}"
                file.write(json.dumps(record) + "\n")


def seconds(prefix: str) -> float:
    """CPU seconds of one more report of all there is; prints a line that begins with ``prefix``."""
    with contextlib.redirect_stdout(io.StringIO()):
        report([])  # thumbnails are made once
        start = time.process_time()
        report([])
        taken = time.process_time() - start
    output = Path(os.environ["IMAGEEVALKIT_OUTPUT"])
    page, (_, *rows) = output / "report.html", (output / "leaderboard.csv").read_text().splitlines()
    print(
        f"{prefix:<28} {taken:6.2f} s of CPU, report.html {page.stat().st_size / 1e6:5.1f} MB, "
        f"leaderboard.csv {len(rows)} rows of {sum(map(len, rows)) // len(rows)} bytes"
    )
    return taken


def main() -> int:
    """Print both lines and what an item of the large cell costs."""
    items = int(sys.argv[1]) if len(sys.argv) > 1 else 50_000
    with tempfile.TemporaryDirectory() as folder:
        os.environ["IMAGEEVALKIT_OUTPUT"] = folder
        for n in range(3):
            cell(f"model-{n}", "small", _SMALL)
        alone = seconds(f"3 cells of {_SMALL} items")
        cell("model", "large", items)
        beside = seconds(f"… and one of {items}")
    print(f"{(beside - alone) / items * 1e6:.0f} µs for each item of the large cell")
    return 0


if __name__ == "__main__":
    sys.exit(main())
