"""``--list``: the models and benchmarks there are, what they are, and whether they could start now."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.util import find_spec

from imageevalkit import registry
from imageevalkit.benchmark.contract import benchmark_code
from imageevalkit.errors import CellFailure, UserError
from imageevalkit.launch.benchmarks import BenchmarkChoice, choose_benchmark
from imageevalkit.launch.config import Config
from imageevalkit.launch.environments import program_of
from imageevalkit.launch.judges import ConfiguredJudge
from imageevalkit.launch.models import check_model, model_tasks
from imageevalkit.text import columns_of

_NOTHING = "-"


def listing(config: Config, columns: int | None = None) -> str:
    """Two aligned tables: models with tasks, benchmarks with task, items and evaluator; each with what is missing.

    Below them, why what should be a benchmark is none. Where a row would be longer than ``columns`` (None: never),
    what is missing has a line of its own.
    """
    models = [(name, ", ".join(tasks), _model(config, name, tasks)) for name, tasks in model_tasks().items()]
    tasks_of = registry.benchmark_tasks()
    benchmarks = [(name, task, *_benchmark(config, name)) for name, task in tasks_of.items()]
    tables = [
        *_table(("Models", "tasks"), models, columns),
        "",
        *_table(("Benchmarks", "task", "items", "evaluator"), benchmarks, columns),
    ]
    broken = [f"  {problem}" for problem in dict.fromkeys(registry.broken_benchmarks().values())]
    return "\n".join([*tables, *(["", "Cannot be used", *broken] if broken else [])])


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], columns: int | None) -> list[str]:
    """``header`` names all columns but the last."""
    texts = [header, *([f"  {row[0]}", *row[1:-1]] for row in rows)]
    widths = [max(map(columns_of, of_column)) for of_column in zip(*texts, strict=True)]
    cells = ("  ".join(map(_padded, text, widths)) for text in texts)
    lines = [next(cells).rstrip()]
    for text, (*_, state) in zip(cells, rows, strict=True):
        line = f"{text}  {state}"
        fits = columns is None or columns_of(line) <= columns
        lines += [line] if fits else [text.rstrip(), f"      {state}"]
    return lines


def _padded(text: str, columns: int) -> str:
    return text + " " * (columns - columns_of(text))


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


def _benchmark(config: Config, name: str) -> tuple[str, str, str]:
    """How many items it has, who evaluates it, and what is missing."""
    items = evaluators = _NOTHING
    try:
        benchmark = choose_benchmark(config, name, config.maps.get("JUDGE_MAP", {}).get(name, ""))
        evaluators = ", ".join(benchmark.evaluators) or _NOTHING
        items = _items(benchmark)
        benchmark.check_dataset_class()
        if benchmark.files.problems():
            return items, evaluators, f"needs its data: bash utils/prefetch.sh --ds_names {benchmark.name}"
        # until the driver's environment is made, there may be none to read datasets with
        if find_spec("PIL"):
            items = _items(benchmark, benchmark.check_dataset())
        return items, evaluators, _evaluation(config, benchmark)
    except (UserError, CellFailure) as error:
        return items, evaluators, str(error)


def _items(choice: BenchmarkChoice, images: int | None = None) -> str:
    """Prompts × images of each. ``images`` in all, where its data is there; else what its class says.

    Raises CellFailure: what it says is no number.
    """
    ours = choice.benchmark
    with benchmark_code(choice.name, "prompt_count or images_per_prompt"):
        prompts, of_each = (ours.prompt_count, ours.images_per_prompt) if ours else (0, 1)
        if images is not None:
            prompts, of_each = (images, 1) if images % of_each else (images // of_each, of_each)
        shown = f"{prompts:d} × {of_each:d}" if of_each > 1 else f"{prompts:d}"
    return shown if prompts else _NOTHING


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
    if judge.runs_elsewhere:
        try:
            _ = judge.endpoint
        except UserError as error:
            return f"its judge: {error}"
        return ""
    if judge.backend == "transformers" and in_own:
        return ""  # it runs there
    program = "vllm" if judge.backend == "vllm" else "python"
    state = _program(judge.environment(config), program, f"--judge {judge.backend}")
    return "" if state == "ready" else state
