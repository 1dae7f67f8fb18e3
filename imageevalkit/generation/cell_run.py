"""One cell from what is there to its outcome: what is left to make, and each image's way to disk and record."""

from __future__ import annotations

import functools
import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from PIL import Image

from imageevalkit import logs, registry
from imageevalkit.api.money import Bill
from imageevalkit.cell import Cell
from imageevalkit.cell import fingerprint as fp
from imageevalkit.cell.items import Item, items_of
from imageevalkit.cell.records import FAILED as ITEM_FAILED
from imageevalkit.cell.records import OK, REFUSED, Record, RecordWriter
from imageevalkit.cell.rewritten import all_shown
from imageevalkit.cell.states import Survey, survey
from imageevalkit.errors import CellFailure
from imageevalkit.generation.model import (
    Generated,
    GenerationError,
    ImageModel,
    ItemFailed,
    ModelUnusable,
    OnHold,
    Refused,
    RemoteError,
    name_of,
)
from imageevalkit.guest_code import guest_code
from imageevalkit.images import encode, encoded
from imageevalkit.jobs import COMPLETE, FAILED, INCOMPLETE, STALE, Outcome, settings_of
from imageevalkit.machine import when_one_is_free
from imageevalkit.progress import Progress, ProgressWriter
from imageevalkit.secrets import one_line, redact
from imageevalkit.text import dollars

# A model that has lost this many items in a row (or three per worker) without one success is broken, not unlucky.
_GIVE_UP_AFTER = 10


