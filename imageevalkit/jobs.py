"""The plan: every job of a run with its order, as JSON that any launcher can run and any job can read itself from."""

from __future__ import annotations

import argparse
import json
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from imageevalkit import logs
from imageevalkit.atomic import write_atomic
from imageevalkit.cell import REPORT_MB, Cell, short_path
from imageevalkit.cell.jsonl import Shape, parse
from imageevalkit.cell.results import Until
from imageevalkit.errors import CellFailure, ExitStatus, UserError, said_of
from imageevalkit.guest_code import guest_code
from imageevalkit.judges.choice import JudgeOptions
from imageevalkit.secrets import one_line, redact

ATTEMPT_ENV, CORES_ENV = "IMAGEEVALKIT_ATTEMPT", "IMAGEEVALKIT_CORES"
"""What only a launcher knows of a start: how often it has started the job, this time included, and the cores that the
job has; one that starts none again, or bounds none, need not say so."""
PLAN_ENV, JOB_ENV = "IMAGEEVALKIT_PLAN", "IMAGEEVALKIT_JOB"
"""Name the plan and the job to what a user's own script starts, which cannot pass on words that it does not know."""

BenchmarkSettings = dict[str, dict[str, Any]]
"""The settings that the user gave, by benchmark, as planning checked them."""
ModelSettings = dict[str, dict[str, Any]]
"""The resolved settings of one model by task, of those that it does."""


@dataclass(frozen=True)
class RewriteOrder:
    """Have the prompts of all cells rewritten by ``rewriter`` with its settings ``kwargs``.

    The bounds of its requests are those of :class:`JudgeOptions`.
    """

    rewriter: str
    kwargs: dict[str, Any]
    limit: int | None = None
    """Only so many of the first items of each cell."""
    overwrite: bool = False
    retry_refused: bool = False
    workers: int = 4
    requests_per_minute: float | None = None
    max_cost: float | None = None
    shared: str = ""
    kind: Literal["rewrite"] = "rewrite"


@dataclass(frozen=True)
class GenerateOrder:
    """Make the images of all cells, of models behind an API (``api``) or of one local model.

    ``settings`` are by model, as results call it. ``replica_gpus`` is what a copy of a local model takes, ``replicas``
    how many there are at most (None: as many as there are GPUs for), ``item_timeout`` how many seconds it may take for
    an image. ``max_cost`` is in USD. ``batch``: requests go as batches of the provider's. ``asked`` is how many items
    of a benchmark are made, in the order in which they are drawn; all of one that it does not name.
    """

    api: bool
    settings: dict[str, ModelSettings]
    limit: int | None = None
    asked: dict[str, int] = field(default_factory=dict)
    overwrite: bool = False
    retry_refused: bool = False
    blank_on_error: bool = False
    workers: int = 1
    requests_per_minute: float | None = None
    max_cost: float | None = None
    batch: bool = False
    replica_gpus: int = 0
    replicas: int | None = None
    item_timeout: float | None = None
    kind: Literal["generate"] = "generate"


@dataclass(frozen=True)
class AdoptOrder:
    """Take the images of all cells from ``sources``, a folder or file by benchmark.

    ``among`` is the folder of several models' images (empty: there is one model).
    """

    sources: dict[str, str]
    among: str = ""
    limit: int | None = None
    overwrite: bool = False
    kind: Literal["adopt"] = "adopt"


@dataclass(frozen=True)
class EvaluateOrder:
    """Score the one cell of the job.

    ``judge`` is the full name of the judge or the name of the reader to ask (empty: neither is). ``environment`` is
    what config.sh calls the one it runs in. ``official``: missing items count as the official evaluator has them.
    ``ask`` False: only what is on record counts. ``retry_unparsed``: answers without a value are asked anew.
    ``judge_repeats``: so many questions are asked of the judge again, and its probes once in the ``run`` of that name
    (empty: there is no plan); 0: neither. ``asks_again`` False: another job of the run does, when all that counts is
    paid for. ``keeper`` is the socket of a process that has the judge in memory, and does
    this in the place of its own (:mod:`imageevalkit.evaluation.keeper`; empty: none does). ``asked`` is how many items
    are judged, in the order in which they are drawn (None: all), in a run ``until`` two models are told apart.
    """

    judge: str = ""
    judge_options: JudgeOptions = JudgeOptions()  # noqa: RUF009 - it cannot change
    environment: str = ""
    uses_encoders: bool = False
    limit: int | None = None
    asked: int | None = None
    until: Until | None = None
    official: bool = False
    ask: bool = True
    retry_unparsed: bool = False
    judge_repeats: int = 0
    asks_again: bool = True
    run: str = ""
    keeper: str = ""
    kind: Literal["evaluate"] = "evaluate"


