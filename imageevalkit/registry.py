"""The registry of ``benchmarks/``, ``infer/``, ``eval_models/`` and plug-ins by name. No other file looks
into them.

Heavy modules are imported only when used. A plug-in is an entry point of an installed package. Its group is
one of :data:`PLUGIN_KINDS` after ``imageevalkit.``, its name is the name that users write. A name of the tree
always means the tree's own object.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import functools
import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from imageevalkit.assets import REWRITERS, BenchmarkFiles, Needed
from imageevalkit.assets.weights import without_cache_layout
from imageevalkit.benchmark.answerer import Answerer
from imageevalkit.benchmark.contract import Benchmark, benchmark_code
from imageevalkit.benchmark.question import PixelRule
from imageevalkit.common.errors import CellFailure, UserError, remedy_of_import, suggest, unknown
from imageevalkit.common.guest_code import guest_code
from imageevalkit.common.redaction import one_line
from imageevalkit.judges.choice import BACKENDS, Judge, JudgeChoice, JudgeOptions, JudgeSetting
from imageevalkit.store.cell import REPO, REWRITER_NAME
from imageevalkit.store.items import MODEL_NAME_MARK, SampleEntry

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

TASKS = ("t2i", "edit", "subject")
_API_JUDGE, _LOCAL_JUDGE = "imageevalkit.judges.client:ApiJudge", "eval_models.vlm.judge:TransformersJudge"
_WEIGHTS = "eval_models.encoders.weights"
_CONTRACT = "imageevalkit/benchmark/contract.py"
_CHOICE = "imageevalkit/judges/choice.py"
_PLUGINS = "see docs/how-to/plug-ins.md"
_NOT_HERE = f"; a package that adds it must be installed in {sys.prefix}, too"
_FOREIGN = "DATASET_SETTINGS of infer/custom_datasets/load_dataset.py"
PLUGIN_KINDS = {
    "models": "model",
    "benchmarks": "benchmark",
    "judges": "judge",
    "rewriters": "prompt rewriter",
    "launchers": "launcher",
}
"""The groups of entry points, and the word for one plug-in of each."""


@functools.cache
def _plugins(group: str) -> Mapping[str, Sequence[EntryPoint]]:
    from importlib.metadata import entry_points  # slow to import: only for names that the tree does not have

    found: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=f"imageevalkit.{group}"):
        found.setdefault(point.name, []).append(point)
    return found


def plugin_names(group: str) -> list[str]:
    """Returns the names of the plug-ins of ``group``, a key of :data:`PLUGIN_KINDS`. Imports none of them."""
    return sorted(_plugins(group))


def is_plugin(name: str) -> bool:
    """Returns whether a plug-in of any group has the name."""
    return any(name in _plugins(group) for group in PLUGIN_KINDS)


def plugin_packages(group: str, name: str) -> str:
    """Returns the packages that bring the plug-in ``name``: one, unless the plug-in is unusable."""
    dists = (point.dist for point in _plugins(group)[name])
    return " and ".join(f"{dist.name} {dist.version}" for dist in dists if dist)


def plugin_place(group: str, name: str) -> str:
    """Returns the plug-in ``name`` with its package and its object, for messages."""
    value = _plugins(group)[name][0].value
    return f"{PLUGIN_KINDS[group]} '{name}' of package {plugin_packages(group, name)} ({value})"


def _plugin(group: str, name: str) -> Any:
    """Returns the object of the plug-in ``name``; None if no installed package has it.

    Raises UserError if the object cannot be imported, or several packages have one of that name.
    """
    points = _plugins(group).get(name)
    if points is None:
        return None
    if len(points) > 1:
        raise UserError(
            f"{PLUGIN_KINDS[group]} '{name}' is in packages {plugin_packages(group, name)}: uninstall one of them"
        )
    try:
        with guest_code():
            return points[0].load()
    except Exception as error:
        why = f"{type(error).__name__}: {one_line(error)}"
        raise UserError(f"{plugin_place(group, name)} cannot be imported: {why}") from error


class DatasetSetting(NamedTuple):
    """A line of DATASET_SETTINGS: ``module`` is relative to ``infer/custom_datasets``; no class arguments."""

    task: str
    module: str
    class_name: str


@functools.cache
def _benchmarks() -> tuple[Mapping[str, type[Benchmark]], Mapping[str, str]]:
    """Returns the benchmark classes by name, and the reasons for unusable ones, by name or folder."""
    found: dict[str, list[type[Benchmark]]] = {}
    broken: dict[str, str] = {}
    # a hidden folder is an editor's copy
    for folder in sorted((REPO / "benchmarks").glob("[!.]*/")):
        try:
            for cls in _classes_in(folder) if any(folder.glob("*.py")) else ():
                if problem := _problem_of(cls):
                    broken[str(cls.name)] = f"{file_of(cls)}: {problem}"
                    broken.setdefault(folder.name, broken[str(cls.name)])
                else:
                    found.setdefault(cls.name, []).append(cls)
        except UserError as error:
            broken[folder.name] = str(error)
    for name, classes in found.items():
        if len(classes) > 1:
            files = " and in ".join(map(file_of, classes))
            broken[name] = f"benchmark '{name}' is in {files}: give one of them another name"
            broken |= {cls.__module__.split(".")[1]: broken[name] for cls in classes}
    return {name: classes[0] for name, classes in found.items() if len(classes) == 1}, broken


def _classes_in(folder: Path) -> list[type[Benchmark]]:
    """Returns the benchmark classes in a folder that have a name; base classes of others have none.

    Raises UserError if there is no class, or the file cannot be imported.
    """
    path = folder / "benchmark.py"
    where = path.relative_to(REPO).as_posix()
    if not path.is_file():
        if any((REPO / "eval").glob(f"{folder.name.replace('_', '[-_]')}.sh")):
            return []  # the folder belongs to a foreign benchmark's script
        files = ", ".join(sorted(file.name for file in folder.glob("*.py")))
        raise UserError(
            f"there is no {where}, where the class of a benchmark goes, but {files}: rename the file"
        )
    module = _imported(f"benchmarks.{folder.name}.benchmark")
    own = dict.fromkeys(cls for cls in vars(module).values() if inspect.isclass(cls))
    ours = [cls for cls in own if cls.__module__ == module.__name__ and issubclass(cls, Benchmark)]
    classes = [cls for cls in ours if vars(cls).get("name") is not None]
    if not classes:
        raise UserError(f"{where} holds no benchmark: write a class with a name ({_CONTRACT})")
    return classes


def _problem_of(cls: type[Benchmark]) -> str:
    """Returns why ``cls`` is no valid benchmark class; empty if it is."""
    for attribute in ("name", "version"):
        text = getattr(cls, attribute, None)
        if not isinstance(text, str) or not text:
            is_wrong = "is missing" if text is None else f"is {text!r}"
            return f"the {attribute} of class {cls.__name__} {is_wrong}, and must be a text"
    hints: dict[str, Any] = {}
    for base in cls.__mro__:
        hints |= vars(base).get("__annotations__", {})
    known = {*hints, *(name for base in cls.__mro__[1:] for name in vars(base))}
    words = [name for name in known if not name.startswith("_") and not callable(getattr(cls, name, None))]
    for name, value in vars(cls).items():
        if name in known or name.startswith("_") or callable(value) or inspect.isdatadescriptor(value):
            continue
        if close := difflib.get_close_matches(name, words, n=1, cutoff=0.75):
            return f"class {cls.__name__} has {name}, which means nothing: is it '{close[0]}'? ({_CONTRACT})"
    unset = (name for name, kind in hints.items() if "ClassVar" in str(kind) and name not in dir(cls))
    lacks = sorted({*cls.__abstractmethods__, *unset})
    if lacks:
        return f"class {cls.__name__} lacks {', '.join(lacks)} ({_CONTRACT})"
    for attribute in ("by", "grades", "item_values", "official_headline", "official_judges", "unbounded"):
        if isinstance(value := vars(cls).get(attribute), str):
            return f"the {attribute} of class {cls.__name__} is {value!r}, and must be a tuple: ({value!r},)"
    return "" if cls.task in TASKS else f"the task of {cls.name} is '{cls.task}': use {', '.join(TASKS)}"


def _imported(module: str) -> Any:
    """Imports and returns a module of ``benchmarks/`` or ``infer/``. Raises UserError if it has an error."""
    try:
        with guest_code():
            return importlib.import_module(module)
    except Exception as error:
        path = f"{'infer/' * module.startswith('custom_')}{module.replace('.', '/')}.py"
        raise UserError(f"{path} cannot be imported: {type(error).__name__}: {one_line(error)}") from error


def file_of(cls: type[Benchmark]) -> str:
    """Returns the file of a benchmark's class as users see it."""
    return f"{cls.__module__.replace('.', '/')}.py"


