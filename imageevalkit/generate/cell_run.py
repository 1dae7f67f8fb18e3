"""One cell of a generate job: finds the items left to generate, saves images, and returns the outcome."""

from __future__ import annotations

import functools
import os
import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from PIL import Image

from imageevalkit.api.money import Bill
from imageevalkit.api.sender import Sender
from imageevalkit.common.errors import CellFailure
from imageevalkit.common.guest_code import guest_code
from imageevalkit.common.images import encoded, facts
from imageevalkit.common.machine import when_one_is_free
from imageevalkit.common.redaction import one_line, redact
from imageevalkit.common.text import dollars
from imageevalkit.generate.model import (
    Generated,
    GenerationError,
    ImageModel,
    ItemFailed,
    ModelUnusable,
    OnHold,
    Refused,
    RemoteError,
    as_generated,
    name_of,
)
from imageevalkit.jobs.plan import COMPLETE, FAILED, INCOMPLETE, STALE, Outcome
from imageevalkit.jobs.progress import Progress, ProgressWriter
from imageevalkit.store import fingerprint as fp
from imageevalkit.store.cell import Cell
from imageevalkit.store.items import Item
from imageevalkit.store.records import FAILED as ITEM_FAILED
from imageevalkit.store.records import OK, REFUSED, Record, RecordWriter
from imageevalkit.store.shards import Shard, own_file
from imageevalkit.store.states import Survey, survey

# A model that fails this many items in a row (or three per worker) without a success counts as broken.
_GIVE_UP_AFTER = 10


@dataclass(frozen=True)
class GenerateOptions:
    """Options: ``overwrite`` replaces stale images, ``retry_refused`` sends refused items again.

    ``blank_on_error`` saves white placeholders for failed items; ``workers`` items are in flight.
    """

    overwrite: bool = False
    retry_refused: bool = False
    blank_on_error: bool = False
    workers: int = 1


