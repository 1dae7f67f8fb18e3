"""Official programs run as they are, with a stand-in for the judge that they ask; and what we would send it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from imageevalkit.benchmark.question import Question
from imageevalkit.judges.api import _data_url, chat_request, request_parameters
from imageevalkit.judges.choice import ApiSettings
from tests.support.mirror import official_source


class ClientOfOpenAI:
    """In place of OpenAI's client: ``reply`` gives the text for each request, and ``asked`` keeps them."""

    def __init__(self, reply: Callable[[dict[str, Any]], str | None]) -> None:
        self.reply, self.asked = reply, list[dict[str, Any]]()
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=self._create))

    def _create(self, **request: Any) -> SimpleNamespace:
        self.asked.append(request)
        message = SimpleNamespace(content=self.reply(request))
        return SimpleNamespace(choices=[SimpleNamespace(message=message)])

    @property
    def module(self) -> SimpleNamespace:
        """Returns the module that a program imports."""
        return SimpleNamespace(OpenAI=lambda **settings: self)


def run_program(
    repo: str, commit: str, path: str, monkeypatch: pytest.MonkeyPatch, **modules: Any
) -> dict[str, Any]:
    """The names of a program that was run as a module, silently; ``modules`` stand in for those that it imports."""
    source = official_source(repo, commit, path)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    space: dict[str, Any] = {"__name__": "official", "print": lambda *words, **how: None}
    exec(compile(source, path, "exec"), space)
    return space


def request_to(model: str, question: Question) -> dict[str, Any]:
    """The request that we send to an OpenAI-compatible server, a content of one text as that text."""
    pictures = {picture: _data_url(picture) for picture in question.pictures}
    request = chat_request(model, question, request_parameters(question, ApiSettings()), pictures)
    body: dict[str, Any] = json.loads(b"".join(request.body))
    for message in body["messages"]:
        if [part["type"] for part in message["content"]] == ["text"]:
            message["content"] = message["content"][0]["text"]
    return body
