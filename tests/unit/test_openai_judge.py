"""The judge behind an API, against a real HTTP server."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from imageevalkit import registry
from imageevalkit.api.failures import Failure
from imageevalkit.benchmark.question import (
    Answer,
    Encoding,
    JudgeUnusable,
    Message,
    Picture,
    Question,
    Sampling,
)
from imageevalkit.common.errors import CellFailure, UserError
from imageevalkit.common.images import sha256_file
from imageevalkit.evaluate.answerers import request_hash
from imageevalkit.extras.serve.judge_server import Address
from imageevalkit.judges.api import FEW_LOGPROBS, FEWER_THAN_SCORED, NO_LOGPROBS, read_reply
from imageevalkit.judges.choice import ApiSettings, JudgeChoice, JudgeOptions, JudgeSetting
from imageevalkit.judges.client import ApiJudge
from imageevalkit.plan.benchmarks import checked
from imageevalkit.store.results import Evaluator
from tests.support.image_server import KEY
from tests.support.judge_replies import draw
from tests.support.judge_server import JudgeServer

SYSTEM = "You are an auditor."
WISE = Sampling(500, 0.0, extra={"chat_template_kwargs": {"enable_thinking": False}})
YES = ("Yes", "yes", " yes", " Yes")
SEVEN = ("seven", "Seven", " seven", " Seven", "7", " 7")


@pytest.fixture
def judge_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[JudgeServer]:
    with JudgeServer() as running:
        monkeypatch.setenv("API_KEY", KEY)
        monkeypatch.setenv("BASE_URL", running.base_url)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield running


@pytest.fixture
def picture(tmp_path: Path) -> Picture:
    return saved(tmp_path / "1.png", "teal")


def saved(path: Path, color: str, size: tuple[int, int] = (40, 30), mode: str = "RGB") -> Picture:
    Image.new(mode, size, color).save(path)
    return Picture(path, sha256_file(path))


def wise(picture: Picture, words: str = "Score the image", item: str = "1") -> Question:
    """A question with the form of WISE's: a system text, then text and image of the user."""
    sent = picture._replace(media_type="image/png")
    return Question("score", (Message("system", (SYSTEM,)), Message("user", (words, sent))), WISE, item=item)


def vqa(picture: Picture, words: str) -> Question:
    """A question with the form of GenEval 2's: image, then text; one token."""
    return Question("vqa/0", (Message("user", (picture, words)),), Sampling(1, 0.0), YES, item="1")


def judge(workers: int = 4, **kwargs: Any) -> ApiJudge:
    given = {"backoff": 0.01, **kwargs}
    made = registry.judge("openai:m-1", {}, options=JudgeOptions(given, workers))
    assert isinstance(made, ApiJudge)
    return made


def ask(questions: Sequence[Question], **kwargs: Any) -> list[Answer]:
    return list(judge(**kwargs).ask(questions))


def ask_one(question: Question, **kwargs: Any) -> Answer:
    (answer,) = ask([question], **kwargs)
    return answer


def reply_to(question: Question, **kwargs: Any) -> Answer:
    answer = ask_one(question, **kwargs)
    assert answer.text is not None, answer.error
    return answer


# requests


@pytest.mark.parametrize("probabilities", [False, True])
def test_the_request_is_that_of_the_official_client(
    judge_server: JudgeServer, picture: Picture, probabilities: bool
) -> None:
    import openai  # it takes long, and no other test needs it

    words = 'Is it a "cat", 一只猫 \u2028?'
    question = vqa(picture, words) if probabilities else wise(picture, words)
    reply_to(question)
    encoded = base64.b64encode(picture.path.read_bytes()).decode()
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{encoded}"}}
    text = {"type": "text", "text": words}
    with openai.OpenAI(api_key=KEY, base_url=judge_server.base_url, max_retries=0) as client:
        messages: Any
        if probabilities:
            messages = [{"role": "user", "content": [image, text]}]
            client.chat.completions.create(
                model="m-1", messages=messages, max_tokens=1, temperature=0.0, logprobs=True, top_logprobs=20
            )
        else:
            system = {"role": "system", "content": [{"type": "text", "text": SYSTEM}]}
            messages = [system, {"role": "user", "content": [text, image]}]
            client.chat.completions.create(
                model="m-1", messages=messages, max_tokens=500, temperature=0.0, extra_body=dict(WISE.extra)
            )
    ours, theirs = judge_server.requests
    assert (ours.path, ours.fields, ours.files) == (theirs.path, theirs.fields, theirs.files)
    for name in ("authorization", "content-type"):
        assert ours.headers[name] == theirs.headers[name]
    assert ours.files[0].data.decode() == picture.sha256, "the bytes of the file"
    assert "x-client-request-id" in ours.headers and "transfer-encoding" not in ours.headers


