"""Reads replies that come as server-sent events: some gateways stream even if no stream was requested."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from imageevalkit.api.failures import Failure, Kind

_BEGINS = re.compile(rb"\s*(?:(?:data|event|id|retry):|:)")
_END = b"[DONE]"
# Texts of a message that arrive in pieces. Every other text of a piece replaces the earlier one.
_IN_PIECES = frozenset({"content", "reasoning", "reasoning_content", "refusal"})
_BREAKS_OFF = "a stream of events that breaks off"
_BROKEN_OFF = Failure(
    Kind.TRANSIENT, f"the reply is {_BREAKS_OFF}", maybe_billed=True, unlike=f"it is {_BREAKS_OFF}"
)


def joined(content: bytes) -> dict[str, Any] | Failure | None:
    """Returns the reply that the events in ``content`` add up to; None if ``content`` is no stream of events.

    Returns a Failure if the stream breaks off: half an answer must not be scored.
    """
    if not _BEGINS.match(content):
        return None
    reply = _Joined()
    is_ended = False
    for data in _events(content):
        if data.strip() == _END:
            is_ended = True
            continue
        try:
            event = json.loads(data)
        except ValueError:
            return _BROKEN_OFF
        if isinstance(event, dict):
            reply.add(event)
    return reply.whole() if is_ended or reply.is_ended else _BROKEN_OFF


def _events(content: bytes) -> Iterator[bytes]:
    """Yields the data of each event: its ``data`` lines up to an empty line (HTML standard, section 9.2)."""
    lines: list[bytes] = []
    for line in [*content.splitlines(), b""]:
        if line.startswith(b"data:"):
            lines.append(line[5:])
        elif not line and lines:
            yield b"\n".join(lines)
            lines.clear()


class _Joined:
    """Builds one reply from events. Joins the pieces only at the end: an image may have thousands."""

    def __init__(self) -> None:
        self._fields: dict[str, Any] = {}
        self._choices: defaultdict[int, _Choice] = defaultdict(_Choice)

    @property
    def is_ended(self) -> bool:
        """True if every choice has ended. A stream without choices shows a missing end by its content."""
        return all(choice.is_ended for choice in self._choices.values())

    def add(self, event: Mapping[str, Any]) -> None:
        """Adds an event of the chat completions, responses or image API."""
        if str(event.get("type")).endswith("partial_image"):
            return  # a draft of the image
        if isinstance(event.get("response"), dict):
            self._fields.update(event["response"])  # the whole response so far
            return
        choices = event.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict):
                index = choice.get("index")
                self._choices[index if isinstance(index, int) else 0].add(choice)
        self._fields.update({k: v for k, v in event.items() if k != "choices" and v is not None})

    def whole(self) -> dict[str, Any]:
        """Returns the reply as it would be without streaming."""
        if not self._choices:
            return self._fields
        return {**self._fields, "choices": [self._choices[index].whole() for index in sorted(self._choices)]}


class _Choice:
    def __init__(self) -> None:
        self._fields: dict[str, Any] = {}
        self._message: dict[str, Any] = {}
        self._texts: defaultdict[str, list[str]] = defaultdict(list)
        self._lists: defaultdict[str, list[Any]] = defaultdict(list)
        self._logprobs: list[Any] = []
        self.is_ended = False

    def add(self, choice: Mapping[str, Any]) -> None:
        if isinstance(choice.get("message"), dict):  # a whole reply in one event
            self._message.update(choice["message"])
            self.is_ended = True
        delta = choice.get("delta")
        for key, value in delta.items() if isinstance(delta, dict) else ():
            if isinstance(value, str) and key in _IN_PIECES:
                self._texts[key].append(value)
            elif isinstance(value, list):
                self._lists[key].extend(value)
            elif value is not None:
                self._message[key] = value
        logprobs = choice.get("logprobs")
        if isinstance(logprobs, dict) and isinstance(logprobs.get("content"), list):
            self._logprobs.extend(logprobs["content"])
        apart = ("delta", "message", "logprobs")
        self._fields.update({k: v for k, v in choice.items() if k not in apart and v is not None})
        self.is_ended = self.is_ended or bool(choice.get("finish_reason"))

    def whole(self) -> dict[str, Any]:
        texts = {key: "".join(pieces) for key, pieces in self._texts.items()}
        message = {**self._message, **texts, **self._lists}
        if texts.get("content") and self._lists.get("content"):
            message["content"] = [{"type": "text", "text": texts["content"]}, *self._lists["content"]]
        logprobs = {"content": self._logprobs} if self._logprobs else None
        return {**self._fields, "message": message, "logprobs": logprobs}
