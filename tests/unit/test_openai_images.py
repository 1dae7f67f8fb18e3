"""The API models against a real local server: each row of the table in ``imageevalkit.api.failures``."""

from __future__ import annotations

import asyncio
import io
import json
import socket
import traceback
from datetime import datetime, timezone
from email.utils import format_datetime
from typing import Any

import httpx2
import pytest
from PIL import Image

from custom_models.model_utils import image_routes as routes
from custom_models.model_utils.openai_images import OpenAIImagesEdit, OpenAIImagesT2I
from imageevalkit.api.endpoint import Endpoint
from imageevalkit.api.failures import (
    Failure,
    Kind,
    asked_wait,
    classify_status,
    parse_error,
    used_up_for,
)
from imageevalkit.api.settings import RequestSettings
from imageevalkit.generate.model import (
    Generated,
    GenerationError,
    ItemFailed,
    ModelUnusable,
    OnHold,
    Refused,
)
from tests.support.image_server import KEY, REFUSAL_WORDS, ImageServer, png_of


def t2i(model: str = "test-image-1", **kwargs: Any) -> OpenAIImagesT2I:
    return OpenAIImagesT2I(model, **{"backoff": 0.02, "max_attempts": 3, "max_outage": 60.0, **kwargs})


def failure_of(model: OpenAIImagesT2I, prompt: str = "a cat") -> GenerationError:
    with pytest.raises(GenerationError) as caught:
        model.generate(prompt)
    return caught.value


def all_texts(error: BaseException) -> str:
    """Everything that a log could show of an error, hidden causes included."""
    texts = traceback.format_exception(error)
    inner: BaseException | None = error
    while inner is not None:
        texts += [str(inner), repr(inner), repr(inner.args), repr(vars(inner))]
        inner = inner.__cause__ or inner.__context__
    return "\n".join(texts)


def test_success_carries_bytes_tokens_and_extra(server: ImageServer) -> None:
    made = t2i(size="256x256").generate("a cat", seed=7)
    assert made.image == png_of("a cat"), "the bytes must be the server's own"
    assert made.proven
    assert made.bill is not None
    assert (made.bill.cost, made.bill.maybe_billed) == (None, 0), "an unknown price is not 0"
    assert made.bill.tokens == {
        "input_tokens": 12,
        "input_tokens_details.image_tokens": 0,
        "input_tokens_details.text_tokens": 12,
        "output_tokens": 272,
        "total_tokens": 284,
    }
    assert made.extra == {"size": "256x256", "revised_prompt": "a cat, revised"}
    assert (made.requested_size, made.attempts, made.seed_honoured) == ((256, 256), 1, False)
    (request,) = server.requests
    assert request.fields == {"model": "test-image-1", "prompt": "a cat", "size": "256x256"}
    assert request.headers["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize(
    ("model", "size", "sent"),
    [
        ("test-image-1", (2368, 1760), (2368, 1760)),
        ("gpt-image-1.5", (2368, 1760), (1536, 1024)),
        ("gpt-image-1", (1536, 2720), (1024, 1536)),
        ("gpt-image-1", (1000, 900), (1024, 1024)),
    ],
)
def test_the_size_that_a_benchmark_asks_for_is_sent_as_the_model_offers_it(
    server: ImageServer, model: str, size: tuple[int, int], sent: tuple[int, int]
) -> None:
    made = t2i(model, size="256x256").generate("a cat", 42, size)
    assert server.requests[0].fields["size"] == f"{sent[0]}x{sent[1]}"
    assert made.requested_size == sent


def test_any_kwarg_is_a_request_parameter(server: ImageServer) -> None:
    kwargs: dict[str, Any] = {
        "quality": "high",
        "guidance_scale": 4.5,
        "output_format": None,
        "extra_body": {"a": [1]},
    }
    made = t2i(send_seed=True, **kwargs).generate("a cat", seed=43)
    expected = {"quality": "high", "guidance_scale": 4.5, "a": [1], "seed": 43}
    assert server.requests[0].fields == {"model": "test-image-1", "prompt": "a cat", **expected}
    assert made.seed_honoured
    assert made.requested_size is None


