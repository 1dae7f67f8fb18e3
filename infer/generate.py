"""The generate job: one model, loaded once at most, through all its benchmarks (run by a launcher)."""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from custom_datasets.load_dataset import load_dataset
from custom_models.load_model import load_model
from imageevalkit import assets
from imageevalkit.cell import Cell
from imageevalkit.errors import CellFailure, ExitStatus, run_main, worst
from imageevalkit.generation.contract import GenerationError
from imageevalkit.generation.run import GenerateOptions, generate_cell
from imageevalkit.items import items_of
from imageevalkit.jobs import FAILED, STATUS_OF_STATE, Job, Outcome, cell_of, load_plan, write_outcome
from imageevalkit.progress import ProgressWriter
from imageevalkit.secrets import one_line, redact


class ModelHolder:
    """The one model in memory; the next task's class replaces it, the next benchmark's does not."""

    def __init__(self) -> None:
        self._task = ""
        self._model: Any = None
        self._failure = ""

    def get(self, task: str, setting: Mapping[str, Any]) -> Any:
        """The model for ``task``, loaded now if it is not yet.

        Raises:
            CellFailure: it does not load (and did not before: loading is tried once).
        """
        if task != self._task:
            self._model, self._failure, self._task = None, "", task
            _free_memory()
            started = time.perf_counter()
            try:
                self._model = load_model(setting)
            except GenerationError as error:
                self._failure = f"model does not load: {one_line(error)}"
            except Exception as error:
                print(redact(traceback.format_exc()), flush=True)
                self._failure = f"model does not load: {type(error).__name__}: {one_line(error, 300)}"
            else:
                print(f"model loaded in {time.perf_counter() - started:.1f} s", flush=True)
        if self._failure:
            raise CellFailure(self._failure)
        return self._model


def _free_memory() -> None:
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()


def main() -> ExitStatus:
    """Run every cell of the job; the exit status is that of the worst."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--job", required=True)
    args = parser.parse_args()
    plan = load_plan(args.plan)
    job = plan.job(args.job)
    progress, holder = ProgressWriter(), ModelHolder()
    statuses = []
    for key, log in zip(job.cells, job.logs, strict=True):
        cell = cell_of(key)
        _switch_log(Path(log))
        print(f"=== generate {key}", flush=True)
        outcome = _run_cell(cell, job, holder, progress)
        print(f"=== {outcome.state}: {outcome.message}", flush=True)
        write_outcome(Path(plan.run_folder), cell, "generate", outcome)
        statuses.append(STATUS_OF_STATE[outcome.state])
    return worst(statuses)


def _run_cell(cell: Cell, job: Job, holder: ModelHolder, progress: ProgressWriter) -> Outcome:
    options = job.options
    try:
        # the pinned bytes, before an image is made (and paid for) from other ones
        problems = assets.check(cell.benchmark, hashes=True)
        if problems:
            raise CellFailure(assets.explain(problems, cell.benchmark))
        dataset = load_dataset(cell.benchmark)
        task = dataset.dataset_task
        setting = options["settings"][task]
        return generate_cell(
            cell,
            items_of(dataset, cell, options["limit"]),
            task,
            setting,
            lambda: holder.get(task, setting),
            GenerateOptions(options["overwrite"], options["blank_on_error"], options["workers"]),
            progress,
        )
    except CellFailure as error:
        return Outcome(FAILED, one_line(error))
    except (
        Exception
    ) as error:  # a fault in one benchmark's or model's code must not take the other cells along
        print(redact(traceback.format_exc()), flush=True)
        return Outcome(FAILED, f"{type(error).__name__}: {one_line(error, 300)}")


def _switch_log(path: Path) -> None:
    """Send stdout and stderr, child processes' and C libraries' too, to ``path``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)


if __name__ == "__main__":
    run_main(main)
