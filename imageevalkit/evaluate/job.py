"""The evaluate job: scores its cells one after another with evaluators that it loads once."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from imageevalkit import registry
from imageevalkit.benchmark.answerer import device_lost
from imageevalkit.benchmark.contract import JUDGE, Benchmark
from imageevalkit.common import logs
from imageevalkit.common.atomic import write_atomic
from imageevalkit.common.errors import CellFailure, ExitStatus, complain, say, worst
from imageevalkit.common.machine import garbage_collection
from imageevalkit.common.redaction import one_line
from imageevalkit.evaluate.following import Generation, follow
from imageevalkit.evaluate.interview import Interview
from imageevalkit.evaluate.scoring import evaluate_cell, judged_items, leave_outcome
from imageevalkit.evaluate.together import measure_together
from imageevalkit.jobs import plan as jobs
from imageevalkit.jobs.progress import ProgressWriter
from imageevalkit.judges.server import ServerAddress
from imageevalkit.store.cell import Cell
from imageevalkit.store.items import Item, drawn, items_of
from imageevalkit.store.states import scorable, survey_images

_LOOK_EVERY = 0.5  # seconds between looks at the generation of the cells
_MOST_CRASHES = 2  # in one cell: its third attempt would crash as well


@dataclass
class Evaluation:
    """The evaluation of one cell.

    ``interview`` is the one that began before :meth:`score`, ``outcome`` a failure before it; None: neither.
    """

    cell: Cell
    order: jobs.EvaluateOrder
    settings: dict[str, Any]
    progress: ProgressWriter
    interview: Interview | None = None
    outcome: jobs.Outcome | None = None

    @cached_property
    def _benchmark(self) -> Benchmark:
        return registry.make_benchmark(self.cell.benchmark, self.settings, self.order.judge)

    @cached_property
    def _whole(self) -> Sequence[Item]:
        return items_of(registry.BenchmarkDataset(self._benchmark), self.cell, self.order.limit)

    @property
    def _items(self) -> Sequence[Item]:
        return drawn(self._whole, self.cell.benchmark, self.order.asked.get(self.cell.benchmark))

    @property
    def has_metric_models(self) -> bool:
        """Whether another evaluator than a judge answers questions."""
        benchmark = self._benchmark
        if benchmark.measurers:
            return any(one != JUDGE for one in benchmark.measurers.values())
        return bool(benchmark.judge) and not benchmark.backend

    def follow(self, generation: Generation) -> None:
        """Asks about the images while they are generated (:func:`imageevalkit.evaluate.following.follow`)."""
        with garbage_collection(True):
            self.interview = follow(
                self.cell, self._benchmark, self._items, self.progress, self.order, generation
            )

    def prepare(self) -> None:
        """Finds the images and the questions about them. Raises as :class:`Interview` does."""
        items, benchmark = judged_items(self.cell, self._items), self._benchmark
        benchmark.files().sha256()
        blank = self.order.official and benchmark.scores_blank
        images = scorable(survey_images(self.cell, items).states, blank)
        self.interview = Interview(self.cell, benchmark, items, images, self.order, say)

    def score(self) -> jobs.Outcome:
        """Asks open questions and scores the cell (:func:`imageevalkit.evaluate.scoring.evaluate_cell`)."""
        items = self._items
        judged, unasked = judged_items(self.cell, items), len(self._whole) - len(items)
        return evaluate_cell(
            self.cell, self._benchmark, judged, self.progress, self.order, self.interview, unasked
        )


class EvaluateJob:
    """One start of an evaluate job. If it has several cells, each prints to its own log."""

    def __init__(self, plan: jobs.Plan, job: jobs.Job, order: jobs.EvaluateOrder) -> None:
        self._plan, self._job, self._order, self._folder = plan, job, order, Path(plan.run_folder)
        self._progress = ProgressWriter(plan.progress_path(job))
        self._logs = dict(zip(job.cells, map(Path, job.logs), strict=True)) if len(job.cells) > 1 else {}
        self._is_early = jobs.EARLY_ENV in os.environ
        self._aside = set[str]()
        """Cells that an early start leaves for later: they are asked about once all images are there."""
        self._cannot_ask = False
        self._followed = dict[str, Evaluation]()
        self._attempt = int(os.environ.get(jobs.ATTEMPT_ENV, "1"))
        self._crashed = self._crashes()

    def run(self) -> ExitStatus:
        """Evaluates every cell without outcome and returns the worst status of the cells.

        An early start takes cells with complete images first, then cells that are being generated. The start
        returns LATER if the remaining cells need complete images, or if the evaluator cannot be asked. A
        waiting job must not hold its GPU.
        """
        left = [key for key in self._job.cells if self._job.always or not self._outcome(key)]
        left.sort(key=self._crashed.count)
        while left and not device_lost.is_set():
            if made := [key for key in left if self._is_made(key)]:
                self._score(made)
                left = [key for key in left if key not in made]
            elif begun := [key for key in left if key not in self._aside and self._generation(key).has_begun]:
                self._follow(begun[0])
            elif self._cannot_ask or self._aside.issuperset(left):
                return ExitStatus.LATER
            else:
                time.sleep(_LOOK_EVERY)
        if self._job.always:  # an earlier job has written the outcomes of the cells
            return ExitStatus.COMPLETE
        outcomes = map(self._outcome, self._job.cells)
        return worst(jobs.STATUS_OF_STATE[one.state] if one else ExitStatus.FAILED for one in outcomes)

    def _outcome(self, key: str) -> jobs.Outcome | None:
        return jobs.read_outcome(self._folder, jobs.cell_of(key), self._job.step)

    def _generation(self, key: str) -> Generation:
        return Generation(self._folder, jobs.cell_of(key))

    def _is_made(self, key: str) -> bool:
        """Returns whether the cell can be scored now.

        An early start leaves a cell whose generation failed: another attempt of that job may succeed.
        """
        if not self._is_early:
            return True
        generation = self._generation(key)
        if generation.outcome and not generation.is_made:
            self._aside.add(key)
        return generation.is_made

    # ---- one cell

    def _evaluation(self, key: str) -> Evaluation:
        cell, order = jobs.cell_of(key), self._order
        options = replace(order.judge_options, sender_folder=str(cell.judge_batches.absolute()))
        settings = self._plan.settings.get(cell.benchmark, {})
        return Evaluation(cell, replace(order, judge_options=options), settings, self._progress)

    def _print_to_log_of(self, key: str) -> None:
        if key in self._logs:
            logs.print_to(self._logs[key])

    def _follow(self, key: str) -> None:
        """Asks about the images of a cell while they are generated."""
        self._begin(key)
        evaluation, generation = self._evaluation(key), self._generation(key)

        def followed() -> jobs.Outcome:
            evaluation.follow(generation)
            return jobs.Outcome(jobs.COMPLETE)

        with garbage_collection(False):
            outcome = jobs.outcome_of(followed, say)
        if generation.is_made:
            self._followed[key] = evaluation
            return
        self._aside.add(key)
        self._cannot_ask |= evaluation.interview is None
        why = outcome.message or "images are missing"
        say(f"{why}; once all images exist, evaluation resumes with the recorded answers")
        self._note_cell_in_work("")

    def _score(self, keys: Sequence[str]) -> None:
        lost = {} if self._job.always else jobs.lost_before(self._plan, self._job)
        evaluations = dict[str, Evaluation]()
        for key in keys:
            self._print_to_log_of(key)
            if why := lost.get(key):
                leave_outcome(jobs.cell_of(key), jobs.Outcome(jobs.FAILED, why), self._plan)
            elif self._crashed.count(key) >= _MOST_CRASHES:
                why = f"the process ended in the middle of it {_MOST_CRASHES} times"
                leave_outcome(jobs.cell_of(key), jobs.Outcome(jobs.FAILED, why), self._plan)
            else:
                followed = self._followed.pop(key) if key in self._followed else None
                evaluations[key] = followed or self._evaluation(key)
        # another attempt takes one cell at a time: the cell that crashes it must not end the others
        if len(evaluations) > 1 and self._order.ask and self._attempt == 1:
            self._measure(evaluations)
        for key in list(evaluations):
            if device_lost.is_set():  # the next attempt of the job is a new process
                return
            self._begin(key)
            self._leave(evaluations.pop(key))  # a finished cell needs no memory

    def _measure(self, evaluations: Mapping[str, Evaluation]) -> None:
        """Asks the metric models about all cells, so that each model is loaded once.

        A cell that cannot be prepared reports its error when it is scored.
        """

        def prepared(evaluation: Evaluation) -> jobs.Outcome:
            if evaluation.has_metric_models and not evaluation.interview:
                evaluation.prepare()
            return jobs.Outcome(jobs.COMPLETE)

        with garbage_collection(False):
            for key, evaluation in evaluations.items():
                self._print_to_log_of(key)
                jobs.outcome_of(functools.partial(prepared, evaluation), lambda trace: None)
            asking = {key: one.interview for key, one in evaluations.items() if one.interview}
            failed = measure_together(asking, self._progress, self._print_to_log_of)
        for key, outcome in failed.items():
            evaluations[key].outcome = outcome

    def _begin(self, key: str) -> None:
        self._print_to_log_of(key)
        if key in self._logs:
            say(f"=== evaluate {key}")
        if address := self._order.judge_options.address_file:
            ServerAddress(Path(address)).begin_cell()
        self._note_cell_in_work(key)

    def _leave(self, evaluation: Evaluation) -> None:
        with garbage_collection(False):
            outcome = evaluation.outcome or jobs.outcome_of(evaluation.score, say)
        if self._job.always:
            say(f"{outcome.state}: {outcome.message}")
            return
        try:
            leave_outcome(evaluation.cell, outcome, self._plan)
        except (CellFailure, OSError) as error:  # the launcher explains a cell without an outcome
            complain(one_line(error))

    # ---- crashes

    @property
    def _in_work(self) -> Path:
        return self._folder / "in_work" / self._job.stem

    def _crashes(self) -> list[str]:
        """Returns the cells in which earlier attempts of this job crashed, a cell for each crash."""
        if self._attempt == 1:
            self._in_work.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            return list(filter(None, self._in_work.read_text(encoding="utf-8").splitlines()))
        return []

    def _note_cell_in_work(self, key: str) -> None:
        """Records the cell that counts as the cause if this process crashes from now on; empty: none."""
        with contextlib.suppress(CellFailure, OSError):  # a full disk
            write_atomic(self._in_work, "\n".join([*self._crashed, key]))
