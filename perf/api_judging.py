"""Judging through an API against its limits: ``python perf/api_judging.py [--quick]``.

1,000 items of WISE, each with a PNG of 1.7 MB and 1024 px that is sent unchanged, go to a fresh local server whose
latencies are lognormal (median 0.3 s, p99 3 s) and depend on the seed alone. Measured is a whole evaluate job
(``perf/judge_job.py``) from its start to its end: every image is hashed, asked about, and a result is left.

* ``makespan``: the yardstick is the list-schedule makespan of the very latencies drawn, items in the benchmark's
  order. The plain way (``perf/plain_judge.py``: a pool of threads, a synchronous client) runs against the same.
* ``rate``: the server lets 20 requests per second through, in a token bucket of 20; others get a 429 at once.
  ``used`` is the share of what the bucket gave out, its first fill left out; ``refused`` that of all requests.

CPU seconds and peak memory are of all processes of the client; ``start`` is when its first request came; ``server``
is the server's CPU seconds; ``others`` is how many cores anything else took: 0 on a machine that was free.
Exits 1 when a limit is broken.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from imageevalkit.judges.choice import VARIABLE, JudgeOptions
from perf.draws import OK, RATE_LIMIT
from perf.judge_questions import CELL, write_questions
from perf.makespan import job_lengths, makespan
from perf.measure import Usage, measure
from perf.replies import write_judge_replies
from perf.server_process import REPO, AnsweredRequest, ServerProcess

# Of the seeds 0 to 11 the one that leaves 64 workers idle the least: where one drawn latency at the end stretches
# the makespan, a slow client does not show.
_SEED = 0
_MOST_RATIO = 1.35
_LEAST_USED, _MOST_REFUSED = 0.9, 0.05
_RETRY_AFTER = "1"


class Bench:
    """The questions, their images and the server's replies in ``folder``."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self._folder = folder
        self._options = options
        os.environ["IMAGEEVALKIT_OUTPUT"] = str(folder / "output")
        self.items = write_questions(folder / "questions", options.items)
        write_judge_replies(folder / "replies")

    def heading(self) -> str:
        """What is measured."""
        return (
            f"{len(self.items.prompts)} items ({self.items.source}), each with its own PNG file of "
            f"{self.items.image_mb:.2f} MB (4 different ones), {self._options.workers} in flight, "
            f"seed {self._options.seed}"
        )

    def makespan_row(self, client: str) -> list[str]:
        """Run ``client`` ("ours" or "plain") and print its row; what is wrong with it."""
        with self._server() as server:
            usage, out = self._run(client, server)
            log = server.log()
        least = makespan(job_lengths(self.items.prompts, log), self._options.workers)
        ratio = usage.wall / least
        problems = self._problems(usage, out)
        if client == "ours" and ratio > _MOST_RATIO:
            problems.append(f"wall/makespan {ratio:.2f} > {_MOST_RATIO}")
        _print(client, usage, log, f"makespan {least:.2f} s, wall/makespan {ratio:.2f}", problems)
        return problems if client == "ours" else []

    def rate_row(self, per_second: float) -> list[str]:
        """Run ours against a server of that rate and print its row; what is wrong with it."""
        with self._server(per_second) as server:
            usage, out = self._run("ours", server)
            log = server.log()
        served = sum(line.answer == OK for line in log)
        refused = sum(line.answer == RATE_LIMIT for line in log) / len(log)
        used = (served - per_second) / (usage.wall * per_second)
        problems = self._problems(usage, out)
        if used < _LEAST_USED:
            problems.append(f"used {used:.3f} < {_LEAST_USED}")
        if refused >= _MOST_REFUSED:
            problems.append(f"refused {refused:.1%} >= {_MOST_REFUSED:.0%}")
        _print(
            f"{per_second:g}/s", usage, log, f"used {used:.3f} of the rate, refused {refused:.1%}", problems
        )
        return problems

    def _server(self, per_second: float = 0.0) -> ServerProcess:
        replies = self._folder / "replies"
        return ServerProcess(replies, self._options.seed, False, _RETRY_AFTER, per_second)

    def _run(self, client: str, server: ServerProcess) -> tuple[Usage, Path]:
        out = {"ours": CELL.judgements, "plain": self._folder / "plain.jsonl"}[client]
        out.unlink(missing_ok=True)
        module = {"ours": "perf.judge_job", "plain": "perf.plain_judge"}[client]
        command = [sys.executable, "-m", module]
        command += ["--questions", str(self._folder / "questions/questions.json")]
        command += ["--out", str(out), "--workers", str(self._options.workers)] * (client == "plain")
        judge = {VARIABLE: JudgeOptions(workers=self._options.workers).to_json()}
        usage = measure(
            command,
            cwd=REPO,
            environ={**os.environ, "PYTHONPATH": str(REPO), **server.environ, **judge},
            log=self._folder / f"{client}.log",
            server=server.pid,
        )
        if usage.status:
            print((self._folder / f"{client}.log").read_text()[-2000:])
        return usage, out

    def _problems(self, usage: Usage, out: Path) -> list[str]:
        lines = out.read_text().splitlines() if out.exists() else []
        judged = {record["item"] for record in map(json.loads, lines) if record["raw"]}
        problems = [f"exit status {usage.status}"] * (usage.status != 0)
        if len(judged) < len(self.items.prompts) or len(lines) > len(judged):
            problems.append(f"{len(judged)} of {len(self.items.prompts)} items judged, {len(lines)} answers")
        return problems


def _print(
    name: str, usage: Usage, log: Sequence[AnsweredRequest], figures: str, problems: Sequence[str]
) -> None:
    start = min((line.arrived for line in log), default=usage.started) - usage.started
    print(
        f"{name:>6}: wall {usage.wall:.2f} s, {figures}, start {start:.2f} s, CPU {usage.cpu:.1f} s, "
        f"peak {usage.peak_mb:.0f} MB, server {usage.server_cpu:.1f} s, others {usage.others:.2f}: "
        f"{'; '.join(problems) or 'ok'}",
        flush=True,
    )


def main() -> int:
    """Print the rows; status 1 when a limit is broken."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--items", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=64, help="requests in flight")
    parser.add_argument("--per-second", type=float, default=20.0, help="requests let through; 0: no such row")
    parser.add_argument("--runs", type=int, default=1, help="how often ours runs against its makespan")
    parser.add_argument("--seed", type=int, default=_SEED)
    parser.add_argument("--quick", action="store_true", help="ours against its makespan only")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="api-judging-") as folder:
        bench = Bench(Path(folder), options)
        print(bench.heading(), flush=True)
        broken = [bench.makespan_row("ours") for _ in range(options.runs)]
        if not options.quick:
            broken.append(bench.makespan_row("plain"))
            if options.per_second:
                broken.append(bench.rate_row(options.per_second))
    return int(any(broken))


if __name__ == "__main__":
    sys.exit(main())
