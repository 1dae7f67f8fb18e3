"""Builds the jobs of a run, stage by stage: generate, evaluate, report. Extras add others."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from imageevalkit.api.endpoint import Endpoint
from imageevalkit.assets.check import hub_secrets
from imageevalkit.common.errors import CellFailure, UserError
from imageevalkit.common.locks import why_of_one_machine
from imageevalkit.common.machine import available_cores
from imageevalkit.common.redaction import secret_names
from imageevalkit.extension_points import connected
from imageevalkit.jobs.plan import (
    JOB_ENV,
    PLAN_ENV,
    EvaluateOrder,
    GenerateOrder,
    Job,
    ModelSettings,
    OrderT,
    ReportOrder,
    ServeOrder,
    job_words,
    shared_bounds,
)
from imageevalkit.judges.choice import ApiSettings, JudgeOptions, TransformersSettings
from imageevalkit.judges.server import ServerSettings, split_kwargs
from imageevalkit.plan.benchmarks import BenchmarkChoice, ConfiguredJudge, checked
from imageevalkit.plan.config import ALL, DRIVER_PYTHON, Config, parse_count, python_of
from imageevalkit.plan.gpus import Supply
from imageevalkit.plan.models import (
    check_kwargs,
    entry_name,
    is_of_our_class,
    model_needs,
    notes_of_setting,
    resolve_model,
)
from imageevalkit.plan.options import LOCAL, OF_EXTRAS, Options
from imageevalkit.store.cell import Cell, log_root, output_root
from imageevalkit.store.shards import Shard

T = TypeVar("T")

# A crash (out of memory, driver fault) may not happen again, and the next attempt keeps all results so far.
# A job that reports its own failure is not started again.
RETRIES = 2
"""How often a job that crashed is started again."""
_EVALUATE_RETRIES = 1
# Requests in flight to a judge server that the run starts itself; NUM_WORKERS is meant for endpoints of
# others. vLLM is fast because it batches requests, and it queues requests beyond its capacity. The official
# WISE evaluator sends 96.
_IN_FLIGHT = 64
SHARDS = "SHARDS_MAP"
"""Name of the map in config.sh that says on how many machines the images of a model are generated."""


@dataclass(frozen=True)
class Run:
    """The facts that all jobs of a run share.

    ``stamp`` is the name of the run, ``folder`` its folder, ``cores`` the CPU cores of one job. ``blocked``
    maps cells that cannot start to the reason. ``benchmarks`` holds, by name, the benchmarks whose files can
    be read. ``supply`` holds the GPUs that a job can get. ``notes`` are for the user, before the run starts.
    """

    options: Options
    config: Config
    folder: Path
    stamp: str
    cores: int
    blocked: dict[str, str]
    benchmarks: Mapping[str, BenchmarkChoice]
    supply: Supply = Supply()  # noqa: RUF009 - it cannot change
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Adds ``text`` to the notes, unless it is there already."""
        if text not in self.notes:
            self.notes.append(text)

    def secrets_of(self, endpoint: Endpoint) -> list[str]:
        """Returns the variables with the keys of ``endpoint``. Adds a note if a key is missing (dry run)."""
        if not endpoint.key:
            self.note(f"{endpoint.key_variable} is not set: this plan needs no key, the run does")
        return endpoint.secrets

    @property
    def follows(self) -> bool:
        """True if evaluation starts while images are still being generated.

        False with ``--max_cost`` (images have priority on the budget) and on Slurm (a waiting job would hold
        its GPU).
        """
        options = self.options
        if self.supply.per_node is not None:
            return False
        side_by_side = options.overlap and options.parallel is not False and not options.sender
        side_by_side = side_by_side and options.max_cost is None
        return side_by_side and options.makes_images

    @property
    def plan(self) -> str:
        """Path of the plan (plan.json) of the run."""
        return str((self.folder / "plan.json").absolute())

    @property
    def shared(self) -> str:
        """The folder in which the processes of the run share their request limits and their budget."""
        return str(shared_bounds(self.options.bounds or self.folder).absolute())

    def words(self, job: str) -> list[str]:
        """Returns the command-line arguments that name the plan and ``job``."""
        return job_words(self.plan, job)

    def order(self, kind: type[OrderT], **own: Any) -> OrderT:
        """Returns a ``kind`` order: options fill the fields of the same name, and ``own`` overrides them."""
        names = kind.__annotations__.keys() & {each.name for each in fields(Options)}
        return kind(**{name: getattr(self.options, name) for name in names} | own)

    def logs(self, cells: list[Cell], stage: str) -> list[str]:
        """Returns the paths of the log files, one for each cell."""
        root = log_root()
        return [f"{root}/{cell.model}/{cell.benchmark}_{stage}_{self.stamp}.log" for cell in cells]

    def shards(self, model: str) -> int:
        """Returns how many jobs generate the images of ``model``, each on a machine of its own.

        Raises UserError: SHARDS_MAP holds no whole number, or machines do not see each other's file locks.
        """
        if self.options.launcher == LOCAL:
            return 1
        given = self.config.map(SHARDS)
        key = entry_name(model) if entry_name(model) in given else ALL
        where = f"{SHARDS}['{key}'] in config.sh"
        shards = parse_count(given.get(key, "1").strip() or "1", where)
        if shards > 1 and (why := why_of_one_machine(output_root())):
            raise UserError(
                f"{where}: {output_root()} is on {why}: machines that do not "
                "see each other's locks cannot share a result"
            )
        return shards

    def open_cells(self, model: str) -> list[Cell]:
        """Returns the cells of ``model`` that are not blocked."""
        cells = [self.options.cell(model, benchmark) for benchmark in self.options.benchmarks]
        return [cell for cell in cells if cell.key not in self.blocked]


