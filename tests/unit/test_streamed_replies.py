"""Judges whose endpoint streams every reply, although no request asks for a stream."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import pytest

from imageevalkit import registry
from imageevalkit.api.failures import Failure, Kind
from imageevalkit.api.replies import read_json
from imageevalkit.benchmark.question import Answer, Message, Question, Sampling
from imageevalkit.judges.choice import JudgeOptions
from tests.support.image_replies import chunks_of, stream_of
from tests.support.image_server import KEY, Fault
from tests.support.judge_replies import completion, judged
from tests.support.judge_server import JUDGE_FAULTS, JudgeServer

LONG = "The sign reads “开放 open”. " * 20
BROKEN = {"id": "x", "error": {"code": 502, "message": "upstream broke"}, "choices": []}


def streaming(content: str, finish: str = "stop", end: str = "[DONE]", **message: str) -> Fault:
    return lambda h, r: h.send_body(
        200,
        stream_of(*chunks_of(completion(r, content, **message), finish), end=end),
        "text/event-stream",
    )


STREAMS: dict[str, Fault] = {
    "ok": lambda h, r: h.send_body(200, stream_of(*chunks_of(judged(r), "length")), "text/event-stream"),
    "long": streaming(LONG, reasoning_content="I look at the sign."),
    "no_end": streaming("No", end=""),
    "cut": streaming("No, it is", finish="", end=""),
    "whole": JUDGE_FAULTS["ok"],
    "broken": lambda h, r: h.send_body(
        200, stream_of(*chunks_of(completion(r, "No"))[:2], BROKEN), "text/event-stream"
    ),
}


class StreamingServer(JudgeServer):
    @property
    def faults(self) -> Mapping[str, Fault]:
        return {**JUDGE_FAULTS, **STREAMS}


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Iterator[StreamingServer]:
    with StreamingServer() as running:
        monkeypatch.setenv("API_KEY", KEY)
        monkeypatch.setenv("BASE_URL", running.base_url)
        yield running


def answer(choices: tuple[str, ...] = ()) -> Answer:
    question = Question("q", (Message("user", ("What does it say?",)),), Sampling(900), choices, item="1")
    options = JudgeOptions({"backoff": 0.01, "max_attempts": 2})
    (answered,) = registry.judge("openai:m", {}, options=options).ask([question])
    return answered


@pytest.mark.parametrize(("stream", "text"), [("long", LONG), ("no_end", "No")])
def test_an_answer_in_pieces_is_read_whole(streams: StreamingServer, stream: str, text: str) -> None:
    streams.default = stream
    answered = answer()
    assert answered.text == text and not answered.error
    assert answered.tokens and answered.tokens["output"] == max(1, len(text) // 4)
    assert len(streams.requests) == 1


def test_log_probabilities_in_a_stream_are_those_of_the_reply(streams: StreamingServer) -> None:
    streamed = answer(("Yes", "No"))
    streams.default = "whole"
    assert streamed.probabilities == answer(("Yes", "No")).probabilities
    assert streamed.probabilities and any(streamed.probabilities.values())


@pytest.mark.parametrize(("stream", "says"), [("cut", "breaks off"), ("broken", "upstream broke")])
def test_half_an_answer_is_a_failed_judgement(streams: StreamingServer, stream: str, says: str) -> None:
    streams.default = stream
    answered = answer()
    assert answered.text is None
    assert says in (answered.error or "")
    assert len(streams.requests) == 2, "it is asked again"


@pytest.mark.parametrize(
    "content",
    [b"data: {", b'data: {"choices": [{"delta": {"content": "N"}}]}\n\ndata: {"cho\n\ndata: [DONE]\n\n'],
)
def test_an_event_that_cannot_be_read_is_never_left_out(content: bytes) -> None:
    found = read_json(content, lambda reply: pytest.fail("half a reply is none"))
    assert isinstance(found, Failure) and found.kind is Kind.TRANSIENT


def test_events_may_have_names_comments_and_several_lines() -> None:
    body = json.dumps({"id": "x", "data": [1]}, indent=1)
    lines = "".join(f"data: {line}\r\n" for line in body.splitlines())
    assert read_json(f": hello\r\n\r\nevent: done\r\nid: 7\r\n{lines}\r\n".encode(), dict) == {
        "id": "x",
        "data": [1],
    }
