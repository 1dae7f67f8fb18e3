"""The plan of a run: all jobs with their orders as JSON, executed by a launcher and read by each job."""

from __future__ import annotations

import argparse
import functools
import json
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict, TypeVar

from imageevalkit.common import logs
from imageevalkit.common.atomic import write_atomic
from imageevalkit.common.errors import CellFailure, ExitStatus, UserError, said_of
from imageevalkit.common.guest_code import guest_code
from imageevalkit.common.redaction import one_line, redact
from imageevalkit.extension_points import connected
from imageevalkit.judges.choice import JudgeOptions
from imageevalkit.store.cell import REPORT_MB, Cell, short_path
from imageevalkit.store.jsonl import Int, Number, Reader, parse
from imageevalkit.store.results import Until

ATTEMPT_ENV, CORES_ENV = "IMAGEEVALKIT_ATTEMPT", "IMAGEEVALKIT_CORES"
"""Set by the launcher for a job: the number of its starts so far, this one included, and its cores.

A launcher that never restarts a job, or does not limit its cores, may leave them out.
"""
EARLY_ENV = "IMAGEEVALKIT_EARLY"
"""Set by the launcher for a job that follows others and starts before all of its images exist."""
PLAN_ENV, JOB_ENV = "IMAGEEVALKIT_PLAN", "IMAGEEVALKIT_JOB"
"""The plan and the job, for jobs started by a user's own script, which cannot pass on unknown options."""

BenchmarkSettings = dict[str, dict[str, Any]]
"""The user's settings by benchmark, as checked by the planner."""
ModelSettings = dict[str, dict[str, Any]]
"""The resolved settings of one model, by task."""


class Order:
    """The work of a job on its cells. The field ``kind`` of a class names it in the plan."""

    kind: str


@dataclass(frozen=True)
class GenerateOrder(Order):
    """Generate the images of all cells, of API models (``api``) or of one local model.

    The job runs in the driver's environment, and its workers with ``python``, the Python of the model's
    environment (empty: the driver's). API models of the driver's environment need no workers. ``settings``
    are by model name. A replica of a local model takes ``replica_gpus`` GPUs and at most ``item_timeout``
    seconds for an image. There are at most ``replicas`` (None: as many as the GPUs allow). ``max_cost`` is in
    USD. ``sender``: the extra that sends the requests (empty: one by one). ``asked`` is the number of items
    to generate of a benchmark, in random order; all items of other benchmarks.
    """

    api: bool
    settings: dict[str, ModelSettings]
    python: str = ""
    limit: Int | None = None
    asked: dict[str, Int] = field(default_factory=dict)
    overwrite: bool = False
    retry_refused: bool = False
    blank_on_error: bool = False
    workers: Int = 1
    requests_per_minute: Number | None = None
    max_cost: Number | None = None
    sender: str = ""
    replica_gpus: Int = 0
    replicas: Int | None = None
    item_timeout: Number | None = None
    kind: Literal["generate"] = "generate"


@dataclass(frozen=True)
class EvaluateOrder(Order):
    """Score all cells of the job with one evaluator.

    ``judge`` is the full name of the judge or text reader (empty: none). ``environment`` is the name in
    config.sh of the job's environment. ``official``: missing items are treated as the official evaluator
    does. ``ask`` False: use only recorded answers. ``retry_unparsed``: ask again if an answer has no value.
    ``judge_repeats``: the number of questions to repeat; the judge's probes are asked once per ``run``
    (empty: there is no plan); 0: neither. ``asks_again`` False: another job asks the repeats, after all other
    questions are paid for. ``asked`` is the number of items to judge of a benchmark, in random order (all
    items of other benchmarks). ``until`` has the facts of a run with ``--until``.
    """

    judge: str = ""
    judge_options: JudgeOptions = JudgeOptions()  # noqa: RUF009 - it cannot change
    environment: str = ""
    limit: Int | None = None
    asked: dict[str, Int] = field(default_factory=dict)
    until: dict[str, Until] = field(default_factory=dict)
    official: bool = False
    ask: bool = True
    retry_unparsed: bool = False
    judge_repeats: Int = 0
    asks_again: bool = True
    run: str = ""
    kind: Literal["evaluate"] = "evaluate"


