"""The running account of one cell's generation: outcomes saved, counts, progress, and when to give up."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from PIL import Image

from imageevalkit.api.money import Bill
from imageevalkit.cell import Cell
from imageevalkit.cell.items import Item
from imageevalkit.cell.records import FAILED, OK, REFUSED, Record, RecordWriter
from imageevalkit.errors import CellFailure
from imageevalkit.generation.contract import (
    Generated,
    GenerationError,
    ItemFailed,
    ModelUnusable,
    OnHold,
    Raised,
    Refused,
    name_of,
)
from imageevalkit.guest_code import guest_code
from imageevalkit.images import encode, encoded
from imageevalkit.money import dollars
from imageevalkit.open_files import when_one_is_free
from imageevalkit.progress import Progress, ProgressWriter
from imageevalkit.secrets import one_line, redact

# A model that has lost this many items in a row (or three per worker) without one success is broken, not unlucky.
_GIVE_UP_AFTER = 10


@dataclass
class Making:
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
        # it is paid for: only the last steps leave a record, and they open nothing
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
            self.log(f"{item.id} {REFUSED if refused else FAILED}: {self.last_error}")
        if not isinstance(error, GenerationError):
            trace = error.trace if isinstance(error, Raised) else "".join(traceback.format_exception(error))
            self.log(redact(trace))
        record = replace(
            Record.of(item, REFUSED if refused else FAILED),
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
