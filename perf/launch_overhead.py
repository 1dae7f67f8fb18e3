"""What the local launcher costs per job: a plan of ``true`` jobs against ``subprocess.run`` of the same.

    PYTHONPATH=. python perf/launch_overhead.py [JOBS]

Both are timed in the same run and in turns, since the machine's speed changes from minute to minute. The
limit is 100 ms per job.
"""

from __future__ import annotations

import contextlib
import io
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from imageevalkit.jobs import Job, Plan
from imageevalkit.launch.local import run_plan

ROUNDS = 3
LIMIT_MS = 100.0


def launcher_seconds(jobs: int, parallel: bool) -> float:
    """Seconds that ``run_plan`` takes for ``jobs`` jobs that do nothing."""
    with tempfile.TemporaryDirectory() as folder:
        plan = Plan(
            folder,
            parallel,
            [Job(f"true:{n}", "true", ["true"], [], [f"{folder}/{n}.log"]) for n in range(jobs)],
        )
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            start = time.perf_counter()
            summary = run_plan(plan, {})
            seconds = time.perf_counter() - start
        assert [job.state for job in summary.jobs] == ["complete"] * jobs
    return seconds


def plain_seconds(jobs: int) -> float:
    """Seconds that plain ``subprocess.run`` takes for the same commands, logs included."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        for n in range(jobs):
            with (Path(folder) / f"{n}.log").open("ab") as log:
                subprocess.run(["true"], stdout=log, stderr=log, stdin=subprocess.DEVNULL, check=True)
        return time.perf_counter() - start


def main() -> int:
    """Print one line per mode; status 1 when the limit is broken."""
    jobs = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    rounds = [
        (plain_seconds(jobs), launcher_seconds(jobs, False), launcher_seconds(jobs, True))
        for _ in range(ROUNDS)
    ]
    plain, *launched = (statistics.median(column) / jobs * 1000 for column in zip(*rounds, strict=True))
    print(f"subprocess.run      {plain:6.1f} ms per job ({jobs} jobs, median of {ROUNDS})")
    for name, milliseconds in zip(("serial", "parallel"), launched, strict=True):
        print(
            f"launcher, {name:<9} {milliseconds:6.1f} ms per job, "
            f"overhead {milliseconds - plain:.1f} ms, ratio {milliseconds / plain:.1f}"
        )
    return int(max(launched) - plain > LIMIT_MS)


if __name__ == "__main__":
    sys.exit(main())