@dataclass(frozen=True)
class ServeOrder:
    """Serve a judge by ``command`` (the port comes last), and run the jobs of the plan that ask it, ``parts``, in turn;
    without parts, serve it until this job is ended.

    ``judge`` is its full name, ``model`` the name under which it is served; ``secrets`` are the variables with the keys
    that the server takes, ``gpus`` its GPUs; ``start_timeout`` is in seconds.
    """

    judge: str
    model: str
    command: list[str]
    secrets: list[str]
    gpus: int
    start_timeout: float
    log: str
    address_file: str
    parts: list[str] = field(default_factory=list)
    kind: Literal["serve"] = "serve"


@dataclass(frozen=True)
class ReportOrder:
    """Write the report; print ``cells``. ``relations`` are the metrics to relate by benchmark, with their settings;
    ``report_mb``: report.html, one file with everything, is made where it takes no more megabytes. ``sort_by``: the
    benchmarks or columns whose mean orders the models; empty: all that count."""

    cells: list[str]
    relations: dict[str, list[str]] = field(default_factory=dict)
    relations_kwargs: dict[str, Any] = field(default_factory=dict)
    report_mb: float = REPORT_MB
    sort_by: list[str] = field(default_factory=list)
    kind: Literal["report"] = "report"


Order = RewriteOrder | GenerateOrder | AdoptOrder | EvaluateOrder | ServeOrder | ReportOrder
OrderT = TypeVar("OrderT", bound=Order)


@dataclass(frozen=True)
class Job:
    """One process to run.

    ``command`` is its argv; ``environ`` is what it adds to the launcher's environment. Of the secrets there it has
    those in the variables called ``secrets``, no others. ``cells`` are the cells (``model/benchmark``) it serves, in
    order. ``after`` names jobs. ``order`` says what it does with its cells (None: its command tells all).
    A job starts when, for each of its cells, every job in ``after`` serving that cell has left that cell's
    outcome (see :func:`outcome_path`) with a state in :data:`USABLE`; if such an outcome is FAILED or the job
    ended without leaving one, it is skipped. A ``partial`` job starts without such cells, once the jobs that
    failed them have ended, and itself leaves FAILED for them; it is skipped when no other cell is left.
    One that ``follows`` may start as soon as its cells are opened (:func:`note_opened`), where there is room beside all
    others: it works at what is there, waits for their outcomes itself, and ends with the status LATER where they are
    not usable, or where it cannot go on before they are; then it counts as not started, and does not follow again.
    ``always`` (the report, and what asks judges again) starts when all in ``after`` have ended, however they ended. A
    ``light`` one waits for others' machines most of the time, and takes no core from those beside it. ``gpus`` are
    those that a job must have; it can use up to ``gpus_at_most`` (never less than ``gpus``), a multiple of ``gpus``:
    one replica more for each.
    ``shard``: of the items of its cells it works at those of that one (:class:`imageevalkit.cell.shards.Shard`, in
    words), beside jobs with the others, and its outcome of a cell is of these.
    """

    name: str
    stage: str
    command: list[str]
    cells: list[str]
    logs: list[str]
    environ: dict[str, str] = field(default_factory=dict)
    secrets: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    always: bool = False
    partial: bool = False
    gpus: int = 0
    gpus_at_most: int = 0
    cores: int = 1
    retries: int = 0
    follows: bool = False
    light: bool = False
    shard: str = ""
    order: Order | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "gpus_at_most", max(self.gpus, self.gpus_at_most))

    @property
    def stem(self) -> str:
        """What its files are called."""
        return self.name.replace("/", "__").replace(":", "_").replace(" ", "_")

    @property
    def step(self) -> str:
        """The stage of its cells that it leaves outcomes of, or its shard of that: ``generate.2of4``."""
        return f"{self.stage}.{self.shard}" if self.shard else self.stage

    @property
    def owed(self) -> list[str]:
        """The cells whose outcome it owes: one that runs ``always`` owes none."""
        return [] if self.always else self.cells