@pytest.mark.parametrize(
    ("kwargs", "says"),
    [
        ({"extra_body": {"n": 2}}, "'n' cannot be given"),
        ({"seed": 5}, "send_seed=true"),
        ({"timeout": "long"}, "timeout must be a positive number"),
        ({"extra_body": [1]}, "extra_body must be an object"),
    ],
)
def test_bad_kwargs_stop_the_model(server: ImageServer, kwargs: dict[str, Any], says: str) -> None:
    with pytest.raises(ModelUnusable, match=says) as caught:
        t2i(**kwargs)
    assert caught.value.attempts == 0


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("API_KEY", "", "API_KEY is not set: set it in config.local.sh"),
        ("API_KEY", "sk-two words", "API_KEY holds a blank"),
        ("BASE_URL", "api.example.com/v1", "BASE_URL must look like"),
    ],
)
def test_bad_environment_is_one_line(
    server: ImageServer, monkeypatch: pytest.MonkeyPatch, name: str, value: str, says: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ModelUnusable, match=says) as caught:
        t2i()
    assert "\n" not in str(caught.value)
    assert "words" not in str(caught.value), "a malformed key is a secret too"


def test_variables_of_the_official_client_are_named_where_only_they_are_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with pytest.raises(
        ModelUnusable, match="API_KEY is not set: OPENAI_API_KEY is, but ImageEvalKit"
    ) as caught:
        t2i()
    assert KEY not in str(caught.value)
    monkeypatch.setenv("API_KEY", KEY)
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    with pytest.raises(ModelUnusable, match="BASE_URL is not set: OPENAI_BASE_URL is, but ImageEvalKit"):
        t2i()
    monkeypatch.setenv("BASE_URL", "https://api.openai.com/v1")
    assert Endpoint.of({}).base_url == "https://api.openai.com/v1"


def test_a_model_can_have_an_endpoint_and_a_key_of_its_own(
    monkeypatch: pytest.MonkeyPatch, server: ImageServer
) -> None:
    monkeypatch.setenv("BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("OTHER_API_KEY", "sk-other-0123456789")
    t2i(base_url=server.base_url, api_key_env="OTHER_API_KEY").generate("a cat")
    assert server.requests[0].headers["authorization"] == "Bearer sk-other-0123456789"
    server.default = "401"
    error = failure_of(t2i(base_url=server.base_url, api_key_env="OTHER_API_KEY"))
    assert "correct OTHER_API_KEY in config.local.sh" in str(error)
    assert "sk-other" not in all_texts(error)


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("502_html", "HTTP 502: an HTML page, '502 Bad Gateway'"),
        ("reset", "ReadError"),
        ("cut_short", "RemoteProtocolError"),
        ("error200", "upstream went away"),
        ("garbage", "does not decode"),
        ("file_url", "scheme 'file'"),
    ],
)
def test_a_transient_failure_is_retried_and_fails_the_item_where_it_lasts(
    server: ImageServer, fault: str, says: str
) -> None:
    server.script("a cat", fault, fault, "ok")
    made = t2i().generate("a cat")
    assert made.image == png_of("a cat")
    assert made.attempts == 3 == len(server.requests)
    server.default = fault
    error = failure_of(t2i(max_attempts=2), "a dog")
    assert type(error) is ItemFailed
    assert error.transient
    assert says in str(error)
    assert "gave up after 2 attempts" in str(error)
    assert "\n" not in str(error)
    assert error.attempts == 2 == len(server.requests) - 3


def test_three_replies_without_an_image_stop_the_model_and_show_their_keys(server: ImageServer) -> None:
    server.default = "no_image"
    model = t2i(max_attempts=2, price=0.01)
    first, second, third = (failure_of(model, prompt) for prompt in ("a cat", "a dog", "a cow"))
    assert [type(error) for error in (first, second, third)] == [ItemFailed, ModelUnusable, ModelUnusable]
    says = (
        "3 replies (HTTP 200) without an image, and no image so far: the reply (HTTP 200) holds no image; "
        "its keys: created, artifacts[0].picture, artifacts[0].seed, meta.id; check the model id"
    )
    assert says in str(second) and says in str(third)
    assert "secret" not in str(second), "the values may be anything"
    assert [error.attempts for error in (first, second, third)] == [2, 1, 0]
    assert len(server.requests) == 3
    bills = [error.bill for error in (first, second, third)]
    assert [(bill.maybe_billed, bill.cost) for bill in bills if bill] == [(2, 0.02), (1, 0.01), (0, None)]


