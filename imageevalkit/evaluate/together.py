"""Asks metric models about the images of several cells at once: each model loads once for all of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import NamedTuple

from imageevalkit.benchmark.answerer import Answerer
from imageevalkit.benchmark.question import JudgeUnusable, Question
from imageevalkit.common.errors import CellFailure, say
from imageevalkit.common.machine import garbage_collection
from imageevalkit.common.redaction import one_line
from imageevalkit.evaluate.interview import Interview
from imageevalkit.jobs.plan import COMPLETE, FAILED, Outcome, outcome_of
from imageevalkit.jobs.progress import ProgressWriter, watched
from imageevalkit.judges.choice import Judge
from imageevalkit.store.jsonl import JsonlWriter


class _Asked(NamedTuple):
    key: str
    question: Question


def measure_together(
    interviews: Mapping[str, Interview], progress: ProgressWriter, print_to_log_of: Callable[[str], None]
) -> dict[str, Outcome]:
    """Asks metric models all their open questions of ``interviews`` (by cell), and the judge none.

    Returns the failures by cell. If a model stops answering, the ``problem`` of its interviews says so.
    """
    failed = dict[str, Outcome]()
    # each round may open more questions, as in Interview.run()
    while of_models := _open({key: one for key, one in interviews.items() if key not in failed}):
        for answerer, asked in of_models:
            keys = dict.fromkeys(one.key for one in asked)
            for key in keys:
                print_to_log_of(key)
                say(f"{len(asked)} questions about {len(keys)} results to {answerer.evaluator.id}")
                _report(interviews[key], progress, answerer.holdup())
            measuring = _Measuring(interviews, progress, print_to_log_of, failed)
            outcome = outcome_of(lambda: measuring.ask(answerer, asked), say)  # noqa: B023 - called at once
            for key in keys:
                _report(interviews[key], progress, "")
                if outcome.state == FAILED:
                    failed.setdefault(key, outcome)
    return failed


def _open(interviews: Mapping[str, Interview]) -> list[tuple[Answerer, list[_Asked]]]:
    """Returns the metric models with their open questions. Equal models of several cells count as one."""
    answerers, asked = dict[str, Answerer](), defaultdict[str, list[_Asked]](list)
    for key, interview in interviews.items():
        for question in () if interview.problem else interview.open():
            answerer = interview.answerers.of(question)
            if not isinstance(answerer, Judge):
                model = answerer.evaluator.as_json
                answerers.setdefault(model, answerer)
                asked[model].append(_Asked(key, question))
    return [(answerer, asked[model]) for model, answerer in answerers.items()]


def _report(interview: Interview, progress: ProgressWriter, note: str) -> None:
    interview.note = note
    interview.report(progress, force=True)


class _Measuring(NamedTuple):
    interviews: Mapping[str, Interview]
    progress: ProgressWriter
    print_to_log_of: Callable[[str], None]
    failed: dict[str, Outcome]

    def ask(self, answerer: Answerer, asked: Sequence[_Asked]) -> Outcome:
        """Asks ``answerer`` and records its answers. Raises as :meth:`Answerer.ask`, except JudgeUnusable."""
        # the items of several cells have the same names, so the name of the cell is added
        waiting = {(f"{one.key}/{one.question.item}", one.question.name): one for one in asked}
        questions = [one.question.of_item(item) for (item, _), one in waiting.items()]
        writers = {one.key: JsonlWriter(self.interviews[one.key].cell.judgements) for one in asked}
        problem, shown = "questions got neither an answer nor an error", ""
        with ExitStack() as stack:
            for writer in writers.values():
                stack.enter_context(closing(writer))
            stack.enter_context(watched(*(writer.sync for writer in writers.values())))
            stack.enter_context(garbage_collection(True))
            try:
                for answer in answerer.ask(questions, self.interviews[asked[0].key].answerers.cores):
                    key, question = waiting.pop((answer.question.item, answer.question.name))
                    if key != shown:
                        self.print_to_log_of(shown := key)
                    interview = self.interviews[key]
                    try:
                        if key not in self.failed and not interview.problem:
                            interview.take(replace(answer, question=question), writers[key])
                    except JudgeUnusable as error:
                        interview.problem = one_line(error)
                    except CellFailure as error:  # the benchmark's code failed
                        self.failed[key] = Outcome(FAILED, one_line(error))
                    interview.report(self.progress)
            except JudgeUnusable as error:
                problem = one_line(error)
                say(f"{answerer.evaluator.id} stopped answering: {problem}")
        for key in dict.fromkeys(one.key for one in waiting.values()):
            self.interviews[key].problem = self.interviews[key].problem or problem
        return Outcome(COMPLETE)
