"""Takes the files of ``--votes`` before a report."""

from __future__ import annotations

from pathlib import Path

from imageevalkit.cli.command_line import ResultsHook
from imageevalkit.common.errors import UserError, say
from imageevalkit.common.text import counted
from imageevalkit.extras.votes.report import take_votes
from imageevalkit.jobs.plan import Plan
from imageevalkit.store.cell import short_path


class VotesHook(ResultsHook):
    """Copies the vote files: this report and all later ones read the copies."""

    wants_report = True

    def prepare(self, plan: Plan | None) -> None:
        try:
            copies = take_votes(map(Path, self.given.extra["votes"]["votes"]))
        except OSError as error:
            raise UserError(f"--votes: {error.filename} cannot be written: {error.strerror}") from None
        files = counted(len(copies), "file")
        say(f"{files} of votes taken: every report reads {short_path(copies[0].parent)}")
