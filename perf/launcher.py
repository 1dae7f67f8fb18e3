"""What the toolkit costs where nothing is made: help, empty jobs, a run that has nothing left to do, a report.

Help is ``eval.sh --help``. Jobs are a plan of ``true`` jobs against ``subprocess.run`` of the same, in turns.

The no-op run repeats ``eval.sh`` for one result of 50,000 items that are all made and scored, report included. The
plain way reads, hashes and decodes each image and parses each record once for each of the three stages, in one process.

The report is that of a finished result of 800 PNGs of 1024 px, each a file of its own: a first one makes the
thumbnails, a second has them. The plain way reads one after another and saves it as a thumbnail, by Pillow alone.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from PIL import Image

from imageevalkit.common.images import THUMBNAIL_SIDE
from imageevalkit.jobs.plan import Job, Plan
from imageevalkit.run.local import run_plan
from imageevalkit.store.results import Metric
from perf.harness import USAGE, Row, Table, Usage, at_most, measure, run_program
from perf.toolkit import BENCHMARK, Toolkit, as_sent, geneval2_items, make_pngs
from tests.support.cells import Made, write_cell
from tests.support.checkout import SLOW_NOISE, add_model

_HELP_S, _JOB_S = at_most(0.2), at_most(0.1)
_NOTHING, _REPORT, _REPORT_AGAIN_S = at_most(3), at_most(0.9), at_most(3)
_STAGES = 3  # generate, evaluate and report each look at every image and record
_ROUNDS = 3
_NOISE = "noise"


def help_rows(kit: Toolkit) -> list[Row]:
    """The fastest of some starts: what else runs can only slow one."""
    usage = min((kit.run("--help") for _ in range(5)), key=lambda usage: usage.wall)
    return [kit.seconds_row("eval.sh --help", usage, _HELP_S)]


def job_rows(count: int) -> list[Row]:
    """What the launcher adds to each of ``count`` jobs that do nothing, over plain processes with logs."""
    rounds = [
        (_plain_seconds(count), _launcher_seconds(count, False), _launcher_seconds(count, True))
        for _ in range(_ROUNDS)
    ]
    plain, serial, parallel = (statistics.median(column) / count for column in zip(*rounds, strict=True))
    return [
        Row(f"each of {count} jobs, {how}, over a process of {plain:.3f} s", taken - plain, _JOB_S, unit=" s")
        for how, taken in (("in turn", serial), ("side by side", parallel))
    ]


def _launcher_seconds(count: int, parallel: bool) -> float:
    with tempfile.TemporaryDirectory() as folder:
        jobs = [Job(f"true:{n}", "true", ["true"], [], [f"{folder}/{n}.log"]) for n in range(count)]
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            start = time.perf_counter()
            summary = run_plan(Plan(folder, parallel, jobs), {})
            seconds = time.perf_counter() - start
    if [job.state for job in summary.jobs] != ["complete"] * count:
        raise SystemExit("a job that does nothing failed")
    return seconds


def _plain_seconds(count: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        for n in range(count):
            with (Path(folder) / f"{n}.log").open("ab") as log:
                subprocess.run(["true"], stdout=log, stderr=log, stdin=subprocess.DEVNULL, check=True)
        return time.perf_counter() - start


class Nothing:
    """A cell of ``items`` small images in ``folder`` that are all made and scored."""

    def __init__(self, folder: Path, items: int) -> None:
        self._items = geneval2_items(items)
        self._kit = Toolkit(folder, self._items.entries)
        add_model(self._kit.checkout, _NOISE, "SlowNoise", SLOW_NOISE)
        self._run("--limit", "1")
        self._pretend()
        self._run()  # scores them

    def rows(self) -> list[Row]:
        """The same command again."""
        usage, count = self._run(), len(self._items.entries)
        records = self._kit.records("scores.jsonl", BENCHMARK, _NOISE)
        scored = sum(record["status"] == "judged" for record in records)
        lost = [f"{scored} of {count} have a score"] * (scored != count)
        plain = self._plain_seconds()
        label = f"eval.sh again, nothing to do for {count:,} items, over {plain:.1f} s"
        why = [*self._kit.failure(usage), *lost]
        return [Row(label, usage.wall / plain, _NOTHING, usage.figures, why, usage.others)]

    def _plain_seconds(self) -> float:
        """Seconds in which plain code verifies all images and parses all records, once for each stage."""
        cell = self._kit.output / _NOISE / BENCHMARK
        began = time.perf_counter()
        for _ in range(_STAGES):
            for entry in self._items.entries:
                data = (cell / entry["file"]).read_bytes()
                hashlib.sha256(data).hexdigest()
                with Image.open(io.BytesIO(data)) as image:
                    image.load()
            for file in cell.glob("*.jsonl"):
                for line in file.read_text("utf-8").splitlines():
                    json.loads(line)
        return time.perf_counter() - began

    def _run(self, *words: str) -> Usage:
        small = ["--custom_model_kwargses", "side=8"]
        return self._kit.run("--model_names", _NOISE, "--ds_names", BENCHMARK, *small, *words)

    def _pretend(self) -> None:
        """Give every item the image and the record of the first, as if it had been made."""
        cell = self._kit.output / _NOISE / BENCHMARK
        [record] = self._kit.records("generation.jsonl", BENCHMARK, _NOISE)
        png = (cell / str(record["path"])).read_bytes()
        lines = []
        for entry in self._items.entries:
            name, prompt = entry["file"], entry["prompt"]
            (cell / name).write_bytes(png)
            hashed = hashlib.sha256(b"text:" + prompt.encode()).hexdigest()
            own = {"item": name.removesuffix(".png"), "path": name, "prompt": prompt, "prompt_sha256": hashed}
            lines.append(json.dumps({**record, **own}, ensure_ascii=False, separators=(",", ":")) + "\n")
        (cell / "generation.jsonl").write_text("".join(lines), encoding="utf-8")


def report_rows(kit: Toolkit, pngs: list[bytes], count: int) -> list[Row]:
    """Two reports of ``count`` photos, made by the driver's environment as a run makes them."""
    kit.forget()
    made = [Made(f"images/{n:06}", f"prompt {n}", value=0.5) for n in range(count)]
    os.environ["IMAGEEVALKIT_OUTPUT"] = str(kit.output)
    cell = write_cell("model", "photos", made, {"accuracy": Metric(0.5, count)})
    files = {item.id: as_sent(pngs, item.prompt) for item in made}
    for name, png in files.items():
        (cell.folder / f"{name}.png").write_bytes(png)
    for path in (cell.generation, cell.scores):
        records = [json.loads(line) for line in path.read_text().splitlines()]
        for record in records:
            record["image_sha256"] = hashlib.sha256(files[record["item"]]).hexdigest()
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    command = [str(kit.checkout / ".venv/bin/python"), "-P", "-m", "imageevalkit.report"]
    place = {"cwd": kit.checkout, "log": kit.log / "report.log"}
    first, again = (measure(command, environ=kit.environ(), **place) for _ in range(2))  # type: ignore[arg-type]
    began = time.monotonic()
    for name in files:
        _thumbnail(cell.folder / f"{name}.png")
    ratio = first.wall / (time.monotonic() - began)
    label = f"the report of {count} photos of 1024 px"
    return [
        Row(label, ratio, _REPORT, first.figures, kit.failure(first), first.others),
        kit.seconds_row("  again, with its thumbnails", again, _REPORT_AGAIN_S),
    ]


def _thumbnail(path: Path) -> bytes:
    buffer = io.BytesIO()
    with Image.open(path) as image:
        small = image.convert("RGB")
        small.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE))
        small.save(buffer, "WEBP")
    return buffer.getvalue()


def main(options: argparse.Namespace, folder: Path) -> Table:
    kit = Toolkit(folder / "help", [])
    table = Table("seconds and megabytes", *USAGE[:3], tries=options.tries)
    if "help" in options.parts:
        table.measure(help_rows, kit)
    if "jobs" in options.parts:
        table.measure(job_rows, options.jobs)
    if "nothing" in options.parts:
        table.measure(Nothing(folder / "nothing", options.items).rows)
    if "report" in options.parts:
        table.measure(report_rows, Toolkit(folder / "report", []), make_pngs("1024 px"), options.photos)
    return table


if __name__ == "__main__":
    run_program(
        __doc__,
        main,
        jobs=(50, "that do nothing"),
        items=(50_000, "of the cell with nothing to do"),
        photos=(800, "of the report"),
        parts=(("help", "jobs", "nothing", "report"), "what is measured"),
    )
