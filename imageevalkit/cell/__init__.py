"""A cell (one model × one benchmark): where its files are, and the lock that keeps a second writer out."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import NamedTuple

from imageevalkit.errors import UserError
from imageevalkit.locks import open_lock, take_lock

REPO = Path(__file__).resolve().parents[2]
SITE = "report"
"""The folder of the site about all results, in the folder of all results."""
REPORTS = (SITE, "report.html", "leaderboard.md", "leaderboard.csv", "leaderboard.xlsx", "leaderboard.tex")
"""What there is of all results, in the folder of all results."""
REPORT_MB = 40
"""Of ``report.html`` at most: what a laptop's browser opens in a few seconds, and still goes through a chat."""
COMPARISONS = "comparisons"
"""The folder there of what benchmarks say of several models."""
REWRITES = "rewrites"
"""The folder there of what rewriters of prompts replied, which models share."""
JUDGES = "judges"
"""The folder there of what each judge said to its probes."""
VOTES = "votes"
"""The folder there of what people prefer, as the report's voting page saves it."""
_LONGEST_NAME = 200  # bytes; file systems take 255, and names of logs and outcomes have more in them
REWRITER_NAME = r"[a-z]\w*"
"""What a rewriter's name is like: by it the folders of rewritten prompts are told from others."""
_REWRITTEN = re.compile(rf"(.+)\+({REWRITER_NAME}-[0-9a-f]{{8}})")
_OF_A_STEP = re.compile(r"(.+)@(0|[1-9][0-9]{0,17})", re.ASCII)


def split_names(text: str) -> list[str]:
    """Names between semicolons, stripped, empties dropped, repetitions kept."""
    return [name for part in text.split(";") if (name := part.strip())]


def check_name(name: str) -> str:
    """``name``, if it can name a folder below output/ and travel on command lines (``org/model`` can).

    Raises UserError: it cannot.
    """
    parts = name.split("/")
    if not name.isprintable() or any(part in ("", ".", "..") or part[0] in "-." for part in parts):
        raise UserError(
            f"'{name}' cannot be a name: no part of it may be empty or begin with '.' or '-', none may be unprintable"
        )
    if any(len(part.encode()) > _LONGEST_NAME for part in parts):
        raise UserError(f"'{name[:40]}…' cannot be a name: a part of it has more than {_LONGEST_NAME} bytes")
    if parts[0] in (*REPORTS, COMPARISONS, REWRITES, JUDGES, VOTES):
        holds = {
            REWRITES: "holds rewritten prompts",
            JUDGES: "holds what judges said to their probes",
            VOTES: "holds votes",
        }
        what = holds.get(parts[0], "is a report of the run")
        raise UserError(f"'{name}' cannot be a name: output/{parts[0]} {what}")
    return name


_elsewhere = ContextVar[Path | None]("the folder of results that are read", default=None)


def output_root() -> Path:
    """The folder of all results; ``IMAGEEVALKIT_OUTPUT`` moves it (tests, a bigger disk)."""
    return _elsewhere.get() or Path(os.environ.get("IMAGEEVALKIT_OUTPUT") or REPO / "output")


@contextlib.contextmanager
def results_in(folder: Path) -> Iterator[None]:
    """Let ``folder`` be that of all results, for who reads old ones or somebody else's."""
    token = _elsewhere.set(folder)
    try:
        yield
    finally:
        _elsewhere.reset(token)


def log_root() -> Path:
    """The folder of all logs; ``IMAGEEVALKIT_LOG`` moves it."""
    return Path(os.environ.get("IMAGEEVALKIT_LOG") or REPO / "log")


def short_path(path: str | Path) -> str:
    """``path`` (relative to the repository, where jobs run) as seen from the current folder, if below it."""
    whole = REPO / path
    here = Path.cwd()
    return str(whole.relative_to(here)) if whole.is_relative_to(here) else str(whole)


def portable_path(path: Path) -> str:
    """``path`` relative to the repository if below it, so that the folder can be copied to another machine."""
    whole = path.resolve()
    return (whole.relative_to(REPO) if whole.is_relative_to(REPO) else whole).as_posix()


