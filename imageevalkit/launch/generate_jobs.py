"""The jobs that bring a run its images: local models', API models', and those taken from a folder (``--images``)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imageevalkit.api.endpoint import Endpoint
from imageevalkit.api.money import price_and_estimate
from imageevalkit.asset_checks.check import hub_secrets
from imageevalkit.cell import Cell, log_root
from imageevalkit.errors import CellFailure, UserError
from imageevalkit.jobs import Job, environ_of
from imageevalkit.launch import gpus
from imageevalkit.launch.benchmarks import BenchmarkChoice
from imageevalkit.launch.config import Config
from imageevalkit.launch.environments import DRIVER_ENV, python_of
from imageevalkit.launch.models import model_needs, resolve_model
from imageevalkit.launch.options import Options

# A crash (out of memory, driver fault) may pass; a job that reports its own failure is not run again.
_RETRIES = 2

Settings = dict[str, dict[str, Any]]
"""The resolved settings of one model by task, of those that it does."""


@dataclass(frozen=True)
class Run:
    """What all jobs of a run share."""

    options: Options
    config: Config
    folder: Path
    stamp: str
    cores: int
    blocked: dict[str, str]
    """Why cells cannot start, by cell."""
    benchmarks: Mapping[str, BenchmarkChoice]
    """Those whose files can be read, by name."""

    @property
    def environ(self) -> dict[str, str]:
        """What every job finds the settings of benchmarks by."""
        return environ_of({name: benchmark.settings for name, benchmark in self.benchmarks.items()})

    def tasks(self) -> list[str]:
        """Those of its benchmarks."""
        return list(dict.fromkeys(benchmark.task for benchmark in self.benchmarks.values()))

    def logs(self, cells: list[Cell], stage: str) -> list[str]:
        """One log file for each cell."""
        return [str(log_root() / cell.model / f"{cell.benchmark}_{stage}_{self.stamp}.log") for cell in cells]

    def open_cells(self, model: str) -> list[Cell]:
        """The cells of ``model`` that can start."""
        cells = [self.options.cell(model, benchmark) for benchmark in self.options.benchmarks]
        return [cell for cell in cells if cell.key not in self.blocked]


def rewrite_jobs(run: Run) -> list[Job]:
    """The job that has the prompts of all cells rewritten, if that is asked for: the only one that asks the rewriter.

    Raises:
        UserError: a missing key.
    """
    options, rewriter = run.options, run.options.rewriter
    cells = [cell for model in options.models for cell in run.open_cells(model)]
    if rewriter is None or not options.rewrites or not cells:
        return []
    secrets, turns = list[str](), list[str]()
    # what was rewritten where there is a network can go on where there is none, nor a key
    if not all(cell.prompts.exists() for cell in cells) or os.environ.get(rewriter.key_variable):
        endpoint = rewriter.endpoint()
        secrets, turns = endpoint.secrets, [endpoint.turn]
    name = f"rewrite:{rewriter.id}"
    return [
        Job(
            name=name,
            stage="rewrite",
            command=[
                str(DRIVER_ENV / "bin" / "python"),
                *["-m", "imageevalkit.rewriting", "--plan", str(run.folder / "plan.json"), "--job", name],
            ],
            cells=[cell.key for cell in cells],
            logs=[str(log_root() / f"rewrite_{rewriter.id}_{run.stamp}.log")],
            environ=run.environ,
            secrets=secrets,
            cores=1,
            retries=_RETRIES,
            turns=turns,
            options={
                "rewriter": rewriter.rewriter.name,
                "kwargs": dict(rewriter.kwargs),
                "options": {
                    "limit": options.limit,
                    "overwrite": options.overwrite,
                    "retry_refused": options.retry_refused,
                    "workers": options.num_workers,
                    "requests_per_minute": options.requests_per_minute,
                },
            },
        )
    ]


def generate_jobs(run: Run, after: Sequence[str] = ()) -> list[Job]:
    """The jobs that make the images, each after those named.

    Models behind an API share a job and its process: their limiter, their money and their waiting are one.

    Raises:
        UserError: an unknown model, a missing key, price, environment or GPU.
    """
    local: list[tuple[str, dict[str, Settings]]] = []
    together: dict[str, dict[str, Settings]] = {}
    for model, kwargs in zip(run.options.models, run.options.model_kwargs, strict=True):
        settings: Settings = {}
        for task in run.tasks():
            with contextlib.suppress(CellFailure):  # then its cells are blocked
                settings[task] = resolve_model(model, task, run.options.use_api, kwargs)
                if run.options.rewriter:
                    settings[task]["rewriting"] = run.options.rewriter.setting
        for setting in settings.values():
            _check_api(run.options, model, setting)
            _check_batch_size(model, setting)
        environment = run.config.maps.get("INFER_ENV_MAP", {}).get(model, "")
        python = python_of(environment, f"model {model}", f"bash utils/make_env.sh --model {model}")
        if not run.open_cells(model):
            continue
        if all(setting.get("api") for setting in settings.values()):
            together.setdefault(python, {})[model] = settings
        else:
            local.append((python, {model: settings}))
    if run.options.max_cost is not None and len(together) > 1:
        raise UserError(
            f"--max_cost cannot bound API models in {len(together)} environments (INFER_ENV_MAP): "
            "put them into one, or run them one after another"
        )
    groups = [(python, models, True) for python, models in together.items()]
    groups += [(python, models, False) for python, models in local]
    names = _names([models for _, models, _ in groups])
    return [
        _job(run, name, python, models, api, after)
        for name, (python, models, api) in zip(names, groups, strict=True)
    ]


def _names(groups: list[dict[str, Settings]]) -> list[str]:
    several = [n for n, models in enumerate(groups) if len(models) > 1]
    return [
        f"generate:api models{f' {several.index(n) + 1}' * (len(several) > 1)}"
        if n in several
        else f"generate:{next(iter(models))}"
        for n, models in enumerate(groups)
    ]


def _job(
    run: Run, name: str, python: str, models: dict[str, Settings], api: bool, after: Sequence[str]
) -> Job:
    options = run.options
    # one class per task is in memory at a time, so that benchmarks of one task follow each other
    cells = []
    for model, settings in models.items():
        order = list(settings)
        cells += sorted(
            run.open_cells(model), key=lambda cell: order.index(run.benchmarks[cell.benchmark].task)
        )
    each = max(_gpus_of(run, model, s) for model, settings in models.items() for s in settings.values())
    return Job(
        name=name,
        stage="generate",
        command=[python, "infer/generate.py", "--plan", str(run.folder / "plan.json"), "--job", name],
        cells=[cell.key for cell in cells],
        logs=run.logs(cells, "generate"),
        environ=run.environ,
        secrets=_secrets(run, models, cells),
        gpus=each,
        gpus_at_most=gpus.in_replicas(each, options.replicas),
        cores=run.cores,
        retries=_RETRIES,
        after=list(after),
        partial=bool(after),
        turns=sorted(
            {
                Endpoint.of(setting["model_kwargs"]).turn
                for settings in models.values()
                for setting in settings.values()
                if setting.get("api")
            }
        ),
        options={
            "api": api,
            "settings": {run.options.cell(model, "").model: settings for model, settings in models.items()},
            "limit": options.limit,
            "overwrite": options.overwrite,
            "retry_refused": options.retry_refused,
            "blank_on_error": options.blank_on_error,
            "workers": options.num_workers if options.use_api else 1,
            "requests_per_minute": options.requests_per_minute,
            "max_cost": options.max_cost,
            "replica_gpus": each,
            "replicas": options.replicas,
        },
    )


def _secrets(run: Run, models: dict[str, Settings], cells: Sequence[Cell]) -> list[str]:
    """The variables with the keys of ``models``: of their endpoints, and the hub's where weights may be fetched."""
    needed: list[str] = []
    kwargs = dict(zip(run.options.models, run.options.model_kwargs, strict=True))
    for model, settings in models.items():
        for setting in settings.values():
            own = setting["model_kwargs"]
            if setting.get("api"):
                needed += Endpoint.of(own).secrets
            elif "api_key_env" in own:  # a class that asks an API of its own
                needed.append(str(own["api_key_env"]))
        own_cells = (cell for cell in cells if cell.raw.model == model)
        mine = dict.fromkeys(run.benchmarks[cell.benchmark].task for cell in own_cells)
        needed += hub_secrets(model_needs(model, run.options.use_api, kwargs[model], mine).assets)
    return sorted(set(needed))


