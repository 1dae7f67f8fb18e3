"""The base class of the work of an extra after the questions of a result.

See :mod:`imageevalkit.extension_points`.
"""

from __future__ import annotations

from collections.abc import Mapping

from imageevalkit.benchmark.contract import Benchmark, Scores
from imageevalkit.evaluate.interview import Interview
from imageevalkit.jobs.plan import EvaluateOrder
from imageevalkit.jobs.progress import ProgressWriter
from imageevalkit.store.cell import Cell
from imageevalkit.store.results import Result
from imageevalkit.store.states import ImageState


class AfterQuestions:
    """Work of an extra after the questions of one result."""

    def __init__(
        self, cell: Cell, benchmark: Benchmark, interview: Interview, options: EvaluateOrder
    ) -> None:
        self.cell, self.benchmark, self.interview, self.options = cell, benchmark, interview, options

    @staticmethod
    def planned(interview: Interview, options: EvaluateOrder) -> tuple[int, str]:
        """Returns the number of further requests to an API, and words about them, for ``--dry_run``."""
        return 0, ""

    def ask(self, progress: ProgressWriter) -> None:
        """Asks further questions. Raises CellFailure if a file cannot be read or written."""

    def amend(self, result: Result, states: Mapping[str, ImageState], scores: Scores) -> Result:
        """Returns ``result`` with the findings of the further questions. Scores and metrics stay."""
        return result

    def summary(self, result: Result) -> str:
        """Returns the words about the further questions for the line of the result; may be ""."""
        return ""
