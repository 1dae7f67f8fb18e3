"""Sends the results to a tracker at the end of a command."""

from __future__ import annotations

from collections.abc import Mapping

from imageevalkit.cli.command_line import ResultsHook
from imageevalkit.common.errors import ExitStatus, show
from imageevalkit.extras.export.trackers import check_tracker, send
from imageevalkit.jobs.plan import Plan


class ExportHook(ResultsHook):
    """Sends to the tracker of ``--export``."""

    def prepare(self, plan: Plan | None) -> None:
        check_tracker(self.given.extra["export"]["export"][0])

    def finish(self, failed: Mapping[str, str] | None) -> ExitStatus:
        tracker, place = self.given.extra["export"]["export"]
        send(tracker, place, show)
        return ExitStatus.COMPLETE