def test_an_odd_reply_does_not_stop_a_model_that_has_made_images(server: ImageServer) -> None:
    model = t2i(max_attempts=4)
    model.generate("a cat")
    server.default = "html"
    error = failure_of(model, "a dog")
    assert type(error) is ItemFailed and error.transient
    assert "not JSON but an HTML page, 'Sign in'" in str(error)
    assert error.attempts == 4


def test_a_web_site_in_place_of_an_endpoint_stops_the_model_at_its_first_page(server: ImageServer) -> None:
    server.default = "html"
    model = t2i(price=0.01)
    first, second = failure_of(model), failure_of(model, "a dog")
    assert type(first) is type(second) is ModelUnusable
    assert "an HTML page, 'Sign in'; check BASE_URL (it usually ends in /v1)" in str(first)
    assert len(server.requests) == 1
    assert first.bill and (first.bill.cost, first.bill.maybe_billed) == (None, 0), "no provider has answered"


@pytest.mark.parametrize(
    ("fault", "words"), [("refuse", REFUSAL_WORDS), ("refuse_200", "I'm sorry, I cannot create that image.")]
)
def test_refusal_keeps_the_providers_words_and_is_not_retried(
    server: ImageServer, fault: str, words: str
) -> None:
    server.default = fault
    error = failure_of(t2i())
    assert type(error) is Refused
    assert str(error) == words
    assert error.attempts == 1 == len(server.requests)


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("401", "correct API_KEY"),
        ("400", "Invalid value: 'giant'; check its kwargs"),
        ("quota", "no quota left"),
        ("redirect", "set BASE_URL to the final address"),
    ],
)
def test_permanent_failure_stops_the_model_at_once(server: ImageServer, fault: str, says: str) -> None:
    server.default = fault
    error = failure_of(t2i())
    assert type(error) is ModelUnusable
    assert says in str(error)
    assert f"model 'test-image-1' at 127.0.0.1:{server.port}" in str(error)
    assert error.attempts == 1 == len(server.requests)


def test_400_after_a_success_is_about_the_item(server: ImageServer) -> None:
    server.script("odd", "400")
    model = t2i()
    assert isinstance(failure_of(model, "odd"), ModelUnusable)
    assert isinstance(failure_of(model, "a cat"), ModelUnusable)
    assert len(server.requests) == 1, "nothing is sent to a model known to be unusable"
    model = t2i()
    model.generate("a cat")
    assert isinstance(failure_of(model, "odd"), ItemFailed)


def test_no_endpoint_at_all_stops_the_model(monkeypatch: pytest.MonkeyPatch, server: ImageServer) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        monkeypatch.setenv("BASE_URL", f"http://127.0.0.1:{taken.getsockname()[1]}/v1")
        error = failure_of(t2i())
    assert type(error) is ModelUnusable
    assert "ConnectError" in str(error)
    assert "check its address and the network (BASE_URL" in str(error)
    assert error.attempts == 3


def test_endpoint_that_answered_before_is_only_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", KEY)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with ImageServer() as server:
        monkeypatch.setenv("BASE_URL", server.base_url)
        model = t2i()
        model.generate("a cat")
    error = failure_of(model)
    assert type(error) is ItemFailed
    assert error.transient


def test_slow_reply_times_out_and_is_retried(server: ImageServer) -> None:
    server.script("a cat", "slow")
    error = failure_of(t2i(timeout=0.2, max_attempts=2))
    assert "no reply within 0.2 s" in str(error) and error.attempts == 2


def test_retry_after_is_honoured(server: ImageServer) -> None:
    server.script("a cat", "429_ms", "ok")
    assert t2i().generate("a cat").attempts == 2
    first, second = server.requests
    assert second.time - first.time >= 0.3


def test_rate_limits_do_not_count_as_attempts(server: ImageServer) -> None:
    server.script("a cat", *["429_ms"] * 2, "500", "429_ms", "500", "ok")
    made = t2i(backoff=0.005).generate("a cat")
    assert made.attempts == 6 == len(server.requests)