def test_bytes_are_sent_unchanged_whatever_they_are_declared_to_be(
    judge_server: JudgeServer, tmp_path: Path
) -> None:
    picture = saved(tmp_path / "1.webp", "red")
    for media_type, declared in (("image/png", "image/png"), (None, "image/webp")):
        sent = picture._replace(media_type=media_type)
        reply_to(Question("q", (Message("user", ("Score", sent)),), WISE, item="1"))
        (file,) = judge_server.requests[-1].files
        assert (file.mime_type, file.data.decode()) == (declared, picture.sha256)


def test_a_protocol_may_want_another_encoding(judge_server: JudgeServer, tmp_path: Path) -> None:
    picture = saved(tmp_path / "1.png", "#20406080", (400, 100), "RGBA")
    encoding = Encoding("JPEG", 90, longest_side=200)
    reply_to(
        Question("q", (Message("user", ("Score", picture._replace(encoding=encoding))),), WISE, item="1")
    )
    buffer = io.BytesIO()
    Image.new("RGB", (200, 50), "#204060").save(buffer, "JPEG", quality=90)
    (file,) = judge_server.requests[0].files
    assert (file.mime_type, file.data.decode()) == (
        "image/jpeg",
        hashlib.sha256(buffer.getvalue()).hexdigest(),
    )


def test_text_only_several_images_and_the_order_of_parts(judge_server: JudgeServer, tmp_path: Path) -> None:
    red, blue = saved(tmp_path / "red.png", "red"), saved(tmp_path / "blue.png", "blue")
    reply_to(Question("q", (Message("user", ("Score these words",)),), Sampling(5), item="1"))
    reply_to(
        Question("q", (Message("user", (red, "first, then", blue, "Score both")),), Sampling(5), item="1")
    )
    text, several = (request.fields["messages"][0]["content"] for request in judge_server.requests)
    assert text == [{"type": "text", "text": "Score these words"}]
    assert [part["type"] for part in several] == ["image_url", "text", "image_url", "text"]
    assert [file.data.decode() for file in judge_server.requests[1].files] == [red.sha256, blue.sha256]


def test_what_is_none_is_not_sent_and_the_users_parameters_come_last(
    judge_server: JudgeServer, picture: Picture
) -> None:
    sampling = Sampling(7, None, 3, {"repetition_penalty": 1.1, "top_p": 0.5})
    question = Question("q", (Message("user", ("Score", picture)),), sampling, item="1")
    reply_to(
        question, max_tokens_parameter="max_completion_tokens", extra_body={"top_p": None, "effort": "low"}
    )
    fields = judge_server.requests[0].fields
    del fields["messages"]
    assert fields == {
        "model": "m-1",
        "max_completion_tokens": 7,
        "seed": 3,
        "repetition_penalty": 1.1,
        "effort": "low",
    }


# replies


def test_the_reply_its_tokens_and_its_price(judge_server: JudgeServer, picture: Picture) -> None:
    answer = ask_one(wise(picture), price={"text_input": 5, "text_output": 15})
    request = judge_server.requests[0]
    reply = answer
    assert reply and reply.text == f"Score: {int(draw(request, 'verdict') < 0.6)}"
    assert reply.tokens == {"input": 1003, "output": 2}
    assert reply.usd == pytest.approx((1003 * 5 + 2 * 15) / 1e6)
    assert reply.probabilities is None and answer.attempts == 1
    assert reply_to(wise(picture)).usd is None, "no price is known"


PER_INPUT = {"text_input": 1000, "text_output": 1000}  # a question is about 1 USD


