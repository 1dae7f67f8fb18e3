"""``python -m imageevalkit.extras.watch.keeper SOCKET``: a process that runs evaluate jobs one after another.

The process of each job hands the job over through the socket, so that all jobs share one loaded judge."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Sequence
from functools import partial

from imageevalkit.common.errors import ExitStatus, run_main, status_of
from imageevalkit.evaluate.__main__ import evaluated
from imageevalkit.jobs import plan as jobs

_MOST_WORDS = 1 << 16  # bytes


def main() -> ExitStatus:
    """Runs the jobs that arrive at the socket until another process ends this one."""

    def one(words: list[str]) -> ExitStatus:
        plan, job, order = jobs.given_job(jobs.EvaluateOrder, words)
        return evaluated(jobs.cell_of(job.cells[0]), order, plan, job)

    own = [os.dup(1), os.dup(2)]
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(sys.argv[1])
        listening.listen()
        while True:
            connection, _ = listening.accept()
            with connection:
                told, streams, *_ = socket.recv_fds(connection, _MOST_WORDS, len(own))
                if not told or len(streams) != len(own):
                    continue  # the process of the job has ended
                _point_to(streams)
                try:
                    status = status_of(partial(one, json.loads(told)))
                finally:
                    _point_to(own, keep=True)
                try:
                    connection.send(bytes([status]))
                except OSError:
                    continue


def _point_to(streams: Sequence[int], keep: bool = False) -> None:
    """Redirects stdout and stderr of this process to ``streams``, and closes ``streams`` unless ``keep``."""
    for stream, number, fd in zip((sys.stdout, sys.stderr), (1, 2), streams, strict=True):
        stream.flush()
        os.dup2(fd, number)
        if not keep:
            os.close(fd)


if __name__ == "__main__":
    run_main(main)