def generate_jobs(run: Run, after: Sequence[str] = ()) -> list[Job]:
    """Returns the jobs that generate the images; each starts after the jobs named in ``after``.

    API models of the toolkit's own classes share one job, which costs less than a process for each. A class
    of the user's may end its process, so it has a job of its own.

    Raises UserError: a model is unknown, or a key, a price, an environment or a GPU is missing.
    """
    alone: list[Job] = []
    together: dict[str, ModelSettings] = {}
    tasks = dict.fromkeys(benchmark.task for benchmark in run.benchmarks.values())
    for model, kwargs in run.options.models.items():
        settings: ModelSettings = {}
        for task in tasks:
            with contextlib.suppress(CellFailure):  # the planner blocks its cells, with the reason
                settings[task] = resolve_model(model, task, run.options.use_api, kwargs)
                if rewriter := run.options.rewriter:
                    told = {"prompt_rewriter": rewriter.id, "prompt_rewriter.model": rewriter.model_id}
                    settings[task]["rewriting"] = told
        for setting in settings.values():
            check_kwargs(model, setting, run.options)
        python = _worker_python(run, model, settings)
        if not run.open_cells(model):
            continue
        for setting in settings.values():
            for note in notes_of_setting(model, setting) if not run.options.hands_over else ():
                run.note(note)
        api = all(setting.get("api") for setting in settings.values())
        if api and all(map(is_of_our_class, settings.values())):
            together[model] = settings
        else:
            whole = _generate_job(run, python, {model: settings}, api, after)
            alone += [whole] if api else _in_shards(whole, run.shards(model))
    shared = [_generate_job(run, "", together, True, after)] if together else []
    return shared + alone


def _worker_python(run: Run, model: str, settings: ModelSettings) -> str:
    """Returns the Python of the environment of ``model``; empty for the driver's, which has our API classes.

    Raises UserError: the environment does not exist.
    """
    environment = run.config.map("INFER_ENV_MAP").get(entry_name(model), "")
    if not environment or all(map(is_of_our_class, settings.values())):
        return ""
    return python_of(environment, f"model {model}", f"--model {model}")


def _generate_job(
    run: Run, python: str, models: dict[str, ModelSettings], api: bool, after: Sequence[str]
) -> Job:
    options = run.options
    name = f"generate:{next(iter(models))}" + f" and {len(models) - 1} more" * (len(models) > 1)
    cells, secrets = list[Cell](), set[str]()
    for model, settings in models.items():
        # One model class (of one task) is in memory at a time: in mixed order it would be loaded repeatedly.
        tasks = {cell: run.benchmarks[cell.benchmark].task for cell in run.open_cells(model)}
        cells += sorted(tasks, key=lambda cell: list(settings).index(tasks[cell]))
        secrets.update(_model_secrets(run, model, settings, dict.fromkeys(tasks.values())))
    each = max(_model_gpus(run, model, s) for model, settings in models.items() for s in settings.values())
    return Job(
        name=name,
        stage="generate",
        command=[DRIVER_PYTHON, "infer/generate.py", *run.words(name)],
        cells=[cell.key for cell in cells],
        logs=run.logs(cells, "generate"),
        secrets=sorted(secrets),
        gpus=each,
        gpus_at_most=run.supply.in_replicas(each, options.replicas),
        cores=run.cores,
        light=api,
        retries=RETRIES,
        after=list(after),
        order=run.order(
            GenerateOrder,
            api=api,
            python=python,
            settings={options.cell(model, "").model: settings for model, settings in models.items()},
            workers=options.num_workers if options.use_api else 1,
            replica_gpus=each,
        ),
    )