class CellRun:
    """One cell, from its survey to its outcome. ``todo`` are the items to generate, in the benchmark's order.

    ``outcome`` is set from the start if the cell cannot be generated (its images are stale). Nothing is
    written before :meth:`begin`. A model may print to ``log_path``. ``stopped`` is the one-line reason for
    starting no further item. ``sender`` sends the requests; None: they are sent one by one. ``cost`` is the
    cost in USD of this run's requests; None while unknown. With ``shard``, only the shard's ``items`` are
    generated.
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
        shard: Shard | None = None,
    ) -> None:
        self.cell, self.task, self.setting, self.log, self.log_path = cell, task, setting, log, log_path
        self._options, self._progress = options, progress
        self._settings = fp.settings_of(task, setting)
        self._shard = shard
        whole = survey(cell, items, self._settings, mend=True, shard=shard, tell=log)
        found = whole.of_shard(shard) if shard else whole
        log(_what_is_there(found))
        self.outcome: Outcome | None = None
        # stale images of other shards count too, else half of the cell would be replaced
        if stale := whole.explain_stale():
            log(stale)
            if not options.overwrite:
                text = f"{stale}; nothing was changed: add --overwrite to generate them again"
                self.outcome = Outcome(STALE, text)
        self.todo = found.to_make(options.overwrite, options.retry_refused)
        self.sender: Sender | None = None
        self.stopped = ""
        self.cost: float | None = None
        self.max_cost: float | None = None
        self._total, self._reused = len(found.states), found.of("reuse")
        self._refused_before = 0 if options.retry_refused else len(found.of("refused"))
        self._refused, self._failed, self._made = self._refused_before, 0, list[Path]()
        self._maybe_billed = self._lost_in_a_row = self._outages_in_a_row = 0
        self._last_error = self._last_failure = ""
        self._on_hold = False  # the reason to stop is temporary: a later run can continue
        self._failure: BaseException | None = None
        self._model = ImageModel()
        self._writer: RecordWriter | None = None

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the settings that generate the cell's images."""
        return fp.fingerprint(self._settings)

    def begin(self, model: ImageModel) -> None:
        """Prepare for the outcomes of the loaded ``model``.

        Raises CellFailure if the disk is full, or if images cannot be stored in their folders.
        """
        _make_folders({item.path.parent for item in self.todo})
        self._model = model
        if self._reused:
            model.has_made_images()
        model.begin_cell(self)
        self._writer = RecordWriter(self.cell, self.remember(model.packages()), self._shard)

    def remember(self, packages: Mapping[str, str]) -> str:
        """Record the settings and a worker's ``packages``. Returns the fingerprint of the settings."""
        return fp.remember(own_file(self.cell.fingerprints, self._shard), self._settings, packages)

    @property
    def _records(self) -> RecordWriter:
        assert self._writer is not None, "begin() comes first"
        return self._writer

    def keep_inputs(self, item: Item) -> None:
        """Copy the input images of ``item`` (:meth:`RecordWriter.keep_inputs`). Thread-safe."""
        self._records.keep_inputs(item)

    def store(self, item: Item, returned: Any, seconds: float) -> Exception | None:
        """Save the image that the model returned for ``item``, or return the error. Thread-safe.

        The image is durable after the next :meth:`commit`, as is the record of :meth:`lost`. Raises
        CellFailure if the disk is full.
        """
        try:
            made = as_generated(returned)
            with guest_code():  # the image may be of a class of the model's own; Pillow loads plugins late
                image = made.proven or made.image
                if isinstance(image, bytes):
                    image = when_one_is_free(functools.partial(facts, image))
                stored = when_one_is_free(functools.partial(encoded, image, item.path))
        except Exception as error:  # an image that does not decode or encode fails only its item
            return error
        record = replace(
            _paid(Record.of(item, OK), made.bill),
            seconds=seconds,
            attempts=made.attempts,
            seed_honoured=self._model.seed_honoured if made.seed_honoured is None else made.seed_honoured,
            requested_size=made.requested_size,
            extra=made.extra or None,
        )
        # safe to repeat: the steps that write the record come last and open no file
        when_one_is_free(lambda: self._records.save(item, record, stored))
        return None

    def stored(self, item: Item, returned: Any, error: Exception | None, seconds: float) -> None:
        """Count the result of :meth:`store` for ``returned``. Raises CellFailure if the disk is full."""
        if isinstance(returned, Generated):
            self._pay(returned.bill)
        if error:
            self.lost(item, error, seconds)
            return
        self._made.append(item.path)
        self._lost_in_a_row = self._outages_in_a_row = 0
        self.report()

    def lost(self, item: Item, error: Exception, seconds: float) -> None:
        """Save the failure or refusal of ``item``. Raises ``error`` if it is a CellFailure.

        Raises CellFailure also if the disk is full.
        """
        if isinstance(error, CellFailure):
            raise error
        record = Record.of(item, REFUSED if isinstance(error, Refused) else ITEM_FAILED)
        refused, bill, attempts = record.status == REFUSED, None, 1
        self._last_error = f"{name_of(error)}: {one_line(error, 300)}"
        if isinstance(error, GenerationError):
            bill, attempts = error.bill, error.attempts
            self._pay(bill)
        if isinstance(error, (ModelUnusable, OnHold)):
            if not self.stopped:
                self.log(self._last_error)
                self.stopped, self._on_hold = one_line(error, 300), isinstance(error, OnHold)
            if not (bill and (bill.cost or bill.maybe_billed)):
                return  # the error says nothing about the item
        else:
            self.log(f"{item.id} {record.status}: {self._last_error}")
        if isinstance(error, RemoteError):
            self.log(redact(error.trace))
        elif not isinstance(error, GenerationError):
            self.log(redact("".join(traceback.format_exception(error))))
        record = replace(
            _paid(record, bill),
            seconds=seconds,
            attempts=attempts,
            error={"class": name_of(error), "text": one_line(error)},
        )
        placeholder = None
        if self._options.blank_on_error and not refused:
            placeholder = encoded(Image.new("RGB", self._blank_size(item), "white"), item.path)
        when_one_is_free(lambda: self._records.save(item, record, placeholder))
        if refused:
            self._refused += 1
        else:
            self._failed += 1
            self._last_failure = self._last_error
        if not self.stopped:
            self._give_up(isinstance(error, ItemFailed) and error.transient)
        self.report()

    def _give_up(self, outage: bool) -> None:
        """Stop if the model has never worked, or if an endpoint has stopped answering.

        Items that fail for their own reasons (such as too long prompts) do not stop a model that has worked,
        now or earlier.
        """
        self._lost_in_a_row += 1
        self._outages_in_a_row = self._outages_in_a_row + 1 if outage else 0
        never_worked = not self._made and not self._reused
        in_a_row = self._lost_in_a_row if never_worked else self._outages_in_a_row
        if in_a_row >= max(_GIVE_UP_AFTER, 3 * self._options.workers):
            self.stopped = f"stopped after {in_a_row} failed items in a row: {self._last_error}"
            self._on_hold = outage and not never_worked

    def _pay(self, bill: Bill | None) -> None:
        if bill is not None:
            self._maybe_billed += bill.maybe_billed
            if bill.cost is not None:
                self.cost = (self.cost or 0.0) + bill.cost

    def _blank_size(self, item: Item) -> tuple[int, int]:
        pictures: Sequence[Any] = [part for part in item.input_list or [] if isinstance(part, Image.Image)]
        return pictures[0].size if pictures else requested_size(self.setting.get("model_kwargs", {}))

    def report(self, note: str = "", force: bool = False) -> None:
        """Report the cell's progress to the launcher."""
        reused = len(self._reused) + self._refused_before
        progress = Progress(
            cell=self.cell.key,
            stage="generate",
            done=len(self._reused) + len(self._made) + self._failed + self._refused,
            total=self._total,
            reused=reused,
            failed=self._failed + self._refused,
            note=note,
            cost=self.cost,
            max_cost=self.max_cost,
        )
        self._progress.report(progress, force)

    def holdup(self) -> str:
        """Returns why the model is waiting, for the progress line; empty if it is not."""
        return (self.sender.holdup() if self.sender else "") or self._model.holdup()

    def commit(self) -> None:
        """Make saved outcomes durable (:meth:`RecordWriter.commit`). Thread-safe."""
        if self._writer:
            self._writer.commit()

    def fail(self, error: BaseException) -> None:
        """Stop the cell because of ``error`` (such as a full disk)."""
        self._failure = self._failure or error
        self.stopped = self.stopped or one_line(error)

    def end(self) -> Outcome:
        """Flush the records and return the cell's outcome. Raises CellFailure: an error stopped the cell."""
        if self._writer:
            writer, self._writer = self._writer, None
            writer.close()
        self.report(force=True)
        if self._failure:
            raise self._failure
        made = [*self._made, *(item.path for item in self._reused)]
        if gone := sum(not path.is_file() for path in made):
            return Outcome(
                FAILED,
                f"{gone} of {len(made)} images were removed from {self.cell.folder} while this run worked; "
                "the same command generates them again",
            )
        return self._ended(len(made))

    def _ended(self, made: int) -> Outcome:
        counts = f"{made} of {self._total} images" + f" of shard {self._shard}" * bool(self._shard)
        if self.cost:
            lost = f", {self._maybe_billed} lost replies by estimate" if self._maybe_billed else ""
            counts += f", {dollars(self.cost)}{lost}"
        if self.stopped and self._on_hold:  # a cell that waits for money or for the endpoint is not broken
            return Outcome(INCOMPLETE, f"{self.stopped} ({counts}); the same command resumes here")
        if self.stopped:
            return Outcome(FAILED, f"{self.stopped} ({counts})")
        if not self._total and self._shard:
            return Outcome(COMPLETE, "the shard has none of its items", is_empty=True)
        if not self._total:
            return Outcome(FAILED, "the benchmark has no items")
        # the few items of a shard may all fail: the launcher checks the whole cell once all shards have ended
        if not made and not (self._shard and self._refused + self._failed == self._total):
            before = f"all {self._refused} items were refused before: --retry_refused asks again"
            return Outcome(FAILED, f"{self._last_error or before} ({counts})")
        if made == self._total:
            return Outcome(COMPLETE, counts)
        words, remedies = list[str](), list[str]()
        if self._refused:
            words.append(f"{self._refused} refused")
        if self._failed:
            words.append(f"{self._failed} failed")
            remedies.append(
                "the same command tries failed ones again, unless their reason names another remedy "
                f"(the last: {self._last_failure})"
            )
        if self._refused:
            remedies.append("--retry_refused sends refused ones again")
        told = f"{counts}, {', '.join(words)}; {', '.join(remedies)}"
        return Outcome(INCOMPLETE, told, is_empty=not made)