@pytest.mark.parametrize("fault", ["refuse", "unended"])
def test_a_reply_that_is_of_no_use_is_paid_for(
    judge_server: JudgeServer, picture: Picture, fault: str
) -> None:
    judge_server.default = fault
    options = JudgeOptions({"backoff": 0.01, "price": PER_INPUT}, max_cost=5.5)
    given: list[Answer] = []
    with pytest.raises(JudgeUnusable, match=r"--max_cost 5.5 is used up: \$5\.0\d* spent"):
        collect(registry.judge("openai:m-1", {}, options=options).ask(many(picture, 12)), given)
    assert len(judge_server.requests) == 5
    assert all(answer.text is None for answer in given)
    # "unended" is asked again: how many questions have come to their end by then is a matter of turns
    ended = sum(answer.attempts for answer in given) if fault == "unended" else 5
    paid = sum(answer.usd for answer in given if answer.usd is not None)
    assert paid == pytest.approx(ended * (1003 + 2) / 1000, abs=0.05)


def test_an_answer_costs_what_the_attempts_before_it_did(judge_server: JudgeServer, picture: Picture) -> None:
    judge_server.script("Score the image", "500", "unended", "ok")
    answer = ask_one(wise(picture), price=PER_INPUT)
    assert (answer.attempts, len(judge_server.requests)) == (3, 3)
    assert answer.usd == pytest.approx(2 * (1003 + 2) / 1000, abs=0.01), "a 500 took nothing"


def test_a_reply_without_probabilities_is_paid_for() -> None:
    reply = json.loads(body(("Yes", -0.1))) | {"usage": {"completion_tokens": 7, "cost": 0.5}}
    del reply["choices"][0]["logprobs"]
    found = read_reply(Question("q", (), Sampling(1), ("No",)), json.dumps(reply).encode(), 3, None)
    assert isinstance(found, Failure) and found.text == NO_LOGPROBS.text
    assert (found.tokens, found.reported_cost) == ({"completion_tokens": 7}, 0.5)


def test_nothing_is_a_reply_where_the_judge_ended_it(judge_server: JudgeServer, picture: Picture) -> None:
    judge_server.default = "blank"
    answers = ask(many(picture, 20))
    assert [answer.text for answer in answers] == [""] * 20
    assert len(judge_server.requests) == 20, "each was asked once"


def test_a_key_that_is_echoed_is_taken_out(judge_server: JudgeServer, picture: Picture) -> None:
    judge_server.default = "echo"
    text = reply_to(wise(picture)).text
    assert text == "my key is Bearer ***. Score: 1"


def test_words_that_only_look_like_a_key_reach_the_parser(
    judge_server: JudgeServer, picture: Picture
) -> None:
    """A text that a judge reads off an image would lose words otherwise."""
    judge_server.default = "like_a_key"
    assert reply_to(wise(picture)).text == "bearer certificates-of-deposit 2024, ask-sk-learning-more"


@pytest.mark.parametrize(
    ("fault", "error", "requests"),
    [
        ("refuse", "the judge refused: I'm sorry, I can't assist with that request.", 1),
        ("too_long", "HTTP 400: This model's maximum context length is 128000 tokens", 1),
        ("bad_image", "HTTP 400: cannot identify image file", 1),
        ("spent", "the reply is empty: all tokens allowed were spent on thinking", 1),
        ("unended", "the reply is empty (no finish reason) (gave up after 2 attempts", 2),
        ("500", "HTTP 500: The server had an error (gave up after 3 attempts", 3),
        ("error200", "the reply (HTTP 200) holds an error: upstream went away", 3),
    ],
)
def test_a_question_that_fails_by_itself_has_an_error_and_costs_no_other(
    judge_server: JudgeServer, picture: Picture, fault: str, error: str, requests: int
) -> None:
    judge_server.script("Score the bad one", fault)
    bad, good = wise(picture, "Score the bad one"), wise(picture, "Score the good one", "2")
    by_item = {answer.question.item: answer for answer in ask([bad, good], max_attempts=3)}
    assert by_item["2"].text is not None
    assert by_item["1"].text is None and by_item["1"].error.startswith(error)
    assert by_item["1"].attempts == requests
    assert "\n" not in by_item["1"].error