def test_lasting_rate_limit_is_bounded_by_time_and_not_hammered(server: ImageServer) -> None:
    server.default = "429"  # with Retry-After: 0
    error = failure_of(t2i(max_outage=0.5))
    assert isinstance(error, OnHold), "neither the item nor the model is to blame"
    assert "the endpoint has limited the rate of every request" in str(error)
    assert 2 <= len(server.requests) < 10


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after": format_datetime(datetime(2026, 1, 1, 0, 0, 30, tzinfo=timezone.utc), True)}, 30.0),
        ({"retry-after": "soon"}, None),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "1m6.5s"}, 66.5),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "1767225630000"}, 30.0),  # ms since 1970
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "1767225630"}, 30.0),
        ({"x-ratelimit-remaining": "3", "x-ratelimit-reset": "60"}, None),
    ],
)
def test_retry_after_forms(headers: dict[str, str], seconds: float | None) -> None:
    case_blind = httpx2.Headers(headers)
    wait = asked_wait(case_blind, now=datetime(2026, 1, 1, tzinfo=timezone.utc))
    assert wait == (None if seconds is None else pytest.approx(seconds))


def test_googles_retry_delay_in_the_body() -> None:
    body = '{"error": {"details": [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.5s"}]}}'
    assert classify_status(429, httpx2.Headers(), body, proven=False).retry_after == 34.5


def test_a_window_that_is_used_up_is_waited_for(server: ImageServer) -> None:
    assert used_up_for(httpx2.Headers({"x-ratelimit-remaining": "1", "x-ratelimit-reset": "1"})) is None
    server.script("first", "last_of_window")

    async def both() -> None:
        model = t2i()
        await model.generate_async("first")
        await model.generate_async("second")
        await model.aclose()

    asyncio.run(both())
    first, second = server.requests
    assert second.time - first.time > 0.8


def test_delay_is_full_jitter_above_what_the_server_asks() -> None:
    policy = RequestSettings(backoff=1.0)
    plain = [policy.delay(3, None) for _ in range(400)]
    assert 0 <= min(plain) < 0.5
    assert 3.5 < max(plain) <= 4.0
    asked = [policy.delay(3, 10.0) for _ in range(400)]
    assert min(asked) >= 10.0
    assert max(asked) > 13.5, "waiting clients must not all come back at once"
    assert policy.delay(9999, 3600.0) <= 180.0


# bodies as providers send them, taken from public bug reports and API references
REPLIES: list[tuple[int, Any, bool, Kind]] = [
    (400, {"error": {"code": "content_policy_violation", "message": "x", "type": "e"}}, False, Kind.REFUSAL),
    (
        400,
        {
            "error": {
                "code": 400,
                "message": "Request contains an invalid argument.",
                "details": [{"reason": "PUBLIC_ERROR_UNSAFE_GENERATION"}],
            }
        },
        False,
        Kind.REFUSAL,
    ),
    (400, {"code": "DataInspectionFailed", "message": "Input data may be bad"}, False, Kind.REFUSAL),
    (400, {"error": {"message": "输入的提示词包含敏感词,请修改"}}, True, Kind.REFUSAL),
    (451, "Blocked by the content filter", False, Kind.REFUSAL),
    (403, {"error": {"message": "Your account violates our content policy"}}, False, Kind.PERMANENT),
    (403, {"error": {"message": "您的账号因违规已被封禁"}}, False, Kind.PERMANENT),
    (409, {"error": {"message": "x", "code": "unsafe_shutdown"}}, False, Kind.TRANSIENT),
    (
        400,
        {"error": {"message": "safety setting 'off' is not one of low, high", "param": "safety_setting"}},
        False,
        Kind.PERMANENT,
    ),
    (429, {"error": {"message": "see our content policy on rates"}}, False, Kind.RATE_LIMIT),
    (429, {"error": {"status": "RESOURCE_EXHAUSTED", "code": 429}}, False, Kind.RATE_LIMIT),
    (403, {"error": {"type": "new_api_error", "code": "insufficient_user_quota"}}, False, Kind.PERMANENT),
    (
        400,
        {"error": {"message": "Unknown parameter: 'moderation'.", "param": "moderation"}},
        False,
        Kind.PERMANENT,
    ),
    (422, {"detail": [{"loc": ["body", "steps"], "msg": "must be an int"}]}, False, Kind.PERMANENT),
    (422, {"detail": [{"loc": ["body", "prompt"], "msg": "too short"}]}, False, Kind.ITEM),
    (400, {"error": {"message": "The prompt is too long", "code": None}}, False, Kind.ITEM),
    (409, {"message": "conflict"}, False, Kind.TRANSIENT),
]