@dataclass(frozen=True)
class Cluster:
    """How a plan runs on Slurm: ``sbatch`` are the words for each job, by its name.

    ``grace`` is how many seconds before its time limit a job is told to end; at most ``max_jobs`` of the run are in the
    queue at once, with at most ``max_gpus``.
    """

    sbatch: dict[str, list[str]]
    grace: int
    max_jobs: int | None = None
    max_gpus: int | None = None


@dataclass(frozen=True)
class Plan:
    """All jobs of one run; ``run_folder`` holds this plan, progress files, outcomes, and what requests share.

    ``jobs`` are those that a launcher starts, ``parts`` those that one of them starts itself (:class:`ServeOrder`).
    They run side by side (``parallel``) or one after another; beside that one, unless ``parallel`` is False, the light
    ones that follow it. Of a GPU that a job is given, at least ``gpu_min_free_memory`` is free (a percentage, or GiB)
    and no other run has it, unless ``share_gpus``.
    """

    run_folder: str
    parallel: bool | None
    jobs: list[Job]
    blocked: dict[str, str] = field(default_factory=dict)
    """Cells that cannot start, with the one-line reason (a missing benchmark file)."""
    gpu_min_free_memory: str = "90%"
    share_gpus: bool = False
    settings: BenchmarkSettings = field(default_factory=dict)
    parts: list[Job] = field(default_factory=list)
    cluster: Cluster | None = None
    """None: it runs on this machine."""
    notes: list[str] = field(default_factory=list)
    """Returns the notes for the user before the run starts, a line each."""

    @property
    def path(self) -> Path:
        """Its file."""
        return Path(self.run_folder) / "plan.json"

    @property
    def cells(self) -> list[str]:
        """Every cell of the run, in order, blocked ones included."""
        return list(dict.fromkeys([c for job in self.jobs for c in job.cells] + list(self.blocked)))

    def job(self, name: str) -> Job:
        """The job called ``name``. Raises UserError: there is none."""
        for job in (*self.jobs, *self.parts):
            if job.name == name:
                return job
        raise UserError(f"the plan in {self.run_folder} has no job '{name}'")

    def progress_path(self, job: Job) -> Path:
        """Where ``job`` reports its progress: a part of another one where that one does."""
        whole = (
            one for one in self.jobs if isinstance(one.order, ServeOrder) and job.name in one.order.parts
        )
        return Path(self.run_folder) / "progress" / f"{next(whole, job).stem}.jsonl"

    def save(self) -> Path:
        """Write ``plan.json`` into the run folder and return its path."""
        write_atomic(self.path, json.dumps(self, default=vars, indent=1, ensure_ascii=False))
        return self.path


_PLAN = Shape.of(Plan)


def load_plan(path: Path) -> Plan:
    """Read a plan. Raises :class:`UserError` when the file is missing or is no plan."""
    try:
        return _PLAN.read(parse(path.read_bytes()))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is not a readable plan ({error})") from error


def job_words(plan: Path | str, name: str) -> list[str]:
    """What follows the program in the command of a job that reads its order from ``plan``."""
    return ["--plan", str(plan), "--job", name]


def given_job(kind: type[OrderT], words: Sequence[str] | None = None) -> tuple[Plan, Job, OrderT]:
    """The plan, the job and the order that :func:`job_words` name on the command line of this process, a job.

    Raises UserError: there is no such plan or job, or it has another kind of order.
    """
    parser = argparse.ArgumentParser(description="A job of a run, as a launcher starts it.")
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--job", required=True)
    args = parser.parse_args(words)
    logs.print_without_fear()
    plan = load_plan(args.plan)
    job = plan.job(args.job)
    if not isinstance(job.order, kind):
        raise UserError(f"job '{job.name}' of {args.plan} has no order of this kind of job")
    return plan, job, job.order


