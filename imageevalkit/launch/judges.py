"""Which judge an evaluate job asks, with which settings, and what it needs: a key, GPUs, a turn at an endpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from imageevalkit.benchmark.contract import check_judge
from imageevalkit.errors import UserError, suggest
from imageevalkit.judges.choice import VARIABLE, JudgeChoice, JudgeOptions
from imageevalkit.judges.server import ServerSettings, split_kwargs
from imageevalkit.judges.settings import ApiSettings, TransformersSettings
from imageevalkit.launch import gpu_needs
from imageevalkit.launch.config import Config
from imageevalkit.launch.generate_jobs import Run
from imageevalkit.launch.judge_settings import (
    configured_kwargs,
    endpoint_of,
    environment_of,
    runs_elsewhere,
)
from imageevalkit.launch.needs import hub_secrets, judge_weights
from imageevalkit.launch.serving_jobs import Server, server_of
from imageevalkit.launch.settings import checked
from imageevalkit.registry import find_judge, judges

T = TypeVar("T")

# Requests at a time to a server of the run's own. NUM_WORKERS is for what others run; vLLM is fast by batching, and
# queues what is too much for it. The official WISE evaluator sends 96.
_IN_FLIGHT = 64


class JudgeNeeds(NamedTuple):
    """``environ`` of the evaluate job; ``gpus`` the judge takes in it; ``secrets`` are the variables with the keys
    that it takes; ``turn`` names what only one job may ask at a time (empty: nothing); ``server`` is what to start
    for it and all others with the same one; ``environment`` is where it runs unless the benchmark has one of its own
    (empty: it has no wish)."""

    environ: dict[str, str]
    gpus: int = 0
    secrets: Sequence[str] = ()
    turn: str = ""
    server: Server | None = None
    environment: str = ""


def judge_needs(run: Run, benchmark: str) -> JudgeNeeds:
    """What evaluating ``benchmark`` needs for its judge.

    Raises:
        UserError: an unknown judge, a malformed setting, a missing key or environment, more GPUs than there are.
    """
    options = run.options
    judge = check_judge(benchmark, options.judges.get(benchmark, ""), run.ds_kwargs[benchmark])
    environ = {"IMAGEEVALKIT_JUDGE": judge}
    choice = find_judge(judge)
    if choice is None:
        if options.judge_kwargs:
            asks = f"is measured by '{judge}', which takes none" if judge else "asks no judge"
            raise UserError(f"--judge_kwargs: benchmark {benchmark} {asks}")
        return JudgeNeeds(environ)
    kwargs = {**configured_kwargs(run.config, choice), **options.judge_kwargs}
    if choice.setting.backend == "vllm":
        return _vllm_needs(run, benchmark, choice, kwargs, environ)
    if choice.setting.backend == "transformers":
        return _transformers_needs(run, benchmark, choice, kwargs, environ)
    _settings(run, benchmark, choice, ApiSettings, kwargs)
    needs = JudgeNeeds({**environ, VARIABLE: _options(run, kwargs).to_json()})
    return _asking(run, benchmark, choice, kwargs, needs)


def _transformers_needs(
    run: Run, benchmark: str, choice: JudgeChoice, kwargs: dict[str, Any], environ: Mapping[str, str]
) -> JudgeNeeds:
    settings = _settings(run, benchmark, choice, TransformersSettings, kwargs)
    path = choice.setting.model_path
    if settings.revision is not None and Path(path).is_dir():
        raise UserError(
            f"judge '{choice.name}' of {benchmark}: revision is for hub repositories, {path} is a folder"
        )
    gpus = _gpus(choice, settings.gpus)
    return JudgeNeeds(
        {**environ, VARIABLE: _options(run, kwargs).to_json()},
        gpus=gpus if run.options.asks_judges else 0,
        secrets=hub_secrets(judge_weights(choice, kwargs)) if run.options.asks_judges else (),
        environment=environment_of(run.config, choice, kwargs),
    )


def _vllm_needs(
    run: Run, benchmark: str, choice: JudgeChoice, kwargs: Mapping[str, Any], environ: Mapping[str, str]
) -> JudgeNeeds:
    server_kwargs, kwargs = split_kwargs(kwargs)
    settings = _settings(run, benchmark, choice, ServerSettings, server_kwargs)
    _settings(run, benchmark, choice, ApiSettings, kwargs)
    given = _options(run, kwargs)
    if not runs_elsewhere(choice, kwargs):  # of one that does, we know only what it is asked
        given = replace(given, served=settings.decisive)
    if runs_elsewhere(choice, kwargs) or not run.options.asks_judges:
        return _asking(run, benchmark, choice, kwargs, JudgeNeeds({**environ, VARIABLE: given.to_json()}))
    secrets = hub_secrets(judge_weights(choice, kwargs))
    server = server_of(run, choice, settings, _gpus(choice, settings.gpus), secrets)
    given = replace(
        given,
        workers=max(given.workers, _IN_FLIGHT),
        requests_per_minute=None,
        address_file=server.address_file,
    )
    return JudgeNeeds({**environ, VARIABLE: given.to_json()}, server=server)


def _settings(run: Run, benchmark: str, choice: JudgeChoice, cls: type[T], kwargs: Mapping[str, Any]) -> T:
    """``kwargs`` as settings: a mistake in them is told before any image is made."""
    try:
        remark = " (request parameters go into extra_body)" if cls is ApiSettings else ""
        return checked(cls, kwargs, f"judge '{choice.name}' of {benchmark}", remark)
    except UserError as error:
        if run.options.judge_kwargs and len(run.options.benchmarks) > 1:
            raise UserError(
                f"{error}; --judge_kwargs goes to the judges of all benchmarks, JUDGE_KWARGS_MAP has settings for each"
            ) from None
        raise


def _options(run: Run, kwargs: Mapping[str, Any]) -> JudgeOptions:
    return JudgeOptions(kwargs, run.options.num_workers, run.options.requests_per_minute)


def _asking(
    run: Run, benchmark: str, choice: JudgeChoice, kwargs: Mapping[str, Any], needs: JudgeNeeds
) -> JudgeNeeds:
    """``needs`` with the key and the turn of a judge that runs elsewhere, where it is asked at all."""
    if not run.options.asks_judges:
        return needs
    try:
        endpoint = endpoint_of(choice, kwargs)
    except UserError as error:
        raise UserError(f"judge '{choice.name}' of {benchmark} is reached through an API: {error}") from None
    return needs._replace(secrets=endpoint.secrets, turn=endpoint.turn)


def check_kwargs_map(config: Config) -> None:
    """Raises UserError when JUDGE_KWARGS_MAP names no judge."""
    for name in config.maps.get("JUDGE_KWARGS_MAP", {}):
        if name not in judges() and ":" not in name:
            raise UserError(
                f"JUDGE_KWARGS_MAP in config.sh names unknown judge '{name}'{suggest(name, judges())}; "
                "a judge that is not registered is written backend:model"
            )


def _gpus(choice: JudgeChoice, given: int | None) -> int:
    if given is None:
        return gpu_needs.one_if_any()
    return gpu_needs.require(given, f"judge '{choice.name}' wants")
