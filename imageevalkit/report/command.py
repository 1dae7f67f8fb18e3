"""The shell command that makes one image of a cell again."""

from __future__ import annotations

import shlex
from collections.abc import Callable

from imageevalkit.cell import results_in, short_path
from imageevalkit.report.collect import CellReport, ItemView


def command_of(report: CellReport) -> Callable[[ItemView], str]:
    """Of an item of that cell; empty where the image was made elsewhere.

    It removes the image, which the run then makes anew, with its own seed; the result stands where the image is the
    same again, and goes where it is another.
    """
    cell, limit = report.cell, report.result.limit if report.result else report.recorded
    words = ["bash", "eval.sh", "--model_names", cell.raw.model, "--ds_names", cell.benchmark]
    if cell.rewriter:
        words += ["--prompt_rewriter", cell.rewriter.rpartition("-")[0]]
    if limit:
        words += ["--limit", str(limit)]
    run = shlex.join([*words, "--eval", "false"])
    with results_in(report.root):
        folder = short_path(cell.folder)

    def command(item: ItemView) -> str:
        if item.source is not None or not item.path:
            return ""
        again = " --retry_refused" if item.outcome == "refused" else ""
        return f"rm -f -- {shlex.quote(f'{folder}/{item.path}')} && {run}{again}"

    return command