@dataclass
class CellOutcomes:
    """Counts of this run's outcomes; ``stopped`` is the one-line reason why no further item is started."""

    cell: Cell
    total: int
    reused: int
    refused: int
    blank_on_error: bool
    default_size: tuple[int, int]
    progress: ProgressWriter
    log: Callable[[str], None]
    workers: int = 1
    has_worked: bool = False
    """Images of these settings are there from before: the model is not broken, whatever items are left."""
    ok: int = 0
    images: list[Path] = field(default_factory=list)
    """Where those of this run are."""
    failed: int = 0
    stopped: str = ""
    on_hold: bool = False
    """The reason to stop passes: a later run can go on."""
    last_error: str = ""
    last_failure: str = ""
    """The last error that was no refusal."""
    cost: float | None = None
    """USD that the requests of this run cost; None while no price is known."""
    max_cost: float | None = None
    maybe_billed: int = 0
    """Requests without an image that may have been billed; they are in ``cost`` by estimate."""
    _lost_in_a_row: int = 0
    _outages_in_a_row: int = 0
    _writer: RecordWriter | None = None

    def start(self, writer: RecordWriter) -> None:
        """Outcomes go to ``writer`` from now on."""
        self._writer = writer

    def keep_inputs(self, item: Item) -> None:
        """See :meth:`RecordWriter.keep_inputs`. May run in any thread."""
        assert self._writer is not None
        self._writer.keep_inputs(item)

    def store(self, item: Item, returned: Any, seconds: float) -> Exception | None:
        """Save what the model returned for ``item``; the error if that is no image. May run in any thread.

        It counts as saved, like what :meth:`lost` saves, after the next :meth:`commit`.

        Raises:
            CellFailure: the disk is full.
        """
        assert self._writer is not None
        try:
            generated = _as_generated(returned)
            with guest_code():  # a picture may be of a class of the model's own; libraries are loaded late
                image = when_one_is_free(lambda: encoded(generated.image, item.path, generated.proven))
        except Exception as error:  # a picture that does not decode or encode is this item's failure only
            return error
        record = replace(
            _paid(Record.of(item, OK), generated.bill),
            seconds=seconds,
            attempts=generated.attempts,
            seed_honoured=generated.seed_honoured,
            requested_size=generated.requested_size,
            size=image.size,
            flat=image.flat,
            extra=generated.extra or None,
        )
        writer = self._writer
        # only the last steps leave a record, and they open nothing
        when_one_is_free(lambda: writer.save(item, record, image.data))
        return None

    def stored(self, item: Item, returned: Any, error: Exception | None, seconds: float) -> None:
        """Count what :meth:`store` answered to ``returned``. Raises CellFailure when the disk is full."""
        if isinstance(returned, Generated):
            self._pay(returned.bill)
        if error:
            self.lost(item, error, seconds)
            return
        self.ok += 1
        self.images.append(item.path)
        self._lost_in_a_row = self._outages_in_a_row = 0
        self.report()

    def lost(self, item: Item, error: Exception, seconds: float) -> None:
        """Save the failure or refusal of ``item``. Raises CellFailure when the disk is full or ``error`` is one."""
        assert self._writer is not None
        if isinstance(error, CellFailure):
            raise error
        refused = isinstance(error, Refused)
        self.last_error = f"{name_of(error)}: {one_line(error, 300)}"
        if isinstance(error, GenerationError):
            self._pay(error.bill)
        if isinstance(error, (ModelUnusable, OnHold)):
            if not self.stopped:
                self.log(self.last_error)
                self.stopped, self.on_hold = one_line(error, 300), isinstance(error, OnHold)
            if not (error.bill and (error.bill.cost or error.bill.maybe_billed)):
                return  # nothing was learnt about the item
        else:
            self.log(f"{item.id} {REFUSED if refused else 'failed'}: {self.last_error}")
        if not isinstance(error, GenerationError):
            trace = (
                error.trace if isinstance(error, RemoteError) else "".join(traceback.format_exception(error))
            )
            self.log(redact(trace))
        record = replace(
            Record.of(item, REFUSED if refused else ITEM_FAILED),
            seconds=seconds,
            attempts=error.attempts if isinstance(error, GenerationError) else 1,
            error={"class": name_of(error), "text": one_line(error)},
        )
        if isinstance(error, GenerationError):
            record = _paid(record, error.bill)
        writer, placeholder = self._writer, None
        if self.blank_on_error and not refused:
            placeholder = encode(Image.new("RGB", self._blank_size(item), "white"), item.path)
        when_one_is_free(lambda: writer.save(item, record, placeholder))
        if refused:
            self.refused += 1
        else:
            self.failed += 1
            self.last_failure = self.last_error
        if not self.stopped:
            self._give_up(error)
        self.report()

    def _pay(self, bill: Bill | None) -> None:
        if bill is None:
            return
        self.maybe_billed += bill.maybe_billed
        if bill.cost is not None:
            self.cost = (self.cost or 0.0) + bill.cost

    def spent_words(self) -> str:
        """What this run of the cell cost, as a message tells it; empty where nothing did or no price is known."""
        if not self.cost:
            return ""
        lost = f", {self.maybe_billed} lost replies by estimate" if self.maybe_billed else ""
        return f"{dollars(self.cost)}{lost}"

    def commit(self) -> None:
        """See :meth:`RecordWriter.commit`. May run in any thread."""
        if self._writer:
            self._writer.commit()

    def close(self) -> None:
        """Commit what is left, and close the records."""
        if self._writer:
            writer, self._writer = self._writer, None
            writer.close()

    def _give_up(self, error: Exception) -> None:
        """Stop when a model has never worked, or when an endpoint has stopped answering in the middle.

        Items that fail by themselves (a category of prompts that is too long) do not stop a model that works.
        """
        outage = isinstance(error, ItemFailed) and error.transient
        self._lost_in_a_row += 1
        self._outages_in_a_row = self._outages_in_a_row + 1 if outage else 0
        never_worked = not self.ok and not self.has_worked
        for count, applies in ((self._outages_in_a_row, True), (self._lost_in_a_row, never_worked)):
            if applies and count >= max(_GIVE_UP_AFTER, 3 * self.workers):
                self.stopped = f"stopped after {count} items lost in a row: {self.last_error}"
                self.on_hold = outage and not never_worked

    def report(self, note: str = "", force: bool = False) -> None:
        """Tell the launcher how far the cell is."""
        self.progress.report(
            Progress(
                cell=self.cell.key,
                stage="generate",
                done=self.reused + self.ok + self.failed + self.refused - self._refused_before,
                total=self.total,
                reused=self.reused,
                failed=self.failed + self.refused,
                note=note,
                cost=self.cost,
                max_cost=self.max_cost,
            ),
            force,
        )

    def __post_init__(self) -> None:
        self._refused_before = self.refused

    def _blank_size(self, item: Item) -> tuple[int, int]:
        pictures: Sequence[Any] = [p for p in item.input_list or [] if isinstance(p, Image.Image)]
        return pictures[0].size if pictures else self.default_size


