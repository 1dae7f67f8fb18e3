"""Evaluates images while generation still stores more of them.

The questions are the same as without this module. Once all images exist, the evaluation reuses the answers,
so the result is the same as with one stage after the other.
"""

from __future__ import annotations

import contextlib
import threading
import time
import traceback
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from queue import Empty, SimpleQueue

from imageevalkit.api.feed import Feed
from imageevalkit.benchmark.answerer import Answerer
from imageevalkit.benchmark.contract import Benchmark
from imageevalkit.benchmark.question import Answer, JudgeUnusable, Question
from imageevalkit.common.errors import CellFailure, UserError, said_of, say
from imageevalkit.common.redaction import one_line, redact
from imageevalkit.evaluate.interview import Interview
from imageevalkit.evaluate.scoring import judged_items
from imageevalkit.jobs.plan import USABLE, EvaluateOrder, Outcome, opened_with, read_outcome
from imageevalkit.jobs.progress import ProgressWriter, watched
from imageevalkit.store.cell import Cell
from imageevalkit.store.items import Item, as_shown
from imageevalkit.store.jsonl import JsonlWriter
from imageevalkit.store.states import StoredImages

_LOOK_EVERY = 0.2  # seconds between looks at the records and at the outcome
_AT_ONCE = 200  # images per look: a larger number would delay the storing of answers


class Generation:
    """The generation of a cell's images by another process, as the run folder shows it."""

    def __init__(self, run_folder: Path, cell: Cell) -> None:
        self._run_folder, self._cell = run_folder, cell

    @property
    def outcome(self) -> Outcome | None:
        """The outcome of the generation; None while it is running."""
        return read_outcome(self._run_folder, self._cell, "generate")

    @property
    def has_begun(self) -> bool:
        """Whether images are being generated, or were."""
        return opened_with(self._run_folder, self._cell) is not None

    @property
    def is_made(self) -> bool:
        """Whether the generation has ended with images to evaluate."""
        return (outcome := self.outcome) is not None and outcome.state in USABLE

    def images(self, items: Sequence[Item]) -> StoredImages | None:
        """Waits until the generation begins and returns its stored images; None if it ends before."""
        while (fingerprint := opened_with(self._run_folder, self._cell)) is None:
            if self.outcome:
                return None
            time.sleep(_LOOK_EVERY)
        # generation begins only after the rewriting, so as_shown finds the rewritten prompts
        return StoredImages(self._cell, as_shown(self._cell, items), fingerprint)


def follow(
    cell: Cell,
    benchmark: Benchmark,
    items: Sequence[Item],
    progress: ProgressWriter,
    options: EvaluateOrder,
    generation: Generation,
) -> Interview | None:
    """Asks about the images of ``items`` until ``generation`` has ended, and returns the interview.

    If asking fails, this function prints the reason and returns None at once: a job that cannot ask must not
    hold its GPU. The answers so far are on record. It also returns None if the generation did not begin.
    """
    interview = None
    try:
        if images := generation.images(items):
            benchmark.files().sha256()
            interview = Interview(cell, benchmark, judged_items(cell, items), {}, options, say)
            with closing(JsonlWriter(cell.judgements)) as writer, watched(writer.sync):
                _Follower(interview, progress).run(images, generation, writer)
    except Exception as error:
        is_ours = isinstance(error, CellFailure | JudgeUnusable | UserError)
        if not is_ours:  # the later evaluation meets the same error and reports it as its outcome
            say(redact(traceback.format_exc()))
        why = one_line(error) if is_ours else said_of(error)
        say(f"no questions until all images exist: {why}")
        return None
    return interview


