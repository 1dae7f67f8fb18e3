"""Work in a forked process of its own, so that whatever ends that process ends nothing else."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from imageevalkit.errors import ExitStatus, run_main
from imageevalkit.logs import print_to

_STATUS = {signal.SIGTERM: ExitStatus.TERMINATED, signal.SIGINT: ExitStatus.INTERRUPTED}


class ChildExit(NamedTuple):
    """``how`` a process ended, in words, and the signal to this one that made it end, as a status."""

    how: str
    stopped_by: ExitStatus | None


def run_apart(work: Callable[[], ExitStatus], log: Path) -> ChildExit:
    """Do ``work`` in a child of this process, which prints to ``log``; SIGTERM and SIGINT are passed on to it.

    Call it from the main thread of a process that has no other.
    """
    stopped_by: list[ExitStatus] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        stopped_by.append(_STATUS[signal.Signals(number)])
        os.kill(child, number)

    # a signal that comes meanwhile waits until both processes know what to do with it
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _STATUS)
    before = {number: signal.signal(number, pass_on) for number in _STATUS}
    child = os.fork()
    if not child:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        print_to(log)
        run_main(work)  # exits
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    # its number is that of no other process while it may be passed a signal
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    for number, handler in before.items():
        signal.signal(number, handler)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    how = f"exit status {code}" if code >= 0 else signal.Signals(-code).name
    return ChildExit(how + " (out of memory?)" * (how == "SIGKILL"), stopped_by[0] if stopped_by else None)