class _File:
    """A file, or folder, of a cell."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, cell: Cell, _: type | None = None) -> Path:
        return cell.folder / self._name


class _Names(NamedTuple):
    model: str
    benchmark: str


class Cell(_Names):
    """One model × one benchmark and the files of design §4."""

    generation = _File("generation.jsonl")
    fingerprints = _File("fingerprints.jsonl")
    judgements = _File("judgements.jsonl")
    repeats = _File("repeats.jsonl")
    """What a judge said when it was asked again (:mod:`imageevalkit.evaluation.noise`)."""
    scores = _File("scores.jsonl")
    batches = _File("batches")
    judge_batches = _File("judge_batches")
    """The folders of the batches of images, and of questions (:mod:`imageevalkit.requests.batches`)."""
    prompts = _File("prompts.jsonl")
    """Of rewritten prompts: what the model is shown of each item (:mod:`imageevalkit.cell.items`)."""
    result = _File("result.json")
    official = _File("official")
    """The folder of files in the official evaluator's formats."""
    relations = _File("relations")
    """The folder of what the report finds of metrics that are scored together."""

    @property
    def key(self) -> str:
        return "/".join(self)

    @property
    def folder(self) -> Path:
        return output_root() / self.model / self.benchmark

    @property
    def raw(self) -> Cell:
        """That of the same model and the benchmark's own prompts."""
        return Cell(_parts_of(self.model)[0], self.benchmark)

    @property
    def checkpoint(self) -> Checkpoint | None:
        """What its model is a checkpoint of, whoever rewrote its prompts; None: its name has no step."""
        return checkpoint_of(self.raw.model)

    @property
    def rewriter(self) -> str:
        """Who rewrote its prompts: ``dtm-1a2b3c4d``, a name with a hash of all that decides; empty: nobody did."""
        return _parts_of(self.model)[1]


def _parts_of(model: str) -> tuple[str, str]:
    """What results are called by (``qwen-image+dtm-1a2b3c4d``): the model itself, and the rewriter of its prompts."""
    found = _REWRITTEN.fullmatch(model)
    return (found[1], found[2]) if found else (model, "")


class Checkpoint(NamedTuple):
    """The state of ``run`` after ``step`` steps of its training."""

    run: str
    step: int

    @property
    def name(self) -> str:
        """What the model is called: ``run@1000``."""
        return f"{self.run}@{self.step}"


def checkpoint_of(model: str) -> Checkpoint | None:
    """What a model called ``run@1000`` is; None: its name has no step."""
    found = _OF_A_STEP.fullmatch(model)
    return Checkpoint(found[1], int(found[2])) if found else None


def by_name(model: str) -> tuple[str, int]:
    """What models are sorted by: their names, checkpoints of one run by step."""
    checkpoint = Cell(model, "").checkpoint
    return (checkpoint.run, checkpoint.step) if checkpoint else (model, -1)


LAUNCHERS_LOCK = ".launcher.lock"
"""The lock of a cell that a launcher has whose jobs, on other machines, take that of the cell's files."""


def lock_cell(cell: Cell, grace: float = 15.0, for_owner: bool = False, name: str = ".lock") -> int:
    """Take the cell's lock of that ``name`` and return its open, inheritable file descriptor.

    The kernel drops it when the last process holding the descriptor ends. If the recorded owner has it no longer, its
    guards are just ending its processes: wait up to ``grace`` seconds for them, or for the owner too (``for_owner``).
    Raises UserError: a live run holds it, or no file can be locked there.
    """
    return _lock(cell, name, grace, for_owner)


def lock_shard(cell: Cell, shard: str, grace: float) -> list[int]:
    """As :func:`lock_cell`, waiting for owners too, what the job with that ``shard`` of the cell must have: nobody has
    the whole cell, or that shard. The first of the descriptors is of the lock of the cell, which shards share."""
    shared = _lock(cell, ".lock", grace, for_owner=True, shared=True)
    try:
        return [shared, _lock(cell, f".lock-{shard}", grace, for_owner=True)]
    except BaseException:
        os.close(shared)
        raise


def note_owner(fd: int) -> None:
    """The lock on the file open as ``fd``, as :func:`lock_cell` returned it, is this process's."""
    os.ftruncate(fd, 0)
    os.pwrite(fd, str(os.getpid()).encode(), 0)


def _lock(cell: Cell, name: str, grace: float, for_owner: bool, shared: bool = False) -> int:
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
            # who has it takes a look at every process of the machine
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
        os.ftruncate(fd, 0)  # it has several
    else:
        note_owner(fd)
    os.set_inheritable(fd, True)
    return fd


def _holders(fd: int) -> list[int]:
    """The processes, as far as this one may know them, that hold the lock on the file open as ``fd``."""
    lock, holders = os.fstat(fd), set[int]()
    for folder in Path("/proc").glob("[0-9]*/fd"):
        with contextlib.suppress(OSError):  # ended meanwhile, or of another user
            for entry in folder.iterdir():
                # many may have it open, as this process has; the lock is with those whose descriptor says so
                about = folder.parent / "fdinfo" / entry.name
                if os.path.samestat(entry.stat(), lock) and "FLOCK" in about.read_text():
                    holders.add(int(folder.parent.name))
    return sorted(holders)