def test_a_failure_that_passes_costs_no_question(judge_server: JudgeServer, picture: Picture) -> None:
    faults = ("429", "500", "reset", "html", "garbage", "cut_short", "unended")
    judge_server.script("Score the image", *faults, "ok")
    answer = ask_one(wise(picture), max_attempts=8)
    assert (answer.text or "").startswith("Score: ")
    assert answer.attempts == len(judge_server.requests) == len(faults) + 1


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        ("401", "the key is rejected: correct API_KEY"),
        ("redirect", "HTTP 307 redirect to 'http://127.0.0.1:"),
        ("max_tokens", "--judge_kwargs max_tokens_parameter=max_completion_tokens"),
        ("temperature", r"""--judge_kwargs 'extra_body=\{"temperature":null\}' leaves it out"""),
    ],
)
def test_a_judge_that_cannot_be_used_ends_the_asking(
    judge_server: JudgeServer, picture: Picture, fault: str, problem: str
) -> None:
    with JudgeServer() as elsewhere:
        judge_server.redirect_to = elsewhere.base_url
        judge_server.default = fault
        with pytest.raises(JudgeUnusable, match=problem) as raised:
            ask(many(picture, 50))
        assert not elsewhere.requests, "a redirect would take the key along"
    text = str(raised.value)
    assert "judge 'm-1' at 127.0.0.1" in text and "\n" not in text
    assert KEY not in text and KEY[-4:] not in text
    assert len(judge_server.requests) <= 8


def bad_items(judge_server: JudgeServer, count: int) -> None:
    for n in range(count):
        judge_server.script(f"Score {n}", "could_not")


def test_a_judge_that_answered_before_is_not_stopped_by_bad_items(
    judge_server: JudgeServer, picture: Picture
) -> None:
    bad_items(judge_server, 9)
    before = judge()
    before.has_answered()
    errors = [answer.error for answer in before.ask(many(picture, 9))]
    assert errors == ["HTTP 400: Could not process image"] * 9
    judge_server.default = "max_tokens"
    before = judge()
    before.has_answered()
    with pytest.raises(JudgeUnusable, match="Use 'max_completion_tokens' instead"):
        list(before.ask([wise(picture)]))


def collect(asking: Iterator[Answer], into: list[Answer]) -> None:
    for answer in asking:
        into.append(answer)


def test_an_outage_that_lasts_ends_the_asking_and_is_named(
    judge_server: JudgeServer, picture: Picture
) -> None:
    judge_server.choose = lambda request, attempt: "ok" if len(judge_server.requests) < 30 else "503"
    answers: list[Answer] = []
    with pytest.raises(JudgeUnusable, match=r"the endpoint has been down: HTTP 503: Service Unavailable"):
        collect(judge(max_outage=0.5).ask(many(picture, 60)), answers)
    assert all(answer.text is not None for answer in answers)


# images that cannot be sent


def test_an_image_that_cannot_be_read_costs_its_question_only(
    judge_server: JudgeServer, picture: Picture, tmp_path: Path
) -> None:
    text = tmp_path / "2.png"
    text.write_text("no image")
    gone = Question("q", (Message("user", ("Score", Picture(tmp_path / "gone.png", "0"))),), WISE, item="2")
    broken = Question("q", (Message("user", ("Score", Picture(text, "0"))),), WISE, item="3")
    answers = {answer.question.item: answer for answer in ask([gone, broken, wise(picture)])}
    assert answers["1"].text is not None
    assert "gone.png cannot be sent: [Errno 2] No such file or directory" in answers["2"].error
    assert "2.png cannot be sent: no image of a known format" in answers["3"].error
    assert len(judge_server.requests) == 1


# probabilities


def body(*tokens: tuple[Any, ...], sampled: int = 0, content: Any = "Yes") -> bytes:
    """A reply with these first tokens: (text, log-probability[, bytes])."""
    entries = [dict(zip(("token", "logprob", "bytes"), token, strict=False)) for token in tokens]
    logprobs = {"content": [{**entries[sampled], "top_logprobs": entries}]}
    choice = {"message": {"content": content}, "logprobs": logprobs, "finish_reason": "length"}
    return json.dumps({"choices": [choice]}).encode()


def read(content: bytes, choices: tuple[str, ...], top: int = 1) -> Answer:
    reply = read_reply(Question("q", (), Sampling(1), choices), content, top, None)
    assert isinstance(reply, Answer), reply
    return reply


