"""Runs Slurm's commands, and says what their errors mean."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping

from imageevalkit.common.errors import UserError
from imageevalkit.common.redaction import one_line

_ANSWERS_WITHIN = 60.0
_PREFIX = re.compile(r"^\w+: (?:(?:error|fatal): )?")  # "sbatch: error: "
# Messages of the controller that mean "no more jobs for now", such as QOSMaxSubmitJobPerUserLimit.
_LATER = re.compile(
    r"SubmitJob|MaxJobCount|Job/step count|Resource temporarily unavailable|Slurm temporarily", re.I
)
# "submit limit" without the name of a limit means too many jobs for now, or a job that is too large or long.
_PERHAPS_LATER = re.compile(r"^(?!.*\w+Limit\b).*submit limit", re.I)
# The controller restarts, is overloaded or cannot be reached, so it may have received the command. Most of
# these messages are from slurm_errno.h.
_SILENT = re.compile(
    r"contact slurm controller|timed out|Connection (?:refused|reset)|Transport endpoint"
    r"|standby mode|Zero Bytes|Unable to connect|primary controller|Address family not supported|Unexpected message"
    r"|missing socket|Message (?:send|receive) failure|Communication (?:connection|shutdown) failure"
    r"|Protocol authentication|Insane message length|Munge (?:encode|decode) failed",
    re.I,
)


class SlurmFailed(Exception):
    """A command of Slurm failed; the text says why in one line.

    ``passes``: the command will succeed once other jobs have ended; ``may_pass``: it may. ``is_silent``:
    Slurm did not answer, and may still carry out the command.
    """

    def __init__(self, text: str, is_silent: bool = False) -> None:
        super().__init__(text)
        self.passes, self.may_pass = bool(_LATER.search(text)), bool(_PERHAPS_LATER.search(text))
        self.is_silent = is_silent or bool(_SILENT.search(text))


def ask(*command: str, environ: Mapping[str, str] | None = None) -> str:
    """Returns the output of a Slurm command. Raises UserError: it is not installed. SlurmFailed: it fails."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWERS_WITHIN,
            env=environ,
            start_new_session=True,  # Ctrl-C must not stop sbatch: a submitted job's number would be lost
        )
    except FileNotFoundError:
        raise UserError(
            f"there is no {command[0]} on this machine: --launcher slurm is for a machine from which jobs are submitted"
        ) from None
    except subprocess.TimeoutExpired:
        raise SlurmFailed(f"{command[0]} gave no answer within {_ANSWERS_WITHIN:.0f} s", True) from None
    except OSError as error:
        raise SlurmFailed(f"{command[0]}: {one_line(error)}") from None
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines() or [f"exit status {done.returncode}"]
        raise SlurmFailed(one_line("; ".join(_PREFIX.sub("", line) for line in said[-3:]), 300))
    return done.stdout
