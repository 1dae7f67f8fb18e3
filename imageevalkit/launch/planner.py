"""From options to the plan: which jobs, in which environment, in which order."""

from __future__ import annotations

import functools
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imageevalkit import assets
from imageevalkit.cell import REPO, Cell, log_root, output_root
from imageevalkit.cores import available_cores
from imageevalkit.errors import UserError, suggest
from imageevalkit.evaluation.benchmark import check_judge, module_of
from imageevalkit.jobs import Job, Plan
from imageevalkit.launch import gpus, registry
from imageevalkit.launch.config import Config
from imageevalkit.launch.environments import DRIVER_ENV, python_of
from imageevalkit.launch.options import Options

# A crash (out of memory, driver fault) may pass; a job that reports its own failure is not run again.
_RETRIES = {"generate": 2, "evaluate": 1}


@dataclass(frozen=True)
class _Run:
    """What all jobs of a run share."""

    options: Options
    config: Config
    folder: Path
    stamp: str
    cores: int
    blocked: dict[str, str]

    def logs(self, cells: list[Cell], stage: str) -> list[str]:
        return [str(log_root() / cell.model / f"{cell.benchmark}_{stage}_{self.stamp}.log") for cell in cells]

    def open_cells(self, model: str) -> list[Cell]:
        cells = [Cell(model, benchmark) for benchmark in self.options.benchmarks]
        return [cell for cell in cells if cell.key not in self.blocked]


