"""Submits jobs to Slurm, reads its queue, and ends jobs.

Commands and states: https://slurm.schedmd.com/sbatch.html, squeue.html.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from imageevalkit.common.redaction import one_line
from imageevalkit.common.slurm import SlurmFailed, ask

_AT_ONCE = 500  # job numbers in one command
# "sbatch --parsable" prints the job number, then ";" and the cluster if there are several clusters.
_NUMBER = re.compile(r"(\d+)(?:;\S+)?")
# Model names are printable, so no column contains a tab.
_TAB, _COLUMNS = "\t", ("%i", "%T", "%r", "%N", "%j", "%k")
# "JOB STATE CODES" of squeue
KILLED = frozenset(
    {"BOOT_FAIL", "CANCELLED", "DEADLINE", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT"}
)
"""States of a job that Slurm or a user has ended for good."""
ENDED = KILLED | {"COMPLETED", "FAILED"}
NODES_FAULT = frozenset({"BOOT_FAIL", "FAILED", "NODE_FAIL"})
"""States that suggest a broken node (without the shared disk, say) if the job left no file."""


class Queued(NamedTuple):
    """A job in Slurm's queue. ``reason`` says why it waits; its submission set ``name`` and ``comment``."""

    state: str
    reason: str
    node: str
    name: str
    comment: str


class Slurm:
    """The Slurm that this machine submits jobs to."""

    def submit(self, words: Sequence[str], environ: Mapping[str, str]) -> str:
        """Submits a job with the sbatch options ``words`` and the variables ``environ``; returns its number.

        Raises SlurmFailed: sbatch fails. UserError: there is no sbatch on this machine.
        """
        printed = ask("sbatch", "--parsable", *words, environ=environ)
        # a site's plugins may print a banner before or after the number
        for line in reversed(printed.splitlines()):
            if found := _NUMBER.fullmatch(line.strip()):
                return found[1]
        raise SlurmFailed(f"sbatch printed no job number ({one_line(printed, 100)})", is_silent=True)

    def queue(self) -> dict[str, Queued]:
        """Returns this user's jobs by number, also recently ended ones. Raises as :meth:`submit`."""
        # SQUEUE_* variables of the user could filter out jobs.
        environ = {name: value for name, value in os.environ.items() if not name.startswith("SQUEUE_")}
        columns = f"--format={_TAB.join(_COLUMNS)}"
        printed = ask("squeue", "--noheader", "--me", "--states=all", columns, environ=environ)
        rows = (line.split(_TAB, len(_COLUMNS) - 1) for line in printed.splitlines())
        return {number: Queued(*row) for number, *row in rows if len(row) == len(Queued._fields)}

    def is_preempted(self, number: str) -> bool:
        """Returns True if Slurm is taking the nodes of this job for another one. Raises as :meth:`submit`."""
        printed = ask("squeue", "--noheader", f"--jobs={number}", "--Format=PreemptTime")
        return printed.strip() not in ("", "N/A")

    def requeue(self, number: str) -> None:
        """Ends a running job and puts it back into the queue. Raises as :meth:`submit`."""
        ask("scontrol", "requeue", number)

    def start_early(self, numbers: Sequence[str]) -> None:
        """Removes the dependencies of these jobs, so that they can start now. Raises as :meth:`submit`."""
        _for_all(numbers, lambda part: ask("scontrol", "update", f"JobId={','.join(part)}", "Dependency="))

    def cancel(self, numbers: Sequence[str]) -> None:
        """Ends these jobs. Raises as :meth:`submit`."""
        _for_all(numbers, lambda part: ask("scancel", *part))


def _for_all(numbers: Sequence[str], tell: Callable[[Sequence[str]], object]) -> None:
    """Calls ``tell`` with all ``numbers``, part by part. Raises SlurmFailed at the end if a call failed."""
    failed: SlurmFailed | None = None
    for n in range(0, len(numbers), _AT_ONCE):
        try:
            tell(numbers[n : n + _AT_ONCE])
        except SlurmFailed as error:
            failed = error
    if failed:
        raise failed
