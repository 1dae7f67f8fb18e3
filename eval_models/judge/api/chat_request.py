"""A question as a request to ``/chat/completions``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from eval_models.judge.api.picture_cache import DataUrl
from eval_models.judge.api.settings import ApiSettings
from imageevalkit.api.request import Request
from imageevalkit.evaluation.question import Message, Picture, Question


def request_parameters(question: Question, settings: ApiSettings) -> dict[str, Any]:
    """What is sent besides model and messages: the benchmark's sampling, then what the user gave over it."""
    sampling = question.sampling
    parameters = {
        settings.max_tokens_parameter: sampling.max_tokens,
        "temperature": sampling.temperature,
        "seed": sampling.seed,
        **({"logprobs": True, "top_logprobs": settings.top_logprobs} if question.wanted else {}),
        **sampling.extra,
        **settings.extra_body,
    }
    return {name: value for name, value in parameters.items() if value is not None}


def chat_request(
    model_id: str, question: Question, parameters: Mapping[str, Any], pictures: Mapping[Picture, DataUrl]
) -> Request:
    """The request, its body in pieces of which the base64 of each picture is one: megabytes are not copied.

    All contents are lists of parts, also those of one text: that is how the official evaluators send them.
    """
    pieces = _Pieces()
    pieces.add(f'{{"model":{_json(model_id)},"messages":[')
    for n, message in enumerate(question.messages):
        pieces.add("," * (n > 0))
        _add_message(pieces, message, pictures)
    pieces.add("]" + "".join(f",{_json(name)}:{_json(value)}" for name, value in parameters.items()) + "}")
    return Request("/chat/completions", pieces.joined(), "application/json")


class _Pieces:
    """A body under construction: short texts are joined, binary pieces stay as they are."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._text: list[str] = []

    def add(self, text: str) -> None:
        self._text.append(text)

    def add_bytes(self, piece: bytes) -> None:
        self._flush()
        self._pieces.append(piece)

    def joined(self) -> tuple[bytes, ...]:
        self._flush()
        return tuple(self._pieces)

    def _flush(self) -> None:
        if self._text:
            self._pieces.append("".join(self._text).encode())
            self._text.clear()


def _add_message(pieces: _Pieces, message: Message, pictures: Mapping[Picture, DataUrl]) -> None:
    pieces.add(f'{{"role":{_json(message.role)},"content":[')
    for n, part in enumerate(message.parts):
        pieces.add("," * (n > 0))
        if isinstance(part, Picture):
            url = pictures[part]
            pieces.add('{"type":"image_url","image_url":{"url":' + url.head)
            pieces.add_bytes(url.base64)
            pieces.add('"}}')
        else:
            pieces.add(f'{{"type":"text","text":{_json(part)}}}')
    pieces.add("]}")


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