def test_fewer_tokens_than_asked_for_are_no_probabilities() -> None:
    """Else whatever is not listed would have the probability 0."""
    reply = json.loads(body(("Yes", math.log(0.6)), ("No", math.log(0.3))))
    first = reply["choices"][0]["logprobs"]["content"][0]
    question = Question("q", (), Sampling(1), ("No",))
    for listed in (2, 1, 0):
        first["top_logprobs"] = first["top_logprobs"][:listed]
        assert read_reply(question, json.dumps(reply).encode(), 3, None) == FEW_LOGPROBS


def test_fewer_tokens_that_have_all_the_probability_are_enough() -> None:
    # a server that lists what its own top_p leaves
    reply = read(body(("Yes", math.log(0.75)), ("No", math.log(0.25))), YES, top=20)
    assert reply.probabilities == pytest.approx({"Yes": 0.75, "yes": 0, " yes": 0, " Yes": 0})


def test_probabilities_are_those_of_the_listed_tokens_and_the_rest_is_outside() -> None:
    reply = read(body(("Yes", math.log(0.6)), (" yes", math.log(0.25)), ("No", -9999.0)), YES)
    assert reply.text == "Yes"
    assert reply.probabilities == pytest.approx({"Yes": 0.6, "yes": 0.0, " yes": 0.25, " Yes": 0.0})
    assert reply.outside == pytest.approx(0.15)


def test_of_a_space_and_a_digit_the_first_token_is_the_space() -> None:
    tokens = [
        ("7", math.log(0.6)),
        ("seven", math.log(0.1)),
        ("Seven", math.log(0.05)),
        (" ", math.log(0.02)),
    ]
    reply = read(body(*tokens, ("8", math.log(0.2)), content="7"), SEVEN)
    assert reply.probabilities
    # the worked example of the benchmark's specification
    assert math.fsum(reply.probabilities.values()) == pytest.approx(0.77)
    assert reply.probabilities[" 7"] == pytest.approx(0.02)
    assert reply.outside == pytest.approx(0.03)


def test_the_sampled_token_counts_once_even_where_it_is_not_among_the_listed() -> None:
    content = json.loads(body(("Yes", math.log(0.5)), ("No", math.log(0.2)), sampled=1))
    first = content["choices"][0]["logprobs"]["content"][0]
    assert read(json.dumps(content).encode(), ("No",)).outside == pytest.approx(0.3)
    first["top_logprobs"] = first["top_logprobs"][:1]
    reply = read(json.dumps(content).encode(), ("No",))
    assert (reply.text, reply.outside) == ("No", pytest.approx(0.3))
    assert reply.probabilities == pytest.approx({"No": 0.2})


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        ("no_logprobs", "returns no log-probabilities: choose another judge"),
        ("few_logprobs", "lists fewer of the likeliest tokens than the judge's top_logprobs"),
    ],
)
def test_an_endpoint_without_log_probabilities_is_unusable(
    judge_server: JudgeServer, picture: Picture, fault: str, problem: str
) -> None:
    judge_server.default = fault
    with pytest.raises(JudgeUnusable, match=problem):
        ask([vqa(picture, f"Is it {n}?") for n in range(9)])


def test_a_single_reply_without_log_probabilities_is_asked_for_again(
    judge_server: JudgeServer, picture: Picture
) -> None:
    judge_server.script("Is it?", "few_logprobs", "ok")
    judge_server.script("Is it ever?", "no_logprobs")
    asked = judge()
    assert next(iter(asked.ask([vqa(picture, "What is it?")]))).text is not None
    (answer,) = asked.ask([vqa(picture, "Is it?")])
    assert answer.attempts == 2
    (answer,) = asked.ask([vqa(picture, "Is it ever?")])
    assert answer.error.startswith(
        "the reply holds no log-probabilities, or too few (gave up after 2 attempts"
    )


def test_an_endpoint_whose_lists_are_all_empty_is_unusable(judge_server: JudgeServer) -> None:
    """The rules of a benchmark may accept an empty list; an endpoint that gives no other would score 0 all over."""
    questions = [
        Question(
            "q", (Message("user", (f"Is it {n}?",)),), Sampling(1), item=str(n), likeliest=5, accepts="any"
        )
        for n in range(40)
    ]
    judge_server.default = "few_logprobs"
    given: list[Answer] = []
    with pytest.raises(JudgeUnusable, match="returns no log-probabilities"):
        collect(judge(1).ask(questions), given)
    assert 10 < len(given) < 40 and {str(answer.probabilities) for answer in given} == {"{}"}
    judge_server.script("Is it 3?", "ok")
    assert len(ask(questions, workers=1)) == 40


