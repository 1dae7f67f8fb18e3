"""Makes the plan of a run from its options: the jobs, their environments, their order, and GPUs by the work left."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import replace

from imageevalkit import registry
from imageevalkit.common.errors import CellFailure, UserError, note_once, say, suggest
from imageevalkit.common.machine import available_cores
from imageevalkit.common.redaction import environ_with
from imageevalkit.extension_points import connected
from imageevalkit.jobs.plan import (
    Cluster,
    GenerateOrder,
    Job,
    Plan,
)
from imageevalkit.plan.benchmarks import BenchmarkChoice, choose_benchmark
from imageevalkit.plan.config import ALL, DRIVER_PYTHON, Config, with_our_paths
from imageevalkit.plan.gpus import Supply
from imageevalkit.plan.models import missing_of_model, model_tasks, models_of
from imageevalkit.plan.options import SLURM, Options
from imageevalkit.plan.stage_jobs import (
    SHARDS,
    Run,
    evaluate_jobs,
    generate_jobs,
    report_job,
)
from imageevalkit.store.cell import REPO, Cell, log_root, output_root
from imageevalkit.store.items import MODEL_NAME_MARK
from imageevalkit.store.records import OF_IMAGES
from imageevalkit.store.shards import FOLDER

_ANY = 1 << 10
_TELL_AFTER = 2.0


def plan_run(options: Options, config: Config, stamp: str = "", with_report: bool = True) -> Plan:
    """Returns :func:`make_plan` with no more GPUs for each job than its remaining images need.

    Starts processes that count these images. No code changes the plan afterwards.
    """
    return with_gpus_of_work(make_plan(options, config, stamp, with_report))


def make_plan(options: Options, config: Config, stamp: str = "", with_report: bool = True) -> Plan:
    """Returns the plan of a run with the name ``stamp`` (default: time and process id).

    Writes no file and starts nothing. Raises UserError: a name is unknown, an environment or GPU is missing.
    """
    options = replace(options, models=models_of(options))
    benchmarks, blocked = _benchmarks(options, config)
    _check_names(options)
    _check_folders(options)
    _check_maps(options, config)
    checks = connected("check", options.active_extras).values()
    notes = [note for check in checks for note in check(options, benchmarks)]
    _block(options, benchmarks, blocked)
    stamp = stamp or f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    cores = available_cores()
    if options.parallel:
        cores //= min(cores, len(options.models) * len(options.benchmarks))
    # jobs of another engine run on unknown machines: no request for GPUs is refused here
    supply = Supply(_ANY if options.hands_over else options.gpus_per_node)
    run = Run(options, config, log_root() / "runs" / stamp, stamp, cores, blocked, benchmarks, supply)
    for note in notes:
        run.note(note)
    jobs, parts = _jobs(run)
    if with_report:
        jobs.append(report_job(run, jobs))
    cluster = None
    if options.launcher == SLURM:
        cluster = Cluster(options.slurm_grace, options.slurm_max_jobs, options.slurm_max_gpus)
    return Plan(
        str(run.folder),
        options.parallel,
        jobs,
        blocked,
        gpu_min_free_memory=options.gpu_min_free_memory,
        share_gpus=options.share_gpus,
        settings={name: dict(choice.settings) for name, choice in benchmarks.items() if choice.settings},
        parts=parts,
        cluster=cluster,
        notes=run.notes,
    )


def _jobs(run: Run) -> tuple[list[Job], list[Job]]:
    """Returns the jobs of the run before its report, and the jobs that one of them starts."""
    options = run.options
    jobs = [job for first in connected("first_jobs", options.active_extras).values() for job in first(run)]
    if options.images is not None:
        of_images = connected("image_jobs", options.active_extras).values()
        jobs += [job for of_extra in of_images for job in of_extra(run)]
    elif options.infer:
        jobs += generate_jobs(run, after=[job.name for job in jobs])
    elif not jobs:
        for model in options.models:
            _check_images_of(model)
    evaluating, parts = list[Job](), list[Job]()
    if options.eval:
        # Evaluation waits for the last stage of a cell only: generation, not the rewriting before it.
        after: dict[str, list[str]] = {}
        stage = {cell: job.stage for job in jobs for cell in job.cells}
        for job in jobs:
            for cell in job.cells:
                if job.stage == stage[cell]:
                    after.setdefault(cell, []).append(job.name)
        cells = [cell for model in options.models for cell in run.open_cells(model)]
        evaluating, parts = evaluate_jobs(run, cells, after)
    jobs += evaluating
    for last in connected("last_jobs", options.active_extras).values():
        jobs += last(run, jobs)
    return jobs, parts


def _benchmarks(options: Options, config: Config) -> tuple[dict[str, BenchmarkChoice], dict[str, str]]:
    """Returns the benchmarks of the run by name, and a reason for each cell whose benchmark cannot be read.

    Raises UserError: a benchmark or judge is unknown, or a setting does not fit this run.
    """
    found: dict[str, BenchmarkChoice] = {}
    blocked: dict[str, str] = {}
    hint = ""
    if options.ds_kwargs and len(options.benchmarks) > 1:
        hint = "; --ds_kwargs goes to all benchmarks of a run, DS_KWARGS_MAP has settings for each"
    for name in options.benchmarks:
        judge = options.judges.get(name, "")
        try:
            choice = choose_benchmark(config, name, judge, options.judge_kwargs, options.ds_kwargs, hint)
        except CellFailure as failure:
            blocked |= {options.cell(model, name).key: str(failure) for model in options.models}
            continue
        found[name] = choice
        wrong = {}
        if options.makes_images:
            why = "about images made elsewhere (--images), but this run makes its own: leave it out"
            wrong = dict.fromkeys(choice.given("images_elsewhere"), why)
        if len(options.models) > 1:
            why = f"a path of one model's, but this run has several: write {MODEL_NAME_MARK} where it has their names"
            paths = {setting: choice.settings[setting] for setting in choice.given("of_one_model")}
            wrong |= {setting: why for setting, path in paths.items() if path and MODEL_NAME_MARK not in path}
        for setting, why in wrong.items():
            where = "--ds_kwargs" if setting in options.ds_kwargs else f"DS_KWARGS_MAP['{name}'] in config.sh"
            raise UserError(f"{where}: the setting {setting} of {name} is {why}")
    return found, blocked


def _check_names(options: Options) -> None:
    """Raises UserError: the name of a model holds a rewriter, and this run would generate images or rewrite.

    Such names (``model+rewriter``) belong to results of rewritten prompts.
    """
    for cell in (Cell(model, "") for model in options.models):
        if not cell.rewriter:
            continue
        if options.infer:
            name = cell.rewriter.rpartition("-")[0]
            raise UserError(
                f"'{cell.model}' is a name of results with rewritten prompts: generate its images with --model_names "
                f"{cell.raw.model} --prompt_rewriter {name}; with --infer false, this name scores the existing ones"
            )
        if options.rewriter:
            raise UserError(
                f"'{cell.model}' has its rewriter in its name, and this run has one, too ({options.rewriter.id}): "
                'add --prompt_rewriter ""'
            )


def _check_folders(options: Options) -> None:
    """Checks that no cell of this or an earlier run lies in the folder of another cell.

    Otherwise the report would miss the inner cell, and deleting the outer one would delete both.

    Raises UserError: a cell lies in another one.
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
            if outer in cells or any((outer.folder / name).exists() for name in (*OF_IMAGES, "result.json")):
                raise UserError(
                    f"model '{model}' has its folder in {outer.folder}, where the images of model '{outer.model}' for "
                    f"benchmark {outer.benchmark} are: {remedy}"
                )
    for cell in sorted(cells):
        patterns = (f"{above}/{name}" for above in ("*", "*/*") for name in OF_IMAGES)
        for records in (path for pattern in patterns for path in cell.folder.glob(pattern)):
            if FOLDER in records.parent.parts:
                continue  # the cell's own
            inner = records.parent.parent.relative_to(output_root()).as_posix()
            raise UserError(
                f"the images of model '{cell.model}' for benchmark {cell.benchmark} would be in {cell.folder}, the "
                f"folder of model '{inner}': {remedy}"
            )