@pytest.mark.parametrize(("status", "body", "proven", "kind"), REPLIES)
def test_real_error_bodies(status: int, body: Any, proven: bool, kind: Kind) -> None:
    text = body if isinstance(body, str) else json.dumps(body)
    assert classify_status(status, {}, text, proven).kind is kind


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("I'm sorry, but I can't help with that.", Kind.REFUSAL),
        ("We cannot generate images for your plan.", Kind.TRANSIENT),
        ("I cannot create an image now, the model is overloaded.", Kind.TRANSIENT),
        ("IMAGE_SAFETY", Kind.REFUSAL),
        ("图片内容违规", Kind.REFUSAL),
        ("I’m sorry, but I’m not able to create an image of a real person.", Kind.REFUSAL),
        ("抱歉,我无法生成这张图片。", Kind.REFUSAL),
        ("对不起，我不能帮助你完成这个请求", Kind.REFUSAL),
        ("抱歉，系统繁忙，无法生成图片，请稍后再试", Kind.TRANSIENT),
        ("抱歉，我是文本模型，无法生成图片。", Kind.TRANSIENT),
        ("您想要什么颜色的猫？", Kind.TRANSIENT),
        ("I can't create images directly, but I can describe one.", Kind.TRANSIENT),
    ],
)
def test_words_in_place_of_an_image(said: str, kind: Kind) -> None:
    reply = routes.of("images").read(json.dumps({"data": [], "message": said}).encode())
    assert isinstance(reply, Failure)
    assert reply.kind is kind


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"message": "no funds", "code": 429, "type": "insufficient_quota"}, Kind.PERMANENT),
        ("the billing service is down, try later", Kind.TRANSIENT),
        ({"message": "Insufficient credits", "code": 402}, Kind.PERMANENT),
        ({"message": "Your account violates our content policy", "code": 403}, Kind.PERMANENT),
        ({"message": "x", "code": 403, "metadata": {"flagged_input": "x"}}, Kind.REFUSAL),
        ({"message": "The prompt is too long", "code": 400}, Kind.ITEM),
        ({"message": "see our content policy on rates", "code": 429}, Kind.RATE_LIMIT),
        ({"message": "x", "code": 408}, Kind.TRANSIENT),
    ],
)
def test_an_error_in_a_200_is_what_its_code_says(error: Any, kind: Kind) -> None:
    body = json.dumps({"error": error, "choices": [{"message": {"content": ""}}]}).encode()
    for name in ("images", "chat", "responses"):
        reply = routes.of(name).read(body)
        assert isinstance(reply, Failure)
        assert reply.kind is kind
        assert kind is Kind.REFUSAL or reply.text.startswith("the reply (HTTP 200) holds an error: ")


def test_all_coroutines_are_in_flight_at_once(server: ImageServer) -> None:
    server.together = 32

    async def many() -> list[Generated]:
        model = t2i()
        made = await asyncio.gather(*(model.generate_async(f"cat {n}") for n in range(32)))
        await model.aclose()
        return made

    made = asyncio.run(many())
    assert server.max_in_flight == 32
    assert [m.image for m in made] == [png_of(f"cat {n}") for n in range(32)]


def test_edit_uploads_are_png_with_name_and_mime_type(server: ImageServer) -> None:
    first = Image.effect_noise((40, 30), 60).convert("RGBA")
    second = Image.new("L", (20, 50), 90)
    model = OpenAIImagesEdit("edit-1", quality="low", strict=True)
    made = model.generate(["Put this ", first, "into", second, "that."], seed=1)
    (request,) = server.requests
    assert request.path == "/v1/images/edits"
    assert request.fields["prompt"] == "Put this  into that.", "strings as they are, joined with one blank"
    assert request.fields["quality"] == "low"
    assert request.fields["strict"] == "true"
    described = [(part.name, part.filename, part.mime_type) for part in request.files]
    assert described == [
        ("image[]", "image_0.png", "image/png"),
        ("image[]", "image_1.png", "image/png"),
    ]
    sent = [Image.open(io.BytesIO(part.data)) for part in request.files]
    assert [(image.format, image.mode, image.size) for image in sent] == [
        ("PNG", "RGB", (40, 30)),
        ("PNG", "RGB", (20, 50)),
    ]
    assert sent[0].tobytes() == first.convert("RGB").tobytes()
    assert made.image == png_of("Put this  into that.")