# settings


@pytest.mark.parametrize(
    ("kwargs", "complaint"),
    [
        ({"time_out": 3}, r"no setting 'time_out' \(did you mean 'timeout'\?\)"),
        ({"timeout": 0}, "timeout must be a positive number"),
        ({"extra_body": {"model": "x"}}, "'model' cannot be given"),
        ({"price": {"text_input": 1}}, "text_output is missing"),
    ],
)
def test_a_wrong_kwarg_is_one_clear_line(kwargs: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint) as error:
        checked(ApiSettings, kwargs, "judge 'm-1' of wise")
    assert str(error.value).startswith("judge 'm-1' of wise: ") and "\n" not in str(error.value)


def test_the_identity_is_what_decides_the_answers() -> None:
    assert judge(base_url="http://a/v1", timeout=3, max_attempts=2).identity == judge(workers=9).identity
    assert judge(extra_body={"top_p": 0.1}).identity != judge().identity
    assert judge(top_logprobs=5).identity != judge().identity
    assert judge().identity == {"backend": "openai", "model": "m-1", "top_logprobs": 20, "extra_body": {}}


def test_a_judge_without_a_key_is_made_but_cannot_ask(picture: Picture) -> None:
    without = judge()
    with pytest.raises(CellFailure, match="API_KEY is not set"):
        list(without.ask([wise(picture)]))


def vllm(address_file: Path | str = "", **kwargs: Any) -> ApiJudge:
    choice = JudgeChoice("q", JudgeSetting("vllm", "Qwen/Q", {"backoff": 0.01}))
    return ApiJudge(choice, JudgeOptions(kwargs, address_file=str(address_file)), {})


def test_a_vllm_server_is_found_by_its_address_file_and_gets_no_key(
    judge_server: JudgeServer, picture: Picture, tmp_path: Path
) -> None:
    Address(tmp_path / "address").give(judge_server.base_url)
    (answer,) = vllm(tmp_path / "address").ask([wise(picture)])
    (named,) = vllm(base_url=judge_server.base_url).ask([wise(picture)])
    assert answer.text == named.text and answer.text is not None
    assert {r.headers["authorization"] for r in judge_server.requests} == {"Bearer EMPTY"}
    assert {r.fields["model"] for r in judge_server.requests} == {"Qwen/Q"}


def test_a_server_of_this_run_may_load_longer_than_an_outage_may_last(
    judge_server: JudgeServer, picture: Picture, tmp_path: Path
) -> None:
    address = Address(tmp_path / "address")
    address.give(judge_server.base_url)
    died, back = threading.Event(), threading.Event()

    def choose(request: object, attempt: int) -> str:
        if len(judge_server.requests) >= 50 and not died.is_set():
            died.set()
            # the run sees the death later than those whose requests were under way
            threading.Timer(0.2, address.withdraw).start()
            threading.Timer(1.5, restart).start()
        return "reset" if died.is_set() and not back.is_set() else "ok"

    def restart() -> None:
        back.set()
        address.give(judge_server.base_url)

    judge_server.choose = choose
    judge_server.latency = 0.02
    choice = JudgeChoice("q", JudgeSetting("vllm", "Qwen/Q", {"backoff": 0.01, "max_outage": 1.0}))
    asked = ApiJudge(choice, JudgeOptions(workers=32, address_file=str(tmp_path / "address")), {})
    answers = list(asked.ask(many(picture, 200)))
    assert len(answers) == 200 and all(answer.text is not None for answer in answers)


def test_a_server_of_this_run_that_is_given_up_is_not_waited_for_as_a_provider_is(
    judge_server: JudgeServer, picture: Picture, tmp_path: Path
) -> None:
    address = Address(tmp_path / "address")
    address.give(judge_server.base_url)

    def choose(request: object, attempt: int) -> str:
        if len(judge_server.requests) == 20:
            address.give_up("the server of judge q died 2 times", for_good=False)
        return "ok" if len(judge_server.requests) < 20 else "reset"

    judge_server.choose = choose
    with pytest.raises(JudgeUnusable, match="the server of judge q died 2 times"):
        list(vllm(tmp_path / "address").ask(many(picture, 60)))


