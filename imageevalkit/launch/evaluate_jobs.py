"""The evaluate jobs of a run, with their judges' settings, keys and GPUs: one for all cells that one server answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from imageevalkit.asset_checks.check import hub_secrets
from imageevalkit.cell import Cell, log_root
from imageevalkit.errors import UserError
from imageevalkit.jobs import Job
from imageevalkit.judges.choice import VARIABLE, JudgeOptions
from imageevalkit.judges.server import ServerSettings, split_kwargs
from imageevalkit.judges.settings import ApiSettings, TransformersSettings
from imageevalkit.launch import gpus
from imageevalkit.launch.benchmarks import BenchmarkChoice
from imageevalkit.launch.environments import DRIVER_ENV, program_of, python_of
from imageevalkit.launch.generate_jobs import Run
from imageevalkit.launch.judges import ConfiguredJudge
from imageevalkit.launch.kwargs import checked
from imageevalkit.secrets import secret_names

T = TypeVar("T")

_RETRIES = 1  # a crash may pass; the answers before it, and the outcomes of other cells, are kept
# Requests at a time to a server of the run's own. NUM_WORKERS is for what others run; vLLM is fast by batching, and
# queues what is too much for it. The official WISE evaluator sends 96.
_IN_FLIGHT = 64


class JudgeNeeds(NamedTuple):
    """``environ`` of the evaluate job; ``gpus`` the judge takes in it; ``secrets`` are the variables with the keys
    that it takes; ``turn`` names what only one job may ask at a time (empty: nothing); ``server`` is what to start
    for it and all others with the same one; ``environment`` is where it runs unless the benchmark has one of its own
    (empty: it has no wish)."""

    environ: dict[str, str]
    gpus: int = 0
    secrets: Sequence[str] = ()
    turn: str = ""
    server: Server | None = None
    environment: str = ""


def evaluate_jobs(run: Run, cells: Sequence[Cell], after: Mapping[str, str]) -> list[Job]:
    """The jobs that evaluate ``cells``, each after the job that ``after`` names for it.

    Raises:
        UserError: a malformed setting, a missing key, script or environment, more GPUs than there are.
    """
    needs = {
        name: judge_needs(run, run.benchmarks[name])
        for name in dict.fromkeys(cell.benchmark for cell in cells)
    }
    alone, served = [], []
    for cell in cells:
        job = _job(run, cell, needs[cell.benchmark], after)
        if server := needs[cell.benchmark].server:
            served.append((server, job))
        else:
            alone.append(job)
    return alone + serving_jobs(run, served)


def _job(run: Run, cell: Cell, needs: JudgeNeeds, after: Mapping[str, str]) -> Job:
    options, benchmark = run.options, run.benchmarks[cell.benchmark]
    environment = benchmark.environment(run.config)
    for part in environment.split():
        python_of(
            part, f"benchmark {benchmark.name}", f"bash utils/make_env.sh {benchmark.build(run.config)}"
        )
    if not environment and needs.environment:
        environment = needs.environment
        python_of(environment, f"{benchmark.name}'s judge", "bash utils/make_env.sh --judge transformers")
    command, retries = benchmark.evaluation(cell.model, environment), _RETRIES
    if benchmark.benchmark is None:
        command = [str(DRIVER_ENV / "bin" / "python"), "-m", "imageevalkit.evaluation.foreign", *command]
        retries = 0  # it may begin anew, for hours and judge money
    environ = {
        "IMAGEEVALKIT_RUN_FOLDER": str(run.folder),
        "IMAGEEVALKIT_MISSING_ITEMS": options.missing_items,
        **run.environ,
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
        command=command,
        cells=[cell.key],
        logs=run.logs([cell], "evaluate"),
        environ=environ,
        secrets=_secrets(run, benchmark, needs),
        after=[after[cell.key]] if cell.key in after else [],
        gpus=_gpus(run, benchmark, needs),
        turns=[needs.turn] if needs.turn else [],
        cores=run.cores,
        retries=retries,
        options={"uses_encoders": benchmark.uses_encoders, "environment": environment},
    )


def _secrets(run: Run, benchmark: BenchmarkChoice, needs: JudgeNeeds) -> list[str]:
    """The variables with the keys that evaluating takes; of a foreign script nobody knows which."""
    if benchmark.benchmark is None:
        return secret_names()
    if not run.options.asks_judges:
        return []
    return sorted({*hub_secrets(benchmark.own_assets), *needs.secrets})


def _gpus(run: Run, benchmark: BenchmarkChoice, needs: JudgeNeeds) -> int:
    """What EVAL_GPU_MAP says; an empty entry leaves it to the judge and to the encoders."""
    where = f"EVAL_GPU_MAP['{benchmark.name}']"
    count = gpus.mapped(run.config.maps.get("EVAL_GPU_MAP", {}).get(benchmark.name, ""), where)
    if count is None:
        # rescoring too: an encoder on a GPU has another precision than on a CPU, and answers on record are of one
        return max(needs.gpus, gpus.one_if_any() if benchmark.uses_encoders else 0)
    return gpus.require(count, f"{where} in config.sh: evaluating the benchmark needs")


def judge_needs(run: Run, benchmark: BenchmarkChoice) -> JudgeNeeds:
    """What evaluating ``benchmark`` needs for its judge.

    Raises:
        UserError: a malformed setting, a missing key or environment, more GPUs than there are.
    """
    options, judge = run.options, benchmark.judge
    environ = {"IMAGEEVALKIT_JUDGE": benchmark.asked}
    if judge is None:
        if options.judge_kwargs:
            asks = f"is measured by '{benchmark.asked}', which takes none" * bool(benchmark.asked)
            raise UserError(f"--judge_kwargs: benchmark {benchmark.name} {asks or 'asks no judge'}")
        return JudgeNeeds(environ)
    where = f"judge '{judge.choice.name}' of {benchmark.name}"
    if judge.backend == "transformers":
        return _local(run, judge, where, environ)
    kwargs, settings = judge.kwargs, None
    if judge.backend == "vllm":
        server_kwargs, kwargs = split_kwargs(judge.kwargs)
        settings = _settings(run, where, ServerSettings, server_kwargs)
    _settings(run, where, ApiSettings, kwargs)
    given = JudgeOptions(kwargs, options.num_workers, options.requests_per_minute)
    if settings is not None and not judge.runs_elsewhere:  # of one that does, we know only what it is asked
        given = replace(given, served=settings.decisive)
        if options.asks_judges:
            return _served(run, judge, settings, given, environ)
    needs = JudgeNeeds({**environ, VARIABLE: given.to_json()})
    if not options.asks_judges:
        return needs
    try:
        endpoint = judge.endpoint
    except UserError as error:
        raise UserError(f"{where} is reached through an API: {error}") from None
    return needs._replace(secrets=endpoint.secrets, turn=endpoint.turn)


def _local(run: Run, judge: ConfiguredJudge, where: str, environ: Mapping[str, str]) -> JudgeNeeds:
    options, path = run.options, judge.choice.setting.model_path
    settings = _settings(run, where, TransformersSettings, judge.kwargs)
    if settings.revision is not None and Path(path).is_dir():
        raise UserError(f"{where}: revision is for hub repositories, {path} is a folder")
    given = JudgeOptions(judge.kwargs, options.num_workers, options.requests_per_minute)
    gpus = _gpus_of(judge, settings.gpus)
    return JudgeNeeds(
        {**environ, VARIABLE: given.to_json()},
        gpus=gpus if options.asks_judges else 0,
        secrets=hub_secrets(judge.weights) if options.asks_judges else (),
        environment=judge.environment(run.config),
    )


def _served(
    run: Run,
    judge: ConfiguredJudge,
    settings: ServerSettings,
    given: JudgeOptions,
    environ: Mapping[str, str],
) -> JudgeNeeds:
    server = server_of(run, judge, settings, _gpus_of(judge, settings.gpus))
    given = replace(
        given,
        workers=max(given.workers, _IN_FLIGHT),
        requests_per_minute=None,
        address_file=server.address_file,
    )
    return JudgeNeeds({**environ, VARIABLE: given.to_json()}, server=server)


def _settings(run: Run, where: str, cls: type[T], kwargs: Mapping[str, Any]) -> T:
    """``kwargs`` as settings: a mistake in them is told before any image is made."""
    try:
        remark = " (request parameters go into extra_body)" if cls is ApiSettings else ""
        return checked(cls, kwargs, where, remark)
    except UserError as error:
        if run.options.judge_kwargs and len(run.options.benchmarks) > 1:
            raise UserError(
                f"{error}; --judge_kwargs goes to the judges of all benchmarks, JUDGE_KWARGS_MAP has settings for each"
            ) from None
        raise


def _gpus_of(judge: ConfiguredJudge, given: int | None) -> int:
    if given is None:
        return gpus.one_if_any()
    return gpus.require(given, f"judge '{judge.choice.name}' wants")


class Server(NamedTuple):
    """The server of the judge with the full name ``judge``: its ``command`` (the port comes last) and its files.

    ``model`` is the name under which it is served; ``secrets`` are the variables with the keys that it takes.
    """

    judge: str
    model: str
    command: tuple[str, ...]
    secrets: tuple[str, ...]
    gpus: int
    start_timeout: float
    log: str
    address_file: str


def server_of(run: Run, judge: ConfiguredJudge, settings: ServerSettings, gpus: int) -> Server:
    """The server that this run starts for ``judge``.

    Raises:
        UserError: the environment with vLLM, or a folder with weights, is missing.
    """
    choice, environment = judge.choice, judge.environment(run.config)
    build = "bash utils/make_env.sh --judge vllm"
    try:
        executable = program_of(environment, "vllm", f"judge {choice.name}", build)
    except UserError as error:
        raise UserError(
            f"{error}; or name a server that runs already: --judge_kwargs base_url=http://…/v1"
        ) from None
    model = choice.setting.model_path
    if model.startswith(("/", ".", "~")) and not Path(model).is_dir():
        raise UserError(f"judge '{choice.name}': there is no folder {model}")
    stem = choice.full_name.replace("/", "__").replace(":", "_")
    return Server(
        judge=choice.full_name,
        model=model,
        command=tuple(settings.command(executable, model, gpus)),
        secrets=tuple(hub_secrets(judge.weights)),
        gpus=gpus,
        start_timeout=settings.start_timeout,
        log=str(log_root() / f"judge_{stem}_{run.stamp}.log"),
        address_file=str((run.folder / "judges" / stem).absolute()),
    )


def serving_jobs(run: Run, served: Sequence[tuple[Server, Job]]) -> list[Job]:
    """One job for each server in ``served``, in place of the evaluate jobs that would each need it.

    A server that waited for images would hold the GPUs that make them: all images come first.
    """
    together: dict[Server, list[Job]] = {}
    for server, job in served:
        together.setdefault(server, []).append(job)
    return [_served_job(run, server, jobs) for server, jobs in together.items()]


def _served_job(run: Run, server: Server, jobs: Sequence[Job]) -> Job:
    name = f"evaluate:{server.judge}"
    python = str(DRIVER_ENV / "bin" / "python")
    return Job(
        name=name,
        stage="evaluate",
        command=[
            *[python, "-m", "imageevalkit.launch.judge_server"],
            *["--plan", str(run.folder / "plan.json"), "--job", name],
        ],
        cells=[cell for job in jobs for cell in job.cells],
        logs=[log for job in jobs for log in job.logs],
        after=list(dict.fromkeys(name for job in jobs for name in job.after)),
        secrets=sorted({*server.secrets, *(name for job in jobs for name in job.secrets)}),
        partial=True,
        gpus=server.gpus,
        cores=run.cores,
        retries=_RETRIES,
        options={
            "server": {**server._asdict(), "command": list(server.command)},
            "cells": {
                cell: {"command": job.command, "environ": job.environ, "secrets": job.secrets, **job.options}
                for job in jobs
                for cell in job.cells
            },
        },
    )


def describe_server(job: Job) -> list[str]:
    """Lines for ``--dry_run``: what a job serves, and to which cells; none for other jobs."""
    server = job.options.get("server")
    if not server:
        return []
    return [f"  serves {server['judge']} ({server['command'][0]}) to {', '.join(job.cells)}"]