def _paid(record: Record, bill: Bill | None) -> Record:
    """``record`` with what the requests of its item cost."""
    if bill is None:
        return record
    return replace(record, tokens=bill.tokens or None, price=bill.cost, maybe_billed=bill.maybe_billed)


def _as_generated(returned: Any) -> Generated:
    if isinstance(returned, Generated):
        return returned
    if isinstance(returned, Image.Image):
        return Generated(returned)
    raise TypeError(f"generate() returned {type(returned).__name__}, expected a PIL.Image")


@dataclass(frozen=True)
class GenerateOptions:
    """``overwrite`` replaces stale images, ``retry_refused`` asks again for refused ones.

    ``blank_on_error`` leaves white placeholders; ``workers`` items are in flight.
    """

    overwrite: bool = False
    retry_refused: bool = False
    blank_on_error: bool = False
    workers: int = 1


class CellRun:
    """One cell from its survey to its outcome; ``todo`` are the items to make, in the benchmark's order.

    ``outcome`` is there from the start when the cell cannot be made (its images are stale). Nothing is
    written before :meth:`begin`. ``log_path`` is where a model may print.
    """

    def __init__(
        self,
        cell: Cell,
        items: Sequence[Item],
        task: str,
        setting: Mapping[str, Any],
        options: GenerateOptions,
        progress: ProgressWriter,
        log: Callable[[str], None],
        log_path: Path = Path(os.devnull),
    ) -> None:
        self.cell, self.task, self.setting, self.log_path = cell, task, setting, log_path
        self.outcome: Outcome | None = None
        self._settings = fp.settings_of(task, setting)
        found = survey(cell, items, self._settings, mend=True, tell=log)
        self._reused, refused, stale = found.of("reuse"), found.of("refused"), found.explain_stale()
        self._failure: BaseException | None = None
        self._model = ImageModel()
        log(_what_is_there(found))
        if stale:
            log(stale)
        if stale and not options.overwrite:
            self.outcome = Outcome(STALE, f"{stale}; nothing was changed: add --overwrite to make them again")
        asked_before = [] if options.retry_refused else refused
        self.todo: list[Item] = found.to_make(options.overwrite, options.retry_refused)
        self.outcomes = CellOutcomes(
            cell=cell,
            total=len(items),
            reused=len(self._reused) + len(asked_before),
            refused=len(asked_before),
            blank_on_error=options.blank_on_error,
            default_size=requested_size(setting.get("model_kwargs", {})),
            progress=progress,
            log=log,
            workers=options.workers,
            has_worked=bool(self._reused),
        )

    def begin(self, model: ImageModel) -> None:
        """``model`` is loaded and outcomes are about to come.

        Raises:
            CellFailure: the disk is full, or images cannot be stored where they belong.
        """
        _make_folders({item.path.parent for item in self.todo})
        self._model = model
        if self._reused:
            model.has_made_images()
        model.begin_cell(self)
        self.outcomes.start(RecordWriter(self.cell, self.remember(model.packages())))

    def remember(self, packages: Mapping[str, str]) -> str:
        """Keep what makes the images, of one of several workers perhaps; returns the settings' fingerprint."""
        return fp.remember(self.cell.fingerprints, self._settings, packages)

    def holdup(self) -> str:
        """What holds the model back, for the progress line."""
        return self._model.holdup()

    def fail(self, error: BaseException) -> None:
        """The cell cannot go on (full disk)."""
        self._failure = self._failure or error
        self.outcomes.stopped = self.outcomes.stopped or one_line(error)

    def end(self) -> Outcome:
        """Flush the records and say how the cell ended.

        Raises:
            CellFailure: it could not go on.
        """
        self.outcomes.close()
        self.outcomes.report(force=True)
        if self._failure:
            raise self._failure
        made = [*self.outcomes.images, *(item.path for item in self._reused)]
        if gone := sum(not path.is_file() for path in made):
            return Outcome(
                FAILED,
                f"{gone} of {len(made)} images were removed from {self.cell.folder} while this run was at work; "
                "the same command makes them again",
            )
        return _outcome(self.outcomes, len(self._reused))


