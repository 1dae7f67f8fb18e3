"""``--list``: models, benchmarks and plug-ins, and the files, environments and keys that they lack."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.cells import cell_len

from imageevalkit import registry
from imageevalkit.api.endpoint import Endpoint
from imageevalkit.assets import HubAsset, Needed
from imageevalkit.assets.check import check_asset, is_offline
from imageevalkit.benchmark.contract import benchmark_code
from imageevalkit.cli.command_line import Command
from imageevalkit.common.errors import CellFailure, ExitStatus, UserError, show
from imageevalkit.common.text import some
from imageevalkit.plan.benchmarks import BenchmarkChoice, ConfiguredJudge, choose_benchmark
from imageevalkit.plan.config import Config, program_of
from imageevalkit.plan.models import check_model, model_needs, model_tasks, resolve_model
from imageevalkit.plan.options import LAUNCHERS

YES, NO, NOTHING, LATER = "yes", "no", "-", "1st run"
_LEGEND = (
    f"{YES}: it is here · {NO}: it is missing · {NOTHING}: none is needed",
    f"{LATER}: the first run downloads it, or bash eval.sh prefetch before",
)


@dataclass
class _Row:
    """A row of a table. ``problem`` says why the model or benchmark is unusable, on a line of its own."""

    name: str
    task: str
    items: str = NOTHING
    environment: str = NOTHING
    data: str = NOTHING
    weights: str = NOTHING
    key: str = NOTHING
    evaluator: str = NOTHING
    problem: str = ""


@dataclass
class _Remedies:
    """How to get missing things: ``found`` maps a kind and a command to names of models and benchmarks."""

    found: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    def add(self, kind: str, command: str, name: str) -> None:
        names = self.found.setdefault((kind, command), [])
        if name not in names:
            names.append(name)

    def lines(self) -> list[str]:
        kinds = list(dict.fromkeys(kind for kind, _ in self.found))
        width = max(map(len, kinds), default=0)
        lines = list[str]()
        for kind in kinds:
            commands = {command: names for (one, command), names in self.found.items() if one == kind}
            for command, names in commands.items():
                # If a kind has several commands, each shows the names that it is for.
                is_for = (
                    f" ({some(names, ', ')})" if len(commands) > 1 and [command.split()[-1]] != names else ""
                )
                lines.append(f"  {kind.ljust(width)}  {command}{is_for}")
        return lines


def listing(config: Config, columns: int | None = None) -> str:
    """Returns a table of models, one of benchmarks, the plug-ins, and commands that get missing things.

    If a row is wider than ``columns`` (None: no limit), its last column goes to a line of its own.
    """
    remedies, plugins = _Remedies(), _plugins()
    usable = {group: [name for name, problem in found.items() if not problem] for group, found in plugins}
    tasks_of = model_tasks() | {name: [*registry.model_entries(name)] for name in usable["models"]}
    models = [_model(config, name, tasks, remedies) for name, tasks in tasks_of.items()]
    benchmarks = [
        _benchmark(config, name, task, remedies)
        for name, task in registry.benchmark_tasks(usable["benchmarks"]).items()
    ]
    lines = [
        *_table("Models", ("task", "environment", "weights", "key"), models, columns),
        "",
        *_table(
            "Benchmarks",
            ("task", "items", "environment", "data", "weights", "key", "evaluator"),
            benchmarks,
            columns,
        ),
    ]
    if broken := registry.broken_benchmarks():
        lines += ["", "Cannot be used", *(f"  {problem}" for problem in dict.fromkeys(broken.values()))]
    if any(found for _, found in plugins):
        lines += ["", "Plug-ins"]
    for group, found in plugins:
        for name, problem in found.items():
            kind, packages = registry.PLUGIN_KINDS[group], registry.plugin_packages(group, name)
            lines += [f"  {kind} {name} of {packages}", *([f"      {problem}"] if problem else [])]
    lines += ["", *_LEGEND]
    if missing := remedies.lines():
        lines += ["", "To get what is missing", *missing]
    return "\n".join(lines)


def _show(given: Mapping[str, Any], config: Config, here: Path) -> ExitStatus:
    show(listing(config, shutil.get_terminal_size().columns if sys.stdout.isatty() else None))
    return ExitStatus.COMPLETE


COMMANDS = [Command("--list", _show, uses_results=False)]


def _plugins() -> list[tuple[str, dict[str, str]]]:
    """Returns the plug-ins by group: for each name why the plug-in is unusable, or ""."""
    groups: dict[str, tuple[Collection[str], Callable[[str], object]]] = {
        "models": (model_tasks(), registry.model_entries),
        "benchmarks": (registry.benchmark_tasks(), registry.benchmark_class),
        "judges": ([*registry.judges(), *registry.measurer_names()], registry.judge_setting),
        "rewriters": (registry.rewriter_names(), registry.rewriter_class),
        "launchers": (LAUNCHERS, registry.launcher),
    }

    def problem(name: str, tree: Collection[str], find: Callable[[str], object]) -> str:
        if name in tree:
            return f"'{name}' is a name of the toolkit, whose own is used: rename the entry point"
        try:
            find(name)
        except (UserError, CellFailure) as error:
            return str(error)
        return ""

    return [
        (group, {name: problem(name, *both) for name in registry.plugin_names(group)})
        for group, both in groups.items()
    ]


def _table(title: str, shown: Sequence[str], rows: Sequence[_Row], columns: int | None) -> list[str]:
    texts = [[title, *shown], *([f"  {row.name}", *(getattr(row, name) for name in shown)] for row in rows)]
    widths = [max(map(cell_len, of_column)) for of_column in zip(*texts, strict=True)]
    lines = list[str]()
    for text, row in zip(texts, [None, *rows], strict=True):
        cells = [word + " " * (width - cell_len(word)) for word, width in zip(text, widths, strict=True)]
        whole = "  ".join(cells).rstrip()
        fits = row is None or columns is None or cell_len(whole) <= columns
        lines += [whole] if fits else ["  ".join(cells[:-1]).rstrip(), f"      {text[-1]}"]
        if row and row.problem:
            lines.append(f"      {row.problem}")
    return lines


def _model(config: Config, name: str, tasks: Sequence[str], remedies: _Remedies) -> _Row:
    row = _Row(name, ", ".join(tasks))
    try:
        for task in tasks:
            check_model(name, task)
        environment = config.map("INFER_ENV_MAP").get(name, "")
        row.environment = _environment(name, [(environment, "python", f"--model {name}")], remedies)
        row.weights = _weights(model_needs(name, False, {}).assets)
        for task in tasks:
            if registry.model_entries(name)[task].get("api"):
                setting = resolve_model(name, task, True, {})
                row.key = _key(name, setting["model_kwargs"], remedies)
    except (UserError, CellFailure) as error:
        row.problem = str(error)
    if row.weights == NO:
        remedies.add("weights of a model", "bash eval.sh prefetch --model_names NAME", name)
    return row


def _environment(name: str, needed: Iterable[tuple[str, str, str]], remedies: _Remedies) -> str:
    """Returns YES if all ``needed`` environments exist, else NO, with the remedy added to ``remedies``.

    An element of ``needed`` holds environment names (separated by spaces), a program that each must have, and
    the options of make_env.sh that build it.
    """
    state = YES
    for environments, program, build in needed:
        try:
            for part in environments.split():
                program_of(part, program, "", "")
        except UserError:
            state = NO
            shown = "--model NAME" if build.startswith("--model ") else build
            kind = "environment of a model" if "NAME" in shown else "environment of a benchmark"
            remedies.add(kind, f"bash utils/make_env.sh {shown}", name)
    return state


def _weights(assets: Iterable[Needed]) -> str:
    states = {_weights_of(asset) for asset in assets}
    return next((state for state in (NO, LATER, YES) if state in states), NOTHING)


def _weights_of(asset: Needed) -> str:
    if not check_asset(asset, hashes=False).problems:
        return YES
    # Libraries download hub weights in the first run; only prefetch gets other files.
    return LATER if isinstance(asset, HubAsset) and not is_offline() else NO


def _key(name: str, kwargs: Mapping[str, object], remedies: _Remedies) -> str:
    """Returns YES if the key of the endpoint is set, else NO. Raises UserError: the endpoint is malformed."""
    endpoint = Endpoint.of(kwargs, needs_key=False)
    if endpoint.key:
        return YES
    remedies.add("key", f"set {endpoint.key_variable} in config.local.sh or the environment", name)
    return NO


def _benchmark(config: Config, name: str, task: str, remedies: _Remedies) -> _Row:
    row = _Row(name, task)
    try:
        benchmark = choose_benchmark(config, name, config.map("JUDGE_MAP").get(name, ""))
        row.evaluator = ", ".join(benchmark.evaluators) or NOTHING
        row.items = _items(benchmark)
        benchmark.check_dataset_class()
        benchmark.check_script()
        row.environment = _environment(name, _environments(config, benchmark), remedies)
        row.weights = _weights_of_benchmark(benchmark)
        row.data = (NO if benchmark.files.problems() else YES) if benchmark.files.local else NOTHING
        if benchmark.judge and benchmark.judge.runs_elsewhere:
            row.key = _key_of_judge(name, benchmark.judge, remedies)
        if row.data != NO:
            row.items = _items(benchmark, benchmark.check_dataset())
    except (UserError, CellFailure) as error:
        row.problem = str(error)
    if NO in (row.data, row.weights):
        remedies.add("data and weights of a benchmark", "bash eval.sh prefetch --ds_names NAME", name)
    return row


def _environments(config: Config, benchmark: BenchmarkChoice) -> list[tuple[str, str, str]]:
    own, judge = benchmark.environment(config), benchmark.judge
    needed = [(own, "python", benchmark.build(config))]
    # A transformers judge runs in the environment of its benchmark, if the benchmark has one.
    if judge and not judge.runs_elsewhere and not (own and judge.backend == "transformers"):
        program = "vllm" if judge.backend == "vllm" else "python"
        needed.append((judge.environment(config), program, f"--judge {judge.backend}"))
    return needed


def _weights_of_benchmark(benchmark: BenchmarkChoice) -> str:
    found = _weights(benchmark.needs.assets)
    return NO if benchmark.lacks() else found


def _key_of_judge(name: str, judge: ConfiguredJudge, remedies: _Remedies) -> str:
    if judge.backend == "vllm" and not judge.kwargs.get("api_key_env"):
        judge.endpoint()
        return NOTHING
    return _key(name, judge.kwargs, remedies)


def _items(choice: BenchmarkChoice, images: int | None = None) -> str:
    """Returns the number of items in words: prompts × images per prompt.

    ``images`` is the number of items in the dataset; None (no data here) takes the numbers of the class.

    Raises CellFailure: the class declares a value that is no number.
    """
    ours = choice.benchmark
    with benchmark_code(choice.name, "prompt_count or images_per_prompt"):
        prompts, of_each = (ours.prompt_count, ours.images_per_prompt) if ours else (0, 1)
        if images is not None:
            prompts, of_each = (images, 1) if images % of_each else (images // of_each, of_each)
        shown = f"{prompts:d} × {of_each:d}" if of_each > 1 else f"{prompts:d}"
    return shown if prompts else NOTHING
