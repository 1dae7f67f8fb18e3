"""How long a plan of many models takes: ``--dry_run`` of all shipped benchmarks whose data are here, nothing made yet.

    PYTHONPATH=. .venv-test/bin/python perf/dry_run.py [MODELS]

All models and evaluators share the driver's environment: one more environment costs one more process of each kind. The
limit is 5 s for 2400 cells; the first line is what the fewest models take, which is what does not grow with them.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from pathlib import Path

from tests.support.checkout import REPO, make_checkout, run_eval

LIMIT, CELLS = 5.0, 2400
_JUDGES = ("longtext=ppocr", *(f"{name}=openai:judge" for name in ("wise", "wise-verified", "wise-rewrite")))
_MORE_JUDGES = ("geneval2=openai:judge", "oneig=openai:judge", "oneig-zh=openai:judge")
# the tasks without encoders, whose weights are seldom here
_CONFIG = "DS_KWARGS_MAP=(['oneig']=\"tasks='alignment,text'\" ['oneig-zh']=\"tasks='alignment,text'\")\n"


def seconds(checkout: Path, models: int, benchmarks: list[str]) -> tuple[float, float]:
    """Seconds of one ``--dry_run`` by the clock and of CPU; every cell must have been counted."""
    judges = [judge for judge in (*_JUDGES, *_MORE_JUDGES) if judge.partition("=")[0] in benchmarks]
    words = ["--model_names", ";".join(f"model-{n}" for n in range(models)), "--use_api", "true", "--dry_run"]
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    run = run_eval(
        checkout,
        *[*words, "--ds_names", ";".join(benchmarks), "--judges", ";".join(judges)],
        API_KEY="EMPTY",
        BASE_URL="http://127.0.0.1:9/v1",
    )
    taken, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr
    assert run.stdout.count(" images to make") == run.stdout.count(" questions to ask of ")
    assert run.stdout.count(" images to make") == models * len(benchmarks)
    return taken, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> int:
    """Print one line for each number of models; status 1 when the limit is broken."""
    with tempfile.TemporaryDirectory() as folder:
        checkout = make_checkout(Path(folder) / "kit")
        (checkout / "config.local.sh").write_text(_CONFIG)
        benchmarks = []
        for data in sorted((REPO / "benchmarks").glob("*/data")):
            if not (here := checkout / data.relative_to(REPO)).exists():
                here.parent.mkdir(exist_ok=True)  # that of a variant holds nothing else
                here.symlink_to(data)
            benchmarks.append(data.parent.name.replace("_", "-"))
        many = int(sys.argv[1]) if len(sys.argv) > 1 else CELLS // len(benchmarks)
        for models in (1, many):
            taken, cpu = seconds(checkout, models, benchmarks)
            cells = models * len(benchmarks)
            each = f"{taken / cells * 1000:6.1f} ms per cell"
            print(
                f"{models:4} models × {len(benchmarks)} benchmarks: {taken:5.2f} s, {cpu:5.2f} s of CPU, {each}"
            )
    return int(taken > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