@pytest.mark.parametrize("fault", ["url", "data_url"])
def test_url_replies(server: ImageServer, fault: str) -> None:
    server.default = fault
    assert t2i(response_format="url").generate("a cat / 猫").image == png_of("a cat / 猫")


def test_key_goes_to_the_endpoint_itself_but_to_no_other_host(server: ImageServer) -> None:
    with ImageServer() as elsewhere:
        server.default = "url"
        t2i().generate("own")
        assert server.file_requests[0].headers["authorization"] == f"Bearer {KEY}"

        server.file_origin = f"http://127.0.0.1:{elsewhere.port}"
        t2i().generate("foreign")
        server.file_origin, server.file_faults = None, ["redirect"]
        server.redirect_to = f"http://127.0.0.1:{elsewhere.port}"
        t2i().generate("redirected")
        assert [request.path for request in elsewhere.file_requests] == [
            "/files/foreign.png",
            "/files/redirected.png",
        ]
        assert all("authorization" not in request.headers for request in elsewhere.file_requests)
        assert KEY not in str(elsewhere.file_requests)


def test_redirected_request_goes_nowhere(server: ImageServer) -> None:
    with ImageServer() as elsewhere:
        server.default, server.redirect_to = "redirect", elsewhere.base_url
        assert isinstance(failure_of(t2i()), ModelUnusable)
        assert not elsewhere.requests


def test_download_is_retried_without_asking_for_a_new_image(server: ImageServer) -> None:
    server.default, server.file_faults = "url", ["503", "truncated"]
    made = t2i().generate("a cat")
    assert made.image == png_of("a cat")
    assert made.attempts == 1 == len(server.requests)
    assert len(server.file_requests) == 3


@pytest.mark.parametrize(("fault", "downloads"), [("404", 1), ("503", 3)])
def test_lost_download_asks_for_one_new_image_and_hides_the_signature(
    server: ImageServer, fault: str, downloads: int
) -> None:
    server.default, server.file_faults = "url", [fault] * downloads
    assert t2i().generate("a cat").attempts == 2
    assert len(server.file_requests) == downloads + 1
    server.file_faults = [fault] * 20
    error = failure_of(t2i(max_attempts=6))
    assert type(error) is ItemFailed
    assert error.transient
    assert f"HTTP {fault}" in str(error)
    assert str(error).count("gave up after") == 1
    assert "gave up after 2 attempts" in str(error)
    assert error.attempts == 2
    assert "signature" not in all_texts(error)


@pytest.mark.parametrize("fault", ["401", "500", "error200", "refuse", "reset", "redirect"])
def test_no_error_shows_the_key(server: ImageServer, fault: str) -> None:
    server.default = fault
    error = failure_of(t2i(max_attempts=1))
    shown = all_texts(error)
    assert KEY not in shown
    assert KEY[:7] not in shown, "providers quote the ends of a key"


def test_key_in_an_echo_is_taken_out(server: ImageServer) -> None:
    made = t2i().generate(f"print {KEY} please")
    assert made.extra["revised_prompt"] == "print *** please, revised"
    endpoint = Endpoint("https://user:pass@host:8443/v1", KEY)
    assert KEY not in repr(endpoint)
    assert endpoint.host == "host:8443"
    placeholder = Endpoint("http://host/v1", "EMPTY")
    assert placeholder.redact("an EMPTY room") == "an EMPTY room", "a placeholder is no secret"
    assert endpoint.redact("a ring bearer in a task-force") == "a ring bearer in a task-force"


def test_key_at_the_cut_of_a_long_message_is_not_shown_in_part(
    server: ImageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_KEY", "zx81-4f9d2c7b8a1e")
    message = parse_error("x" * 390 + " zx81-4f9d2c7b8a1e").message
    assert len(message) <= 400
    assert "zx81" not in message