def _paid(record: Record, bill: Bill | None) -> Record:
    """Returns ``record`` with the cost of the item's requests."""
    if bill is None:
        return record
    return replace(record, tokens=bill.tokens or None, price=bill.cost, maybe_billed=bill.maybe_billed)


def _make_folders(folders: set[Path]) -> None:
    """Make the folders of images before any image is paid for. Raises CellFailure if one is not writable."""
    for folder in sorted(folders):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            why = error.strerror
        else:
            why = "" if os.access(folder, os.W_OK | os.X_OK) else "it may not be written to"
        if why:
            raise CellFailure(f"no image can be stored in {folder}: {why}; remove or repair it")


def requested_size(model_kwargs: Mapping[str, Any]) -> tuple[int, int]:
    """Returns the (width, height) in pixels of a placeholder: from the model's kwargs, else 1024 × 1024."""
    width, height = model_kwargs.get("width"), model_kwargs.get("height")
    if isinstance(width, int) and isinstance(height, int):
        return width, height
    sides = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", str(model_kwargs.get("size", "")), re.IGNORECASE)
    return (int(sides[1]), int(sides[2])) if sides else (1024, 1024)


def _what_is_there(found: Survey) -> str:
    counts = found.counts
    parts = [f"{counts['reuse']} of {len(found.states)} images exist, {counts['make']} to generate"]
    if counts["repair"]:
        parts.append(f"{counts['repair']} to repair (missing, truncated or altered)")
    if counts["refused"]:
        parts.append(f"{counts['refused']} refused before")
    return ", ".join(parts)