def benchmark_class(name: str) -> type[Benchmark] | None:
    """Returns the class of the benchmark ``name``, plug-ins included; None if it is foreign or unknown.

    Raises CellFailure if its file or plug-in cannot be imported, or several classes have the name.
    """
    classes, broken = _benchmarks()
    problem = broken.get(name) or broken.get(name.replace("-", "_"))
    if name not in classes and problem:
        raise CellFailure(problem)
    return classes.get(name) or _benchmark_of_plugin(name)


@functools.cache
def _benchmark_of_plugin(name: str) -> type[Benchmark] | None:
    with contextlib.suppress(UserError):  # a run reports a broken registry
        if any(name in found for found in _foreign_datasets()):
            return None
    try:
        cls = _plugin("benchmarks", name)
    except UserError as error:
        raise CellFailure(str(error)) from error
    if cls is None:
        return None
    where = plugin_place("benchmarks", name)
    if not inspect.isclass(cls) or not issubclass(cls, Benchmark):
        raise CellFailure(f"{where} is {cls!r}, and must be a class of a benchmark ({_CONTRACT})")
    if problem := _problem_of(cls):
        raise CellFailure(f"{where}: {problem}")
    if cls.name != name:
        raise CellFailure(f"{where}: its class has the name '{cls.name}': the two names must be equal")
    return cls


