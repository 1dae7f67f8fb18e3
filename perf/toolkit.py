"""The toolkit under measurement: a copy of the tree with a benchmark of the given prompts, its job, its results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from perf.draws import OK, reply_number
from perf.measure import Usage, measure
from perf.server_process import REPO, AnsweredRequest, ServerProcess
from tests.support.checkout import add_benchmark, environ, make_checkout

_MODEL, _BENCHMARK = "some-served-model", "perf"
_GENEVAL2 = "facebookresearch/GenEval2/*/geneval2_data.jsonl"

_DATASET = '''
import json
from pathlib import Path


class Perf:
    """The prompts in perf.json, one image each."""

    def __init__(self):
        self.dataset_name = "perf"
        self.dataset_task = "t2i"
        prompts = json.loads(Path("perf.json").read_text())
        self.data = [
            {"prompt": prompt, "seed": 0, "image_save_path": f"<MODEL_NAME>/perf/{n:04d}.png"}
            for n, prompt in enumerate(prompts)
        ]
'''


class Prompts(NamedTuple):
    """``source`` says where ``texts`` come from; no two are equal."""

    source: str
    texts: list[str]


def read_prompts(count: int) -> Prompts:
    """GenEval 2's first ``count`` prompts if a mirror has them, else as many synthetic ones."""
    mirror = Path(os.environ.get("SHARED_MIRROR") or REPO.parent / "shared/mirror")
    for path in sorted(mirror.glob(_GENEVAL2)):
        lines = path.read_text(encoding="utf-8").splitlines()
        return Prompts("GenEval 2", [json.loads(line)["prompt"] for line in lines[:count]])
    return Prompts("synthetic", [f"{n} green croissants beside a wooden chair" for n in range(count)])


def prepare(folder: Path, prompts: Sequence[str]) -> Path:
    """A checkout in ``folder`` that knows the benchmark ``perf``."""
    checkout = make_checkout(folder)
    add_benchmark(checkout, _BENCHMARK, "Perf", _DATASET)
    (checkout / "perf.json").write_text(json.dumps(prompts))
    return checkout


def generate(checkout: Path, server: ServerProcess, workers: int, output: Path) -> Usage:
    """Run the generate job as the launcher would; images go below ``output``."""
    env = environ(checkout, IMAGEEVALKIT_OUTPUT=str(output), **server.environ)
    words = ["--model_names", _MODEL, "--ds_names", _BENCHMARK, "--use_api", "true", "--eval", "false"]
    planned = subprocess.run(
        [sys.executable, str(REPO / "perf/generate_job.py"), "--", *words, "--num_workers", str(workers)],
        cwd=checkout,
        env=env,
        stdout=subprocess.PIPE,
        check=True,
    )
    job = json.loads(planned.stdout)
    return measure(
        job["command"], cwd=checkout, environ=job["environ"], log=checkout / job["log"], server=server.pid
    )


def problems(
    prompts: Sequence[str], pngs: Sequence[bytes], log: Sequence[AnsweredRequest], output: Path
) -> list[str]:
    """What is wrong with the results below ``output``, in words; empty when every item is there, and paid once."""
    cell = output / _MODEL / _BENCHMARK
    records = {}
    if (cell / "generation.jsonl").exists():
        lines = (cell / "generation.jsonl").read_text(encoding="utf-8").splitlines()
        records = {record["prompt"]: record for record in map(json.loads, lines)}
    made = Counter(line.item for line in log if line.answer == OK)
    lost = [p for p in prompts if records.get(p, {}).get("status") != "ok"]
    kept = {p: cell / records[p]["path"] for p in prompts if p not in lost}
    altered = [
        p
        for p, path in kept.items()
        if not path.is_file() or path.read_bytes() != pngs[reply_number(p, len(pngs))]
    ]
    counts = {
        "lost": len(lost),
        "generated twice": sum(made[p] > 1 for p in prompts),
        "not stored as sent": len(altered),
    }
    return [f"{count} of {len(prompts)} {what}" for what, count in counts.items() if count]
