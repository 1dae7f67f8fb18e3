"""Notes on a result what ``--until`` has settled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from imageevalkit.benchmark.contract import Scores
from imageevalkit.evaluate.after_questions import AfterQuestions
from imageevalkit.store.results import Coverage, Result, Until
from imageevalkit.store.states import ImageState


class Settled(AfterQuestions):
    """Adds the facts of ``--until`` to a result."""

    def amend(self, result: Result, states: Mapping[str, ImageState], scores: Scores) -> Result:
        until = self.options.until.get(self.cell.benchmark)
        if until is None:
            return result
        return replace(result, until=until, notes=[*_stopped_early(result.coverage, until), *result.notes])


def _stopped_early(coverage: Coverage, until: Until) -> list[str]:
    """Returns a note for a result that ``--until`` stopped early; empty if none is missing."""
    if not coverage.unasked:
        return []
    counts = f"{coverage.asked:,} of {coverage.expected:,} items were asked for (--until)"
    verdicts = [
        f"{name}: {better} > {next(one for one in until.pair if one != better)}, settled after {items:,}"
        for name, (better, items) in until.better.items()
    ]
    return [f"{counts}; {'; '.join(verdicts) or 'nothing is settled yet'}"]
