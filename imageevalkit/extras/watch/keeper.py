"""``python -m imageevalkit.extras.watch.keeper SOCKET``: a process that runs evaluate jobs one after another.

With ``--plan PLAN --job JOB``, the process passes that job on through the socket instead of running it. So
all jobs share the judge that one process has loaded."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from imageevalkit.benchmark.answerer import device_lost
from imageevalkit.common.errors import CellFailure, ExitStatus, run_main, status_of
from imageevalkit.evaluate.job import EvaluateJob
from imageevalkit.jobs import plan as jobs

_MOST_WORDS = 1 << 16  # bytes
_STARTS_WITHIN = 120.0  # seconds
_TICK = 0.1


def main() -> ExitStatus:
    """Keeps the judge loaded, or passes a job to such a process and returns the job's exit status."""
    address, *words = sys.argv[1:]
    return _hand_over(Path(address), words) if words else _keep(address)


def _keep(address: str) -> ExitStatus:
    """Runs the jobs that arrive at the socket ``address`` until the GPU fails or this process is ended."""

    def one(words: list[str]) -> ExitStatus:
        return EvaluateJob(*jobs.given_job(jobs.EvaluateOrder, words)).run()

    own = [os.dup(1), os.dup(2)]
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen()
        while True:
            connection, _ = listening.accept()
            with connection:
                message, streams, *_ = socket.recv_fds(connection, _MOST_WORDS, len(own))
                if not message or len(streams) != len(own):
                    continue  # the process of the job has ended
                _point_to(streams)
                try:
                    status = status_of(partial(one, json.loads(message)))
                finally:
                    _point_to(own, keep=True)
                try:
                    connection.send(bytes([status]))
                except OSError:
                    continue
            if device_lost.is_set():  # the watch starts another process
                return ExitStatus.FAILED


def _point_to(streams: Sequence[int], keep: bool = False) -> None:
    """Redirects stdout and stderr of this process to ``streams``, and closes ``streams`` unless ``keep``."""
    for stream, number, fd in zip((sys.stdout, sys.stderr), (1, 2), streams, strict=True):
        stream.flush()
        os.dup2(fd, number)
        if not keep:
            os.close(fd)


def _hand_over(address: Path, words: Sequence[str]) -> ExitStatus:
    """Lets the process at the socket ``address`` run the job that ``words`` name. Returns its exit status.

    The job prints to the output of this process. Raises CellFailure if the other process has ended.
    """
    gone = CellFailure("the process that keeps the judge has ended")
    until = time.monotonic() + _STARTS_WITHIN
    with socket.socket(socket.AF_UNIX) as connection:
        while True:
            try:
                connection.connect(str(address))
                break
            except FileNotFoundError:  # the process may not have made its socket yet
                if time.monotonic() > until:
                    raise gone from None
                time.sleep(_TICK)
            except OSError:
                raise gone from None
        try:
            socket.send_fds(connection, [json.dumps(list(words)).encode()], [1, 2])
            status = connection.recv(1)
        except OSError:
            raise gone from None
    if not status:
        raise gone
    return ExitStatus(status[0])


if __name__ == "__main__":
    run_main(main)
