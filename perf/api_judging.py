"""A judge behind an API: the evaluate job against a plain client.

The job asks one question about each of 1,000 images of 1.7 MB and 1024 px, with 64 requests in flight. A
fresh local server has seeded lognormal latencies (median 0.3 s, p99 3 s). The plain client
(``perf/plain.py``) runs against the same latencies.
"""

from __future__ import annotations

from pathlib import Path

from perf.harness import Row, Table, at_most, run_program
from perf.latency_server import ServerProcess
from perf.toolkit import JUDGED, MODEL, WORKERS, Toolkit, image_replies, judge_replies, make_prompts

# This seed, of 0 to 11, leaves 64 workers idle the least. Otherwise one latency of 10 s would hide a slow client.
_SEED, _OF_PLAIN, _MB = 0, at_most(1.15), at_most(400)


def rows(kit: Toolkit, replies: Path) -> list[Row]:
    """The evaluate job over the plain client; earlier answers are removed."""
    cell = kit.output / MODEL / JUDGED
    for path in cell.iterdir():
        if path.is_file() and "generation" not in path.name:
            path.unlink()
    with ServerProcess(replies, _SEED) as server:
        words = ("--num_workers", str(WORKERS), "--infer", "false")
        usage = kit.run_api(JUDGED, *words, servers=[server])
        problems = kit.problems(usage, "scores.jsonl", JUDGED, server.log())
    job = kit.of_job("evaluate", usage)
    with ServerProcess(replies, _SEED) as server:
        plain = kit.run_plainly("judge", WORKERS, cell, server)
    row = Row.of("1024 px / a plain client", job, plain.wall, _OF_PLAIN, problems + kit.failure(plain))
    memory = Row("  memory", usage.peak_mb, _MB, unit=" MB")
    return [row._replace(others=max(job.others, plain.others)), memory]


def main(table: Table, folder: Path, is_small: bool) -> None:
    kit = Toolkit(folder, make_prompts(4 if is_small else 1000))
    with ServerProcess(image_replies(folder / "images", 1024), _SEED) as server:
        usage = kit.run_api(JUDGED, "--num_workers", str(WORKERS), "--eval", "false", servers=[server])
    if problems := kit.failure(usage):
        raise SystemExit(f"error: the images were not generated: {problems[0]}")
    table.measure(rows, kit, judge_replies(folder / "replies"))


if __name__ == "__main__":
    run_program(__doc__, main)
