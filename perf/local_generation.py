"""Local generation against a bare loop: ``.venv-test/bin/python perf/local_generation.py [--images N] [--rounds N]``.

Every row is one run of the toolkit's generate job on a tiny diffusers pipeline, beside a bare loop over the same
pipeline with the same batch (``perf/bare_loop.py``), in turns, since the machine's speed changes from minute to minute.
Throughput is that of all images after the first batch: a model is loaded once, and a run is long. The last row is a
model that only waits, as one on a GPU does for this machine, made by one worker and by two. On a machine with a GPU the
pipeline runs there; on one without, it gets one core, beside the loop as beside the toolkit.

Exits 1 when a limit is broken: 0.95 of the bare loop, 1.8 with a second worker.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from datetime import datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from perf import toolkit
from tests.support.checkout import SLOW_NOISE, add_model, environ
from tests.support.tiny_checkpoints.stable_diffusion import save_stable_diffusion

_REPO = Path(__file__).resolve().parent.parent
_STEPS = 2
_BATCHES = (1, 4)
# Threads of numerical libraries wait for each other by spinning: where anything else runs, two of them on two cores are
# slower than one, by a factor that changes from second to second.
_ONE_CORE = {"OMP_NUM_THREADS": "1"}
_LEAST_OF_BARE_LOOP, _LEAST_OF_TWO_WORKERS = 0.95, 1.8
_WAIT = 0.05  # seconds an image takes the model that only waits


class Bench:
    """A copy of the tree with a benchmark of ``images`` prompts, and the pipeline, in ``folder``."""

    def __init__(self, folder: Path, images: int) -> None:
        self._folder = folder
        self._images = images
        self._checkout = toolkit.prepare(folder / "checkout", toolkit.read_prompts(images).texts)
        add_model(self._checkout, "slow-noise", "SlowNoise", SLOW_NOISE)
        save_stable_diffusion(folder / "pipeline")

    def bare_loop(self, batch: int) -> float:
        """Images per second of the bare loop."""
        out = self._folder / "bare"
        done = subprocess.run(
            [
                *[
                    sys.executable,
                    str(_REPO / "perf/bare_loop.py"),
                    "--model",
                    str(self._folder / "pipeline"),
                ],
                *["--prompts", str(self._checkout / "perf.json"), "--out", str(out)],
                *["--batch", str(batch), "--steps", str(_STEPS)],
            ],
            env={**os.environ, **_ONE_CORE},
            stdout=subprocess.PIPE,
            check=True,
        )
        shutil.rmtree(out)
        times = json.loads(done.stdout)
        return (self._images - batch) / float(times[-1] - times[0])

    def pipeline(self, batch: int) -> float:
        """Images per second of the toolkit with the same pipeline."""
        kwargs = f"model_path={self._folder / 'pipeline'},dtype=float32,num_inference_steps={_STEPS}"
        return self._generate("diffusers", f"{kwargs},batch_size={batch}", 1, batch)

    def waiting(self, workers: int) -> float:
        """Images per second of the model that only waits."""
        return self._generate("slow-noise", f"seconds={_WAIT}", workers, workers)

    def _generate(self, model: str, kwargs: str, workers: int, first: int) -> float:
        output = self._folder / "output"
        env = environ(self._checkout, IMAGEEVALKIT_OUTPUT=str(output), **_ONE_CORE)
        words = ["--model_names", model, "--ds_names", "perf", "--eval", "false", "--replicas", str(workers)]
        planned = subprocess.run(
            [
                sys.executable,
                str(_REPO / "perf/generate_job.py"),
                "--",
                *words,
                "--custom_model_kwargses",
                kwargs,
            ],
            cwd=self._checkout,
            env=env,
            stdout=subprocess.PIPE,
            check=True,
        )
        job = json.loads(planned.stdout)
        # the tests' environment has the packages of the model's
        command = [sys.executable, *job["command"][1:]]
        log = self._folder / "job.log"
        with log.open("wb") as file:
            status = subprocess.run(
                command, cwd=self._checkout, env=job["environ"], stdout=file, stderr=file, check=False
            ).returncode
        if status:
            raise SystemExit(f"the generate job ended with status {status}:\n{log.read_text()}")
        lines = (output / model / "perf/generation.jsonl").read_text(encoding="utf-8").splitlines()
        times = sorted(datetime.fromisoformat(json.loads(line)["time"]).timestamp() for line in lines)
        shutil.rmtree(output)
        return (len(times) - first) / (times[-1] - times[first - 1])


def main() -> int:
    """Print the table; status 1 when a limit is broken."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=80)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if options.images <= max(_BATCHES):
        parser.error(f"--images {options.images}: those after the first batch of {max(_BATCHES)} are timed")
    broken = False
    with tempfile.TemporaryDirectory(prefix="local-generation-") as folder:
        bench = Bench(Path(folder), options.images)
        for batch in _BATCHES:
            rounds = [(bench.bare_loop(batch), bench.pipeline(batch)) for _ in range(options.rounds)]
            bare, ours = (statistics.median(column) for column in zip(*rounds, strict=True))
            ratio = statistics.median(ours / bare for bare, ours in rounds)
            broken |= ratio < _LEAST_OF_BARE_LOOP
            print(
                f"tiny Stable Diffusion, batch {batch}: bare loop {bare:.1f} images/s, toolkit {ours:.1f}, "
                f"ratio {ratio:.2f} (limit {_LEAST_OF_BARE_LOOP}, median of {options.rounds})"
            )
        one, two = bench.waiting(1), bench.waiting(2)
        broken |= two / one < _LEAST_OF_TWO_WORKERS
        print(
            f"waiting {_WAIT * 1000:.0f} ms an image: 1 worker {one:.1f} images/s, 2 workers {two:.1f}, "
            f"ratio {two / one:.2f} (limit {_LEAST_OF_TWO_WORKERS})"
        )
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