def _in_shards(job: Job, total: int) -> list[Job]:
    """Returns ``job`` split into ``total`` jobs, one for each shard."""
    if total == 1:
        return [job]
    parts = list[Job]()
    for number in range(1, total + 1):
        shard, name = str(Shard(number, total)), f"{job.name} {number}/{total}"
        command = [name if word == job.name else word for word in job.command]
        logs = [f"{log.removesuffix('.log')}.{shard}.log" for log in job.logs]
        parts.append(replace(job, name=name, command=command, logs=logs, shard=shard))
    return parts


def _model_secrets(run: Run, model: str, settings: ModelSettings, tasks: Iterable[str]) -> list[str]:
    """Returns the variables with the keys of ``model``: API keys, and the hub token to download weights."""
    needed: list[str] = []
    for setting in settings.values():
        own = setting["model_kwargs"]
        if setting.get("api"):
            needed += run.secrets_of(Endpoint.of(own, needs_key=run.options.needs_keys))
        elif "api_key_env" in own:  # a local class that calls an API itself
            needed.append(str(own["api_key_env"]))
    needs = model_needs(model, run.options.use_api, run.options.models[model], tasks)
    return [*needed, *hub_secrets(needs.assets)]


def _model_gpus(run: Run, model: str, setting: Mapping[str, Any]) -> int:
    """Returns the GPUs of one replica: by INFER_GPU_MAP, else the model's entry, else 1 (0 without GPUs)."""
    if setting.get("api"):
        return 0
    mapped = run.supply.mapped(run.config, "INFER_GPU_MAP", entry_name(model), "one replica of the model")
    return run.supply.wanted(setting.get("gpus"), f"model '{model}' needs") if mapped is None else mapped


class JudgeNeeds(NamedTuple):
    """The needs of a judge in an evaluate job.

    ``judge`` is the full name of the judge, or the name of a text reader. ``gpus`` counts the GPUs that the
    judge takes inside the job, ``secrets`` are the variables with its keys. ``server`` is the server to start
    for all jobs with this judge. ``environment`` applies if the benchmark has no environment of its own
    (empty: any will do).
    """

    judge: str
    options: JudgeOptions = JudgeOptions()
    gpus: int = 0
    secrets: Sequence[str] = ()
    server: ServeOrder | None = None
    environment: str = ""


def evaluate_jobs(
    run: Run, cells: Sequence[Cell], after: Mapping[str, Sequence[str]]
) -> tuple[list[Job], list[Job]]:
    """Returns the jobs that the launcher starts to evaluate ``cells``, and the jobs that a server job starts.

    ``after`` names, for each cell, the jobs that must end before its evaluation.

    Raises UserError: a setting is malformed, a key, script or environment is missing, or GPUs are too few.
    """
    evaluations = {name: _evaluation(run, name) for name in dict.fromkeys(cell.benchmark for cell in cells)}
    together: dict[str, tuple[_Evaluation, list[Cell]]] = {}
    for cell in cells:
        evaluation = evaluations[cell.benchmark]
        key = repr(evaluation) if evaluation.loads else cell.key
        together.setdefault(key, (evaluation, []))[1].append(cell)
    alone = list[Job]()
    served: dict[str, tuple[ServeOrder, list[Job]]] = {}
    for evaluation, of_one in together.values():
        job = _evaluate_job(run, evaluation, of_one, after)
        if server := evaluation.needs.server:
            served.setdefault(server.judge, (server, []))[1].append(job)
        else:
            alone.append(job)
    serving = [_served_judge().job(run, server, jobs) for server, jobs in served.values()]
    return alone + serving, [job for _, jobs in served.values() for job in jobs]


class _Evaluation(NamedTuple):
    """How a benchmark is evaluated. One job evaluates all benchmarks for which this is the same.

    ``loads`` are the evaluators that the job loads on this machine, the judge's server included. Without any,
    each cell has a job of its own, because these jobs cost little and run side by side.
    """

    needs: JudgeNeeds
    environment: str
    program: Sequence[str]
    loads: Sequence[str]
    gpus: int
    light: bool