COMPLETE, INCOMPLETE, FAILED, STALE = "complete", "incomplete", "failed", "stale"
USABLE = frozenset({COMPLETE, INCOMPLETE})
STATUS_OF_STATE = {
    COMPLETE: ExitStatus.COMPLETE,
    INCOMPLETE: ExitStatus.INCOMPLETE,
    FAILED: ExitStatus.FAILED,
    STALE: ExitStatus.FAILED,
}


@dataclass(frozen=True)
class Outcome:
    """How one stage of one cell ended; ``message`` is one line for the user. ``is_empty``: a shard has made nothing."""

    state: str
    message: str = ""
    is_empty: bool = False


_OUTCOME = Shape[dict[str, Any]](must={"state": str, "message": str}, may={"is_empty": bool})


def outcome_of(step: Callable[[], Outcome], log: Callable[[str], None]) -> Outcome:
    """What ``step`` returns; a fault in one benchmark's or model's code must not take the other cells along.

    ``log`` takes the rest of what the one line of the outcome does not tell.
    """
    try:
        with guest_code():
            return step()
    except (CellFailure, UserError) as error:
        return Outcome(FAILED, one_line(error))
    except Exception as error:
        log(redact(traceback.format_exc()))
        return Outcome(FAILED, said_of(error))


def shared_bounds(run_folder: Path) -> Path:
    """The folder of what the processes of a run share of the bounds of their requests."""
    return run_folder / "requests"


def stop_path(run_folder: Path) -> Path:
    """That this file is there ends the run: its launcher may be on another machine."""
    return run_folder / "stop"


def outcomes_of(run_folder: Path) -> Path:
    """The folder of all outcomes of a run."""
    return run_folder / "outcomes"


def outcome_path(run_folder: Path, cell: Cell, step: str) -> Path:
    """Where the :attr:`Job.step` of a cell leaves its outcome: the done-marker a dependent job waits for."""
    return outcomes_of(run_folder) / f"{cell.model}__{cell.benchmark}.{step}.json"


def write_outcome(run_folder: Path, cell: Cell, step: str, outcome: Outcome) -> None:
    """Leave the outcome of a step of ``cell``."""
    write_atomic(outcome_path(run_folder, cell, step), json.dumps(asdict(outcome), ensure_ascii=False))


def read_outcome(run_folder: Path, cell: Cell, step: str) -> Outcome | None:
    """The outcome of a step of ``cell``, or None while there is none; a file that holds none is a failure."""
    path = outcome_path(run_folder, cell, step)
    try:
        raw = _OUTCOME.read(parse(path.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        return Outcome(FAILED, f"its outcome file is unreadable ({short_path(path)}: {one_line(error, 100)})")
    if raw["state"] not in STATUS_OF_STATE:
        return Outcome(FAILED, f"its outcome file holds the unknown state '{raw['state']}'")
    return Outcome(raw["state"], raw["message"], raw.get("is_empty", False))


def lost_before(plan: Plan, job: Job) -> dict[str, str]:
    """By cell of ``job``, why it cannot be worked on, now that the jobs before have ended: a stage is not usable."""
    lost = dict[str, str]()
    for before in map(plan.job, job.after):
        for key in job.cells:
            if key not in before.owed or key in lost:
                continue
            outcome = read_outcome(Path(plan.run_folder), cell_of(key), before.step) or Outcome(FAILED)
            if outcome.state not in USABLE:
                lost[key] = f"not started: {before.stage} of {key} is {outcome.state}"
    return lost


def opened_path(run_folder: Path, cell: Cell) -> Path:
    """Where it stands that images of ``cell`` are about to come (:func:`note_opened`)."""
    return outcome_path(run_folder, cell, "generate").with_suffix(".opened")


def note_opened(run_folder: Path, cell: Cell, fingerprint: str) -> None:
    """Images of ``cell`` are about to come: those of the settings with that ``fingerprint`` count."""
    write_atomic(opened_path(run_folder, cell), fingerprint)


def opened_with(run_folder: Path, cell: Cell) -> str | None:
    """The fingerprint of the settings with which images of ``cell`` are being made; None: that has not begun."""
    try:
        return opened_path(run_folder, cell).read_text()
    except OSError:
        return None


def cell_of(key: str) -> Cell:
    """The cell of ``"model/benchmark"``; a model name may itself hold slashes (a hub id)."""
    model, _, benchmark = key.rpartition("/")
    return Cell(model, benchmark)