def open_cell(
    cell: Cell,
    options: Mapping[str, Any],
    progress: ProgressWriter,
    log_path: Path,
    in_flight: int,
    spent: float,
) -> CellRun:
    """Survey the cell, on which this run has ``spent`` so many USD before; ``options`` are those of the job.

    Raises:
        CellFailure: its files are not what they should be.
    """
    # the pinned bytes, before an image is made (and paid for) from other ones
    settings = settings_of(cell.benchmark)
    registry.benchmark_files(cell.benchmark, settings).sha256()
    dataset = registry.load_dataset(cell.benchmark, settings)
    run = CellRun(
        cell,
        all_shown(cell, items_of(dataset, cell, options["limit"])),
        dataset.dataset_task,
        options["settings"][cell.model][dataset.dataset_task],
        GenerateOptions(options["overwrite"], options["retry_refused"], options["blank_on_error"], in_flight),
        progress,
        functools.partial(logs.append, log_path),
        log_path,
    )
    run.outcomes.max_cost, run.outcomes.cost = options["max_cost"], spent or None
    return run


def _make_folders(folders: set[Path]) -> None:
    """Make the folders of images now: what is in their way must not be met when images are paid for."""
    for folder in sorted(folders):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            why = error.strerror
        else:
            why = "" if os.access(folder, os.W_OK | os.X_OK) else "it may not be written to"
        if why:
            raise CellFailure(f"no image can be stored in {folder}: {why}; remove or mend what is there")


def requested_size(model_kwargs: Mapping[str, Any]) -> tuple[int, int]:
    """(width, height) in pixels that a placeholder takes: what the kwargs ask for, else 1024 × 1024."""
    width, height = model_kwargs.get("width"), model_kwargs.get("height")
    if isinstance(width, int) and isinstance(height, int):
        return width, height
    sides = str(model_kwargs.get("size", "")).lower().split("x")
    if len(sides) == 2 and all(side.isdigit() and int(side) > 0 for side in sides):
        return int(sides[0]), int(sides[1])
    return 1024, 1024


def _what_is_there(found: Survey) -> str:
    parts = [f"{len(found.of('reuse'))} of {len(found.states)} images are there"]
    parts.append(f"{len(found.of('make'))} to make")
    if repair := found.of("repair"):
        parts.append(f"{len(repair)} to repair (missing, truncated or altered)")
    if refused := found.of("refused"):
        parts.append(f"{len(refused)} refused before")
    return ", ".join(parts)


def _outcome(cell: CellOutcomes, reused: int) -> Outcome:
    made = cell.ok + reused
    counts = f"{made} of {cell.total} images"
    if cell.spent_words():
        counts += f", {cell.spent_words()}"
    if cell.stopped:
        # what only waits for money or for the endpoint is not broken
        if cell.on_hold:
            return Outcome(INCOMPLETE, f"{cell.stopped} ({counts}); the same command goes on from here")
        return Outcome(FAILED, f"{cell.stopped} ({counts})")
    if not cell.total:
        return Outcome(FAILED, "the benchmark has no items")
    if not made:
        reason = cell.last_error or (
            f"all {cell.refused} items were refused before: --retry_refused asks again"
        )
        return Outcome(FAILED, f"{reason} ({counts})")
    if made < cell.total:
        lost = ((cell.refused, "refused"), (cell.failed, "failed"))
        words = ", ".join(f"{n} {word}" for n, word in lost if n)
        remedies = [f"the same command tries failed ones again (the last: {cell.last_failure})"] * bool(
            cell.failed
        )
        remedies += ["--retry_refused sends refused ones again"] * bool(cell.refused)
        return Outcome(INCOMPLETE, f"{counts}, {words}; {', '.join(remedies)}")
    return Outcome(COMPLETE, counts)
