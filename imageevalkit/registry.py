"""What ``benchmarks/``, ``infer/`` and ``eval_models/`` hold, by name: the only file that looks into them.

Nothing heavy is imported before it is used.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

from imageevalkit.cell import REPO
from imageevalkit.cell.items import MODEL_NAME_MARK
from imageevalkit.errors import UserError, suggest
from imageevalkit.evaluation.benchmark import Benchmark, benchmark_code
from imageevalkit.guest_code import guest_code
from imageevalkit.secrets import one_line

TASKS = ("t2i", "edit", "subject")


class _Found(NamedTuple):
    """The classes of benchmarks by name; and by folder why a ``benchmark.py`` could not be read."""

    classes: Mapping[str, type[Benchmark]]
    broken: Mapping[str, str]


@functools.cache
def _benchmarks() -> _Found:
    classes: dict[str, type[Benchmark]] = {}
    broken: dict[str, str] = {}
    for path in sorted((REPO / "benchmarks").glob("*/benchmark.py")):
        where = path.relative_to(REPO).as_posix()
        try:
            with guest_code():
                module = importlib.import_module(f"benchmarks.{path.parent.name}.benchmark")
            for cls in vars(module).values():
                if inspect.isclass(cls) and cls.__module__ == module.__name__ and issubclass(cls, Benchmark):
                    _add(classes, cls, where)
        except UserError as error:
            broken[path.parent.name] = str(error)
        except Exception as error:
            broken[path.parent.name] = (
                f"{where} cannot be imported: {type(error).__name__}: {one_line(error)}"
            )
    return _Found(classes, broken)


def _add(classes: dict[str, type[Benchmark]], cls: type[Benchmark], where: str) -> None:
    """``cls`` to ``classes``, unless it has no name of its own: a base of others. Raises UserError."""
    name = vars(cls).get("name")
    if name is None:
        return
    if inspect.isabstract(cls):
        lacks = ", ".join(sorted(cls.__abstractmethods__))
        raise UserError(f"{where}: class {cls.__name__} lacks {lacks} (imageevalkit/evaluation/benchmark.py)")
    if not isinstance(name, str) or not name or not isinstance(getattr(cls, "version", None), str):
        raise UserError(f"{where}: class {cls.__name__} needs texts as name and version")
    if cls.task not in TASKS:
        raise UserError(f"{where}: the task of {name} is '{cls.task}': use {', '.join(TASKS)}")
    if name in classes:
        raise UserError(
            f"{where}: benchmark '{name}' is in {classes[name].__module__.replace('.', '/')}.py too"
        )
    classes[name] = cls


def benchmark_class(name: str) -> type[Benchmark] | None:
    """The class of the benchmark ``name``; None where there is none: a foreign one, or none at all.

    Raises:
        UserError: what may be its file cannot be read.
    """
    found = _benchmarks()
    if problem := found.broken.get(name.replace("-", "_")):
        raise UserError(problem)
    return found.classes.get(name)


def make_benchmark(name: str, settings: Mapping[str, Any], judge: str) -> Benchmark:
    """The benchmark ``name`` with ``settings`` as planning checked them. Raises UserError: there is no such one."""
    cls = benchmark_class(name)
    if cls is None:
        known = [*_benchmarks().classes, *_foreign_datasets()]
        raise UserError(f"benchmark '{name}' has no scoring rules in benchmarks/{suggest(name, known)}")
    with benchmark_code(name, "its settings"):
        return cls(cls.settings_class(**settings), judge)


def benchmark_tasks() -> dict[str, str]:
    """The task of every benchmark, ours and foreign ones.

    Raises:
        UserError: infer/custom_datasets/load_dataset.py cannot be read.
    """
    ours = {name: cls.task for name, cls in _benchmarks().classes.items()}
    return ours | {name: setting.task for name, setting in _foreign_datasets().items()}


def broken_benchmarks() -> Mapping[str, str]:
    """Why a file ``benchmark.py`` is none, by its folder."""
    return _benchmarks().broken


def load_dataset(name: str, settings: Mapping[str, Any]) -> Any:
    """The dataset of the benchmark ``name`` in the form of the extension guide, with the method ``find_images`` too.

    Raises:
        UserError: there is no such benchmark.
        CellFailure: a foreign class calls itself, or its task, otherwise than the registry does.
    """
    if benchmark_class(name):
        return BenchmarkDataset(make_benchmark(name, settings, ""))
    if name not in _foreign_datasets():
        raise UserError(f"unknown benchmark '{name}'{suggest(name, benchmark_tasks())}")
    return _infer("custom_datasets.load_dataset").load_dataset(name)


class BenchmarkDataset:
    """A benchmark as the extension guide's dataset class shows one."""

    def __init__(self, benchmark: Benchmark) -> None:
        self.dataset_name = benchmark.name
        self.dataset_task = benchmark.task
        self.find_images = benchmark.find_images
        shown = "prompt" if benchmark.task == "t2i" else "input_list"
        with benchmark_code(benchmark.name, "samples()"):
            self.data = [
                {
                    **sample.data,
                    shown: getattr(sample, shown),
                    "seed": sample.seed,
                    "image_save_path": f"{MODEL_NAME_MARK}/{benchmark.name}/{sample.file}",
                }
                for sample in benchmark.samples()
            ]


def _foreign_datasets() -> Mapping[str, Any]:
    found: Mapping[str, Any] = _infer("custom_datasets.load_dataset").DATASET_SETTINGS
    return found


def _infer(module: str) -> Any:
    """A module of ``infer/``, which jobs and scripts have on their path. Raises UserError: it cannot be read."""
    try:
        with guest_code():
            return importlib.import_module(module)
    except Exception as error:
        path = f"infer/{module.replace('.', '/')}.py"
        raise UserError(f"{path} cannot be read: {type(error).__name__}: {one_line(error)}") from error
