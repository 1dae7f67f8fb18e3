"""A judge behind an OpenAI-compatible ``/chat/completions``: a provider's API, a gateway, or a vLLM server."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from eval_models.judge.api.asking import Asking, Chat, Known
from eval_models.judge.api.background import in_background
from eval_models.judge.api.endpoint import endpoint_of
from eval_models.judge.api.settings import ApiSettings
from eval_models.judge.local.weights import find_weights
from eval_models.judge.options import JudgeOptions
from eval_models.judge.registry import JudgeChoice
from eval_models.judge.server_settings import split_kwargs
from imageevalkit.api.limiter import Limiter
from imageevalkit.errors import CellFailure, say
from imageevalkit.evaluation.question import Answer, Question
from imageevalkit.open_files import requests_that_fit

_PACKAGES = ("httpx2", "pybase64")


class OpenAIJudge:
    """Asks as many questions at a time as ``options.workers`` allows; see ``ApiSettings`` for its kwargs.

    Raises:
        UserError: a kwarg it does not take, or a malformed one.
    """

    def __init__(self, choice: JudgeChoice, options: JudgeOptions) -> None:
        setting = choice.setting
        self._backend = setting.backend
        self._model_id = setting.model_path
        kwargs = {**setting.kwargs, **options.kwargs}
        if self._backend == "vllm":
            _, kwargs = split_kwargs(kwargs)
        self._settings = ApiSettings.of(setting.model_path, kwargs)
        self._options = options
        self._known = Known()

    @property
    def identity(self) -> dict[str, Any]:
        """See ``Judge``; how long and how often it is asked decides nothing."""
        return {
            "backend": self._backend,
            **self._model,
            "top_logprobs": self._settings.top_logprobs,
            "extra_body": dict(self._settings.extra_body),
            **({"server": dict(self._options.served)} if self._options.served else {}),
        }

    @property
    def _model(self) -> dict[str, Any]:
        if self._backend == "vllm" and Path(self._model_id).is_dir():
            return find_weights(self._model_id, None).identity
        return {"model": self._model_id}

    def has_answered(self) -> None:
        """See ``Judge``."""
        self._known.answered_before = True

    def holdup(self) -> str:
        """See ``Judge``. A server of this run that starts is told of by the job that starts it."""
        return self._known.holdup

    def ask(self, questions: Sequence[Question]) -> Iterator[Answer]:
        """See ``Judge``. Images are read and encoded when their question's turn comes."""
        for package in _PACKAGES:
            if importlib.util.find_spec(package) is None:
                raise CellFailure(
                    f"a judge behind an API needs the package '{package}': pip install -r requirements/driver.txt"
                )
        endpoint = endpoint_of(self._backend, self._settings, self._options)
        fit = requests_that_fit(self._options.workers)
        if fit.told:
            say(fit.told)
        limiter = Limiter(
            fit.requests, self._options.requests_per_minute, self._settings.max_outage, fit.told
        )
        served = "" if self._settings.base_url else self._options.address_file
        chat = Chat(self._model_id, endpoint, self._settings, limiter, self._known, served)

        async def produce(give: Callable[[Answer], None]) -> None:
            await Asking(chat, questions, give).run()

        yield from in_background(produce)