def without_alias(name: str) -> str:
    """Returns the name of the benchmark with the alias ``name``; else ``name`` itself."""
    return next((own for own, cls in _benchmarks()[0].items() if name in cls.aliases), name)


def benchmark_files(name: str, settings: Mapping[str, Any] = MappingProxyType({})) -> BenchmarkFiles:
    """Returns the files that prefetch gets for the benchmark ``name`` with ``settings``; none if foreign.

    Raises CellFailure as :func:`make_benchmark` does.
    """
    return make_benchmark(name, settings, "").files() if benchmark_class(name) else BenchmarkFiles(name)


def make_benchmark(name: str, settings: Mapping[str, Any], judge: str) -> Benchmark:
    """Returns the benchmark ``name`` with ``settings``, which the planner has checked.

    Raises UserError if it has no class, CellFailure if it cannot be created or its headline is invalid.
    """
    cls = benchmark_class(name)
    if cls is None:
        raise UserError(
            f"benchmark '{name}' has no scoring rules in benchmarks/{suggest(name, benchmark_tasks())}{_NOT_HERE}"
        )
    with benchmark_code(name, "its settings"):
        benchmark = cls(cls.settings_class(**settings), judge)
    benchmark.readers = measurer_names("reader")
    if not benchmark.headline or isinstance(benchmark.headline, str):
        raise CellFailure(
            f"benchmark {name}: its headline is {benchmark.headline!r}, and must name the metrics that are columns of "
            'the leaderboard, as in headline = ("accuracy",)'
        )
    return benchmark