@dataclass(frozen=True)
class ServeOrder(Order):
    """Serve a judge with ``command`` (plus the port) and run the evaluate jobs ``parts``, which ask it.

    Without parts, serve the judge until this job is ended. ``judge`` is the full name, ``model`` the name on
    the server. ``secrets`` are the variables with the server's keys, ``gpus`` its GPUs; ``start_timeout`` is
    in seconds.
    """

    judge: str
    model: str
    command: list[str]
    secrets: list[str]
    gpus: Int
    start_timeout: Number
    log: str
    address_file: str
    parts: list[str] = field(default_factory=list)
    kind: Literal["serve"] = "serve"


@dataclass(frozen=True)
class ReportOrder(Order):
    """Write the report and print ``cells``.

    ``extra`` has the options of the sections that extras add, by extra. ``report_mb``: write report.html, one file with
    everything, if it is not larger (MB). ``sort_by``: the benchmarks or columns whose mean sorts the models;
    empty: all that count.
    """

    cells: list[str]
    extra: dict[str, dict[str, Any]] = field(default_factory=dict)
    report_mb: Number = REPORT_MB
    sort_by: list[str] = field(default_factory=list)
    kind: Literal["report"] = "report"


OrderT = TypeVar("OrderT", bound=Order)


@functools.cache
def _orders() -> dict[str, Reader[Order]]:
    own = (GenerateOrder, EvaluateOrder, ServeOrder, ReportOrder)
    return {kind.kind: Reader(kind) for kind in (*own, *connected("order").values())}


def order_of(_: type, value: Any) -> Order:
    """Returns the order in a JSON object. Raises ValueError if it is invalid."""
    kind = value.get("kind") if isinstance(value, dict) else None
    if kind not in _orders():
        raise ValueError(f"an order has the unknown kind {kind!r}")
    return _orders()[kind].read(value)


@dataclass(frozen=True)
class Job:
    """One process of a run.

    ``command`` is its argv, ``environ`` is added to the launcher's environment. The job gets no secrets but
    the variables in ``secrets``. ``cells`` are its cells (``model/benchmark``) in order. ``order`` says what
    to do with them (None: ``command`` says it).

    The job starts when all jobs in ``after`` have left an outcome in :data:`USABLE` (:func:`outcome_path`)
    for each cell that they share with it. If an outcome of a cell is FAILED, or missing after the job's end,
    this job starts without that cell and leaves FAILED for it. The job is skipped if no cell is left. An
    ``always`` job (the report, repeated questions) starts when all jobs in ``after`` have ended.

    A job that ``follows`` may start once one of its cells can be processed or is opened
    (:func:`note_opened`), if there are free resources. Such a job processes the available images and waits
    for the outcomes itself. If the job needs the outcomes to continue, it ends with LATER. Then it counts as
    not started, and does not follow again.

    A ``light`` job mostly waits for other machines and occupies no core. The job needs ``gpus`` GPUs and can
    use up to ``gpus_at_most``, a multiple, with one more replica for each. ``shard``
    (:class:`imageevalkit.store.shards.Shard` as text): the job processes only this shard's items, and its
    outcome is of these.
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
    gpus: Int = 0
    gpus_at_most: Int = 0
    cores: Int = 1
    retries: Int = 0
    follows: bool = False
    light: bool = False
    shard: str = ""
    order: Order | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "gpus_at_most", max(self.gpus, self.gpus_at_most))

    @property
    def stem(self) -> str:
        """The base name of the job's files."""
        return self.name.replace("/", "__").replace(":", "_").replace(" ", "_")

    @property
    def step(self) -> str:
        """The stage for which the job leaves outcomes, with the shard if it has one: ``generate.2of4``."""
        return f"{self.stage}.{self.shard}" if self.shard else self.stage

    @property
    def owed(self) -> list[str]:
        """The cells for which the job must leave an outcome: none if it runs ``always``."""
        return [] if self.always else self.cells


