"""The files of a cell (one model × one benchmark), and the lock that keeps a second run from writing them."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import NamedTuple

from imageevalkit.common.errors import UserError
from imageevalkit.common.locks import open_lock, take_lock

REPO = Path(__file__).resolve().parents[2]
SITE = "report"
"""The folder of the report's website, inside the output folder."""
REPORTS = (SITE, "report.html", "leaderboard.md", "leaderboard.csv", "leaderboard.xlsx", "leaderboard.tex")
"""The names of the reports on all results, inside the output folder."""
REPORT_MB = 40
"""The largest ``report.html``: a laptop's browser opens it in a few seconds, and chat programs accept it."""
COMPARISONS = "comparisons"
"""The folder of benchmark results that compare several models, inside the output folder."""
REWRITES = "rewrites"
"""The folder of the replies of prompt rewriters, shared by all models, inside the output folder."""
JUDGES = "judges"
"""The folder of each judge's answers to its probe questions, inside the output folder."""
VOTES = "votes"
"""The folder of human preferences, saved by the report's voting page, inside the output folder."""
_LONGEST_NAME = 200  # bytes; file systems allow 255, and names of logs and outcomes are longer
REWRITER_NAME = r"[a-z]\w*"
"""The pattern of a rewriter's name: it marks the folders of models with rewritten prompts."""
_REWRITTEN = re.compile(rf"(.+)\+({REWRITER_NAME}-[0-9a-f]{{8}})")
_OF_A_STEP = re.compile(r"(.+)@(0|[1-9][0-9]{0,17})", re.ASCII)


def split_names(text: str) -> list[str]:
    """Returns the names between semicolons: stripped, without empty ones, repetitions kept."""
    return [name for part in text.split(";") if (name := part.strip())]


def check_name(name: str) -> str:
    """Returns ``name`` if it is a valid folder below the output folder and a valid option (``org/model`` is).

    Raises UserError if it is invalid.
    """
    parts = name.split("/")
    if not name.isprintable() or any(part in ("", ".", "..") or part[0] in "-." for part in parts):
        raise UserError(
            f"'{name}' cannot be a name: no part of it may be empty or begin with '.' or '-', none may be unprintable"
        )
    if any(len(part.encode()) > _LONGEST_NAME for part in parts):
        raise UserError(f"'{name[:40]}…' cannot be a name: a part of it has more than {_LONGEST_NAME} bytes")
    if parts[0] in (*REPORTS, COMPARISONS, REWRITES, JUDGES, VOTES):
        raise UserError(f"'{name}' cannot be a name: output/{parts[0]} is for other files of the runs")
    return name


_elsewhere = ContextVar[Path | None]("the folder of results that are read", default=None)


def output_root() -> Path:
    """Returns the output folder: ``IMAGEEVALKIT_OUTPUT`` (tests, a larger disk), else the default."""
    return _elsewhere.get() or Path(os.environ.get("IMAGEEVALKIT_OUTPUT") or REPO / "output")


@contextlib.contextmanager
def results_in(folder: Path) -> Iterator[None]:
    """Use ``folder`` as the output folder inside the block, to read older results or another user's."""
    token = _elsewhere.set(folder)
    try:
        yield
    finally:
        _elsewhere.reset(token)


def log_root() -> Path:
    """Returns the folder of all logs. ``IMAGEEVALKIT_LOG`` overrides the default."""
    return Path(os.environ.get("IMAGEEVALKIT_LOG") or REPO / "log")


def short_path(path: str | Path) -> str:
    """Returns ``path`` (relative to the repository) relative to the current folder, or else absolute."""
    whole = REPO / path
    here = Path.cwd()
    return str(whole.relative_to(here)) if whole.is_relative_to(here) else str(whole)


def portable_path(path: Path) -> str:
    """Returns ``path`` relative to the repository if it lies there: so the folder can be copied elsewhere."""
    whole = path.resolve()
    return (whole.relative_to(REPO) if whole.is_relative_to(REPO) else whole).as_posix()


class _File:
    """A descriptor that returns the path of a file or folder of the cell."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, cell: Cell, _: type | None = None) -> Path:
        return cell.folder / self._name


class _Names(NamedTuple):
    model: str
    benchmark: str


class Cell(_Names):
    """The paths of the files of one model × one benchmark."""

    generation = _File("generation.jsonl")
    fingerprints = _File("fingerprints.jsonl")
    judgements = _File("judgements.jsonl")
    repeats = _File("repeats.jsonl")
    """The replies of the judge to repeated questions (:mod:`imageevalkit.extras.noise.repeats`)."""
    scores = _File("scores.jsonl")
    batches = _File("batches")
    judge_batches = _File("judge_batches")
    """The folders of batches of image requests and of questions (:mod:`imageevalkit.api.sender`)."""
    prompts = _File("prompts.jsonl")
    """The rewritten prompts that the model receives for each item (:mod:`imageevalkit.store.items`)."""
    result = _File("result.json")
    official = _File("official")
    """The folder of files in the official evaluator's formats."""
    relations = _File("relations")
    """The folder of the report's findings on metrics that are scored together."""

    @property
    def key(self) -> str:
        return "/".join(self)

    @property
    def folder(self) -> Path:
        return output_root() / self.model / self.benchmark

    @property
    def raw(self) -> Cell:
        """The cell of the same model on the benchmark's own, not rewritten prompts."""
        return Cell(_parts_of(self.model)[0], self.benchmark)

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The training checkpoint that the model is, rewriter aside; None if the model's name has no step."""
        return checkpoint_of(self.raw.model)

    @property
    def rewriter(self) -> str:
        """The rewriter's name and a hash of its settings (``dtm-1a2b3c4d``); empty without a rewriter."""
        return _parts_of(self.model)[1]