def benchmark_tasks(plugins: Iterable[str] = ()) -> dict[str, str]:
    """Returns the task of every benchmark of the tree, foreign ones included, and of each of ``plugins``.

    ``plugins`` may have names of other benchmarks and unknown names.

    Raises UserError if the registry of foreign benchmarks cannot be imported, CellFailure as
    :func:`benchmark_class` does for a name of ``plugins``.
    """
    ours = {name: cls.task for name, cls in _benchmarks()[0].items()}
    ours |= {name: setting.task for name, setting in _foreign_datasets()[0].items()}
    return ours | {name: cls.task for name in plugins if (cls := benchmark_class(name))}


def broken_benchmarks() -> Mapping[str, str]:
    """Returns the reasons for unusable benchmarks, by name or folder.

    Raises UserError as :func:`benchmark_tasks` does.
    """
    return {**_benchmarks()[1], **_foreign_datasets()[1]}


def load_dataset(name: str, settings: Mapping[str, Any] = MappingProxyType({})) -> Any:
    """Returns the dataset of the benchmark ``name`` with ``settings``, as described in the extension guide.

    Raises UserError if there is no such benchmark, CellFailure if a foreign class differs from
    DATASET_SETTINGS.
    """
    if benchmark_class(name):
        return BenchmarkDataset(make_benchmark(name, settings, ""))
    setting = foreign_dataset(name)
    if setting is None:
        raise UserError(f"unknown benchmark '{name}'{suggest(name, benchmark_tasks())}{_NOT_HERE}")
    if own := _own_loader():
        dataset = own(name)
    else:
        module = importlib.import_module(setting.module, package="custom_datasets")
        dataset = getattr(module, setting.class_name)()
    for attribute, registered in (("dataset_name", name), ("dataset_task", setting.task)):
        if (own := getattr(dataset, attribute, None)) != registered:
            raise CellFailure(
                f"benchmark {name}: {attribute} of class {setting.class_name} is {own!r}, and must be "
                f"'{registered}', as in {_FOREIGN}"
            )
    return dataset


class BenchmarkDataset:
    """A benchmark with the interface of the extension guide's dataset class."""

    def __init__(self, benchmark: Benchmark) -> None:
        self.dataset_name = benchmark.name
        self.dataset_task = benchmark.task
        self.find_images = benchmark.find_images
        shown = "prompt" if benchmark.task == "t2i" else "input_list"
        self.data: list[SampleEntry] = []
        with benchmark_code(benchmark.name, "samples()"):
            for sample in benchmark.samples():
                path = f"{MODEL_NAME_MARK}/{benchmark.name}/{sample.file}"
                entry = {shown: getattr(sample, shown), "seed": sample.seed, "image_save_path": path}
                self.data.append(SampleEntry(entry, {**sample.data}, sample.size))


def is_foreign(name: str) -> bool:
    """Returns whether the benchmark is scored only by a user's script ``eval/<name>.sh``."""
    try:
        return benchmark_class(name) is None and (REPO / "eval" / f"{name}.sh").is_file()
    except CellFailure:
        return False


def foreign_dataset(name: str) -> DatasetSetting | None:
    """Returns the line of DATASET_SETTINGS for ``name``, or None. Raises CellFailure if it is invalid."""
    settings, broken = _foreign_datasets()
    if name in broken:
        raise CellFailure(broken[name])
    return settings.get(name)


def _foreign_datasets() -> tuple[Mapping[str, DatasetSetting], Mapping[str, str]]:
    """Returns the valid lines of DATASET_SETTINGS by name, and the reasons why other lines are invalid.

    Raises UserError if the file cannot be imported.
    """
    if _own_loader():
        return _datasets_of_branches()
    lines = vars(_imported("custom_datasets.load_dataset")).get("DATASET_SETTINGS")
    if not isinstance(lines, Mapping):
        raise UserError(f"{_FOREIGN} is {lines!r}, and must be a dict with a line for each foreign benchmark")
    settings, broken = {}, {}
    for name, line in lines.items():
        where = f"DATASET_SETTINGS['{name}'] in infer/custom_datasets/load_dataset.py"
        if not isinstance(line, tuple) or [type(text) for text in line] != [str] * 3:
            shape = '("t2i", ".dataset_cls.t2i.mybench", "MyBench")'
            broken[name] = f"{where} is {line!r}, and must be like {shape}"
        elif line[0] not in TASKS:
            broken[name] = f"{where}: its task is '{line[0]}': use {', '.join(TASKS)}"
        elif name in (ours := _benchmarks()[0]):
            broken[name] = f"{where}: '{name}' is the benchmark in {file_of(ours[name])}: use another name"
        else:
            settings[name] = DatasetSetting(*line)
    return settings, broken


