"""What the configuration says of a judge: its kwargs, its environment, and the API at which it is reached."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from imageevalkit.api.endpoint import Endpoint
from imageevalkit.judges.choice import JudgeChoice
from imageevalkit.launch.config import Config
from imageevalkit.launch.kwargs import parse_kwargs


def configured_kwargs(config: Config, choice: JudgeChoice) -> dict[str, Any]:
    """The kwargs of the judge: JUDGE_KWARGS_MAP over its entry in the registry. Raises UserError."""
    given = config.maps.get("JUDGE_KWARGS_MAP", {})
    text = given.get(choice.full_name) or given.get(choice.name) or ""
    return {**choice.setting.kwargs, **parse_kwargs(text, "JUDGE_KWARGS_MAP in config.sh")}


def runs_elsewhere(choice: JudgeChoice, kwargs: Mapping[str, Any]) -> bool:
    """Whether the judge is only asked, at an API or a server that runs already."""
    return choice.setting.backend == "openai" or bool(
        choice.setting.backend == "vllm" and kwargs.get("base_url")
    )


def endpoint_of(choice: JudgeChoice, kwargs: Mapping[str, Any]) -> Endpoint:
    """Where a judge that runs elsewhere is asked, and with which key. Raises UserError: there is none."""
    if choice.setting.backend == "vllm" and not kwargs.get("api_key_env"):
        return Endpoint.without_key(str(kwargs["base_url"]), "base_url")
    return Endpoint.of(kwargs)


def environment_of(config: Config, choice: JudgeChoice, kwargs: Mapping[str, Any]) -> str:
    """The environment in which a judge of this machine runs: its own kwarg, else that of its backend."""
    own = kwargs.get("environment")
    backend = choice.setting.backend
    return str(config.maps.get("EVAL_ENV_MAP", {}).get(backend, backend) if own is None else own)
