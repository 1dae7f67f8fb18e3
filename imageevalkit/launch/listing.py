"""``--list``: the models and benchmarks there are, and whether they could start now."""

from __future__ import annotations

import os

from eval_models.judge.registry import find
from imageevalkit import assets
from imageevalkit.errors import UserError
from imageevalkit.evaluation.benchmark import check_judge
from imageevalkit.launch import registry
from imageevalkit.launch.config import Config
from imageevalkit.launch.environments import python_of


def listing(config: Config) -> str:
    """Two aligned tables: models with tasks, benchmarks with tasks; each with what is missing."""
    models = [
        (name, ", ".join(tasks), _environment(config, "INFER_ENV_MAP", name, f"--model {name}"))
        for name, tasks in registry.model_tasks().items()
    ]
    benchmarks = [
        (
            name,
            task,
            _data(name) or _evaluation(config, name),
        )
        for name, task in registry.benchmark_tasks().items()
    ]
    return "\n".join(["Models", *_rows(models), "", "Benchmarks", *_rows(benchmarks)])


def _rows(rows: list[tuple[str, str, str]]) -> list[str]:
    width = max(len(name) for name, _, _ in rows)
    return [f"  {name:<{width}}  {task:<10} {state}" for name, task, state in rows]


def _environment(config: Config, variable: str, name: str, build: str) -> str:
    try:
        for part in config.maps.get(variable, {}).get(name, "").split() or [""]:
            python_of(part, name, f"bash utils/make_env.sh {build}")
    except UserError:
        return f"needs its environment: bash utils/make_env.sh {build}"
    return "ready"


def _evaluation(config: Config, benchmark: str) -> str:
    """Whether the environment of ``benchmark`` and its judge are there."""
    try:
        choice = find(check_judge(benchmark, config.maps.get("JUDGE_MAP", {}).get(benchmark, "")))
    except UserError as error:
        return str(error)
    if choice is not None and choice.setting.backend == "openai" and not os.environ.get("API_KEY"):
        return f"needs API_KEY for its judge {choice.name}"
    environments = config.maps.get("EVAL_ENV_MAP", {})
    if choice is not None and choice.setting.backend != "openai" and not environments.get(benchmark):
        backend = choice.setting.backend
        state = _environment(config, "EVAL_ENV_MAP", backend, f"--judge {backend}")
        return state if state == "ready" else f"{state} (its judge is {choice.name})"
    return _environment(config, "EVAL_ENV_MAP", benchmark, f"--benchmark {benchmark}")


def _data(benchmark: str) -> str:
    if assets.check(benchmark):
        return f"needs its data: bash utils/prefetch.sh --ds_names {benchmark}"
    return ""
