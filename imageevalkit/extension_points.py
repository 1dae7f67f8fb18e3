"""The points at which extras connect to the core, and how the core finds them.

An extra is a folder ``imageevalkit/extras/<name>/``. The core imports no extra: the toolkit works without the
folder of any of them. The ``__init__.py`` of an extra has a mapping ``CONNECTS`` from points to places of
objects (``"module:object"``, below the extra's folder). The core asks for the objects of a point with
:func:`connected`. Objects of ``check``, ``commands``, ``first_jobs``, ``image_jobs``, ``last_jobs``, ``resolve``,
``results`` and ``scheduler`` are loaded only if the user gives one of the extra's options.

| point | object |
|---|---|
| ``options`` | a mapping of names to :class:`~imageevalkit.plan.config.Option`; no third-party packages |
| ``resolve`` | a function of the options, the command line and the configuration; it sets fields of the options |
| ``models`` | a function of the options that returns the models of a run and their settings |
| ``weights`` | a function of a model and its settings that returns why its weights cannot be used yet, or "" |
| ``check`` | a function of the options and the benchmarks; it returns notes, and raises UserError before a run |
| ``first_jobs`` | a function that returns the jobs of a run before its images |
| ``image_jobs`` | a function that returns the jobs that bring images in place of a model |
| ``last_jobs`` | a function of the jobs so far that returns jobs after them, before the report |
| ``order`` | the class of the :class:`~imageevalkit.jobs.plan.Order` of the extra's jobs; see below |
| ``judge_server`` | :class:`~imageevalkit.plan.stage_jobs.ServedJudge`: how a run serves a judge itself |
| ``images_to_come`` | a function that returns the items of a cell and the states that these jobs will leave |
| ``forecast`` | a function of a request of a dry run and the datasets that estimates such a job for a cell |
| ``after_questions`` | :class:`~imageevalkit.evaluate.after_questions.AfterQuestions`: further questions of a result |
| ``commands`` | a list of :class:`~imageevalkit.cli.command_line.Command`: each takes the place of a run |
| ``scheduler`` | a :class:`~imageevalkit.cli.command_line.Scheduler`: it runs several plans in place of one |
| ``results`` | a :class:`~imageevalkit.cli.command_line.ResultsHook`: work on results, after a run or without one |
| ``sender`` | a :class:`~imageevalkit.api.sender.Sender`: it sends requests to APIs in place of one by one |
| ``section`` | a :class:`~imageevalkit.report.sections.Section` of the report |

The module of an ``order`` imports only the standard library, ``jobs.plan`` and ``store.jsonl``: every environment
loads it.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

_EXTRAS = "imageevalkit.extras"


@functools.cache
def extras() -> dict[str, Mapping[str, str]]:
    """Returns ``CONNECTS`` of every extra, by the name of its folder, in alphabetical order."""
    folders = sorted(Path(__file__).parent.glob("extras/*/__init__.py"))
    names = [path.parent.name for path in folders]
    return {name: importlib.import_module(f"{_EXTRAS}.{name}").CONNECTS for name in names}


def connected(point: str, among: Iterable[str] | None = None) -> dict[str, Any]:
    """Returns the objects that extras (``among`` some, None: all) connect at ``point``, by extra."""
    found = {}
    for name in extras() if among is None else among:
        if place := extras()[name].get(point):
            module, _, attribute = place.partition(":")
            found[name] = getattr(importlib.import_module(f"{_EXTRAS}.{name}.{module}"), attribute)
    return found
