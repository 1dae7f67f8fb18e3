"""The shell command that generates one image of a cell again."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from typing import Any

from imageevalkit.common.errors import CellFailure
from imageevalkit.report.collect import CellReport, ItemView
from imageevalkit.store import fingerprint as fp
from imageevalkit.store.cell import Cell, results_in, short_path

_KWARG = "kwargs."


def command_of(report: CellReport) -> Callable[[ItemView], str]:
    """Return a function from an item of ``report`` to the shell command that generates its image again.

    The command is empty if the image comes from outside or its settings are unknown. The command removes the
    image and runs the cell, which generates all missing images with the recorded settings. The result stays
    valid if the new image equals the old one.
    """
    cell, limit = report.cell, report.result.limit if report.result else report.recorded
    with results_in(report.root):
        folder = short_path(cell.folder)
        try:
            known = fp.known(cell.fingerprints)
        except CellFailure:
            known = {}
    runs = {key: _run(cell, limit, settings) for key, settings in known.items()}

    def command(item: ItemView) -> str:
        run = runs.get(item.fingerprint, "")
        if not run or item.source is not None or not item.path:
            return ""
        again = " --retry_refused" if item.outcome == "refused" else ""
        return f"rm -f -- {shlex.quote(f'{folder}/{item.path}')} && {run}{again}"

    return command


def _run(cell: Cell, limit: int | None, settings: Mapping[str, Any]) -> str:
    """Return the command of a run. Empty if the settings contain local weights: their path is unknown."""
    if any(name.startswith("weights") for name in settings):
        return ""
    words = ["bash", "eval.sh", "--model_names", cell.raw.model, "--ds_names", cell.benchmark]
    kwargs = {name.removeprefix(_KWARG): one for name, one in settings.items() if name.startswith(_KWARG)}
    if kwargs:
        given = (f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in kwargs.items())
        words += ["--custom_model_kwargses", ",".join(given)]
    words += ["--use_api", "true" if "host" in settings else "false"]
    words += ["--prompt_rewriter", cell.rewriter.rpartition("-")[0]]
    if limit:
        words += ["--limit", str(limit)]
    return shlex.join([*words, "--eval", "false"])
