"""The evaluate jobs of a run: each with its judge's settings, key, GPUs and server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from imageevalkit.cell import Cell
from imageevalkit.errors import UserError
from imageevalkit.jobs import Job
from imageevalkit.judges.choice import VARIABLE, JudgeOptions
from imageevalkit.judges.server import ServerSettings, split_kwargs
from imageevalkit.judges.settings import ApiSettings, TransformersSettings
from imageevalkit.launch import gpu_needs
from imageevalkit.launch.benchmarks import BenchmarkChoice
from imageevalkit.launch.environments import DRIVER_ENV, python_of
from imageevalkit.launch.generate_jobs import Run
from imageevalkit.launch.judges import ConfiguredJudge
from imageevalkit.launch.serving_jobs import Server, server_of, serving_jobs
from imageevalkit.launch.settings import checked
from imageevalkit.launch.weights import hub_secrets
from imageevalkit.secrets import secret_names

T = TypeVar("T")

_RETRIES = 1  # a crash may pass; the answers before it are kept
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
        python_of(part, f"benchmark {benchmark.name}", f"bash utils/make_env.sh --benchmark {benchmark.name}")
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
    count = gpu_needs.mapped(run.config.maps.get("EVAL_GPU_MAP", {}).get(benchmark.name, ""), where)
    if count is None:
        # rescoring too: an encoder on a GPU has another precision than on a CPU, and answers on record are of one
        return max(needs.gpus, gpu_needs.one_if_any() if benchmark.uses_encoders else 0)
    return gpu_needs.require(count, f"{where} in config.sh: evaluating the benchmark needs")


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
        return gpu_needs.one_if_any()
    return gpu_needs.require(given, f"judge '{judge.choice.name}' wants")
