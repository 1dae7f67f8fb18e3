"""``--list``: the models and benchmarks there are, and whether they could start now."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec

from imageevalkit import registry
from imageevalkit.errors import CellFailure, UserError
from imageevalkit.launch.benchmarks import BenchmarkChoice, choose_benchmark
from imageevalkit.launch.config import Config
from imageevalkit.launch.environments import program_of
from imageevalkit.launch.judges import ConfiguredJudge
from imageevalkit.launch.models import check_model, model_tasks


def listing(config: Config) -> str:
    """Two aligned tables: models with tasks, benchmarks with tasks; each with what is missing.

    Below them, why what should be a benchmark is none.
    """
    models = [(name, ", ".join(tasks), _model(config, name, tasks)) for name, tasks in model_tasks().items()]
    benchmarks = [(name, task, _benchmark(config, name)) for name, task in registry.benchmark_tasks().items()]
    tables = ["Models", *_rows(models), "", "Benchmarks", *_rows(benchmarks)]
    broken = [f"  {problem}" for problem in dict.fromkeys(registry.broken_benchmarks().values())]
    return "\n".join([*tables, *(["", "Cannot be used", *broken] if broken else [])])


def _rows(rows: list[tuple[str, str, str]]) -> list[str]:
    width, of_tasks = (max((len(row[n]) for row in rows), default=0) for n in (0, 1))
    return [f"  {name:<{width}}  {task:<{of_tasks}}  {state}" for name, task, state in rows]


def _model(config: Config, name: str, tasks: Iterable[str]) -> str:
    try:
        for task in tasks:
            check_model(name, task)
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


def _benchmark(config: Config, name: str) -> str:
    try:
        benchmark = choose_benchmark(config, name, config.maps.get("JUDGE_MAP", {}).get(name, ""))
        return _dataset(benchmark) or _evaluation(config, benchmark)
    except (UserError, CellFailure) as error:
        return str(error)


def _dataset(benchmark: BenchmarkChoice) -> str:
    benchmark.check_dataset_class()
    if benchmark.files.problems():
        return f"needs its data: bash utils/prefetch.sh --ds_names {benchmark.name}"
    if find_spec("PIL"):  # until the driver's environment is made, there may be none to read datasets with
        benchmark.check_dataset()
    return ""


def _evaluation(config: Config, benchmark: BenchmarkChoice) -> str:
    """Whether the script, the environment of ``benchmark`` and its judge are there."""
    benchmark.check_script()
    own = benchmark.environment(config)
    problem = _judge_problem(config, benchmark.judge, bool(own)) if benchmark.judge else ""
    state = _program(own, "python", benchmark.build(config))
    if not problem and state == "ready" and benchmark.lacks():
        problem = f"needs its weights: bash utils/prefetch.sh --ds_names {benchmark.name}"
    return problem or state


def _judge_problem(config: Config, judge: ConfiguredJudge, in_own: bool) -> str:
    """What a judge needs to start; empty when it could. ``in_own``: its benchmark has an environment of its own."""
    name = judge.choice.name
    if judge.runs_elsewhere:
        try:
            _ = judge.endpoint
        except UserError as error:
            return f"its judge {name}: {error}"
        return ""
    if judge.backend == "transformers" and in_own:
        return ""  # it runs there
    program = "vllm" if judge.backend == "vllm" else "python"
    state = _program(judge.environment(config), program, f"--judge {judge.backend}")
    return "" if state == "ready" else f"{state} (its judge is {name})"
