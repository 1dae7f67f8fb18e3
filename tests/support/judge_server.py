"""A real HTTP server that judges: ``/v1/chat/completions`` with verdicts drawn from the question, and faults.

``with JudgeServer() as server: server.script("a question", "429", "ok")``.
Of each image only its SHA-256 is kept, in place of the base64.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from tests.support.image_server import (
    FAULTS,
    HALF,
    Fault,
    Handler,
    ImageServer,
    Received,
    answering,
    answering_json,
    message_parts,
)
from tests.support.judge_replies import MALFORMED, completion, judged


def _said(content: Any, finish: str = "stop", **more: Any) -> Fault:
    return lambda h, r: h.send_json(200, completion(r, content, finish, **more))


def _echoed(handler: Handler, request: Received) -> None:
    handler.send_json(200, completion(request, f"my key is {request.headers['authorization']}. Score: 1"))


def _few_logprobs(handler: Handler, request: Received) -> None:
    reply = judged(request)
    reply["choices"][0]["logprobs"]["content"][0]["top_logprobs"] = []
    handler.send_json(200, reply)


def _slow(handler: Handler, request: Received) -> None:
    time.sleep(2.0)
    handler.send_json(200, judged(request))


_OF_ANY_API = (
    *("429", "429_ms", "429_bare", "quota", "500", "503", "502_html", "reset", "cut_short"),
    *("401", "403", "404", "400", "html", "redirect", "error200"),
)
JUDGE_FAULTS: dict[str, Fault] = {
    **{name: FAULTS[name] for name in _OF_ANY_API},
    "ok": lambda h, r: h.send_json(200, judged(r)),
    "slow": _slow,
    "malformed": _said(MALFORMED),
    "closes_thoughts": _said("No.</think>Yes"),
    "in_thoughts": _said("The image shows", "length"),
    "parts": _said([{"type": "text", "text": "Score: "}, {"type": "text", "text": "1"}]),
    "half": _said(f"Score: 1 {HALF}"),
    "empty": _said(None),
    "blank": _said(""),
    "unended": _said(None, ""),
    "spent": _said(None, "length", reasoning_content="First I look at the image. Then"),
    "refuse": _said(None, refusal="I'm sorry, I can't assist with that request."),
    "no_logprobs": _said("Yes", "length"),
    "few_logprobs": _few_logprobs,
    "echo": _echoed,
    "like_a_key": _said("bearer certificates-of-deposit 2024, ask-sk-learning-more"),
    "no_choices": answering_json({"id": "chatcmpl-17", "choices": []}),
    "garbage": lambda h, r: h.send_body(200, b'{"choices": [{"mess', "application/json"),
    "list": answering_json([1, 2, 3]),
    "too_long": answering(
        400,
        "This model's maximum context length is 128000 tokens. However, your messages resulted in 130000 tokens.",
        "context_length_exceeded",
        "invalid_request_error",
        "messages",
    ),
    "bad_image": answering(
        400, "cannot identify image file <_io.BytesIO object at 0x7f1c>", None, "BadRequestError"
    ),
    "could_not": answering(400, "Could not process image", None, "invalid_request_error"),
    "temperature": answering(
        400,
        "Unsupported value: 'temperature' does not support 0.0 with this model. "
        "Only the default (1) value is supported.",
        "unsupported_value",
        "invalid_request_error",
        "temperature",
    ),
    "max_tokens": answering(
        400,
        "Unsupported parameter: 'max_tokens' is not supported with this model. "
        "Use 'max_completion_tokens' instead.",
        "unsupported_parameter",
        "invalid_request_error",
        "max_tokens",
    ),
}


class JudgeServer(ImageServer):
    """See the module. Once it has ``received`` ``die_after`` requests, the port is closed for ``down_for`` seconds.

    Open connections are then reset. A request is answered when ``hold`` says no more of it that it must wait.
    """

    def __init__(
        self, default: str = "ok", latency: float = 0.0, *, die_after: int = 0, down_for: float = 0.0
    ) -> None:
        super().__init__(default, latency)
        self.die_after, self.down_for = die_after, down_for
        self.hold: Callable[[Received], bool] = lambda request: False
        self._down_until = 0.0

    @property
    def faults(self) -> Mapping[str, Fault]:
        return JUDGE_FAULTS

    def enter(self, request: Received) -> str:
        """Record a request without its images and say how to answer it."""
        _forget_images(request)
        with self.lock:
            fault = self._unwilling()
            if fault:
                request.fault = fault
                self.record(request)
        if not fault:
            fault = super().enter(request)
        while self.hold(request):
            time.sleep(0.01)
        if time.monotonic() < self._down_until:  # it died while this one was under way
            fault = request.fault = "reset"
        return fault

    def _unwilling(self) -> str:
        """How to answer where no question is looked at; empty when one is."""
        now = time.monotonic()
        if self.die_after and self.received >= self.die_after:
            self.die_after = 0
            self._down_until = now + self.down_for
            threading.Thread(target=self.close_port, args=(self.down_for,), daemon=True).start()
        return "reset" if now < self._down_until else ""


class ReplyServer(JudgeServer):
    """Replies what ``reply`` says to a request."""

    reply: Callable[[Received], str] = staticmethod(lambda request: "Yes")

    @property
    def faults(self) -> Mapping[str, Fault]:
        return {**JUDGE_FAULTS, "ok": lambda h, r: h.send_json(200, completion(r, self.reply(r)))}


def _forget_images(request: Received) -> None:
    """Put the SHA-256 of each image in its place."""
    for file in request.files:
        file.data = hashlib.sha256(file.data).hexdigest().encode()
    digests = iter(request.files)
    for part in (part for parts in message_parts(request.fields) for part in parts):
        if "image_url" in part:
            kind, _, _ = part["image_url"]["url"].partition(";base64,")
            part["image_url"]["url"] = f"{kind};sha256,{next(digests).data.decode()}"