def _check_api(options: Options, model: str, setting: Mapping[str, Any]) -> None:
    if not setting.get("api"):
        return
    kwargs = setting["model_kwargs"]
    try:
        Endpoint.of(kwargs)
        _, estimate = price_and_estimate(setting["model_path"], kwargs)
    except UserError as error:
        raise UserError(f"model '{model}' is reached through an API: {error}") from None
    if options.max_cost is not None and estimate is None:
        raise UserError(
            f"--max_cost needs the price of an image, and that of '{model}' is not known: add price=USD to its kwargs "
            '(--custom_model_kwargses "price=0.04")'
        )


def _check_batch_size(model: str, setting: Mapping[str, Any]) -> None:
    """Of a local model: the engine groups the items before any class sees them."""
    size = setting["model_kwargs"].get("batch_size", 1)
    if not setting.get("api") and (type(size) is not int or size < 1):
        raise UserError(f"model '{model}': batch_size is '{size}': use a whole number of at least 1")


def _gpus_of(run: Run, model: str, setting: Mapping[str, Any]) -> int:
    """GPUs of one replica: what INFER_GPU_MAP or the entry says, else one (a small model runs on the CPU too)."""
    if setting.get("api"):
        return 0
    where = f"INFER_GPU_MAP['{model}']"
    count = gpus.mapped(run.config.maps.get("INFER_GPU_MAP", {}).get(model, ""), where)
    if count is not None:
        return gpus.require(count, f"{where} in config.sh: one replica of the model needs")
    declared = setting.get("gpus")
    if declared is None:
        return gpus.one_if_any()
    return gpus.require(declared, f"model '{model}' needs")