@dataclass(frozen=True)
class Cluster:
    """How a plan runs on Slurm.

    Slurm signals a job to end ``grace`` seconds before its time limit. At most ``max_jobs`` jobs of the run,
    with at most ``max_gpus`` GPUs, are in the queue at once.
    """

    grace: Int
    max_jobs: Int | None = None
    max_gpus: Int | None = None


@dataclass(frozen=True)
class Plan:
    """All jobs of a run. ``run_folder`` holds the plan, progress, outcomes, and shared request limits.

    A launcher starts ``jobs``; one of them starts ``parts`` itself (:class:`ServeOrder`). Jobs run side by
    side (``parallel``) or one after another; unless ``parallel`` is False, light jobs that follow the running
    one still run beside it. A job gets only GPUs with at least ``gpu_min_free_memory`` free (a percentage, or
    GiB), and without other runs unless ``share_gpus``.
    """

    run_folder: str
    parallel: bool | None
    jobs: list[Job]
    blocked: dict[str, str] = field(default_factory=dict)
    """Cells that cannot start, with a one-line reason (a missing benchmark file)."""
    gpu_min_free_memory: str = "90%"
    share_gpus: bool = False
    settings: BenchmarkSettings = field(default_factory=dict)
    parts: list[Job] = field(default_factory=list)
    cluster: Cluster | None = None
    """None: the plan runs on this machine."""
    notes: list[str] = field(default_factory=list)
    """Notes for the user before the run starts, a line each."""

    @property
    def path(self) -> Path:
        """The file of the plan."""
        return Path(self.run_folder) / "plan.json"

    @property
    def cells(self) -> list[str]:
        """Every cell of the run in order, blocked ones included."""
        return list(dict.fromkeys([c for job in self.jobs for c in job.cells] + list(self.blocked)))

    def job(self, name: str) -> Job:
        """Returns the job called ``name``. Raises UserError if there is none."""
        for job in (*self.jobs, *self.parts):
            if job.name == name:
                return job
        raise UserError(f"the plan in {self.run_folder} has no job '{name}'")

    def progress_path(self, job: Job) -> Path:
        """Returns the progress file of ``job``; a part uses the file of the job that starts it."""
        whole = (
            one for one in self.jobs if isinstance(one.order, ServeOrder) and job.name in one.order.parts
        )
        return Path(self.run_folder) / "progress" / f"{next(whole, job).stem}.jsonl"

    def lacking(self, job: Job) -> list[str]:
        """Returns the cells of ``job`` whose outcome is missing."""
        folder = Path(self.run_folder)
        return [key for key in job.owed if read_outcome(folder, cell_of(key), job.step) is None]

    @property
    def as_json(self) -> str:
        """The text of ``plan.json``."""
        return json.dumps({"version": VERSION, **vars(self)}, default=vars, indent=1, ensure_ascii=False)

    def save(self) -> Path:
        """Write ``plan.json`` into the run folder and return its path."""
        write_atomic(self.path, self.as_json)
        return self.path


VERSION = 1
"""The version of ``plan.json``.

A job of an older run that waits on Slurm is refused, because it could misread its order."""
_PLAN = Reader(Plan, order_of)


def plan_in(data: bytes) -> Plan:
    """Returns the plan in the bytes of a ``plan.json``. Raises ValueError if it is invalid or of another version."""
    written = parse(data)
    if isinstance(written, dict) and written.get("version") != VERSION:
        raise ValueError("another version of ImageEvalKit wrote it: start the run again")
    return _PLAN.read(written)