class _Follower:
    def __init__(self, interview: Interview, progress: ProgressWriter) -> None:
        self._interview, self._answerers, self._progress = interview, interview.answerers, progress
        self._feeds: dict[Answerer, Feed[Question]] = {}
        self._given: SimpleQueue[tuple[Answerer, Answer | BaseException | None]] = SimpleQueue()
        self._answering = 0
        self._held: dict[Answerer, deque[Question]] = defaultdict(deque)
        self._out: Counter[Answerer] = Counter()

    def run(self, images: StoredImages, generation: Generation, writer: JsonlWriter) -> None:
        """Asks about all images. If a judge or metric model fails, raises its JudgeUnusable or CellFailure
        after the pending answers are on record.
        """
        try:
            self._ask(images, generation, writer)
        except BaseException:
            self._end(writer, drop=True)
            raise
        self._end(writer, drop=False)

    def _ask(self, images: StoredImages, generation: Generation, writer: JsonlWriter) -> None:
        seen = set[str]()
        while True:
            is_over = generation.outcome is not None  # before the images: misses none of the last
            found = {state.item.id: state for state in images.new(_AT_ONCE) if state.item.id not in seen}
            seen.update(found)
            self._interview.show(found)
            self._hand_out()
            if is_over and not found:
                if not self._interview.is_asking:
                    return
                for feed in self._feeds.values():
                    feed.hurry()
            for answer in self._answers(0.0 if found else _LOOK_EVERY):
                self._interview.take(answer, writer)
            holdups = filter(None, (answerer.holdup() for answerer in self._feeds))
            self._interview.note = "; ".join(holdups) if self._interview.is_asking else "waiting for images"
            self._interview.report(self._progress)

    def _hand_out(self) -> None:
        """Sends fresh questions to their evaluators. The judge costs money, so it gets questions only after
        every metric model with open questions has answered one."""
        for question in self._interview.fresh():
            self._held[self._answerers.of(question)].append(question)
        for answerer in sorted(self._held, key=lambda one: one is self._answerers.judge):
            if answerer is self._answerers.judge and self._are_trying():
                return
            if answerer not in self._feeds:
                self._begin(answerer)
            while held := self._held[answerer]:
                self._feeds[answerer].put(held.popleft())
                self._out[answerer] += 1

    def _are_trying(self) -> bool:
        return any(out and one not in self._interview.answered for one, out in self._out.items())

    def _begin(self, answerer: Answerer) -> None:
        if answerer in self._interview.answered:
            answerer.has_answered()
        feed = self._feeds[answerer] = Feed[Question]()
        self._answering += 1

        def answer() -> None:
            try:
                for answer in answerer.follow(feed, self._answerers.cores):
                    self._given.put((answerer, answer))
                self._given.put((answerer, None))
            except BaseException as error:  # author code may call sys.exit()
                self._given.put((answerer, error))

        threading.Thread(target=answer, name=f"follow {len(self._feeds)}", daemon=True).start()

    def _answers(self, patience: float) -> Iterator[Answer]:
        """Yields the answers that are ready, and waits up to ``patience`` seconds for the first. Raises the
        error of an evaluator."""
        with contextlib.suppress(Empty):
            while True:
                answerer, given = self._given.get(timeout=patience) if patience else self._given.get_nowait()
                patience = 0.0
                if isinstance(given, Answer):
                    self._out[answerer] -= 1
                    yield given
                    continue
                self._answering -= 1
                if isinstance(given, JudgeUnusable):
                    say(f"{answerer.evaluator.id} stopped answering: {one_line(given)}")
                if isinstance(given, Exception):
                    raise given
                if given or self._feeds[answerer].left:
                    raise CellFailure(f"{answerer.evaluator.id} ended: {given!r}")

    def _end(self, writer: JsonlWriter, drop: bool) -> None:
        """Takes the outstanding answers. With ``drop``, questions that still wait in a feed are not asked."""
        for feed in self._feeds.values():
            feed.close(drop)
        problem: Exception | None = None
        while self._answering:
            try:
                for answer in self._answers(_LOOK_EVERY):
                    self._interview.take(answer, writer)
            except (JudgeUnusable, CellFailure) as error:
                problem = problem or error
            self._interview.report(self._progress)
        if problem and not drop:
            raise problem