def make_plan(options: Options, config: Config) -> Plan:
    """The jobs of this run. Touches no file and starts nothing.

    Raises:
        UserError: an unknown name, a missing environment or script, a GPU that is not there.
    """
    tasks = registry.benchmark_tasks()
    for benchmark in options.benchmarks:
        if benchmark not in tasks:
            raise UserError(
                f"unknown benchmark '{benchmark}'{suggest(benchmark, tasks)}; bash eval.sh --list shows the names"
            )
    _check_maps(config, tasks)
    for benchmark in options.judges:
        if benchmark not in tasks and benchmark not in config.maps.get("JUDGE_MAP", {}):
            raise UserError(f"--judges names unknown benchmark '{benchmark}'{suggest(benchmark, tasks)}")
    stamp = time.strftime("%Y%m%d-%H%M%S")
    cores = available_cores()
    side_by_side = min(cores, len(options.models) * len(options.benchmarks))
    run = _Run(
        options=options,
        config=config,
        folder=log_root() / "runs" / f"{stamp}-{os.getpid()}",
        stamp=f"{stamp}-{os.getpid()}",
        cores=max(1, cores // side_by_side) if options.parallel else cores,
        blocked=_blocked(options),
    )
    jobs: list[Job] = []
    for model, kwargs in zip(options.models, options.model_kwargs, strict=True):
        if not options.infer:
            _check_images_of(model)
        elif job := _generate_job(run, model, kwargs, tasks):
            jobs.append(job)
    if options.evaluate:
        jobs += [_evaluate_job(run, cell) for model in options.models for cell in run.open_cells(model)]
    jobs.append(_report_job(run, jobs))
    return Plan(str(run.folder), options.parallel, jobs, run.blocked)


@functools.cache
def _visible_gpus() -> int:
    """How many GPUs this run may use; asked only when something wants one (a login node's nvidia-smi may fail)."""
    return len(gpus.visible_gpus())


def _check_images_of(model: str) -> None:
    """Without generation any model will do that has a folder in output/, however its images were made."""
    known = registry.model_tasks()
    if model not in known and not (output_root() / model).is_dir():
        raise UserError(
            f"unknown model '{model}'{suggest(model, known)}: it is not registered, and there are no images of it "
            f"in {output_root() / model}"
        )


def _check_maps(config: Config, tasks: dict[str, str]) -> None:
    for variable in ("EVAL_ENV_MAP", "EVAL_GPU_MAP", "JUDGE_MAP"):
        for benchmark in config.maps.get(variable, {}):
            if benchmark not in tasks and (near := suggest(benchmark, tasks)):
                raise UserError(f"{variable} in config.sh names unknown benchmark '{benchmark}'{near}")


def _blocked(options: Options) -> dict[str, str]:
    blocked = {}
    for benchmark in options.benchmarks:
        problems = assets.check(benchmark)
        for model in options.models:
            if problems:
                blocked[Cell(model, benchmark).key] = assets.explain(problems, benchmark)
    return blocked


def _generate_job(run: _Run, model: str, kwargs: dict[str, object], tasks: dict[str, str]) -> Job | None:
    options = run.options
    settings = {
        task: registry.resolve_model(model, task, options.use_api, kwargs)
        for task in dict.fromkeys(tasks[benchmark] for benchmark in options.benchmarks)
    }
    if any(setting.get("api") for setting in settings.values()) and not os.environ.get("API_KEY"):
        raise UserError(
            f"model '{model}' is reached through an API, but API_KEY is empty: set it in config.local.sh or the "
            "environment (API_KEY=EMPTY for a server that asks for none)"
        )
    python = python_of(
        run.config.maps.get("INFER_ENV_MAP", {}).get(model, ""),
        f"model {model}",
        f"bash utils/make_env.sh --model {model}",
    )
    # one class per task is in memory at a time, so that benchmarks of one task follow each other
    cells = sorted(run.open_cells(model), key=lambda cell: list(settings).index(tasks[cell.benchmark]))
    if not cells:
        return None
    name = f"generate:{model}"
    return Job(
        name=name,
        stage="generate",
        command=[python, "infer/generate.py", "--plan", str(run.folder / "plan.json"), "--job", name],
        cells=[cell.key for cell in cells],
        logs=run.logs(cells, "generate"),
        gpus=max(_gpus_of(model, setting) for setting in settings.values()),
        cores=run.cores,
        retries=_RETRIES["generate"],
        options={
            "settings": settings,
            "limit": options.limit,
            "overwrite": options.overwrite,
            "blank_on_error": options.blank_on_error,
            "workers": options.num_workers if options.use_api else 1,
        },
    )


def _gpus_of(model: str, setting: dict[str, Any]) -> int:
    """GPUs of a model: what its entry declares, else one where there is one (a small model runs on the CPU too)."""
    if setting.get("api") or setting.get("gpus") == 0:
        return 0
    declared = setting.get("gpus")
    if declared and declared > _visible_gpus():
        raise UserError(f"model '{model}' needs {declared} GPU(s), but this machine shows {_visible_gpus()}")
    return declared or min(1, _visible_gpus())


def _evaluate_job(run: _Run, cell: Cell) -> Job:
    options, benchmark = run.options, cell.benchmark
    script = REPO / "eval" / f"{benchmark}.sh"
    if not script.is_file():
        raise UserError(f"benchmark {benchmark} has no evaluation script: eval/{benchmark}.sh is missing")
    environment = run.config.maps.get("EVAL_ENV_MAP", {}).get(benchmark, "")
    for part in environment.split() or [""]:
        python_of(part, f"benchmark {benchmark}", f"bash utils/make_env.sh --benchmark {benchmark}")
    count = run.config.maps.get("EVAL_GPU_MAP", {}).get(benchmark, "0")
    if not count.isdecimal():
        raise UserError(f"EVAL_GPU_MAP['{benchmark}'] in config.sh is '{count}': use a whole number")
    if int(count) and int(count) > _visible_gpus():
        raise UserError(
            f"benchmark {benchmark} is evaluated on {count} GPU(s) (EVAL_GPU_MAP), "
            f"but this machine shows {_visible_gpus()}"
        )
    environ = {
        "IMAGEEVALKIT_RUN_FOLDER": str(run.folder),
        "IMAGEEVALKIT_MISSING_ITEMS": options.missing_items,
        "IMAGEEVALKIT_JUDGE": check_judge(benchmark, options.judges.get(benchmark, "")),
    }
    if options.limit:
        environ["IMAGEEVALKIT_LIMIT"] = str(options.limit)
    return Job(
        name=f"evaluate:{cell.key}",
        stage="evaluate",
        command=["bash", str(script), cell.model, environment],
        cells=[cell.key],
        logs=run.logs([cell], "evaluate"),
        environ=environ,
        after=[f"generate:{cell.model}"] if options.infer else [],
        gpus=int(count),
        cores=run.cores,
        retries=_RETRIES["evaluate"],
        leaves_outcomes=module_of(benchmark) is not None,
    )


def _report_job(run: _Run, jobs: list[Job]) -> Job:
    cells = [
        Cell(model, benchmark).key for model in run.options.models for benchmark in run.options.benchmarks
    ]
    python = str(DRIVER_ENV / "bin" / "python")
    return Job(
        name="report",
        stage="report",
        command=[
            *[python, "-m", "imageevalkit.report"],
            *["--cells", ";".join(cells), "--run_folder", str(run.folder)],
        ],
        cells=[],
        logs=[str(log_root() / f"report_{run.stamp}.log")],
        after=[job.name for job in jobs],
        always=True,
    )
