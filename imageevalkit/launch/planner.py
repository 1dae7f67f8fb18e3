"""From options to the plan: which jobs, in which environment, in which order."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from imageevalkit import assets
from imageevalkit.benchmark.contract import module_of
from imageevalkit.benchmark_settings import environ_of
from imageevalkit.cell import Cell, log_root, output_root
from imageevalkit.cell.kept_twice import copy_of
from imageevalkit.cores import available_cores
from imageevalkit.errors import CellFailure, UserError, suggest
from imageevalkit.jobs import Job, Plan
from imageevalkit.launch import gpu_needs, registry
from imageevalkit.launch.adopt_jobs import adopt_jobs
from imageevalkit.launch.benchmark_kwargs import benchmark_kwargs
from imageevalkit.launch.config import Config
from imageevalkit.launch.environments import DRIVER_ENV, python_of
from imageevalkit.launch.generate_jobs import Run, generate_jobs
from imageevalkit.launch.judges import JudgeNeeds, check_kwargs_map, judge_needs
from imageevalkit.launch.missing_weights import missing_of_evaluator, missing_of_model
from imageevalkit.launch.needs import assets_without_judge, hub_secrets
from imageevalkit.launch.options import Options
from imageevalkit.launch.own_environment import missing_here, own_environment, script_of, uses_encoders
from imageevalkit.launch.serving_jobs import serving_jobs
from imageevalkit.secrets import secret_names

_EVALUATE_RETRIES = 1  # a crash may pass; the answers before it are kept
_RECORDS = ("generation.jsonl", copy_of(Path("generation.jsonl")).name)  # each stands for images of a cell


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
    _check_folders(options)
    _check_maps(config, tasks)
    for benchmark in options.judges:
        if benchmark not in tasks and benchmark not in config.maps.get("JUDGE_MAP", {}):
            raise UserError(f"--judges names unknown benchmark '{benchmark}'{suggest(benchmark, tasks)}")
    stamp = time.strftime("%Y%m%d-%H%M%S")
    cores = available_cores()
    side_by_side = min(cores, len(options.models) * len(options.benchmarks))
    ds_kwargs = {name: benchmark_kwargs(options, config, name) for name in options.benchmarks}
    run = Run(
        options=options,
        config=config,
        folder=log_root() / "runs" / f"{stamp}-{os.getpid()}",
        stamp=f"{stamp}-{os.getpid()}",
        cores=max(1, cores // side_by_side) if options.parallel else cores,
        blocked=_blocked(options, config, ds_kwargs, tasks),
        ds_kwargs=ds_kwargs,
    )
    jobs: list[Job] = []
    if options.images is not None:
        jobs += adopt_jobs(run, options.images)
    elif options.infer:
        jobs += generate_jobs(run, tasks)
    else:
        for model in options.models:
            _check_images_of(model)
    if options.evaluate:
        after = {cell: job.name for job in jobs for cell in job.cells}
        cells = [cell for model in options.models for cell in run.open_cells(model)]
        jobs += _evaluate_jobs(run, cells, after)
    jobs.append(_report_job(run, jobs))
    return Plan(
        str(run.folder),
        options.parallel,
        jobs,
        run.blocked,
        gpu_min_free_memory=options.gpu_min_free_memory,
        share_gpus=options.share_gpus,
    )


def _check_folders(options: Options) -> None:
    """No cell may lie in the folder of another: the report would never see it, and to delete the one deletes both.

    Raises:
        UserError: one does, of this run or with what earlier ones left.
    """
    cells = {Cell(model, benchmark) for model in options.models for benchmark in options.benchmarks}
    remedy = (
        "give one of them another name (an API model's id can be given as model_path among its custom_model_kwargses), "
        "or another output folder in IMAGEEVALKIT_OUTPUT"
    )
    for model in options.models:
        parts = model.split("/")
        for n in range(1, len(parts)):
            outer = Cell("/".join(parts[:n]), parts[n])
            if outer in cells or any((outer.folder / name).exists() for name in (*_RECORDS, "result.json")):
                raise UserError(
                    f"model '{model}' has its folder in {outer.folder}, where the images of model '{outer.model}' for "
                    f"benchmark {outer.benchmark} are: {remedy}"
                )
    for cell in sorted(cells):
        patterns = (f"{above}/{name}" for above in ("*", "*/*") for name in _RECORDS)
        for records in (path for pattern in patterns for path in cell.folder.glob(pattern)):
            inner = records.parent.parent.relative_to(output_root()).as_posix()
            raise UserError(
                f"the images of model '{cell.model}' for benchmark {cell.benchmark} would be in {cell.folder}, the "
                f"folder of model '{inner}': {remedy}"
            )


def _check_images_of(model: str) -> None:
    """Without generation any model will do that has a folder in output/, however its images were made."""
    known = registry.model_tasks()
    if model not in known and not (output_root() / model).is_dir():
        raise UserError(
            f"unknown model '{model}'{suggest(model, known)}: it is not registered, and there are no images of it "
            f"in {output_root() / model}"
        )


def _check_maps(config: Config, tasks: dict[str, str]) -> None:
    for variable in ("EVAL_ENV_MAP", "EVAL_GPU_MAP", "JUDGE_MAP", "DS_KWARGS_MAP"):
        for benchmark in config.maps.get(variable, {}):
            if benchmark not in tasks and (near := suggest(benchmark, tasks)):
                raise UserError(f"{variable} in config.sh names unknown benchmark '{benchmark}'{near}")
    models = registry.model_tasks()
    for model in config.maps.get("INFER_GPU_MAP", {}):
        if model not in models and (near := suggest(model, models)):
            raise UserError(f"INFER_GPU_MAP in config.sh names unknown model '{model}'{near}")
    check_kwargs_map(config)


def _blocked(
    options: Options, config: Config, ds_kwargs: Mapping[str, Mapping[str, Any]], tasks: Mapping[str, str]
) -> dict[str, str]:
    """Why cells cannot start, by cell: told before an image is made, and paid for."""
    blocked: dict[str, str] = {}
    makes_images = options.infer and options.images is None
    for benchmark in options.benchmarks:
        reason = _no_dataset(benchmark)
        if not reason and (problems := assets.check(benchmark)):
            reason = assets.explain(problems, benchmark)
        if not reason and options.evaluate:
            reason = "; ".join(missing_here(benchmark, ds_kwargs[benchmark]))
        if not reason and options.evaluate and options.asks_judges:
            reason = missing_of_evaluator(options, config, benchmark, ds_kwargs[benchmark])
        if reason:
            blocked |= {Cell(model, benchmark).key: reason for model in options.models}
    for model, kwargs in zip(options.models, options.model_kwargs, strict=True) if makes_images else ():
        for task in dict.fromkeys(tasks[benchmark] for benchmark in options.benchmarks):
            if reason := missing_of_model(options, model, kwargs, task):
                cells = [Cell(model, name) for name in options.benchmarks if tasks[name] == task]
                for cell in cells:
                    made = "; --infer false scores the images there are" * cell.generation.exists()
                    blocked.setdefault(cell.key, reason + made)
    return blocked


def _no_dataset(benchmark: str) -> str:
    try:
        registry.check_dataset_class(benchmark)
    except CellFailure as failure:
        return str(failure)
    return ""


def _evaluate_jobs(run: Run, cells: Sequence[Cell], after: dict[str, str]) -> list[Job]:
    needs = {
        benchmark: judge_needs(run, benchmark) for benchmark in dict.fromkeys(c.benchmark for c in cells)
    }
    alone, served = [], []
    for cell in cells:
        job = _evaluate_job(run, cell, needs[cell.benchmark], after)
        if server := needs[cell.benchmark].server:
            served.append((server, job))
        else:
            alone.append(job)
    return alone + serving_jobs(run, served)


def _evaluate_job(run: Run, cell: Cell, needs: JudgeNeeds, after: dict[str, str]) -> Job:
    options, benchmark = run.options, cell.benchmark
    script = script_of(benchmark)
    ours = module_of(benchmark) is not None
    environment = own_environment(run.config, benchmark, run.ds_kwargs[benchmark])
    for part in environment.split():
        python_of(part, f"benchmark {benchmark}", f"bash utils/make_env.sh --benchmark {benchmark}")
    if not environment and needs.environment:
        environment = needs.environment
        python_of(environment, f"{benchmark}'s judge", "bash utils/make_env.sh --judge transformers")
    environ = {
        "IMAGEEVALKIT_RUN_FOLDER": str(run.folder),
        "IMAGEEVALKIT_MISSING_ITEMS": options.missing_items,
        **environ_of(run.ds_kwargs),
        **needs.environ,
    }
    if options.limit:
        environ["IMAGEEVALKIT_LIMIT"] = str(options.limit)
    if not options.asks_judges:
        environ["IMAGEEVALKIT_RESCORE"] = "true"
    if options.retry_unparsed:
        environ["IMAGEEVALKIT_RETRY_UNPARSED"] = "true"
    return Job(
        name=f"evaluate:{cell.key}",
        stage="evaluate",
        command=["bash", str(script), cell.model, environment],
        cells=[cell.key],
        logs=run.logs([cell], "evaluate"),
        environ=environ,
        secrets=_secrets(run, benchmark, needs),
        after=[after[cell.key]] if cell.key in after else [],
        gpus=_gpus(run, benchmark, needs),
        turns=[needs.turn] if needs.turn else [],
        cores=run.cores,
        retries=_EVALUATE_RETRIES
        if ours
        else 0,  # a foreign script may begin anew, for hours and judge money
        leaves_outcomes=ours,
        options={"uses_encoders": uses_encoders(benchmark, run.ds_kwargs[benchmark])},
    )


def _secrets(run: Run, benchmark: str, needs: JudgeNeeds) -> list[str]:
    """The variables with the keys that evaluating ``benchmark`` takes; of a foreign script nobody knows which."""
    if module_of(benchmark) is None:
        return secret_names()
    if not run.options.asks_judges:
        return []
    own = hub_secrets(assets_without_judge(benchmark, run.ds_kwargs[benchmark]))
    return sorted({*own, *needs.secrets})


def _gpus(run: Run, benchmark: str, needs: JudgeNeeds) -> int:
    """GPUs of evaluating ``benchmark``: those that EVAL_GPU_MAP says.

    An empty entry leaves it to the judge and to the encoders.
    """
    where = f"EVAL_GPU_MAP['{benchmark}']"
    count = gpu_needs.mapped(run.config.maps.get("EVAL_GPU_MAP", {}).get(benchmark, ""), where)
    if count is None:
        # rescoring too: an encoder on a GPU has another precision than on a CPU, and answers on record are of one
        encodes = uses_encoders(benchmark, run.ds_kwargs[benchmark])
        return max(needs.gpus, gpu_needs.one_if_any() if encodes else 0)
    return gpu_needs.require(count, f"{where} in config.sh: evaluating the benchmark needs")


def _report_job(run: Run, jobs: list[Job]) -> Job:
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
