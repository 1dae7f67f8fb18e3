"""Prepares a run with ``--batch``."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from imageevalkit.api.endpoint import place_of
from imageevalkit.common.errors import CellFailure, UserError
from imageevalkit.plan.benchmarks import BenchmarkChoice
from imageevalkit.plan.config import Config
from imageevalkit.plan.models import resolve_model
from imageevalkit.plan.options import Options


def resolve(options: Options, given: Mapping[str, Any], config: Config) -> None:
    """Sets ``options.sender``."""
    options.sender = "batch"


def check_batch(options: Options, benchmarks: Mapping[str, BenchmarkChoice]) -> list[str]:
    """Raises UserError: a model or judge is on Azure, which takes batches in other deployments only."""
    asked: list[tuple[str, Mapping[str, Any]]] = []
    if options.makes_images:
        for task in dict.fromkeys(benchmark.task for benchmark in benchmarks.values()):
            for model, kwargs in options.models.items():
                with contextlib.suppress(CellFailure):  # the planner blocks its cells, with the reason
                    setting = resolve_model(model, task, options.use_api, kwargs)
                    if setting.get("api"):
                        asked.append((f"model '{model}'", setting["model_kwargs"]))
    if options.eval and not options.rescore:
        for name, benchmark in benchmarks.items():
            judge = benchmark.judge
            if judge and judge.backend == "openai":
                asked.append((f"judge '{judge.choice.name}' of {name}", judge.kwargs))
    for who, settings in asked:
        if place_of(settings).azure:
            raise UserError(
                f"{who} is on Azure, which takes batches in deployments of another kind only: leave out --batch"
            )
    return []
