"""``--list``: the models and benchmarks there are, and whether they could start now."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec

from imageevalkit import assets
from imageevalkit.benchmark.contract import check_judge
from imageevalkit.errors import CellFailure, UserError
from imageevalkit.judges.choice import JudgeChoice
from imageevalkit.launch import registry
from imageevalkit.launch.benchmark_kwargs import configured_settings
from imageevalkit.launch.config import Config
from imageevalkit.launch.environments import program_of
from imageevalkit.launch.judge_settings import (
    configured_kwargs,
    endpoint_of,
    environment_of,
    runs_elsewhere,
)
from imageevalkit.launch.own_environment import missing_here, own_environment, script_of
from imageevalkit.registry import find_judge


def listing(config: Config) -> str:
    """Two aligned tables: models with tasks, benchmarks with tasks; each with what is missing."""
    models = [
        (name, ", ".join(tasks), _model(config, name, tasks))
        for name, tasks in registry.model_tasks().items()
    ]
    benchmarks = [
        (name, task, _dataset(name) or _evaluation(config, name))
        for name, task in registry.benchmark_tasks().items()
    ]
    return "\n".join(["Models", *_rows(models), "", "Benchmarks", *_rows(benchmarks)])


def _rows(rows: list[tuple[str, str, str]]) -> list[str]:
    width = max(len(name) for name, _, _ in rows)
    return [f"  {name:<{width}}  {task:<10} {state}" for name, task, state in rows]


def _model(config: Config, name: str, tasks: Iterable[str]) -> str:
    try:
        for task in tasks:
            registry.check_model(name, task)
    except CellFailure as error:
        return str(error)
    return _program(config.maps.get("INFER_ENV_MAP", {}).get(name, ""), "python", f"--model {name}")


def _program(environments: str, program: str, build: str) -> str:
    try:
        for part in environments.split():
            program_of(part, program, "", "")
    except UserError:
        return f"needs its environment: bash utils/make_env.sh {build}"
    return "ready"


def _evaluation(config: Config, benchmark: str) -> str:
    """Whether the script, the environment of ``benchmark`` and its judge are there."""
    try:
        script_of(benchmark)
        given = configured_settings(config, benchmark)
        judge = check_judge(benchmark, config.maps.get("JUDGE_MAP", {}).get(benchmark, ""), given)
        choice = find_judge(judge)
        own = own_environment(config, benchmark, given)
        problem = _judge_problem(config, choice, bool(own)) if choice else ""
        state = _program(own, "python", f"--benchmark {benchmark}")
        if not problem and state == "ready":
            missing = missing_here(benchmark, given)
            problem = f"needs its weights: bash utils/prefetch.sh --ds_names {benchmark}" if missing else ""
    except UserError as error:
        return str(error)
    return problem or state


def _judge_problem(config: Config, choice: JudgeChoice, in_own: bool) -> str:
    """What a judge needs to start; empty when it could. ``in_own``: its benchmark has an environment of its own.

    Raises:
        UserError: wrong settings of the judge.
    """
    kwargs = configured_kwargs(config, choice)
    if runs_elsewhere(choice, kwargs):
        try:
            endpoint_of(choice, kwargs)
        except UserError as error:
            return f"its judge {choice.name}: {error}"
        return ""
    backend = choice.setting.backend
    if backend == "transformers" and in_own:
        return ""  # it runs there
    program = "vllm" if backend == "vllm" else "python"
    state = _program(environment_of(config, choice, kwargs), program, f"--judge {backend}")
    return "" if state == "ready" else f"{state} (its judge is {choice.name})"


def _dataset(benchmark: str) -> str:
    try:
        registry.check_dataset_class(benchmark)
        if assets.check(benchmark):
            return f"needs its data: bash utils/prefetch.sh --ds_names {benchmark}"
        if find_spec(
            "PIL"
        ):  # until the driver's environment is made, there may be none to read datasets with
            registry.check_dataset(benchmark)
    except CellFailure as error:
        return str(error)
    return ""