def adopt_jobs(run: Run, images: Path) -> list[Job]:
    """The jobs that take ``images`` as those of the run's models; none for a model none of whose cells can start.

    Raises:
        UserError: a folder that is not there.
    """
    several = len(run.options.benchmarks) > 1
    own = {name: images / name for name in run.options.benchmarks}
    sources = {name: path if several or path.is_dir() else images for name, path in own.items()}
    for name, source in sources.items():
        if not source.exists():
            layout = f": with several benchmarks, it holds a folder for each ({name}/)" if several else ""
            raise UserError(f"--images: there is no {source}{layout}")
    return [_adopt_job(run, images, sources, model) for model in run.options.models if run.open_cells(model)]


def _adopt_job(run: Run, images: Path, sources: Mapping[str, Path], model: str) -> Job:
    """``sources``: what each benchmark's images are in, of all models."""
    options, cells = run.options, run.open_cells(model)
    several_models = len(options.models) > 1
    if several_models:
        # else the folders of models are where a benchmark's own layout has them
        sources = {name: own if (own := base / model).is_dir() else base for name, base in sources.items()}
    name = f"adopt:{model}"
    return Job(
        name=name,
        stage="adopt",
        command=[
            str(DRIVER_ENV / "bin" / "python"),
            *["-m", "imageevalkit.adoption", "--plan", str(run.folder / "plan.json"), "--job", name],
        ],
        cells=[cell.key for cell in cells],
        logs=[run.logs(cells, "adopt")[0]],
        environ=run.environ,
        cores=run.cores,
        options={
            "sources": {name: str(source.absolute()) for name, source in sources.items()},
            "among": str(images.absolute()) if several_models else "",
            "limit": options.limit,
            "overwrite": options.overwrite,
        },
    )