def _parts_of(model: str) -> tuple[str, str]:
    """Splits the model part of a cell (``qwen-image+dtm-1a2b3c4d``) into model name and rewriter."""
    found = _REWRITTEN.fullmatch(model)
    return (found[1], found[2]) if found else (model, "")


class Checkpoint(NamedTuple):
    """The weights of the training run ``run`` after ``step`` steps."""

    run: str
    step: int

    @property
    def name(self) -> str:
        """The model's name: ``run@1000``."""
        return f"{self.run}@{self.step}"


def checkpoint_of(model: str) -> Checkpoint | None:
    """Returns the checkpoint for a model name such as ``run@1000``; None if the name has no step."""
    found = _OF_A_STEP.fullmatch(model)
    return Checkpoint(found[1], int(found[2])) if found else None


def by_name(model: str) -> tuple[str, int]:
    """Returns the sort key of a model: its name; for checkpoints the training run, then the step."""
    checkpoint = Cell(model, "").checkpoint
    return (checkpoint.run, checkpoint.step) if checkpoint else (model, -1)


LAUNCHERS_LOCK = ".launcher.lock"
"""The lock of a launcher whose jobs run on other machines. The jobs themselves lock the cell's files."""


def lock_shard(cell: Cell, shard: str, grace: float) -> list[int]:
    """Take the locks that a job needs to write ``shard`` of the cell; wait ``grace`` seconds for owners.

    The first descriptor is the cell's lock, which all shards share; the second is the shard's own. Raises
    UserError as :func:`lock_cell` does.
    """
    shared = lock_cell(cell, grace, for_owner=True, shared=True)
    try:
        return [shared, lock_cell(cell, grace, for_owner=True, name=f".lock-{shard}")]
    except BaseException:
        os.close(shared)
        raise


def note_owner(fd: int) -> None:
    """Record this process as the owner in the lock file open as ``fd`` (see :func:`lock_cell`)."""
    os.ftruncate(fd, 0)
    os.pwrite(fd, str(os.getpid()).encode(), 0)


def lock_cell(
    cell: Cell, grace: float = 15.0, for_owner: bool = False, name: str = ".lock", shared: bool = False
) -> int:
    """Take the cell's lock called ``name`` and return its open, inheritable file descriptor.

    The kernel releases the lock when the last process that holds the descriptor ends. If the recorded owner
    no longer holds the lock, the owner's guards are still ending its processes: this function waits up to
    ``grace`` seconds. With ``for_owner`` it also waits for a live owner. A ``shared`` lock has several
    owners. Raises UserError if another run holds the lock, or if the filesystem has no locks.
    """
    path = cell.folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = open_lock(path)
    deadline = time.monotonic() + grace
    while True:
        try:
            take_lock(fd, path, shared=shared)
            break
        except BlockingIOError:
            is_late = time.monotonic() > deadline
            text = path.read_bytes()
            owner = int(text) if re.fullmatch(rb"[0-9]{1,9}", text) else None
            # _holders() inspects every process of the machine: call it only if needed
            holders = _holders(fd) if is_late or not for_owner else []
            if is_late or (owner in holders and not for_owner):
                os.close(fd)
                choose = "choose other models or benchmarks"
                who = f"another run, whose process is on another machine or another user's; wait for it or {choose}"
                if owner in holders:
                    who = f"another run (process {owner}); wait for it or {choose}"
                elif holders:
                    left = f", which is left of a run whose process {owner} has ended" if owner else ""
                    who = f"process {holders[0]}{left}; end it (kill {holders[0]}) or {choose}"
                raise UserError(f"{cell.key} is being written by {who}") from None
            time.sleep(0.2)
    if shared:
        os.ftruncate(fd, 0)
    else:
        note_owner(fd)
    os.set_inheritable(fd, True)
    return fd


def _holders(fd: int) -> list[int]:
    """Returns the processes that hold the lock on ``fd``, if this user may inspect them."""
    lock, holders = os.fstat(fd), set[int]()
    for folder in Path("/proc").glob("[0-9]*/fd"):
        with contextlib.suppress(OSError):  # the process has ended, or belongs to another user
            for entry in folder.iterdir():
                # many processes may have the file open; only fdinfo shows which of them holds the lock
                about = folder.parent / "fdinfo" / entry.name
                if os.path.samestat(entry.stat(), lock) and "FLOCK" in about.read_text():
                    holders.add(int(folder.parent.name))
    return sorted(holders)