def _evaluation(run: Run, name: str) -> _Evaluation:
    options, benchmark = run.options, run.benchmarks[name]
    needs = judge_needs(run, benchmark)
    environment = benchmark.environment(run.config)
    used_by, build = f"benchmark {name}", benchmark.build(run.config)
    if not environment and needs.environment:
        environment, used_by, build = needs.environment, f"{name}'s judge", "--judge transformers"
    # If a benchmark has several environments, evaluation runs in the first: it records package versions.
    pythons = [python_of(part, used_by, build) for part in environment.split()]
    is_local = needs.judge.startswith("transformers:") or bool(needs.options.address_file)
    loads = [*benchmark.measurers, *([needs.judge] if is_local else ())]
    gpus = run.supply.mapped(run.config, "EVAL_GPU_MAP", name, "evaluating the benchmark")
    if gpus is None:
        # --rescore takes a GPU as well: on a CPU, encoders compute slightly other values than the recorded
        # ones.
        gpus = max(needs.gpus, run.supply.wanted(None) if benchmark.uses_encoders else 0)
    light = benchmark.only_asks and not needs.options.address_file and not options.rescore
    python = next(iter(pythons), DRIVER_PYTHON)
    program = [python, "-m", "imageevalkit.evaluate"]
    if benchmark.benchmark is None:
        program = [DRIVER_PYTHON, "-m", "imageevalkit.evaluate.foreign"]
    elif script := benchmark.own_script:
        program = ["bash", str(script)]
    elif not options.rescore and (kept := options.kept_programs.get((needs.judge, python))):
        program, gpus = [python, *kept], 0
    if options.rescore or benchmark.benchmark is None or benchmark.own_script:
        loads = []
    return _Evaluation(needs, environment, program, loads, gpus, light)


def _evaluate_job(
    run: Run, evaluation: _Evaluation, cells: Sequence[Cell], after: Mapping[str, Sequence[str]]
) -> Job:
    options, needs = run.options, evaluation.needs
    benchmarks = [run.benchmarks[name] for name in dict.fromkeys(cell.benchmark for cell in cells)]
    is_foreign, has_script = benchmarks[0].benchmark is None, evaluation.program[0] == "bash"
    name = f"evaluate:{cells[0].key}" + f" and {len(cells) - 1} more" * (len(cells) > 1)
    assets = [asset for benchmark in benchmarks for asset in benchmark.own_assets]
    secrets = [] if options.rescore else sorted({*hub_secrets(assets), *needs.secrets})
    # While it waits for images, a metric model would be loaded for each few of them.
    feeds = evaluation.light or (bool(options.parallel) and evaluation.loads == [needs.judge])
    return Job(
        name=name,
        stage="evaluate",
        command=[
            *evaluation.program,
            *([cells[0].model, evaluation.environment] if has_script else run.words(name)),
        ],
        cells=[cell.key for cell in cells],
        logs=run.logs([*cells], "evaluate"),
        environ={PLAN_ENV: run.plan, JOB_ENV: name} if has_script else {},
        # A foreign script does not declare which keys it reads: it gets all of them.
        secrets=secret_names() if is_foreign else secrets,
        after=list(dict.fromkeys(job for cell in cells for job in after.get(cell.key, ()))),
        gpus=evaluation.gpus,
        # metric models and text readers use the cores of all the cells, a judge does not
        cores=run.cores if feeds else min(available_cores(), run.cores * len(cells)),
        # A foreign script may start from zero, and pay the judge again. Any cell may crash the process.
        retries=0 if is_foreign else _EVALUATE_RETRIES * len(cells),
        follows=run.follows and not (is_foreign or has_script or needs.options.address_file) and feeds,
        light=evaluation.light,
        order=run.order(
            EvaluateOrder,
            judge=needs.judge,
            judge_options=needs.options,
            environment=evaluation.environment,
            official=options.missing_items == "official",
            ask=not options.rescore,
            asked={one.name: options.asked[one.name] for one in benchmarks if one.name in options.asked},
            until={one.name: options.until[one.name] for one in benchmarks if one.name in options.until},
            asks_again=needs.options.max_cost is None,
            run=run.stamp,
        ),
    )


