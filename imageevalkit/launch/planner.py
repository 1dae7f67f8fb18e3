"""From options to the plan: which jobs, in which environment, in which order."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path

from imageevalkit import registry
from imageevalkit.cell import Cell, log_root, output_root
from imageevalkit.cell.items import MODEL_NAME_MARK
from imageevalkit.cell.jsonl import copy_of
from imageevalkit.errors import CellFailure, UserError, suggest
from imageevalkit.jobs import Job, Plan
from imageevalkit.launch.benchmarks import (
    BenchmarkChoice,
    choose_benchmark,
    settings_of_images_elsewhere,
    settings_of_one_model,
)
from imageevalkit.launch.config import Config
from imageevalkit.launch.environments import DRIVER_ENV
from imageevalkit.launch.evaluate_jobs import evaluate_jobs
from imageevalkit.launch.generate_jobs import Run, adopt_jobs, generate_jobs, rewrite_jobs
from imageevalkit.launch.judges import check_kwargs_map
from imageevalkit.launch.kwargs import checked
from imageevalkit.launch.models import missing_of_model, model_tasks
from imageevalkit.launch.options import Options
from imageevalkit.machine import available_cores
from imageevalkit.relations.rules import Settings as RelationSettings

_RECORDS = ("generation.jsonl", copy_of(Path("generation.jsonl")).name)  # each stands for images of a cell


def make_plan(options: Options, config: Config) -> Plan:
    """The jobs of this run. Touches no file and starts nothing.

    Raises:
        UserError: an unknown name, a missing environment, a GPU that is not there.
    """
    blocked: dict[str, str] = {}
    benchmarks = _benchmarks(options, config, blocked)
    _check_names(options)
    _check_folders(options)
    _check_maps(options, config)
    checked(RelationSettings, options.relations_kwargs, "--relations_kwargs")
    _block(options, benchmarks, blocked)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    cores = available_cores()
    side_by_side = min(cores, len(options.models) * len(options.benchmarks))
    run = Run(
        options=options,
        config=config,
        folder=log_root() / "runs" / f"{stamp}-{os.getpid()}",
        stamp=f"{stamp}-{os.getpid()}",
        cores=max(1, cores // side_by_side) if options.parallel else cores,
        blocked=blocked,
        benchmarks=benchmarks,
    )
    jobs: list[Job] = rewrite_jobs(run)
    if options.images is not None:
        jobs += adopt_jobs(run, options.images)
    elif options.infer:
        jobs += generate_jobs(run, after=[job.name for job in jobs])
    elif not jobs:
        for model in options.models:
            _check_images_of(model)
    if options.evaluate:
        after = {cell: job.name for job in jobs for cell in job.cells}
        jobs += evaluate_jobs(
            run, [cell for model in options.models for cell in run.open_cells(model)], after
        )
    jobs.append(_report_job(run, jobs))
    return Plan(
        str(run.folder),
        options.parallel,
        jobs,
        run.blocked,
        gpu_min_free_memory=options.gpu_min_free_memory,
        share_gpus=options.share_gpus,
    )


def _benchmarks(options: Options, config: Config, blocked: dict[str, str]) -> dict[str, BenchmarkChoice]:
    """Those of the run; cells of one whose file cannot be read are ``blocked``."""
    hint = ""
    if options.ds_kwargs and len(options.benchmarks) > 1:
        hint = "; --ds_kwargs goes to all benchmarks of a run, DS_KWARGS_MAP has settings for each"
    found: dict[str, BenchmarkChoice] = {}
    for name in options.benchmarks:
        judge = options.judges.get(name, "")
        try:
            choice = choose_benchmark(config, name, judge, options.judge_kwargs, options.ds_kwargs, hint)
        except CellFailure as failure:
            blocked |= {options.cell(model, name).key: str(failure) for model in options.models}
            continue
        found[name] = choice
        wrong = dict.fromkeys(
            settings_of_images_elsewhere(choice) if _makes_images(options) else (),
            "about images made elsewhere (--images), but this run makes its own: leave it out",
        ) | dict.fromkeys(
            settings_of_one_model(choice) if len(options.models) > 1 else (),
            f"a path of one model's, but this run has several: write {MODEL_NAME_MARK} where it has their names",
        )
        for setting, why in wrong.items():
            where = "--ds_kwargs" if setting in options.ds_kwargs else f"DS_KWARGS_MAP['{name}'] in config.sh"
            raise UserError(f"{where}: the setting {setting} of {name} is {why}")
    return found


def _check_names(options: Options) -> None:
    """Raises UserError: a model is called as the results of rewritten prompts are."""
    for raw, rewriter in ((Cell(m, "").raw.model, Cell(m, "").rewriter) for m in options.models):
        if rewriter and options.rewriter and not options.infer:
            raise UserError(
                f"'{raw}+{rewriter}' has its rewriter in its name, and this run has one, too "
                f'({options.rewriter.id}): add --prompt_rewriter ""'
            )
        if rewriter and options.infer:
            name = rewriter.rpartition("-")[0]
            raise UserError(
                f"'{raw}+{rewriter}' is what results of rewritten prompts are called: make its images with "
                f"--model_names {raw} --prompt_rewriter {name}; by this name --infer false scores those there are"
            )


def _makes_images(options: Options) -> bool:
    return options.infer and options.images is None


def _check_folders(options: Options) -> None:
    """No cell may lie in the folder of another: the report would never see it, and to delete the one deletes both.

    Raises:
        UserError: one does, of this run or with what earlier ones left.
    """
    cells = {options.cell(model, benchmark) for model in options.models for benchmark in options.benchmarks}
    remedy = (
        "give one of them another name (an API model's id can be given as model_path among its custom_model_kwargses), "
        "or another output folder in IMAGEEVALKIT_OUTPUT"
    )
    for model in dict.fromkeys(cell.model for cell in cells):
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
    known = model_tasks()
    if model not in known and not (output_root() / model).is_dir():
        raise UserError(
            f"unknown model '{model}'{suggest(model, known)}: it is not registered, and there are no images of it "
            f"in {output_root() / model}"
        )


def _check_maps(options: Options, config: Config) -> None:
    """Raises UserError: a name in a map of config.sh or in --judges looks like a slip."""
    tasks = registry.benchmark_tasks()
    for variable in ("EVAL_ENV_MAP", "EVAL_GPU_MAP", "JUDGE_MAP", "DS_KWARGS_MAP"):
        for benchmark in config.maps.get(variable, {}):
            # what a broken file holds is not known
            if benchmark in tasks or registry.broken_benchmarks():
                continue
            if near := suggest(benchmark, tasks):
                raise UserError(f"{variable} in config.sh names unknown benchmark '{benchmark}'{near}")
    for benchmark in options.judges:
        if benchmark not in {*tasks, *options.benchmarks, *config.maps.get("JUDGE_MAP", {})}:
            raise UserError(f"--judges names unknown benchmark '{benchmark}'{suggest(benchmark, tasks)}")
    models = model_tasks()
    for model in config.maps.get("INFER_GPU_MAP", {}):
        if model not in models and (near := suggest(model, models)):
            raise UserError(f"INFER_GPU_MAP in config.sh names unknown model '{model}'{near}")
    check_kwargs_map(config)


def _block(options: Options, benchmarks: Mapping[str, BenchmarkChoice], blocked: dict[str, str]) -> None:
    """Adds why cells cannot start: told before an image is made, and paid for."""
    for name, benchmark in benchmarks.items():
        if reason := _why_blocked(options, benchmark):
            blocked |= {options.cell(model, name).key: reason for model in options.models}
    for cell in (options.cell(model, name) for model in options.models for name in benchmarks):
        if (
            options.rewriter
            and options.rewrites
            and (reason := options.rewriter.lacks(cell.raw, options.limit))
        ):
            blocked.setdefault(cell.key, reason)
    if not _makes_images(options):
        return
    for model, kwargs in zip(options.models, options.model_kwargs, strict=True):
        for task in dict.fromkeys(benchmark.task for benchmark in benchmarks.values()):
            if reason := missing_of_model(model, task, options.use_api, kwargs):
                for cell in (
                    options.cell(model, name) for name, one in benchmarks.items() if one.task == task
                ):
                    made = "; --infer false scores the images there are" * cell.generation.exists()
                    blocked.setdefault(cell.key, reason + made)


def _why_blocked(options: Options, benchmark: BenchmarkChoice) -> str:
    try:
        benchmark.check_dataset_class()
        if problems := benchmark.files.problems():
            return benchmark.files.explain(problems)
        if not options.evaluate:
            return ""
        benchmark.check_script()
        if lacking := benchmark.lacks():
            return lacking
        named = options.judges.get(benchmark.name, "")
        return benchmark.missing_weights(named) if options.asks_judges else ""
    except CellFailure as failure:
        return str(failure)


def _report_job(run: Run, jobs: list[Job]) -> Job:
    cells = [
        run.options.cell(model, benchmark).key
        for model in run.options.models
        for benchmark in run.options.benchmarks
    ]
    python = str(DRIVER_ENV / "bin" / "python")
    return Job(
        name="report",
        stage="report",
        command=[
            *[python, "-m", "imageevalkit.report"],
            *["--cells", ";".join(cells), "--run_folder", str(run.folder)],
            *_relations(run.options),
        ],
        cells=[],
        logs=[str(log_root() / f"report_{run.stamp}.log")],
        environ=run.environ,
        after=[job.name for job in jobs],
        always=True,
    )


def _relations(options: Options) -> list[str]:
    """The words of the report's command that say what the user wants to know of relations."""
    asked = {"metrics": options.relations, "settings": options.relations_kwargs}
    return ["--relations", json.dumps(asked)] if any(asked.values()) else []
