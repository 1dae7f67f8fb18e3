"""The command ``--compare``, and the gate at the end of a command."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from imageevalkit.cli.command_line import Command, ResultsHook
from imageevalkit.common.errors import ExitStatus, UserError
from imageevalkit.extras.compare.gate import Gate
from imageevalkit.extras.compare.telling import compare_words
from imageevalkit.jobs.plan import Plan
from imageevalkit.plan.config import Config
from imageevalkit.plan.options import Options, options_over
from imageevalkit.store.cell import short_path


def _compare(given: Mapping[str, Any], config: Config, here: Path) -> ExitStatus:
    return compare_words(options_over(given, config).extra["compare"]["compare"], here)


COMMANDS = [Command("--compare", _compare)]


class GateHook(ResultsHook):
    """Checks the results against the baseline of ``--gate``, and saves one with ``--save_baseline``."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        own = options.extra["compare"]
        self._gate = Gate.of(own["gate"], own["save_baseline"])

    def prepare(self, plan: Plan | None) -> None:
        if plan is None:
            return
        place = self.given.extra["compare"]["gate"]
        if self.given.detach and place:
            raise UserError(
                "--detach ends before the gate, so its exit status would be lost: leave one of them out, "
                f"or run bash eval.sh --gate {shlex.quote(short_path(place))} when the run has ended"
            )
        self._gate.check_cells(plan.cells)

    def finish(self, failed: Mapping[str, str] | None) -> ExitStatus:
        return self._gate.close(failed)
