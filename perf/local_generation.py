"""Local generation against a bare loop over the same pipeline, and workers against each other.

Every row is one run of the toolkit's generate job on a tiny diffusers pipeline, beside a bare loop with the same batch
(``perf/plain.py``), in turns, since the machine's speed changes from minute to minute. Throughput is that of all images
after the first batch: a model is loaded once, and a run is long. The last row is a model that only waits, as one on a
GPU does for this machine, made by one worker and by two. On a machine with a GPU the pipeline runs there; on one
without, it gets one core, beside the loop as beside the toolkit.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
from datetime import datetime
from pathlib import Path

from perf.harness import Row, Table, Usage, WrongOption, at_least, run_program
from perf.toolkit import BENCHMARK, Toolkit, geneval2_items
from tests.support.checkout import SLOW_NOISE, add_model
from tests.support.tiny_checkpoints.stable_diffusion import save_stable_diffusion

_STEPS = 2
_BATCHES = (1, 4)
# Threads of numerical libraries wait for each other by spinning: where anything else runs, two of them on two cores are
# slower than one, by a factor that changes from second to second.
_ONE_CORE = {"OMP_NUM_THREADS": "1"}
_OF_BARE_LOOP, _OF_ONE_WORKER = at_least(0.95), at_least(1.8)
_WAIT = 0.05  # seconds an image takes the model that only waits


class Bench:
    """The toolkit with ``images`` prompts, and the pipeline, in ``folder``."""

    def __init__(self, folder: Path, images: int) -> None:
        self._folder, self._pipeline = folder, folder / "pipeline"
        self._kit = Toolkit(folder, geneval2_items(images).entries)
        add_model(self._kit.checkout, "slow-noise", "SlowNoise", SLOW_NOISE)
        save_stable_diffusion(self._pipeline)

    def bare_loop(self, batch: int) -> float:
        """Images per second of the bare loop."""
        output = self._folder / "bare"
        words = ["--model", str(self._pipeline), "--workers", str(batch), "--steps", str(_STEPS)]
        self._check(self._kit.run_plainly("loop", *words, output=output, more=_ONE_CORE))
        times, images = json.loads((output / "times.json").read_text()), len(list(output.glob("*.png")))
        shutil.rmtree(output)
        return (images - batch) / float(times[-1] - times[0])

    def pipeline(self, batch: int) -> float:
        """Images per second of the toolkit with the same pipeline."""
        kwargs = f"model_path={self._pipeline},dtype=float32,num_inference_steps={_STEPS}"
        return self._generate("diffusers", f"{kwargs},batch_size={batch}", 1, batch)

    def waiting(self, workers: int) -> float:
        """Images per second of the model that only waits."""
        return self._generate("slow-noise", f"seconds={_WAIT}", workers, workers)

    def _generate(self, model: str, kwargs: str, workers: int, first: int) -> float:
        self._kit.forget()
        usage = self._kit.run_job(
            "generate",
            *["--model_names", model, "--ds_names", BENCHMARK, "--eval", "false"],
            *["--replicas", str(workers), "--custom_model_kwargses", kwargs],
            python=sys.executable,  # the tests' environment has the packages of the model's
            more=_ONE_CORE,
        )
        self._check(usage)
        records = self._kit.records("generation.jsonl", BENCHMARK, model)
        times = sorted(datetime.fromisoformat(str(record["time"])).timestamp() for record in records)
        return (len(times) - first) / (times[-1] - times[first - 1])

    def _check(self, usage: Usage) -> None:
        if failed := self._kit.failure(usage):
            raise SystemExit(failed[0])


def main(options: argparse.Namespace, folder: Path) -> Table:
    if options.images <= max(_BATCHES):
        raise WrongOption(
            f"--images {options.images}: those after the first batch of {max(_BATCHES)} are timed"
        )
    bench = Bench(folder, options.images)
    about = f"{options.images} images, medians of {options.rounds} rounds"
    table = Table(f"{about}; images per second / those of the plain way", "plain", "toolkit")
    for batch in _BATCHES:
        rounds = [(bench.bare_loop(batch), bench.pipeline(batch)) for _ in range(options.rounds)]
        plain, ours = (statistics.median(column) for column in zip(*rounds, strict=True))
        ratio = statistics.median(ours / plain for plain, ours in rounds)
        figures = {"plain": f"{plain:.1f}", "toolkit": f"{ours:.1f}"}
        table.add(Row(f"tiny Stable Diffusion, batches of {batch}", ratio, _OF_BARE_LOOP, figures))
    one, two = bench.waiting(1), bench.waiting(2)
    figures = {"plain": f"{one:.1f}", "toolkit": f"{two:.1f}"}
    table.add(Row(f"a model that waits {_WAIT:g} s: 2 workers / 1", two / one, _OF_ONE_WORKER, figures))
    return table


if __name__ == "__main__":
    run_program(__doc__, main, images=(80, "prompts"), rounds=(3, "of each row"))
