"""Commands, schedulers and work on results that an extra adds to the command line.

See :mod:`imageevalkit.extension_points`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from imageevalkit.common.errors import ExitStatus
from imageevalkit.jobs.plan import Plan
from imageevalkit.plan.config import Config
from imageevalkit.plan.options import Options
from imageevalkit.run.summary import RunSummary


@dataclass(frozen=True)
class Command:
    """A command that takes the place of a run if its ``option`` is on the command line.

    ``run`` gets the options by name, the configuration and the user's folder. It returns the exit status and
    may raise UserError and CellFailure. ``uses_results``: the command only reads results, so options that ask
    for a run contradict it.
    """

    option: str
    run: Callable[[Mapping[str, Any], Config, Path], ExitStatus]
    uses_results: bool = True


@dataclass(frozen=True)
class Scheduler:
    """Runs the plan of a run in several steps if its ``option`` is on the command line.

    ``run`` gets the options, the configuration, the plan of the whole run and the descriptors that lock its
    cells. ``describe`` returns the line that a dry run prints below the plan.
    """

    option: str
    run: Callable[[Options, Config, Plan, dict[str, int]], RunSummary]
    describe: Callable[[Options], str]


class ResultsHook:
    """Work on the results in ``output/``, at the end of a run or without one.

    Any option of the extra asks for it. ``wants_report``: without a run, the report is written first.
    """

    wants_report: ClassVar[bool] = False

    def __init__(self, options: Options) -> None:
        self.given = options

    def prepare(self, plan: Plan | None) -> None:
        """Checks whether the work can be done, before a run (``plan``) starts or, without one (None), at once.

        Raises UserError if it cannot.
        """

    def finish(self, failed: Mapping[str, str] | None) -> ExitStatus:
        """Does the work. ``failed`` has the reason of failure ("": none) of each cell of the run; None: no run.

        Raises UserError, CellFailure.
        """
        return ExitStatus.COMPLETE
