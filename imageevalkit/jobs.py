"""The plan: every job of a run, as JSON that any launcher can run and any job can read itself from."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from imageevalkit.atomic import write_atomic
from imageevalkit.cell import Cell, short_path
from imageevalkit.cell.jsonl import Shape, parse
from imageevalkit.errors import CellFailure, ExitStatus, UserError, said_of
from imageevalkit.guest_code import guest_code
from imageevalkit.secrets import one_line, redact

ATTEMPT_ENV = "IMAGEEVALKIT_ATTEMPT"
"""How often a launcher has started a job, this time included; a launcher that starts none again need not say so."""
SETTINGS_ENV = "IMAGEEVALKIT_DS_KWARGS"
"""Holds ``{benchmark: {name: value}}`` as JSON in the environment of every job: dataset classes take no arguments."""


@dataclass(frozen=True)
class Job:
    """One process to run.

    ``command`` is its argv; ``environ`` is what it adds to the launcher's environment. Of the secrets there it has
    those in the variables called ``secrets``, no others. ``cells`` are the cells (``model/benchmark``) it serves, in
    order. ``after`` names jobs.
    A job starts when, for each of its cells, every job in ``after`` serving that cell has left that cell's
    outcome (see :func:`outcome_path`) with a state in :data:`USABLE`; if such an outcome is FAILED or the job
    ended without leaving one, it is skipped. A ``partial`` job starts without such cells, once the jobs that
    failed them have ended, and itself leaves FAILED for them; it is skipped when no other cell is left.
    ``always`` (the report) starts when all in ``after`` have ended, however they ended. Of the jobs with the same
    ``turn`` (an API endpoint, say) one runs at a time. ``gpus`` are those that a job must have; it can use up to
    ``gpus_at_most`` (never less than ``gpus``), a multiple of ``gpus``: one replica more for each.
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
    turns: list[str] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "gpus_at_most", max(self.gpus, self.gpus_at_most))

    @property
    def file_stem(self) -> str:
        """The job's name as a file name."""
        return self.name.replace("/", "__").replace(":", "_")


@dataclass(frozen=True)
class Plan:
    """All jobs of one run; ``run_folder`` holds this plan, progress files and outcomes.

    Of a GPU that a job is given, at least ``gpu_min_free_memory`` is free (a percentage, or GiB) and no other run
    has it, unless ``share_gpus``.
    """

    run_folder: str
    parallel: bool
    jobs: list[Job]
    blocked: dict[str, str] = field(default_factory=dict)
    """Cells that cannot start, with the one-line reason (a missing benchmark file)."""
    gpu_min_free_memory: str = "90%"
    share_gpus: bool = False

    @property
    def cells(self) -> list[str]:
        """Every cell of the run, in order, blocked ones included."""
        return list(dict.fromkeys([c for job in self.jobs for c in job.cells] + list(self.blocked)))

    def job(self, name: str) -> Job:
        """The job called ``name``."""
        for job in self.jobs:
            if job.name == name:
                return job
        raise UserError(f"the plan in {self.run_folder} has no job '{name}'")

    def save(self) -> Path:
        """Write ``plan.json`` into the run folder and return its path."""
        path = Path(self.run_folder) / "plan.json"
        write_atomic(path, json.dumps(asdict(self), indent=1, ensure_ascii=False))
        return path


def load_plan(path: Path) -> Plan:
    """Read a plan. Raises :class:`UserError` when the file is missing or is no plan."""
    try:
        raw = parse(path.read_bytes())
        return Plan(**{**raw, "jobs": [Job(**job) for job in raw["jobs"]]})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is not a readable plan ({error})") from error


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
    """How one stage of one cell ended; ``message`` is one line for the user."""

    state: str
    message: str = ""


_OUTCOME = Shape[dict[str, Any]](must={"state": str, "message": str})


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


def outcome_path(run_folder: Path, cell: Cell, stage: str) -> Path:
    """Where the stage of a cell leaves its outcome: the done-marker a dependent job waits for."""
    return run_folder / "outcomes" / f"{cell.model}__{cell.benchmark}.{stage}.json"


def write_outcome(run_folder: Path, cell: Cell, stage: str, outcome: Outcome) -> None:
    """Leave the outcome of a stage of ``cell``."""
    write_atomic(outcome_path(run_folder, cell, stage), json.dumps(asdict(outcome), ensure_ascii=False))


def read_outcome(run_folder: Path, cell: Cell, stage: str) -> Outcome | None:
    """The outcome of a stage of ``cell``, or None while there is none; a file that holds none is a failure."""
    path = outcome_path(run_folder, cell, stage)
    try:
        raw = _OUTCOME.read(parse(path.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        return Outcome(FAILED, f"its outcome file is unreadable ({short_path(path)}: {one_line(error, 100)})")
    if raw["state"] not in STATUS_OF_STATE:
        return Outcome(FAILED, f"its outcome file holds the unknown state '{raw['state']}'")
    return Outcome(raw["state"], raw["message"])


def cell_of(key: str) -> Cell:
    """The cell of ``"model/benchmark"``; a model name may itself hold slashes (a hub id)."""
    model, _, benchmark = key.rpartition("/")
    return Cell(model, benchmark)


def environ_of(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """What a job's environment needs so that :func:`settings_of` finds ``settings`` there."""
    given = {benchmark: dict(kwargs) for benchmark, kwargs in settings.items() if kwargs}
    return {SETTINGS_ENV: json.dumps(given, sort_keys=True)} if given else {}


def settings_of(benchmark: str) -> dict[str, Any]:
    """The settings that the user gave for ``benchmark``; none where a script is run by hand."""
    given: dict[str, dict[str, Any]] = json.loads(os.environ.get(SETTINGS_ENV) or "{}")
    return given.get(benchmark, {})
