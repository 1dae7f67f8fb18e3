"""Which judge an evaluate job asks, with which settings, and what it needs: a key, GPUs, a turn at an endpoint."""

from __future__ import annotations

from typing import Any, NamedTuple

from eval_models.judge.options import VARIABLE, JudgeOptions
from eval_models.judge.registry import JUDGE_SETTINGS, JudgeChoice, find
from imageevalkit.api.endpoint import Endpoint
from imageevalkit.errors import UserError, suggest
from imageevalkit.evaluation.benchmark import check_judge
from imageevalkit.launch.config import Config
from imageevalkit.launch.generate_jobs import Run, visible_gpus
from imageevalkit.launch.kwargs import parse_kwargs


class JudgeNeeds(NamedTuple):
    """``environ`` of the evaluate job; ``gpus`` the judge takes in it; ``turn`` names what only one job may ask
    at a time (empty: nothing)."""

    environ: dict[str, str]
    gpus: int = 0
    turn: str = ""


def judge_needs(run: Run, benchmark: str) -> JudgeNeeds:
    """What evaluating ``benchmark`` needs for its judge.

    Raises:
        UserError: an unknown judge, a malformed setting, a missing key, more GPUs than there are.
    """
    options = run.options
    judge = check_judge(benchmark, options.judges.get(benchmark, ""))
    environ = {"IMAGEEVALKIT_JUDGE": judge}
    choice = find(judge)
    if choice is None:
        if options.judge_kwargs:
            raise UserError(
                f"--judge_kwargs: benchmark {benchmark} is measured by '{judge or 'its script'}', which takes none"
            )
        return JudgeNeeds(environ)
    kwargs = {**choice.setting.kwargs, **_configured(run.config, choice), **options.judge_kwargs}
    gpus = _gpus(choice, kwargs.pop("gpus", None))
    given = JudgeOptions(kwargs, options.num_workers, options.requests_per_minute)
    needs = JudgeNeeds({**environ, VARIABLE: given.to_json()})
    if not options.asks_judges:
        return needs
    if choice.setting.backend == "transformers":
        return needs._replace(gpus=gpus)
    try:
        endpoint = Endpoint.of(kwargs)
    except UserError as error:
        raise UserError(f"judge '{choice.name}' of {benchmark} is reached through an API: {error}") from None
    # two jobs at one endpoint would each start at the ceiling that the user set for it
    return needs._replace(turn=f"{endpoint.host} {endpoint.key_variable}")


def check_kwargs_map(config: Config) -> None:
    """Raises UserError when JUDGE_KWARGS_MAP names no judge."""
    for name in config.maps.get("JUDGE_KWARGS_MAP", {}):
        if name not in JUDGE_SETTINGS and ":" not in name:
            raise UserError(
                f"JUDGE_KWARGS_MAP in config.sh names unknown judge '{name}'{suggest(name, JUDGE_SETTINGS)}; "
                "a judge that is not registered is written backend:model"
            )


def _configured(config: Config, choice: JudgeChoice) -> dict[str, Any]:
    kwargs = config.maps.get("JUDGE_KWARGS_MAP", {})
    text = kwargs.get(choice.full_name) or kwargs.get(choice.name) or ""
    return parse_kwargs(text)


def _gpus(choice: JudgeChoice, given: Any) -> int:
    if given is None:
        return min(1, visible_gpus()) if choice.setting.backend == "transformers" else 0
    if isinstance(given, bool) or not isinstance(given, int) or given < 0:
        raise UserError(f"judge '{choice.name}': gpus is {given!r}: use a whole number")
    if given > visible_gpus():
        raise UserError(
            f"judge '{choice.name}' wants {given} GPU(s), but this machine shows {visible_gpus()}"
        )
    return given
