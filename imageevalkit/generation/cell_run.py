"""One cell of generation: survey, explain, make what is left, leave an outcome."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imageevalkit.cell import Cell
from imageevalkit.cell import fingerprint as fp
from imageevalkit.cell.items import Item
from imageevalkit.cell.records import RecordWriter
from imageevalkit.cell.states import Survey, survey
from imageevalkit.errors import CellFailure
from imageevalkit.generation.making import Making
from imageevalkit.generation.model import ImageModel
from imageevalkit.jobs import COMPLETE, FAILED, INCOMPLETE, STALE, Outcome
from imageevalkit.progress import ProgressWriter
from imageevalkit.secrets import one_line


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
        self.making = Making(
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
        self.making.start(RecordWriter(self.cell, self.remember(model.packages())))

    def remember(self, packages: Mapping[str, str]) -> str:
        """Keep what makes the images, of one of several workers perhaps; returns the settings' fingerprint."""
        return fp.remember(self.cell.fingerprints, self._settings, packages)

    def holdup(self) -> str:
        """What holds the model back, for the progress line."""
        return self._model.holdup()

    def fail(self, error: BaseException) -> None:
        """The cell cannot go on (full disk)."""
        self._failure = self._failure or error
        self.making.stopped = self.making.stopped or one_line(error)

    def end(self) -> Outcome:
        """Flush the records and say how the cell ended.

        Raises:
            CellFailure: it could not go on.
        """
        self.making.close()
        self.making.report(force=True)
        if self._failure:
            raise self._failure
        made = [*self.making.images, *(item.path for item in self._reused)]
        if gone := sum(not path.is_file() for path in made):
            return Outcome(
                FAILED,
                f"{gone} of {len(made)} images were removed from {self.cell.folder} while this run was at work; "
                "the same command makes them again",
            )
        return _outcome(self.making, len(self._reused))


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


def _outcome(making: Making, reused: int) -> Outcome:
    made = making.ok + reused
    counts = f"{made} of {making.total} images"
    if making.spent_words():
        counts += f", {making.spent_words()}"
    if making.stopped:
        # what only waits for money or for the endpoint is not broken
        if making.on_hold:
            return Outcome(INCOMPLETE, f"{making.stopped} ({counts}); the same command goes on from here")
        return Outcome(FAILED, f"{making.stopped} ({counts})")
    if not making.total:
        return Outcome(FAILED, "the benchmark has no items")
    if not made:
        reason = making.last_error or (
            f"all {making.refused} items were refused before: --retry_refused asks again"
        )
        return Outcome(FAILED, f"{reason} ({counts})")
    if made < making.total:
        lost = ((making.refused, "refused"), (making.failed, "failed"))
        words = ", ".join(f"{n} {word}" for n, word in lost if n)
        remedies = [f"the same command tries failed ones again (the last: {making.last_failure})"] * bool(
            making.failed
        )
        remedies += ["--retry_refused sends refused ones again"] * bool(making.refused)
        return Outcome(INCOMPLETE, f"{counts}, {words}; {', '.join(remedies)}")
    return Outcome(COMPLETE, counts)
