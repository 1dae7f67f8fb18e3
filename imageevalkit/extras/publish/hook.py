"""Publishes the results at the end of a command."""

from __future__ import annotations

from collections.abc import Mapping

from imageevalkit.cli.command_line import ResultsHook
from imageevalkit.common.errors import ExitStatus, show
from imageevalkit.extras.publish.folder import check_folder, publish
from imageevalkit.jobs.plan import Plan


class PublishHook(ResultsHook):
    """Writes the folder of ``--publish``."""

    def prepare(self, plan: Plan | None) -> None:
        check_folder(self.given.extra["publish"]["publish"])

    def finish(self, failed: Mapping[str, str] | None) -> ExitStatus:
        return publish(self.given.extra["publish"]["publish"], show)
