"""Images through an API: the generate job from its start to its end, and ``bash eval.sh`` up to the finished report.

Every row is one run against a fresh local server whose latencies are lognormal (median 0.3 s, p99 3 s) and depend on
the seed alone. The ratio is to the list-schedule makespan of the very latencies that the server drew, items in the
benchmark's order, which no program can beat. With faults (5 % 429, 2 % 500, 1 % resets) an item's length there is the
sum of the latencies of its requests up to its image: the server's time is the bound's, all waiting between tries is the
client's.

The job, with 64 in flight: a plain pool of processes (``perf/plain.py``) does the same, whose CPU is held against a
share of it, memory against megabytes.

The command: a measurer that costs nothing scores the images. The last row asks a judge, of another server with as long
latencies, about each. Its ratio is to the longer of two commands: one makes the images only, one scores them only.

CPU seconds and peak memory are of all processes of the client; ``server CPU s`` is part of the wall time of two cores.
``asked`` is when the first request came.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from perf.harness import USAGE, Row, Table, Usage, at_most, run_program
from perf.latency_server import AnsweredRequest, ServerProcess, job_lengths, makespan
from perf.toolkit import (
    BENCHMARK,
    JUDGED,
    MODEL,
    SIDES,
    Toolkit,
    geneval2_items,
    make_pngs,
    of_bound,
    write_image_replies,
    write_judge_replies,
)

# Of the seeds 0 to 11 the ones that leave 64 workers idle the least: where one drawn latency of 10 s and more stretches
# the makespan, a slow client does not show.
_SEED, _JUDGE_SEED = 11, 0
# few in flight are measured with small images only
_JOB_BARS = {
    ("256 px", 4): 1.10,
    ("256 px", 16): 1.10,
    ("256 px", 64): 1.15,
    ("256 px", 256): 1.50,
    ("1024 px", 16): 1.15,
    ("1024 px", 64): 2.0,
}
_WITH_FAULTS = 0.25
_OF_POOL = {"256 px": at_most(0.25), "1024 px": at_most(0.167)}
_MB = {"256 px": at_most(200), "1024 px": at_most(600)}
_WORKERS = 64
"""In flight where a pool, and where whole commands are measured."""
# four in flight take a minute and a half for all 800
_MOST_ITEMS = {4: 200}
_COMMAND_BARS = {"256 px": at_most(1.35), "1024 px": at_most(2.0)}
_OF_LONGER = at_most(1.15)


class Bench:
    """The toolkit, the servers' replies and the items in ``folder``."""

    def __init__(self, folder: Path, items: int, sizes: Sequence[str]) -> None:
        self._folder = folder
        self.items = geneval2_items(items)
        self._kit = Toolkit(folder, self.items.entries)
        self._pngs = {size: make_pngs(size) for size in sizes}
        for size, pngs in self._pngs.items():
            write_image_replies(folder / size, pngs)
        write_judge_replies(folder / "verdicts")

    def job(self, size: str, workers: int, faults: bool) -> list[Row]:
        """One run of the generate job, and with 64 in flight what other ways take."""
        limit = at_most(_JOB_BARS[size, workers] + _WITH_FAULTS * faults)
        usage, row = self._job(size, workers, faults)
        rows = [row._replace(bar=limit)]
        if workers != _WORKERS or faults:
            return rows
        output = self._folder / "pool"
        with ServerProcess(self._folder / size, _SEED) as server:
            pool = self._kit.run_plainly("pool", "--workers", str(workers), output=output, server=server)
        made = len(list(output.glob("*.png")))
        shutil.rmtree(output)
        lost = [f"the pool made {made} images only: not comparable"] * (made < len(self.items.prompts))
        share, label = usage.cpu / pool.cpu, "  CPU / that of a pool of processes"
        rows.append(Row(label, share, _OF_POOL[size], pool.figures, lost, pool.others))
        return [*rows, Row("  memory", usage.peak_mb, _MB[size], unit=" MB")]

    def _job(self, size: str, workers: int, faults: bool) -> tuple[Usage, Row]:
        count = min(len(self.items.prompts), _MOST_ITEMS.get(workers, len(self.items.prompts)))
        items = self.items._replace(entries=self.items.entries[:count])
        self._kit.forget()
        with ServerProcess(self._folder / size, _SEED, faults) as server:
            usage = self._kit.run_job(
                "generate",
                *["--model_names", MODEL, "--ds_names", BENCHMARK, "--use_api", "true"],
                *["--num_workers", str(workers), "--limit", str(count)],
                server=server,
            )
            log = server.log()
        problems = self._kit.failure(usage) + self._kit.image_problems(items, self._pngs[size], log)
        least = makespan(job_lengths(items.prompts, log), workers)
        label = f"{size}, {workers} in flight{', faults' * faults}"
        return usage, of_bound(label, usage, log, least, None, problems)

    def command(self, size: str) -> list[Row]:
        """``eval.sh`` with images that nobody judges."""
        usage, log, problems = self._command(size, BENCHMARK)
        least = makespan(job_lengths(self.items.prompts, log), _WORKERS)
        label = f"eval.sh, {size}, not judged"
        return [of_bound(label, usage, log, least, _COMMAND_BARS[size], problems)]

    def judged(self, size: str) -> list[Row]:
        """``eval.sh`` with images that a judge of the same latencies scores."""
        images, _, problems = self._command(size, JUDGED, "--eval", "false")
        scores, _, more = self._command(size, JUDGED, "--infer", "false")
        usage, log, most = self._command(size, JUDGED)
        longer = max(images.wall, scores.wall)
        others = max(images.others, scores.others, usage.others)
        label = f"eval.sh, {size}, judged (images {images.wall:.1f} s, scores {scores.wall:.1f} s)"
        row = of_bound(label, usage, log, longer, _OF_LONGER, [*problems, *more, *most])
        return [row._replace(others=others)]

    def _command(
        self, size: str, benchmark: str, *words: str
    ) -> tuple[Usage, Sequence[AnsweredRequest], list[str]]:
        """What ``eval.sh`` cost, the log of the images' server, and what is wrong with the results."""
        makes, scores = "--infer" not in words, "--eval" not in words
        if makes:
            self._kit.forget()
        with ExitStack() as stack:
            server = stack.enter_context(ServerProcess(self._folder / size, _SEED))
            judge = stack.enter_context(ServerProcess(self._folder / "verdicts", _JUDGE_SEED))
            judges = ["--judge_kwargs", f"base_url={judge.environ['BASE_URL']}"] * (benchmark == JUDGED)
            usage = self._kit.run(
                *["--model_names", MODEL, "--ds_names", benchmark, "--use_api", "true"],
                *["--num_workers", str(_WORKERS), *judges, *words],
                servers=[server, judge],
            )
            log, asked = server.log(), judge.log()
        count, problems = len(self.items.prompts), self._kit.failure(usage)
        if makes:
            problems += self._kit.image_problems(self.items, self._pngs[size], log, benchmark)
        if scores:
            records = self._kit.records("scores.jsonl", benchmark)
            lost = count - sum(record["status"] == "judged" for record in records)
            problems += [f"{lost} of {count} without a score"] * bool(lost)
        if scores and judges and len(asked) != count:
            problems.append(f"{len(asked)} questions for {count} images")
        return usage, log, problems


def main(options: argparse.Namespace, folder: Path) -> Table:
    bench = Bench(folder, options.items, options.images)
    about = f"{len(bench.items.prompts)} prompts ({bench.items.source}); wall time / its bound"
    table = Table(about, "bound s", "asked", *USAGE, tries=options.tries)
    for size, workers in _JOB_BARS if "job" in options.parts else ():
        if size in options.images and str(workers) in options.workers:
            for faults in options.faults:
                table.measure(bench.job, size, workers, faults == "on")
    if "command" in options.parts:
        for size in options.images:
            table.measure(bench.command, size)
        table.measure(bench.judged, options.images[0])
    return table


if __name__ == "__main__":
    run_program(
        __doc__,
        main,
        items=(800, "prompts"),
        images=((*SIDES,), "sizes"),
        workers=(("4", "16", "64", "256"), "requests in flight of the job"),
        faults=(("off", "on"), "of the job's server"),
        parts=(("job", "command"), "what is measured"),
    )
