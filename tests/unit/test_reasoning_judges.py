"""Judges that think before they answer: the answer is what follows the thoughts, and thoughts alone are no answer."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from imageevalkit import registry
from imageevalkit.api.failures import Failure, Kind
from imageevalkit.benchmark.question import Picture, Question, Sampling, ask
from imageevalkit.benchmark.shapes import YesNo
from imageevalkit.benchmark.thoughts import answer_in
from imageevalkit.judges.api import read_reply
from imageevalkit.judges.choice import JudgeOptions
from imageevalkit.store.cell import Cell
from tests.support.function_judge import evaluate, items, use_function_judge, write_images
from tests.support.judge_server import JudgeServer

REMEDIES = ("reasoning parser", '{"chat_template_kwargs":{"enable_thinking":false}}', "reasoning_effort")


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("Yes", "Yes"),
        ("<think>No, wait.</think>\n\nYes\n", "Yes\n"),
        # the chat template has the opening tag
        ("No, wait.</think>Yes", "Yes"),
        ("<think>a</think>No<think>b</think>Yes", "Yes"),
        ("<thinking>No</thinking> Yes", "Yes"),
        ("◁think▷No◁/think▷Yes", "Yes"),
        ("I [think] that it is <thoughtful>", "I [think] that it is <thoughtful>"),
        ("<think>The image shows", None),
        ("<think>a</think> and <think>b", None),
        ("<think>Yes.</think>\n", None),
    ],
)
def test_the_answer_is_the_text_after_the_last_closing_tag(reply: str, answer: str | None) -> None:
    assert answer_in(reply) == answer


def test_the_beginning_of_a_tag_is_one_only_as_a_first_token() -> None:
    """Tokenizers split a tag that is no token of theirs."""
    assert [answer_in(token, is_first_token=True) for token in ("<", "<th", "Yes", "")] == [
        None,
        None,
        "Yes",
        "",
    ]
    assert answer_in("<") == "<", "a text that was read in an image"


def test_an_empty_reply_of_many_tokens_holds_hidden_thoughts() -> None:
    assert [answer_in("", tokens) for tokens in (0, 1, 500)] == ["", "", None]


def replied(question: Question, message: dict[str, Any], finish: str = "stop", **choice: Any) -> Any:
    """Returns the text of a chat completion, or the failure. The usage counts hidden thoughts of ``message``."""
    message = dict(message)
    usage = {"completion_tokens_details": {"reasoning_tokens": message.pop("hidden", 0)}}
    choices = [{"message": {"role": "assistant", **message}, "finish_reason": finish, **choice}]
    reply = read_reply(question, json.dumps({"choices": choices, "usage": usage}).encode(), 1, None)
    return reply if isinstance(reply, Failure) else reply.text


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"content": "Yes", "reasoning_content": "No"}, "Yes"),
        ({"content": "Yes", "hidden": 500}, "Yes"),
        ({"content": [{"type": "thinking", "thinking": "No"}, {"type": "text", "text": "Yes"}]}, "Yes"),
        ({"content": [{"text": "No", "thought": True}, {"text": "Yes"}]}, "Yes"),
        ({"content": "", "reasoning_content": ""}, ""),
    ],
)
def test_thoughts_beside_the_text_are_not_part_of_it(message: dict[str, Any], text: str) -> None:
    assert replied(Question("q", (), Sampling(500)), message) == text


THOUGHTS_ONLY = [
    {"content": None, "reasoning_content": "It is yes."},
    {"content": "", "reasoning": "It is yes."},
    {"content": " \n", "reasoning_details": [{"type": "reasoning.text", "text": "It is yes."}]},
    {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "It is yes."}]}]},
    {"content": "", "hidden": 500},
]


@pytest.mark.parametrize("message", THOUGHTS_ONLY)
def test_thoughts_beside_an_empty_text_are_a_failure(message: dict[str, Any]) -> None:
    failure = replied(Question("q", (), Sampling(500)), message)
    # asked once: the next reply would be the same
    assert isinstance(failure, Failure) and failure.kind is Kind.ITEM and failure.maybe_billed
    assert all(remedy in failure.text for remedy in REMEDIES)


@pytest.mark.parametrize(
    ("token", "message"),
    [
        ("<think>", {"content": "<think>"}),
        ("<", {"content": "<"}),
        ("Okay", {"content": None, "reasoning_content": "Okay"}),
    ],
)
@pytest.mark.parametrize("asks", [{"choices": ("Yes",)}, {"likeliest": 1}])
def test_a_first_token_of_thoughts_has_no_probabilities(
    token: str, message: dict[str, Any], asks: dict[str, Any]
) -> None:
    entry = {"token": token, "logprob": math.log(0.999), "bytes": list(token.encode())}
    question = Question("q", (), Sampling(1), **asks)
    logprobs = {"content": [{**entry, "top_logprobs": [entry]}]}
    failure = replied(question, message, "length", logprobs=logprobs)
    assert isinstance(failure, Failure) and failure.kind is Kind.ITEM
    assert all(remedy in failure.text for remedy in REMEDIES)


class Verdict(YesNo):
    """Two images and a question about each."""

    name, version, judge, question = "verdict", "1", "openai:judge-1", "Is it {prompt}?"

    def read_json(self, file: str, count: int | None = None) -> Any:
        return [{"prompt": "red"}, {"prompt": "blue"}]


@pytest.fixture
def cell() -> Iterator[Cell]:
    """The cell of :class:`Verdict`, with its images."""
    write_images(items(Verdict()))
    yield Cell("m", Verdict.name)


def test_a_judgement_without_an_answer_withholds_the_headline_and_is_asked_again(
    cell: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    replies = {"Is it red?": "<think>No.</think>Yes", "Is it blue?": "<think>Yes, the image"}
    asked = use_function_judge(lambda question: replies[question.text], monkeypatch)
    outcome, result = evaluate(Verdict(), items(Verdict()))
    assert (result.coverage.judged, result.coverage.judge_failed, result.headline) == (1, 1, [])
    assert result.metrics["accuracy"].value == 1.0
    assert outcome.state == "incomplete"
    records = [json.loads(line) for line in cell.judgements.read_text().splitlines()]
    by_status = {one["status"]: one for one in records}
    assert by_status["ok"]["raw"] == "<think>No.</think>Yes", "the whole reply is on record"
    assert all(remedy in by_status["failed"]["error"] for remedy in REMEDIES)

    replies["Is it blue?"] = "No"
    asked.clear()
    _, result = evaluate(Verdict(), items(Verdict()))
    assert [question.text for question in asked] == ["Is it blue?"]
    assert result.metrics["accuracy"].value == 0.5
    assert result.headline == ["accuracy"]


def change_first_record(cell: Cell, **changed: Any) -> None:
    """Change the first record of a reply as an older version may have left them."""
    records = [json.loads(line) for line in cell.judgements.read_text().splitlines()]
    records[0] |= changed
    cell.judgements.write_text("".join(f"{json.dumps(one)}\n" for one in records))
    for copy in cell.folder.glob(".judgements*"):
        copy.unlink()


@pytest.mark.parametrize(
    ("old", "asks"),
    [
        ({"raw": "<think>Yes.</think>\nNo", "tokens": {"output": 9}}, False),
        ({"raw": "<think>Yes, the image", "tokens": {"output": 16}}, True),
        # an empty reply, whose thoughts the endpoint had in another field
        ({"raw": "", "tokens": {"output": 400}}, True),
    ],
)
def test_replies_on_record_are_read_by_the_same_rule(
    cell: Cell, monkeypatch: pytest.MonkeyPatch, old: dict[str, Any], asks: bool
) -> None:
    asked = use_function_judge(lambda question: "No", monkeypatch)
    evaluate(Verdict(), items(Verdict()))
    change_first_record(cell, status="ok", parsed=1, **old)
    asked.clear()
    _, result = evaluate(Verdict(), items(Verdict()))
    assert len(asked) == asks
    assert result.metrics["accuracy"].value == 0.0
    assert result.coverage.judged == 2


def test_a_vllm_server_says_whether_its_template_opens_thoughts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The opening tag is in the prompt, so that the first token is a word like any other."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    end = "<|im_start|>assistant\n<think>\n"
    Image.new("RGB", (8, 8)).save(tmp_path / "1.png")
    picture = Picture(tmp_path / "1.png", "ab" * 32)
    token = ask("token", picture, "Is it red?", choices=("Yes",))
    text = ask("text", picture, "Is it red?")
    for question, finish, thinks, answer in (
        (token, "length", True, None),
        (token, "length", False, "Okay"),
        (text, "length", True, None),
        (text, "length", False, "Okay"),
        (text, "stop", True, "Okay"),
    ):
        entry = {"token": "Okay", "logprob": 0.0}
        logprobs = {"content": [{**entry, "top_logprobs": [entry]}]}
        choice = {"message": {"content": "Okay"}, "finish_reason": finish, "logprobs": logprobs}
        with JudgeServer() as server:
            server.replies = {
                "/tokenize": {"tokens": [1, 2]},
                "/detokenize": {"prompt": end if thinks else f"{end}\n</think>\n\n"},
                "/v1/chat/completions": {"choices": [choice]},
            }
            extra = {"chat_template_kwargs": {"enable_thinking": thinks}}
            options = JudgeOptions({"base_url": server.base_url, "extra_body": extra})
            judge = registry.judge("vllm:org/judge", {}, options=options)
            answers = list(judge.ask([replace(question, item=item) for item in "12"]))
        assert [one.text for one in answers] == [answer] * 2
        looks = [request.fields for request in server.requests if request.path == "/tokenize"]
        assert [one["chat_template_kwargs"] for one in looks] == [{"enable_thinking": thinks}], "once"


def test_a_cut_reply_of_a_judge_that_closes_thoughts_is_cut_inside_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An endpoint that is no vLLM server shows only by its replies that its template opens thoughts."""
    monkeypatch.setenv("API_KEY", "sk-judge")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with JudgeServer() as server:
        server.choose = lambda request, attempt: (
            "closes_thoughts" if "first" in request.prompt else "in_thoughts"
        )
        options = JudgeOptions({"base_url": server.base_url}, workers=1)
        judge = registry.judge("openai:m-1", {}, options=options)
        [before], [first], [after] = (
            list(judge.ask([ask("q", words)])) for words in ("before", "the first that closes", "after")
        )
    assert (before.text, first.text, after.text) == ("The image shows", "No.</think>Yes", None)
    assert all(remedy in after.error for remedy in REMEDIES)