def _check_images_of(model: str) -> None:
    """Raises UserError: ``model`` is not registered and has no folder in output/, so there are no images."""
    if not registry.is_model(model) and not (output_root() / model).is_dir():
        raise UserError(
            f"unknown model '{model}'{suggest(model, model_tasks())}: it is not registered, and there are no images "
            f"of it in {output_root() / model}"
        )


def _check_maps(options: Options, config: Config) -> None:
    """Prints a note for each unknown name in a map of config.sh that resembles a known one.

    Other unknown names are ignored: a user may share config.sh with a toolkit that has more benchmarks.

    Raises UserError: --judges names an unknown benchmark, or on Slurm SHARDS_MAP has a misspelt key.
    """
    tasks, models, judges = registry.benchmark_tasks(), model_tasks(), registry.judges()
    # If a benchmark file cannot be read, the name of its benchmark is unknown: no note about such names.
    of_benchmarks = (
        () if registry.broken_benchmarks() else ("EVAL_ENV_MAP", "EVAL_GPU_MAP", "JUDGE_MAP", "DS_KWARGS_MAP")
    )
    known = {map_: ("benchmark", [*tasks]) for map_ in of_benchmarks}
    known |= {
        "INFER_GPU_MAP": ("model", [*models]),
        SHARDS: ("key", [ALL, *models]),
        "REWRITER_KWARGS_MAP": ("prompt rewriter", registry.rewriter_names()),
    }
    for variable, (what, names) in known.items():
        for name in config.map(variable):
            if name not in names and (near := suggest(name, names)) and not registry.is_plugin(name):
                line = f"{variable} (config.sh, config.local.sh) names unknown {what} '{name}'{near}"
                if options.launcher == SLURM and what == "key":
                    raise UserError(line)
                note_once(line)
    for judge in config.map("JUDGE_KWARGS_MAP"):
        if judge not in judges and ":" not in judge and not registry.is_plugin(judge):
            note_once(
                f"JUDGE_KWARGS_MAP (config.sh, config.local.sh) names unknown judge '{judge}'{suggest(judge, judges)}; "
                "a judge that is not registered is written backend:model"
            )
    for benchmark in options.judges:
        known_here = {*tasks, *options.benchmarks, *config.map("JUDGE_MAP")}
        if benchmark not in known_here and not registry.is_plugin(benchmark):
            raise UserError(
                f"--judges: unknown benchmark '{benchmark}'{suggest(benchmark, tasks)}; "
                "bash eval.sh list shows the names"
            )