def test_a_vllm_server_that_is_not_there_is_named(picture: Picture, tmp_path: Path) -> None:
    with pytest.raises(CellFailure, match="no server of the judge is known"):
        list(vllm().ask([wise(picture)]))
    with pytest.raises(JudgeUnusable, match="the job that serves the judge has ended"):
        list(vllm(tmp_path / "address").ask([wise(picture)]))
    job = Address(tmp_path / "address")
    job.give("somewhere")
    with pytest.raises(CellFailure, match="must hold a URL like"):
        list(vllm(tmp_path / "address").ask([wise(picture)]))
    job.give_up("the server of judge q could not start", for_good=True)
    with pytest.raises(JudgeUnusable, match="the server of judge q could not start"):
        list(vllm(tmp_path / "address").ask([wise(picture)]))


def test_a_folder_with_weights_is_known_by_its_content_wherever_it_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def identity(judge: str, **kwargs: Any) -> dict[str, Any]:
        made = registry.judge(judge, {}, options=JudgeOptions(kwargs))
        assert isinstance(made, ApiJudge)
        return dict(made.identity)

    for folder, weights in (("a", "first"), ("b", "first"), ("c", "second")):
        (tmp_path / folder / "judge").mkdir(parents=True)
        (tmp_path / folder / "judge/model.safetensors").write_text(weights)
    monkeypatch.setenv("HOME", str(tmp_path))
    first, copy, other = (identity(f"vllm:{tmp_path / folder / 'judge'}") for folder in "abc")
    assert first == copy != other
    assert first["model"] == "judge" and str(tmp_path) not in str(first)
    assert identity("vllm:~/a/judge") == first
    assert identity("vllm:~/a/judge", base_url="http://127.0.0.1:9/v1") == first


# many questions


def many(picture: Picture, count: int) -> list[Question]:
    return [wise(picture, f"Score {n}", str(n)) for n in range(count)]


def test_the_likeliest_tokens_are_read_as_they_are_listed() -> None:
    tokens = [("Good", math.log(0.5)), (" good", math.log(0.2)), ("Ter", math.log(0.1)), ("bad", -9999.0)]
    content = json.loads(body(*tokens, sampled=2, content="Ter"))
    question = Question("q", (), Sampling(1, 1.0), likeliest=4)
    reply = read_reply(question, json.dumps(content).encode(), 4, None)
    assert isinstance(reply, Answer)
    assert reply.probabilities == pytest.approx({"Good": 0.5, " good": 0.2, "Ter": 0.1, "bad": 0.0})
    assert [*(reply.probabilities or {})] == ["Good", " good", "Ter", "bad"]
    assert (reply.text, reply.outside) == ("Ter", pytest.approx(0.2)), "the token that was drawn"
    # a server may list the drawn one too: the likeliest are no more than were asked for
    fewer = read_reply(replace(question, likeliest=2), json.dumps(content).encode(), 2, None)
    assert isinstance(fewer, Answer) and [*(fewer.probabilities or {})] == ["Good", " good"]
    assert (
        read_reply(replace(question, likeliest=5), json.dumps(content).encode(), 5, None) == FEWER_THAN_SCORED
    )


def test_tokens_that_read_alike_add_up() -> None:
    tokens = [("\ufffd", math.log(0.5), [0xE4, 0xB8]), ("\ufffd", math.log(0.4), [0xE5])]
    reply = read_reply(Question("q", (), Sampling(1), likeliest=2), body(*tokens, content="\ufffd"), 2, None)
    assert isinstance(reply, Answer) and reply.probabilities == pytest.approx({"\ufffd": 0.9})


def test_the_likeliest_are_another_request_and_others_keep_theirs() -> None:
    """Answers on record are known by these hashes."""
    evaluator = Evaluator("somebody", True, {})
    plain = Question(
        "q", (Message("user", ("Is it red?", Picture(Path("x"), "ab"))),), Sampling(1, 0.0), ("Yes",)
    )
    known = "83b66c1f59cf31e86e3108c54fbc3d5ec06a8c54b3b5544fac3045e1b24db434"
    assert request_hash(plain, evaluator) == known
    assert len({request_hash(replace(plain, likeliest=n), evaluator) for n in (0, 4, 5)}) == 3
