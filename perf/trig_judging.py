"""TRIG judged through an API, whole: ``python perf/trig_judging.py [--per-pair 20]``.

The 13,200 items of a synthetic text-to-image TRIG, each with a small image of its own, are rated on two dimensions each
by a local server with the latencies of perf/api_judging.py: 26,400 requests, of which the list-schedule makespan of the
very latencies drawn is the yardstick. Measured is a whole evaluate job: images are hashed, asked about, scores, means
and official files are written. Needs the judge's texts, which a mirror has (SHARED_MIRROR). Exits 1 above the limit.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import math
import os
import random
import sys
import tempfile
from contextlib import closing
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from PIL import Image

from benchmarks.trig.benchmark import TrigSettings, TrigT2I
from imageevalkit import assets, registry
from imageevalkit.cell import Cell
from imageevalkit.cell.items import items_of
from imageevalkit.cell.jsonl import JsonlWriter
from imageevalkit.evaluation.engine import evaluate_cell
from imageevalkit.evaluation.interview import EvaluateOptions
from imageevalkit.jobs import STATUS_OF_STATE
from imageevalkit.judges.choice import VARIABLE, JudgeOptions
from imageevalkit.prefetch.benchmark_files import fetch
from imageevalkit.progress import ProgressWriter
from perf.makespan import makespan
from perf.measure import measure
from perf.server_process import REPO, ServerProcess
from tests.support.trig_data import write_local

_MOST_RATIO = 1.2
_SIDE = 48
_CELL = Cell("model", "trig-t2i")
_JUDGE = "openai:Qwen/Qwen2.5-VL-7B-Instruct"


def write_images(benchmark: TrigT2I) -> None:
    """The images of all items and their records, as the generate stage leaves them."""
    draw = random.Random(0)
    with closing(JsonlWriter(_CELL.generation)) as records:
        for data in benchmark.chosen:
            buffer, path = io.BytesIO(), f"images/{data['data_id']}.png"
            noise = Image.frombytes("RGB", (_SIDE, _SIDE), draw.randbytes(_SIDE * _SIDE * 3))
            noise.save(buffer, "PNG", compress_level=0)
            (_CELL.folder / path).write_bytes(buffer.getvalue())
            made = {"item": path.removesuffix(".png"), "path": path, "status": "ok", "flat": False}
            records.append({**made, "image_sha256": hashlib.sha256(buffer.getvalue()).hexdigest()})


def write_replies(folder: Path) -> None:
    """Ratings of several kinds, with five tokens each."""
    folder.mkdir()
    tokens = ("Good", "Excellent", "Medium", "Bad", "good")
    for n in range(8):
        shares = [random.Random(f"{n} {token}").random() ** 2 for token in tokens]
        listed = [
            {"token": token, "logprob": math.log(0.98 * share / sum(shares)), "bytes": list(token.encode())}
            for token, share in zip(tokens, shares, strict=True)
        ]
        choice = {
            "message": {"role": "assistant", "content": "Good"},
            "logprobs": {"content": [{**listed[0], "top_logprobs": listed}]},
            "finish_reason": "length",
        }
        usage = {"prompt_tokens": 800, "completion_tokens": 1, "total_tokens": 801}
        reply = {"id": "chatcmpl-0", "object": "chat.completion", "choices": [choice], "usage": usage}
        (folder / f"{n}.json").write_text(json.dumps(reply))


def benchmark_in(folder: Path) -> TrigT2I:
    """The benchmark with the data in ``folder``."""
    assets.BENCHMARKS = folder / "benchmarks"
    return TrigT2I(TrigSettings(prompts=str(folder / "data/t2i.json")), _JUDGE)


def evaluate(folder: Path) -> int:
    """The job that is measured; the exit status."""
    benchmark = benchmark_in(folder)
    items = items_of(registry.BenchmarkDataset(benchmark), _CELL)
    outcome = evaluate_cell(_CELL, benchmark, items, ProgressWriter(), EvaluateOptions(workers=2))
    print(outcome)
    return int(STATUS_OF_STATE[outcome.state])


def measured(folder: Path, options: argparse.Namespace) -> int:
    """Prepare ``folder``, run the job and print what it took; 1 where a limit is broken."""
    os.environ["IMAGEEVALKIT_OUTPUT"] = str(folder / "output")
    write_local(folder / "data", "t2i", options.per_pair)
    benchmark = benchmark_in(folder)
    mirror = Path(os.environ.get("SHARED_MIRROR") or REPO.parent / "shared/mirror")
    if not mirror.is_dir() or fetch(benchmark.files(), mirror):
        raise SystemExit("no mirror has the judge's texts: SHARED_MIRROR names one")
    (_CELL.folder / "images").mkdir(parents=True)
    write_images(benchmark)
    write_replies(folder / "replies")
    with ServerProcess(folder / "replies", options.seed, False, "1") as server:
        usage = measure(
            [sys.executable, "-m", "perf.trig_judging", "--job", str(folder)],
            cwd=REPO,
            environ={
                **os.environ,
                "PYTHONPATH": str(REPO),
                **server.environ,
                VARIABLE: JudgeOptions(workers=options.workers).to_json(),
            },
            log=folder / "job.log",
            server=server.pid,
        )
        log = sorted(server.log(), key=lambda line: line.arrived)
    if usage.status:
        print((folder / "job.log").read_text()[-2000:])
    least = makespan([line.latency for line in log], options.workers)
    expected, ratio = 2 * len(benchmark.chosen), usage.wall / least
    problems = [f"{len(log)} requests of {expected}"] * (len(log) != expected)
    problems += [f"exit status {usage.status}"] * bool(usage.status)
    problems += [f"wall/makespan {ratio:.3f} > {_MOST_RATIO}"] * (ratio > _MOST_RATIO)
    first, last = (
        log[0].arrived - usage.started,
        max(line.arrived + line.latency for line in log) - usage.started,
    )
    print(
        f"{len(log)} requests, {options.workers} in flight: wall {usage.wall:.1f} s, makespan {least:.1f} s, "
        f"wall/makespan {ratio:.3f}; first asked after {first:.1f} s, ended {usage.wall - last:.1f} s after the last "
        f"reply; CPU {usage.cpu:.1f} s, peak {usage.peak_mb:.0f} MB, server {usage.server_cpu:.1f} s, "
        f"others {usage.others:.2f}: {'; '.join(problems) or 'ok'}"
    )
    return int(bool(problems))


def main() -> int:
    """Print one row; status 1 when a limit is broken."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--per-pair", type=int, help="only so many items of each pair")
    parser.add_argument("--workers", type=int, default=64, help="requests in flight")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--job", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        return evaluate(options.job)
    with tempfile.TemporaryDirectory(prefix="trig-judging-") as folder:
        return measured(Path(folder), options)


if __name__ == "__main__":
    sys.exit(main())
