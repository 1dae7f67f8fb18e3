"""Images through an API: the generate job, and ``bash eval.sh`` from its start to the finished report.

Each run has a fresh local server with seeded lognormal latencies (median 0.3 s, p99 3 s). At 256 px, the generate job
is compared with the list-schedule makespan of the drawn latencies, a lower bound of any program. With faults (5 % 429,
2 % 500, 1 % resets) the length of an item is the sum of the latencies of its requests.

At 1024 px the speed of a core decides. So the job is compared with a plain client (``perf/plain.py``) with as many
requests in flight, which also decodes and stores each image.

The last row compares a judged run with the longer of its halves: only images, only scores. CPU and memory are of the
whole command.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from perf.harness import Row, Table, Usage, at_most, run_program
from perf.latency_server import ServerProcess, job_lengths, makespan
from perf.toolkit import BENCHMARK, JUDGED, WORKERS, Toolkit, image_replies, judge_replies, make_prompts

# These seeds, of 0 to 11, leave 64 workers idle the least. Otherwise one latency of 10 s would hide a slow client.
_SEED, _JUDGE_SEED = 11, 0
_FAULTS_BAR, _PLAIN_BAR, _JUDGED_BAR = at_most(1.4), at_most(1.15), at_most(1.15)
_JOB_BARS = {WORKERS: at_most(1.15), 256: at_most(1.5)}
_MB = at_most(600)


class Bench:
    """The toolkit and the servers' replies in ``folder``."""

    def __init__(self, folder: Path, items: int) -> None:
        self._folder, self._kit = folder, Toolkit(folder, make_prompts(items))
        self._small = image_replies(folder / "256 px", 256)
        self._large = image_replies(folder / "1024 px", 1024)
        self._verdicts = judge_replies(folder / "verdicts")

    def job(self, workers: int, faults: bool) -> list[Row]:
        """The generate job at 256 px against the lower bound."""
        usage, bound, problems = self._generate(self._small, workers, faults)
        label = f"256 px, {workers} in flight{', faults' * faults}"
        bar = _FAULTS_BAR if faults else _JOB_BARS[workers]
        return [Row.of(label, self._kit.of_job("generate", usage), bound, bar, problems)]

    def plain(self) -> list[Row]:
        """The generate job at 1024 px against the plain client."""
        usage, _, problems = self._generate(self._large, WORKERS)
        job, out = self._kit.of_job("generate", usage), self._folder / "plain"
        with ServerProcess(self._large, _SEED) as server:
            plain = self._kit.run_plainly("images", WORKERS, out, server)
        problems += self._kit.failure(plain)
        shutil.rmtree(out)
        label = f"1024 px, {WORKERS} in flight / a plain client"
        row = Row.of(label, job, plain.wall, _PLAIN_BAR, problems)
        return [
            row._replace(others=max(row.others, plain.others)),
            Row("  memory", usage.peak_mb, _MB, unit=" MB"),
        ]

    def _generate(self, replies: Path, workers: int, faults: bool = False) -> tuple[Usage, float, list[str]]:
        """Returns the cost of a run, the lower bound and the problems."""
        self._kit.forget()
        with ServerProcess(replies, _SEED, faults) as server:
            words = ("--num_workers", str(workers), "--eval", "false")
            usage = self._kit.run_api(BENCHMARK, *words, servers=[server])
            log = server.log()
        problems = self._kit.problems(usage, "generation.jsonl", BENCHMARK, log)
        return usage, makespan(job_lengths(len(self._kit.prompts), log), workers), problems

    def judged(self) -> list[Row]:
        """``eval.sh`` with images that a judge of the same latencies scores."""
        images, scores = self._judged("--eval", "false"), self._judged("--infer", "false")
        self._kit.forget()
        usage = self._judged()
        problems = [text for one in (images, scores) for text in self._kit.failure(one)]
        problems += self._kit.problems(usage, "scores.jsonl", JUDGED)
        label = f"eval.sh, 256 px, judged (images {images.wall:.1f} s, scores {scores.wall:.1f} s)"
        row = Row.of(label, usage, max(images.wall, scores.wall), _JUDGED_BAR, problems)
        self._kit.forget()
        return [row._replace(others=max(images.others, scores.others, usage.others))]

    def _judged(self, *words: str) -> Usage:
        number = ("--num_workers", str(WORKERS))
        with ServerProcess(self._small, _SEED) as server, ServerProcess(self._verdicts, _JUDGE_SEED) as judge:
            return self._kit.run_api(JUDGED, *number, *words, servers=[server, judge])


def main(table: Table, folder: Path, is_small: bool) -> None:
    bench = Bench(folder, 4 if is_small else 800)
    for workers in () if is_small else _JOB_BARS:
        table.measure(bench.job, workers, False)
    table.measure(bench.job, WORKERS, True)
    table.measure(bench.plain)
    table.measure(bench.judged)


if __name__ == "__main__":
    run_program(__doc__, main)
