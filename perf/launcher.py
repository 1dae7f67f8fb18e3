"""The cost of the launcher where nothing is generated: help, empty jobs, a run that has nothing to do.

``eval.sh --help`` is compared with a bare start of the same Python. A plan of empty jobs is compared with
``subprocess.run`` of the same commands; each command is a bare start of Python.

The last run repeats ``eval.sh`` for a result of 50,000 items that are all generated and scored, report included. The
plain way reads, hashes and decodes each image and parses each record once for each of the three stages, in one process.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import subprocess
import tempfile
from pathlib import Path

from PIL import Image

from imageevalkit.jobs.plan import Job, Plan
from imageevalkit.run.local import run_plan
from perf.harness import Meter, Row, Table, Usage, at_most, measure, run_program
from perf.toolkit import BENCHMARK, Toolkit, make_prompts
from tests.support.checkout import SLOW_NOISE, add_model

_HELP, _JOBS, _NOTHING = at_most(5), at_most(5), at_most(3)
_NOISE = "noise"


def help_rows(kit: Toolkit) -> list[Row]:
    """``--help`` over a start of Python; the fastest of five each."""
    bare = [str(kit.checkout / ".venv/bin/python"), "-c", "import argparse, json, pathlib, subprocess"]
    usage = min((kit.run("--help") for _ in range(5)), key=lambda one: one.wall)
    where = {"cwd": kit.checkout, "environ": kit.environ(), "log": kit.log / "plain.log"}
    plain = min(measure(bare, **where).wall for _ in range(5))  # type: ignore[arg-type]
    return [Row.of("eval.sh --help / a start of Python", usage, plain, _HELP, kit.failure(usage))]


def job_rows(python: str, count: int) -> list[Row]:
    """A plan of empty jobs over plain processes with logs."""
    command, rows = [python, "-c", ""], []
    with tempfile.TemporaryDirectory() as folder, Meter() as plain:
        for n in range(count):
            with (Path(folder) / f"{n}.log").open("ab") as log:
                subprocess.run(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, check=True)
    for how, is_parallel in (("in turn", False), ("side by side", True)):
        with tempfile.TemporaryDirectory() as folder:
            jobs = [Job(f"empty:{n}", "empty", command, [], [f"{folder}/{n}.log"]) for n in range(count)]
            output = io.StringIO()
            with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output), Meter() as meter:
                summary = run_plan(Plan(folder, is_parallel, jobs), {})
        failed = [f"{job.name} is {job.state}" for job in summary.jobs if job.state != "complete"]
        label = f"{count} empty jobs, {how} / processes"
        rows.append(Row.of(label, meter.usage, plain.usage.wall, _JOBS, failed))
    return rows


class Nothing:
    """A result of ``count`` small images in ``folder`` that are all generated and scored."""

    def __init__(self, folder: Path, count: int) -> None:
        self._kit = Toolkit(folder, make_prompts(count))
        self._result = self._kit.output / _NOISE / BENCHMARK
        add_model(self._kit.checkout, _NOISE, "SlowNoise", SLOW_NOISE)
        self._run("--limit", "1")
        self._copy_first()
        self._run()  # scores all images

    def rows(self) -> list[Row]:
        """The same command again over the plain way."""
        usage = self._run()
        with Meter() as plain:
            for _stage in range(3):
                self._verify()
        label = f"eval.sh, nothing to do for {len(self._kit.prompts):,} items / a plain way"
        problems = self._kit.problems(usage, "scores.jsonl", BENCHMARK)
        return [Row.of(label, usage, plain.usage.wall, _NOTHING, problems)]

    def _verify(self) -> None:
        for path in self._result.glob("images/*.png"):
            data = path.read_bytes()
            hashlib.sha256(data).hexdigest()
            with Image.open(io.BytesIO(data)) as image:
                image.load()
        for path in self._result.glob("*.jsonl"):
            for line in path.read_text("utf-8").splitlines():
                json.loads(line)

    def _run(self, *words: str) -> Usage:
        small = ["--custom_model_kwargses", "side=8"]
        return self._kit.run("--model_names", _NOISE, "--ds_names", BENCHMARK, *small, *words)

    def _copy_first(self) -> None:
        """Gives every item the image and the record of the first."""
        [record] = self._kit.records("generation.jsonl", BENCHMARK)
        png, lines = (self._result / str(record["path"])).read_bytes(), []
        for n, prompt in enumerate(self._kit.prompts):
            name = f"images/{n:05}"
            (self._result / f"{name}.png").write_bytes(png)
            hashed = hashlib.sha256(b"text:" + prompt.encode()).hexdigest()
            own = {"item": name, "path": f"{name}.png", "prompt": prompt, "prompt_sha256": hashed}
            lines.append(json.dumps({**record, **own}, ensure_ascii=False, separators=(",", ":")) + "\n")
        (self._result / "generation.jsonl").write_text("".join(lines), encoding="utf-8")


def main(table: Table, folder: Path, is_small: bool) -> None:
    kit = Toolkit(folder / "help", [])
    table.measure(help_rows, kit)
    table.measure(job_rows, str(kit.checkout / ".venv/bin/python"), 2 if is_small else 50)
    table.measure(Nothing(folder / "nothing", 20 if is_small else 50_000).rows)


if __name__ == "__main__":
    run_program(__doc__, main)
