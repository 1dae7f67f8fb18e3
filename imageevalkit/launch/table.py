"""The table at the end of a run."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from typing import TextIO

from imageevalkit.cell import short_path
from imageevalkit.jobs import COMPLETE
from imageevalkit.launch.summary import SKIPPED, JobSummary, RunSummary
from imageevalkit.launch.terminal import STATE_WIDTH, Paint, clock
from imageevalkit.text_output import counted, plain
from imageevalkit.text_width import columns_of


def print_table(summary: RunSummary, stream: TextIO, environ: Mapping[str, str] = os.environ) -> None:
    """Every cell with its state, its log, and below it the reason where it is not complete."""
    paint = Paint(stream, environ)
    told = [(cell.cell, cell.state, cell.log, cell.message) for cell in summary.cells]
    # jobs only where no cell tells of them: the report, and what went wrong after the last outcome
    told += [
        (job.name, job.state, job.log, job.message or job.exit)
        for job in summary.jobs
        if job.state not in (COMPLETE, SKIPPED) and (job.message or not _has_cells(job, summary))
    ]
    # before it is painted: what the terminal is told to do is ours alone
    rows = [
        (plain(name), state, plain(short_path(log)) if log else "", plain(message))
        for name, state, log, message in told
    ]
    name_width = max([columns_of(row[0]) for row in rows], default=0)
    for name, state, log, message in rows:
        padding = " " * (name_width - columns_of(name))
        line = f"{name}{padding}  {paint(state.ljust(STATE_WIDTH), state)}  {log}"
        stream.write(f"{line.rstrip()}\n")
        if message:
            stream.write(f"    {message}\n")
    counts = Counter(cell.state for cell in summary.cells)
    states = ", ".join(f"{count} {state}" for state, count in counts.items()) or "nothing to do"
    stream.write(
        f"{counted(len(summary.cells), 'cell')}: {states} · {clock(summary.seconds)} · "
        f"exit status {int(summary.status)} ({summary.status.name.lower()})\n"
    )
    stream.flush()


def _has_cells(job: JobSummary, summary: RunSummary) -> bool:
    return any(stage.job == job.name for cell in summary.cells for stage in cell.stages)