def judge_needs(run: Run, benchmark: BenchmarkChoice) -> JudgeNeeds:
    """Returns the needs of the judge of ``benchmark`` in an evaluate job.

    Raises UserError: a setting is malformed, a key, price or environment is missing, or GPUs are too few.
    """
    options, judge, asked = run.options, benchmark.judge, benchmark.asked
    if judge is None:
        if options.judge_kwargs:
            asks = f"is measured by '{asked}', which takes none" * bool(asked)
            raise UserError(
                f"--judge_kwargs: benchmark {benchmark.name} {asks or 'asks no judge'}"
                + _of_each_judge(options)
            )
        return JudgeNeeds(asked)
    where = f"judge '{judge.choice.name}' of {benchmark.name}"
    given = JudgeOptions(judge.kwargs, options.num_workers, options.requests_per_minute)
    if judge.backend == "transformers":
        settings = _settings(run, where, TransformersSettings, judge.kwargs)
        if settings.revision is not None and Path(judge.model_path).is_dir():
            raise UserError(f"{where}: revision is for hub repositories, {judge.model_path} is a folder")
        takes = run.supply.wanted(settings.gpus, f"judge '{judge.choice.name}' wants")
        environment = judge.environment(run.config)
        if options.rescore:
            return JudgeNeeds(asked, given, environment=environment)
        return JudgeNeeds(asked, given, takes, hub_secrets(judge.weights), environment=environment)
    kwargs, served = judge.kwargs, None
    if judge.backend == "vllm":
        server_kwargs, kwargs = split_kwargs(judge.kwargs)
        served = _settings(run, where, ServerSettings, server_kwargs)
    asking = _settings(run, where, ApiSettings, kwargs)
    is_paid = judge.backend == "openai"  # a vLLM server is the user's own, and costs nothing
    given = replace(
        given,
        kwargs=kwargs,
        max_cost=options.max_cost if is_paid else None,
        shared=run.shared,
        sender=options.sender if is_paid else "",
    )
    if served is not None and not judge.runs_elsewhere:  # the flags of a server that runs already are unknown
        given = replace(given, served=served.decisive)
        if options.rescore:
            return JudgeNeeds(asked, given)
        kept = options.kept_servers.get(asked, "")
        server = None if kept else _served_judge(where).order(run, judge, served)
        address, workers = server.address_file if server else kept, max(given.workers, _IN_FLIGHT)
        given = replace(given, workers=workers, requests_per_minute=None, shared="", address_file=address)
        return JudgeNeeds(asked, given, server=server)
    if options.rescore:
        return JudgeNeeds(asked, given)
    try:
        endpoint = judge.endpoint(needs_key=options.needs_keys)
    except UserError as error:
        raise UserError(f"{where} is reached through an API: {error}") from None
    if is_paid:
        options.check_price(where, asking.price_of(judge.model_path), "--judge_kwargs")
    return JudgeNeeds(asked, given, secrets=run.secrets_of(endpoint))


def _settings(run: Run, where: str, cls: type[T], kwargs: Mapping[str, Any]) -> T:
    """Returns ``kwargs`` as ``cls``. Raises UserError, before any image is generated: a setting is wrong."""
    try:
        remark = " (request parameters go into extra_body)" if cls is ApiSettings else ""
        return checked(cls, kwargs, where, remark)
    except UserError as error:
        raise UserError(f"{error}{_of_each_judge(run.options)}") from None


def _of_each_judge(options: Options) -> str:
    """Returns a hint for errors if --judge_kwargs goes to several benchmarks; empty otherwise."""
    if not options.judge_kwargs or len(options.benchmarks) < 2:
        return ""
    return "; --judge_kwargs goes to the judges of all benchmarks, JUDGE_KWARGS_MAP in config.sh has settings for each"


class ServedJudge(NamedTuple):
    """How a run serves a judge itself: the ``order`` for a server, and the ``job`` that also runs what asks it."""

    order: Callable[[Run, ConfiguredJudge, ServerSettings], ServeOrder]
    job: Callable[[Run, ServeOrder, Sequence[Job]], Job]


def _served_judge(where: str = "the judge") -> ServedJudge:
    """Returns the object of the extra that serves judges. Raises UserError: there is no such extra."""
    found: list[ServedJudge] = list(connected("judge_server").values())
    if not found:
        raise UserError(
            f"{where} needs a server: name one that runs already (--judge_kwargs base_url=http://…/v1)"
        )
    return found[0]


def report_job(run: Run, after: Sequence[Job]) -> Job:
    """Returns the last job, which writes the report of all cells of the run, however they ended."""
    options, name = run.options, "report"
    cells = [options.cell(model, benchmark) for model in options.models for benchmark in options.benchmarks]
    return Job(
        name=name,
        stage="report",
        command=[DRIVER_PYTHON, "-m", "imageevalkit.report", *run.words(name)],
        cells=[],
        logs=[str(log_root() / f"report_{run.stamp}.log")],
        after=[job.name for job in after],
        always=True,
        order=run.order(
            ReportOrder,
            cells=[cell.key for cell in cells],
            extra={name: own for name in options.active_extras if (own := _for_report(options, name))},
        ),
    )


def _for_report(options: Options, extra: str) -> dict[str, Any]:
    """Returns the options of ``extra`` that its section of the report gets."""
    return {name: options.extra[extra][name] for name, entry in OF_EXTRAS[extra].items() if entry.for_report}