def _own_loader() -> Any:
    """Returns the function load_dataset(name) of an upstream file without DATASET_SETTINGS; else None."""
    named = vars(_imported("custom_datasets.load_dataset"))
    return None if "DATASET_SETTINGS" in named else named.get("load_dataset")


def _datasets_of_branches() -> tuple[Mapping[str, DatasetSetting], Mapping[str, str]]:
    """Returns, as :func:`_foreign_datasets`, the datasets of an ``if name == "x": … elif …`` in the file.

    The file is parsed, not run, because creating each dataset takes long. Our own benchmarks take precedence.
    """
    tree = ast.parse((REPO / "infer/custom_datasets/load_dataset.py").read_bytes())
    functions = [
        node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "load_dataset"
    ]
    modules = {
        alias.asname or alias.name: (f"{'.' * node.level}{node.module}", alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    settings, broken = {}, {}
    nodes = (node for function in functions for node in ast.walk(function))
    for branch in (node for node in nodes if isinstance(node, ast.If)):
        used = (node.id for part in branch.body for node in ast.walk(part) if isinstance(node, ast.Name))
        module, class_name = next((modules[name] for name in used if name in modules), ("", ""))
        task = next((part for part in module.split(".") if part in TASKS), "")
        for name in (node.value for node in ast.walk(branch.test) if isinstance(node, ast.Constant)):
            if not isinstance(name, str) or name in _benchmarks()[0]:
                continue
            if task:
                settings[name] = DatasetSetting(task, module.removeprefix("custom_datasets"), class_name)
            else:
                broken[name] = (
                    f"load_dataset() in infer/custom_datasets/load_dataset.py: the branch of '{name}' uses no class "
                    "that is imported from dataset_cls.t2i, dataset_cls.edit or dataset_cls.subject"
                )
    return settings, broken


def models() -> Any:
    """Returns the module ``infer/custom_models/load_model.py``. Raises UserError if it cannot be imported."""
    module = _imported("custom_models.load_model")
    if "api_setting" not in vars(module):
        raise UserError(
            "infer/custom_models/load_model.py is of another toolkit: it has no api_setting. Restore ours (git "
            "checkout infer/custom_models/load_model.py) and add your entries to its MODEL_SETTINGS, as they are"
        )
    return module


def is_model(name: str) -> bool:
    """Returns whether the model is registered: it is in MODEL_SETTINGS, or a plug-in has the name."""
    return any(name in entries for entries in models().MODEL_SETTINGS.values()) or name in _plugins("models")


def model_entries(name: str) -> Mapping[str, Any]:
    """Returns the entries of the model ``name`` by task, plug-ins included; empty if it is not registered.

    Raises CellFailure if it is of a plug-in that is unusable.
    """
    settings = models().MODEL_SETTINGS
    if own := {task: entries[name] for task, entries in settings.items() if name in entries}:
        return own
    try:
        value = _plugin("models", name)
    except UserError as error:
        raise CellFailure(str(error)) from error
    if value is None:
        return {}
    where = plugin_place("models", name)
    if not isinstance(value, Mapping) or not value or value.keys() - {*TASKS}:
        raise CellFailure(
            f"{where} is {value!r}, and must be a dict with an entry for each task ({_PLUGINS})"
        )
    for entry in value.values():
        if isinstance(entry, Mapping) and str(entry.get("module")).startswith("."):
            raise CellFailure(f"{where}: 'module' is {entry['module']!r}: write the full name of the module")
    return value


def rewriter_names() -> list[str]:
    """Returns the names of the prompt rewriters of the tree; each is a file."""
    return sorted(path.stem for path in REWRITERS.glob("[!._]*.py"))


def rewriter_class(name: str) -> Any:
    """Returns the class of the rewriter ``name`` (:class:`imageevalkit.extras.rewrite.contract.Rewriter`).

    Raises UserError if there is none, or its file has an error.
    """
    if is_ours := name in rewriter_names():
        where = f"infer/custom_rewriters/{name}.py"
    elif name in _plugins("rewriters"):
        where = plugin_place("rewriters", name)
    else:
        raise unknown("prompt rewriter", name, [*rewriter_names(), *plugin_names("rewriters")])
    if not re.fullmatch(REWRITER_NAME, name):
        raise UserError(
            f"{where} cannot be used: a rewriter's name begins with a small letter and has letters, digits and _ "
            "only; rename it, and the name in its class"
        )
    named = vars(_imported(f"custom_rewriters.{name}")).values() if is_ours else [_plugin("rewriters", name)]
    classes = [cls for cls in named if inspect.isclass(cls) and vars(cls).get("name") == name]
    if not classes or inspect.isabstract(classes[0]):
        raise UserError(
            f"{where} holds no class with name = '{name}' and all methods of a Rewriter "
            "(imageevalkit/extras/rewrite/contract.py)"
        )
    return classes[0]


def launcher(name: str) -> Callable[[Any], Any]:
    """Returns the function ``run(plan) -> exit status`` of a plug-in. Raises UserError if there is none."""
    run = _plugin("launchers", name)
    if run is None:
        raise unknown("launcher", name, plugin_names("launchers"))
    if not callable(run):
        raise UserError(
            f"{plugin_place('launchers', name)} is {run!r}, and must be a function run(plan) ({_PLUGINS})"
        )
    found: Callable[[Any], Any] = run
    return found


def judges() -> Mapping[str, JudgeSetting]:
    """Returns the judges of the tree that have short names."""
    known: Mapping[str, JudgeSetting] = importlib.import_module("eval_models.judges").JUDGE_SETTINGS
    return known


def judge_setting(name: str) -> JudgeSetting | None:
    """Returns the setting of the judge with the short ``name``, plug-ins included; None if there is none.

    Raises UserError if it is of a plug-in that is unusable.
    """
    setting = judges().get(name)
    if setting is None and name not in measurers() and "/" not in name:  # no hub id and no path
        setting = _plugin("judges", name)
    if setting is None:
        return None
    if not isinstance(setting, JudgeSetting) or setting.backend not in BACKENDS:
        raise UserError(
            f"{plugin_place('judges', name)} is {setting!r}, and must be a JudgeSetting (eval_models/judges.py) with "
            f"one of the backends {', '.join(BACKENDS)}"
        )
    return setting


def choose_judge(judge: str) -> JudgeChoice:
    """Returns the judge ``qwen3-vl-8b``, ``openai:gpt-4o``, ``vllm:/path``. Raises UserError if unknown."""
    backend, colon, name = judge.partition(":")
    if backend in BACKENDS and not name.strip():
        raise UserError(f"judge '{judge}' names no model; as in openai:gpt-4o")
    if not colon:
        if setting := judge_setting(judge):
            return JudgeChoice(judge, setting)
        backends = f"such as openai:{judge} (backends: {', '.join(BACKENDS)})"
        known = [*judges(), *plugin_names("judges")]
        raise unknown("judge", judge, known, f", and any model as backend:model, {backends}")
    if backend not in BACKENDS:
        raise UserError(
            f"judge '{judge}': no backend '{backend}'{suggest(backend, BACKENDS)}; "
            f"use one of {', '.join(BACKENDS)}, as in openai:gpt-4o"
        )
    if setting := judge_setting(name):
        is_same = setting.backend == backend
        return JudgeChoice(name, setting if is_same else JudgeSetting(backend, setting.model_path))
    # pathlib raises for an unknown user; here that is just a missing folder
    model_path = name if backend == "openai" else without_cache_layout(os.path.expanduser(name))  # noqa: PTH111
    return JudgeChoice(name, JudgeSetting(backend, model_path))


def judge(
    name: str,
    prompts: Mapping[str, str],
    official: Collection[str] = (),
    pixels: PixelRule | None = None,
    options: JudgeOptions = JudgeOptions(),  # noqa: B008 - it cannot change
) -> Answerer:
    """Returns the judge called ``name`` (:class:`imageevalkit.judges.choice.Judge`).

    Raises UserError if its class cannot be imported, or is no Judge.
    """
    choice = choose_judge(name)
    # a server started by a job of the run is used like any other API
    is_local = choice.setting.backend == "transformers"
    place = choice.setting.code or (_LOCAL_JUDGE if is_local else _API_JUDGE)
    module, _, class_name = place.partition(":")
    try:
        with guest_code():
            cls = _named(module, class_name)
    except Exception as error:
        why = f"{type(error).__name__}: {one_line(error)}{remedy_of_import(error, 'EVAL_ENV_MAP')}"
        raise UserError(f"judge '{choice.name}': {place} cannot be imported: {why}") from error
    if not inspect.isclass(cls) or not issubclass(cls, Judge):
        raise UserError(f"judge '{choice.name}': {place} is no class of a Judge ({_CHOICE})")
    return cls(choice, options, prompts, official, pixels)


def measurers() -> Mapping[str, Any]:
    """Returns the settings of all metric models (:class:`eval_models.measurers.MeasurerSetting`) by name."""
    known: Mapping[str, Any] = importlib.import_module("eval_models.measurers").MEASURERS
    return known


def measurer_names(kind: str = "") -> list[str]:
    """Returns the metric models of a ``kind`` (empty: all), which some benchmarks accept as a judge."""
    return [name for name, setting in measurers().items() if kind in (setting.kind, "")]


def measurer_setting(name: str, kind: str = "") -> Any:
    """Returns the setting of the metric model ``name``; ``module:Class`` is a benchmark's own model.

    Raises UserError if there is none of the ``kind``. The message also offers judges if a kind is given.
    """
    module, colon, class_name = name.partition(":")
    if colon:
        named = importlib.import_module("eval_models.measurers").MeasurerSetting
        return named(module, class_name, "measurer", place="driver")
    if name in measurer_names(kind):
        return measurers()[name]
    if not kind:
        raise unknown("metric model", name, measurers(), ", and one of your own as module:Class")
    raise unknown("evaluator", name, [*measurer_names(kind), *judges()], ", and any model as backend:model")


def measurer(name: str, options: Mapping[str, Any]) -> Answerer:
    """Returns the metric model ``name`` (:class:`imageevalkit.benchmark.contract.Measurer`) with ``options``.

    Raises UserError if there is none, or if it cannot be created.
    """
    setting = measurer_setting(name)
    try:
        with guest_code():
            answerer = _named(setting.module, setting.class_name)(**options)
    except (UserError, CellFailure):
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {one_line(error)}{remedy_of_import(error, 'EVAL_ENV_MAP')}"
        raise UserError(f"metric model '{name}' cannot be created: {why}") from error
    if not isinstance(answerer, Answerer):
        raise UserError(f"metric model '{name}' is no Answerer (imageevalkit/benchmark/answerer.py)")
    return answerer


def measurer_assets(name: str, options: Mapping[str, Any]) -> list[Needed]:
    """Returns the assets that prefetch gets for the metric model ``name``. Raises UserError if unknown."""
    found: list[Needed] = _named(_WEIGHTS, "assets_of")(measurer_setting(name).weights, options)
    return found


def measurer_missing(name: str, options: Mapping[str, Any]) -> list[str]:
    """Returns a line for each missing or incomplete weights file of ``name`` that only prefetch gets."""
    lines: list[str] = _named(_WEIGHTS, "missing_files")(measurer_setting(name).weights, options)
    return lines


def _named(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)