def load_plan(path: Path) -> Plan:
    """Returns the plan in ``path``. Raises UserError if the file is missing or invalid."""
    try:
        return plan_in(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is not a readable plan ({error})") from error


def job_words(plan: Path | str, name: str) -> list[str]:
    """Returns the command-line arguments of a job that reads its order from ``plan``."""
    return ["--plan", str(plan), "--job", name]


def given_job(kind: type[OrderT], words: Sequence[str] | None = None) -> tuple[Plan, Job, OrderT]:
    """Returns the plan, the job and its order, from this process's command line (:func:`job_words`).

    Raises UserError if the plan or job does not exist, or its order is of another kind.
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
    """The end of one stage of one cell. ``message`` is one line. ``is_empty``: a shard without images."""

    state: str
    message: str = ""
    is_empty: bool = False


class _WrittenOutcome(TypedDict):
    state: str
    message: str
    is_empty: NotRequired[bool]


_OUTCOME = Reader(_WrittenOutcome)


def outcome_of(step: Callable[[], Outcome], log: Callable[[str], None]) -> Outcome:
    """Returns the result of ``step``. An exception becomes a FAILED outcome, so that other cells continue.

    ``log`` receives the traceback, which the outcome's one line omits.
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
    """Returns the folder in which the processes of a run share the limits of their requests."""
    return run_folder / "requests"


def stop_path(run_folder: Path) -> Path:
    """Returns the file whose existence ends the run, even if its launcher is on another machine."""
    return run_folder / "stop"


def outcomes_of(run_folder: Path) -> Path:
    """Returns the folder of all outcomes of a run."""
    return run_folder / "outcomes"


def outcome_path(run_folder: Path, cell: Cell, step: str) -> Path:
    """Returns the file of a cell's outcome for a :attr:`Job.step`. Dependent jobs wait for this file."""
    return outcomes_of(run_folder) / f"{cell.model}__{cell.benchmark}.{step}.json"


def write_outcome(run_folder: Path, cell: Cell, step: str, outcome: Outcome) -> None:
    """Write the outcome of a step of ``cell``."""
    write_atomic(outcome_path(run_folder, cell, step), json.dumps(asdict(outcome), ensure_ascii=False))


def read_outcome(run_folder: Path, cell: Cell, step: str) -> Outcome | None:
    """Returns the outcome of a step of ``cell``: None if there is no file, FAILED if the file is invalid."""
    path = outcome_path(run_folder, cell, step)
    try:
        written = _OUTCOME.decode(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        return Outcome(FAILED, f"its outcome file is unreadable ({short_path(path)}: {one_line(error, 100)})")
    if written["state"] not in STATUS_OF_STATE:
        return Outcome(FAILED, f"its outcome file holds the unknown state '{written['state']}'")
    return Outcome(**written)


def not_started(stage: str, state: str) -> str:
    """Returns why a result has no next stage after its ``stage`` ended in ``state``."""
    ended = {FAILED: "failed", STALE: "kept images of other settings"}.get(state, f"was {state}")
    return f"not started: its {stage} stage {ended}"


def lost_before(plan: Plan, job: Job) -> dict[str, str]:
    """Returns the cells of ``job`` that cannot be processed, with the reason: an unusable earlier outcome."""
    lost = dict[str, str]()
    for before in map(plan.job, job.after):
        for key in job.cells:
            if key not in before.owed or key in lost:
                continue
            outcome = read_outcome(Path(plan.run_folder), cell_of(key), before.step) or Outcome(FAILED)
            if outcome.state not in USABLE:
                lost[key] = not_started(before.stage, outcome.state)
    return lost


def opened_path(run_folder: Path, cell: Cell) -> Path:
    """Returns the file that records that the images of ``cell`` are being generated (:func:`note_opened`)."""
    return outcome_path(run_folder, cell, "generate").with_suffix(".opened")


def note_opened(run_folder: Path, cell: Cell, fingerprint: str) -> None:
    """Record that images of ``cell`` with the settings ``fingerprint`` are about to be generated."""
    write_atomic(opened_path(run_folder, cell), fingerprint)


def opened_with(run_folder: Path, cell: Cell) -> str | None:
    """Returns the fingerprint of the settings of the images being generated; None if that has not begun."""
    try:
        return opened_path(run_folder, cell).read_text()
    except OSError:
        return None


def cell_of(key: str) -> Cell:
    """Returns the cell of ``"model/benchmark"``. The model's name may have slashes (a hub id)."""
    model, _, benchmark = key.rpartition("/")
    return Cell(model, benchmark)
