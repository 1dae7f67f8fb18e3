"""The judges of a run, as the configuration has them: their settings, where they run, what they take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from imageevalkit import registry
from imageevalkit.api.endpoint import Endpoint
from imageevalkit.asset_checks.check import Needed, weights_at
from imageevalkit.errors import UserError, suggest
from imageevalkit.judges.choice import JudgeChoice
from imageevalkit.launch.config import Config
from imageevalkit.launch.kwargs import parse_kwargs


class ConfiguredJudge(NamedTuple):
    """A judge with the user's settings of it, ``kwargs``, over those of its entry in the registry."""

    choice: JudgeChoice
    kwargs: Mapping[str, Any]

    @property
    def backend(self) -> str:
        """What runs it: openai, transformers or vllm."""
        return self.choice.setting.backend

    @property
    def runs_elsewhere(self) -> bool:
        """Whether it is only asked, at an API or a server that runs already."""
        return self.backend == "openai" or bool(self.backend == "vllm" and self.kwargs.get("base_url"))

    @property
    def endpoint(self) -> Endpoint:
        """Where one that runs elsewhere is asked, and with which key. Raises UserError: there is none."""
        if self.backend == "vllm" and not self.kwargs.get("api_key_env"):
            return Endpoint.without_key(str(self.kwargs["base_url"]), "base_url")
        return Endpoint.of(self.kwargs)

    @property
    def weights(self) -> list[Needed]:
        """Those that it takes on this machine; none where it runs elsewhere."""
        if self.runs_elsewhere:
            return []
        return [weights_at(self.choice.setting.model_path, self.kwargs.get("revision"))]

    def environment(self, config: Config) -> str:
        """The environment in which it runs on this machine: its own setting, else that of its backend."""
        own = self.kwargs.get("environment")
        named = config.maps.get("EVAL_ENV_MAP", {}).get(self.backend, self.backend)
        return str(named if own is None else own)


def configured_judge(
    config: Config, full_name: str, given: Mapping[str, Any] | None = None
) -> ConfiguredJudge | None:
    """The judge with that full name: settings ``given`` over JUDGE_KWARGS_MAP over its entry in the registry.

    None for an evaluator that is no judge. Raises UserError: the configuration is malformed.
    """
    choice = registry.find_judge(full_name)
    if choice is None:
        return None
    texts = config.maps.get("JUDGE_KWARGS_MAP", {})
    text = texts.get(choice.full_name) or texts.get(choice.name) or ""
    configured = parse_kwargs(text, "JUDGE_KWARGS_MAP in config.sh")
    return ConfiguredJudge(choice, {**choice.setting.kwargs, **configured, **(given or {})})


def check_kwargs_map(config: Config) -> None:
    """Raises UserError when JUDGE_KWARGS_MAP names no judge."""
    for name in config.maps.get("JUDGE_KWARGS_MAP", {}):
        if name not in registry.judges() and ":" not in name:
            raise UserError(
                f"JUDGE_KWARGS_MAP in config.sh names unknown judge '{name}'{suggest(name, registry.judges())}; "
                "a judge that is not registered is written backend:model"
            )