def _block(options: Options, benchmarks: Mapping[str, BenchmarkChoice], blocked: dict[str, str]) -> None:
    """Adds to ``blocked`` the cells that cannot start, with the reason, before any image is paid for."""
    tasks = dict.fromkeys(benchmark.task for benchmark in benchmarks.values())
    of_benchmarks = {name: _why_blocked(options, benchmark) for name, benchmark in benchmarks.items()}
    for model, kwargs in options.models.items():
        lacks = {}
        if options.makes_images:
            # jobs of another engine run on another machine
            is_here = not options.hands_over and options.weights_are_here
            lacks = {
                task: missing_of_model(model, task, options.use_api, kwargs, is_here)
                or "; ".join(filter(None, (lacks(model, kwargs) for lacks in connected("weights").values())))
                for task in tasks
            }
        for name, benchmark in benchmarks.items():
            cell = options.cell(model, name)
            reason = of_benchmarks[name] or _why_not_rewritten(options, cell)
            if not reason and (reason := lacks.get(benchmark.task, "")):
                is_there = any((cell.folder / record).exists() for record in OF_IMAGES)
                reason += "; --infer false scores the images there are" * is_there
            if reason:
                blocked[cell.key] = reason


def _why_blocked(options: Options, benchmark: BenchmarkChoice) -> str:
    try:
        benchmark.check_dataset_class()
        # A run that only generates images needs no files of the judge.
        files = (
            benchmark.files if options.eval else registry.benchmark_files(benchmark.name, benchmark.settings)
        )
        if problems := files.problems():
            return files.explain(problems)
        if not options.eval:
            return ""
        benchmark.check_script()
        if lacking := benchmark.lacks():
            return lacking
        named = options.judges.get(benchmark.name, "")
        return "" if options.rescore else benchmark.missing_weights(named, not options.hands_over)
    except CellFailure as failure:
        return str(failure)


def _why_not_rewritten(options: Options, cell: Cell) -> str:
    if not (rewriter := options.rewriter) or not options.rewrites:
        return ""
    try:
        files = rewriter.files()
        if problems := files.problems():
            return files.explain(problems)
        rewriter.check(cell.raw, options.limit)
    except CellFailure as failure:
        return str(failure)
    return ""


def with_gpus_of_work(plan: Plan) -> Plan:
    """Returns ``plan`` with no more GPUs for each generate job than its remaining images need.

    Images are counted in the driver's environment. A job whose images cannot be counted is unchanged.
    """
    # With --overwrite, the rewritten prompts decide which images are replaced: unknown before the rewriting.
    asked = [
        job
        for job in plan.jobs
        if isinstance(job.order, GenerateOrder) and job.gpus and not (job.after and job.order.overwrite)
    ]
    calls = _calls_left(replace(plan, jobs=asked)) if asked else {}
    return replace(plan, jobs=[_fitted(job, calls.get(job.name)) for job in plan.jobs])


def _fitted(job: Job, calls: int | None) -> Job:
    if calls is None:
        return job
    if not calls:
        # A job without images to generate loads no model: this job must not wait for a GPU that others use.
        return replace(job, gpus=0, gpus_at_most=0)
    return replace(job, gpus_at_most=min(job.gpus_at_most, job.gpus * calls))


def _calls_left(plan: Plan) -> Mapping[str, int]:
    """Returns how often each job has to call its model, by name, without jobs whose images cannot be counted.

    Another process counts: a dataset class may end it, or import packages that hold much memory.
    """
    late = threading.Timer(_TELL_AFTER, say, ["checking the existing images, to see which jobs need GPUs"])
    late.start()
    try:
        answer = subprocess.run(
            [DRIVER_PYTHON, "-m", "imageevalkit.generate.calls_left"],
            input=plan.as_json.encode(),
            capture_output=True,
            env=with_our_paths(environ_with(())),
            cwd=REPO,
            check=False,
        )
        return dict(json.loads(answer.stdout))
    except (ValueError, OSError):
        return {}
    finally:
        late.cancel()
