"""The wire formats: the real openai client against the real server, every shape of reply and failure."""

from __future__ import annotations

import asyncio
import inspect
import io
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageDraw

from custom_models.load_model import API_ENDPOINT, API_MODELS, MODEL_SETTINGS
from custom_models.model_utils.openai_images import OpenAIImagesEdit, OpenAIImagesT2I
from imageevalkit.api import routes
from imageevalkit.api.failures import Kind, classify_status
from imageevalkit.api.replies import ImageReply
from imageevalkit.api.routes import read_content
from imageevalkit.generate.model import GenerationError, ItemFailed, ModelUnusable, Refused
from imageevalkit.plan.models import resolve_model
from imageevalkit.store.fingerprint import explain, settings_of
from tests.support.image_replies import (
    CHATS,
    IMAGES,
    REFUSAL_WORDS,
    RESPONSES,
    WORDS,
    base64_of,
    call,
    chat_reply,
    data_url,
    png_of,
    response_reply,
)
from tests.support.image_server import KEY, ImageServer

FAST: dict[str, Any] = {"backoff": 0.02, "max_attempts": 3}
ENDPOINTS = ("images", "chat", "responses")
# a prompt that speaks of data URLs, in JSON's and Markdown's own characters
TRICKY = 'Poster "data:image/png;base64,iVBORw0KGgo=" ![x](data:image/png;base64,AAAA) \\ 猫 👩🏽‍🚀'


def t2i(endpoint: str, **kwargs: Any) -> OpenAIImagesT2I:
    return OpenAIImagesT2I("served-1", endpoint=endpoint, **{**FAST, **kwargs})


def edit(endpoint: str, **kwargs: Any) -> OpenAIImagesEdit:
    return OpenAIImagesEdit("served-1", endpoint=endpoint, **{**FAST, **kwargs})


def endpoint_of(fault: str) -> str:
    return "chat" if fault in CHATS else "responses" if fault in RESPONSES else "images"


TRANSIENT = {
    "chat_half": "does not decode",
    "chat_garbage": "does not decode",
    "chat_file_url": "scheme 'file'",
    "chat_stream_cut": "the reply is a stream of events that breaks off",
    "chat_words": "the reply (HTTP 200) holds no image: What colour shall the cat have?",
    "chat_source": "holds no image: See https://policy.example/rules",
    "chat_empty": "holds no image",
    "chat_null": "holds no image",
    "chat_no_message": "holds no image",
    "chat_length": "holds no image (finish reason length): First I think",
    "chat_no_image": "holds no image (finish reason content_filter, NO_IMAGE)",
    "chat_error": "holds an error: Provider returned error",
    "chat_choice_error": "holds an error: upstream broke",
    "response_half": "does not decode",
    "response_garbage": "does not decode",
    "response_words": "holds no image: What colour shall the cat have?",
    "response_empty": "holds no image",
    "response_null": "holds no image",
    "response_incomplete": "holds no image (status incomplete: max_output_tokens)",
    "response_failed": "The server had an error",
    "response_call_failed": "holds no image",
}
REFUSALS = {
    "chat_refusal": "No violence, please.",
    "chat_refuses": "I'm sorry, but I can't create that picture.",
    "chat_content_filter": "finish reason content_filter",
    "chat_safety": "finish reason SAFETY",
    "chat_image_safety": "finish reason IMAGE_SAFETY",
    "chat_prohibited": "blocked",
    "chat_blocked": "PROHIBITED_CONTENT",
    "response_blocked": REFUSAL_WORDS,
    "response_policy": "Not that picture",
    "response_bio": "Not that germ",
    "response_flagged": "Your prompt was flagged as potentially violating our usage policy.",
    "response_content_filter": "content_filter",
    "response_refusal": "No violence, please.",
    "response_refuses": "I'm sorry, but I can't create that picture.",
}
RATE_LIMITS = ("chat_choice_429", "response_429")
WITH_IMAGE = sorted(
    {*CHATS, *IMAGES, *RESPONSES} - {*TRANSIENT, *REFUSALS, *RATE_LIMITS, "response_bad_image"}
)


@pytest.mark.parametrize("fault", WITH_IMAGE)
def test_image_is_found_in_every_shape_byte_for_byte(server: ImageServer, fault: str) -> None:
    server.default = fault
    made = t2i(endpoint_of(fault)).generate(TRICKY)
    assert made.image == png_of(TRICKY)
    assert made.attempts == 1 == len(server.requests)


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("fault", ["ok", "url", "data_url"])
def test_common_replies_work_on_every_endpoint(server: ImageServer, endpoint: str, fault: str) -> None:
    server.default = fault
    assert t2i(endpoint).generate("a cat").image == png_of("a cat")
    assert edit(endpoint).generate(["a dog", Image.new("RGB", (8, 8))]).image == png_of("a dog")


@pytest.mark.parametrize("fault", TRANSIENT)
def test_transient_failure_is_told(server: ImageServer, fault: str) -> None:
    server.default = fault
    with pytest.raises(ItemFailed) as caught:
        t2i(endpoint_of(fault), max_attempts=1).generate("a dog")
    assert caught.value.transient
    assert TRANSIENT[fault] in str(caught.value)
    assert "\n" not in str(caught.value)


def test_three_streams_that_break_off_stop_a_model_without_images(server: ImageServer) -> None:
    server.default = "chat_stream_cut"
    with pytest.raises(
        ModelUnusable, match=r"3 replies .* without an image, and no image so far: .*breaks off"
    ):
        t2i("chat", max_attempts=6).generate("a cat")
    assert len(server.requests) == 3


@pytest.mark.parametrize("fault", REFUSALS)
def test_refusal_keeps_the_words_and_is_not_retried(server: ImageServer, fault: str) -> None:
    server.default = fault
    with pytest.raises(Refused) as caught:
        t2i(endpoint_of(fault)).generate("a cat")
    assert str(caught.value) == REFUSALS[fault]
    assert caught.value.attempts == 1 == len(server.requests)


@pytest.mark.parametrize("fault", RATE_LIMITS)
def test_rate_limit_inside_a_200_is_one(server: ImageServer, fault: str) -> None:
    server.script("a cat", *[fault] * 4, "ok")
    made = t2i(endpoint_of(fault), backoff=0.005).generate("a cat")
    assert made.attempts == 5, "rate limits do not count against max_attempts"


def test_error_about_the_uploaded_image_fails_the_item_at_once(server: ImageServer) -> None:
    server.default = "response_bad_image"
    with pytest.raises(ItemFailed, match="not a picture") as caught:
        edit("responses").generate(["a cat", Image.new("RGB", (8, 8))])
    assert not caught.value.transient
    assert caught.value.attempts == 1


@pytest.mark.parametrize("endpoint", ["chat", "responses"])
@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("refuse", Refused),
        ("401", ModelUnusable),
        ("too_long", ItemFailed),
        ("cut_short", ItemFailed),
        ("html", ModelUnusable),
        ("truncated", ItemFailed),
        ("error200", ItemFailed),
    ],
)
def test_failures_mean_the_same_on_every_endpoint(
    server: ImageServer, endpoint: str, fault: str, kind: type[GenerationError]
) -> None:
    server.default = fault
    with pytest.raises(GenerationError) as caught:
        t2i(endpoint, max_attempts=1).generate("a cat")
    assert type(caught.value) is kind
    assert KEY not in str(caught.value)
    assert "\n" not in str(caught.value)


FLAGGED = "Invalid prompt: your prompt was flagged as potentially violating our usage policy."


@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        # new-api, OpenAI's text models, OpenRouter
        (400, {"message": "request blocked by Gemini API: OTHER", "code": "prompt_blocked"}, Kind.REFUSAL),
        (400, {"message": FLAGGED, "type": "invalid_request_error", "code": "invalid_prompt"}, Kind.REFUSAL),
        (
            403,
            {
                "code": 403,
                "message": "input was flagged",
                "metadata": {"reasons": ["violence"], "flagged_input": "x"},
            },
            Kind.REFUSAL,
        ),
        (403, {"code": 403, "message": "no rights", "metadata": {"provider_name": "x"}}, Kind.PERMANENT),
    ],
)
def test_refusals_that_gateways_tell_by_status(status: int, error: dict[str, Any], kind: Kind) -> None:
    assert classify_status(status, {}, json.dumps({"error": error}), proven=False).kind is kind


def test_chat_request(server: ImageServer) -> None:
    config = {"aspect_ratio": "16:9", "image_size": "2K"}
    made = t2i("chat", image_config=config, send_seed=True).generate(TRICKY, seed=43)
    (request,) = server.requests
    assert request.path == "/v1/chat/completions"
    assert request.fields == {
        "model": "served-1",
        "messages": [{"role": "user", "content": TRICKY}],
        "modalities": ["image", "text"],
        "image_config": config,
        "seed": 43,
    }
    assert request.headers["content-type"] == "application/json"
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert made.seed_honoured
    assert made.bill
    assert made.bill.tokens == {
        "prompt_tokens": 9,
        "completion_tokens": 1300,
        "total_tokens": 1309,
        "completion_tokens_details.image_tokens": 1290,
        "completion_tokens_details.reasoning_tokens": 0,
    }
    told = {"id": "gen-17", "model": "gemini-served", "provider": "Google", "text": WORDS}
    assert made.extra == told
    assert made.bill.cost == 0.0387, "what the gateway says it charged"


@pytest.mark.parametrize(("given", "sent"), [(None, None), (["image"], ["image"])])
def test_modalities_can_be_changed_and_taken_back(server: ImageServer, given: Any, sent: Any) -> None:
    t2i("chat", modalities=given).generate("a cat")
    assert server.requests[0].fields.get("modalities") == sent
    assert ("modalities" in server.requests[0].fields) == (sent is not None)


def test_responses_request(server: ImageServer) -> None:
    kwargs = {"size": "1024x1024", "quality": "low", "background": "opaque", "output_format": "webp"}
    model = t2i("responses", **kwargs, image_model="gpt-image-2", reasoning={"effort": "low"})
    made = model.generate(TRICKY, seed=43)
    (request,) = server.requests
    assert request.path == "/v1/responses"
    assert request.fields == {
        "model": "served-1",
        "input": TRICKY,
        "tools": [{"type": "image_generation", **kwargs, "model": "gpt-image-2"}],
        "tool_choice": {"type": "image_generation"},
        "reasoning": {"effort": "low"},
    }
    assert not made.seed_honoured
    assert made.requested_size == (1024, 1024)
    assert made.bill
    assert made.bill.tokens["output_tokens"] == 272
    assert made.bill.tokens["tool_usage.image_gen.output_tokens"] == 1056
    told = {"id": "resp-17", "model": "text-served", "size": "256x256", "text": WORDS}
    assert made.extra == {**told, "revised_prompt": f"{TRICKY}, revised"}


def test_tool_choice_can_be_taken_back(server: ImageServer) -> None:
    t2i("responses", tool_choice=None).generate("a cat")
    assert "tool_choice" not in server.requests[0].fields


@pytest.mark.parametrize(
    ("kwargs", "says"),
    [
        (
            {"endpoint": "chta"},
            r"endpoint must be one of images, chat, responses, not 'chta' \(did you mean 'chat'",
        ),
        ({"endpoint": None}, "endpoint must be one of"),
        ({"endpoint": ["chat"]}, "endpoint must be one of"),
        ({"endpoint": "responses", "send_seed": True}, "/responses takes no seed"),
        ({"endpoint": "responses", "tools": []}, "'tools' cannot be given"),
        ({"endpoint": "chat", "messages": []}, "'messages' cannot be given"),
        ({"endpoint": "images", "mask": "x"}, "'mask' cannot be given"),
    ],
)
def test_what_an_endpoint_cannot_do_stops_the_model(
    server: ImageServer, kwargs: dict[str, Any], says: str
) -> None:
    with pytest.raises(ModelUnusable, match=says) as caught:
        OpenAIImagesT2I("served-1", **kwargs)
    assert "\n" not in str(caught.value)
    assert caught.value.attempts == 0


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_every_request_has_an_id_of_its_own(server: ImageServer, endpoint: str) -> None:
    server.script("a cat", "reset", "ok")
    t2i(endpoint).generate("a cat")
    edit(endpoint).generate(["a dog", Image.new("RGB", (8, 8))])
    ids = [request.headers["x-client-request-id"] for request in server.requests]
    assert len(set(ids)) == 3
    assert all(len(name) == 36 for name in ids)


def photo(path: Path, **options: Any) -> Path:
    picture = Image.effect_noise((48, 32), 80).convert(options.pop("mode", "RGB"))
    picture.save(path, **options)
    return path


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_untouched_files_go_up_as_they_are(server: ImageServer, tmp_path: Path, endpoint: str) -> None:
    files = [photo(tmp_path / name) for name in ("a.png", "b.jpg", "c.webp")]
    opened = [Image.open(path) for path in files]
    edit(endpoint).generate(["Mix them", *opened])
    parts = server.requests[0].files
    assert [part.data for part in parts] == [path.read_bytes() for path in files]
    assert [part.mime_type for part in parts] == ["image/png", "image/jpeg", "image/webp"]
    if endpoint == "images":
        assert [part.filename for part in parts] == ["image_0.png", "image_1.jpg", "image_2.webp"]
        assert {part.name for part in parts} == {"image[]"}


def decoded(upload: routes.Upload) -> Image.Image:
    assert (upload.name, upload.mime_type) == ("image_0.png", "image/png")
    return Image.open(io.BytesIO(upload.data))


def drawn_on(path: Path) -> Image.Image:
    image = Image.open(path)
    ImageDraw.Draw(image).rectangle((0, 0, 9, 9), fill="red")
    return image


def loaded(path: Path) -> Image.Image:
    image = Image.open(path)
    image.load()
    return image


@pytest.mark.parametrize("suffix", ["png", "jpg", "webp"])
@pytest.mark.parametrize("touch", [drawn_on, loaded])
def test_pixels_in_memory_win_over_the_file(tmp_path: Path, suffix: str, touch: Any) -> None:
    image = touch(photo(tmp_path / f"a.{suffix}"))
    (sent,) = routes.inputs_of("", [image]).images
    assert decoded(sent).tobytes() == image.convert("RGB").tobytes()


def test_file_that_servers_could_see_differently_is_sent_as_rgb_pixels(tmp_path: Path) -> None:
    turned = Image.Exif()
    turned[0x0112] = 6
    frames = [Image.new("RGB", (48, 32), colour) for colour in ("red", "blue")]
    paths = [
        photo(tmp_path / "alpha.png", mode="RGBA"),
        photo(tmp_path / "palette.png", mode="P"),
        photo(tmp_path / "print.jpg", mode="CMYK"),
        photo(tmp_path / "turned.jpg", exif=turned),
        photo(tmp_path / "picture.bmp"),
        photo(tmp_path / "moving.webp", save_all=True, append_images=frames, lossless=True),
    ]
    for path in paths:
        (sent,) = routes.inputs_of("", [Image.open(path)]).images
        image = decoded(sent)
        assert (image.mode, image.tobytes()) == ("RGB", Image.open(path).convert("RGB").tobytes()), path.name


def test_plain_exif_and_grey_files_are_sent_as_they_are(tmp_path: Path) -> None:
    upright = Image.Exif()
    upright[0x0112] = 1
    for path in (photo(tmp_path / "exif.jpg", exif=upright), photo(tmp_path / "grey.png", mode="L")):
        (sent,) = routes.inputs_of("", [Image.open(path)]).images
        assert sent.data == path.read_bytes()


def test_file_that_has_gone_is_sent_from_memory(tmp_path: Path) -> None:
    path = photo(tmp_path / "a.png")
    opened = Image.open(path)
    pixels = Image.open(path).tobytes()
    path.unlink()
    (sent,) = routes.inputs_of("", [opened]).images
    assert decoded(sent).tobytes() == pixels


def mask_for(size: tuple[int, int] = (48, 32), mode: str = "RGBA") -> Image.Image:
    mask = Image.new(mode, size, "white")
    if mode == "RGBA":
        mask.paste((0, 0, 0, 0), (4, 4, 20, 20))
    mask.info["role"] = "mask"
    return mask


@pytest.mark.parametrize("endpoint", ["images", "responses"])
@pytest.mark.parametrize("as_file", [False, True])
def test_mask_is_sent_as_a_mask(server: ImageServer, tmp_path: Path, endpoint: str, as_file: bool) -> None:
    mask = mask_for()
    mask.save(tmp_path / "mask.png")
    if as_file:
        mask = Image.open(tmp_path / "mask.png")
        mask.info["role"] = "mask"
    edit(endpoint).generate(["Fill it", mask, Image.new("RGB", (48, 32), "blue")])
    sent = {part.name: part for part in server.requests[0].files}
    assert sent.keys() == {"mask", "image" if endpoint == "images" else "image_url"}
    assert sent["mask"].mime_type == "image/png"
    assert sent["mask"].filename == ("mask.png" if endpoint == "images" else None)
    received = Image.open(io.BytesIO(sent["mask"].data))
    assert received.mode == "RGBA"
    assert received.tobytes() == mask_for().tobytes()
    assert (sent["mask"].data == (tmp_path / "mask.png").read_bytes()) == as_file


@pytest.mark.parametrize(
    ("endpoint", "masks", "says"),
    [
        ("chat", [mask_for()], "/chat/completions takes none: use endpoint=images or responses"),
        ("images", [mask_for(mode="L")], "the mask has no transparent area"),
        ("images", [mask_for((9, 9))], "differ in size: 9x9 and 48x32"),
        ("images", [mask_for(), mask_for()], "has 2 masks"),
    ],
)
def test_mask_that_cannot_be_sent_fails_the_item_without_a_request(
    server: ImageServer, endpoint: str, masks: list[Image.Image], says: str
) -> None:
    with pytest.raises(ItemFailed, match=says) as caught:
        edit(endpoint).generate(["Fill it", Image.new("RGB", (48, 32)), *masks])
    assert caught.value.attempts == 0
    assert not server.requests


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_uploads_are_encoded_once_and_off_the_event_loop(
    server: ImageServer, monkeypatch: pytest.MonkeyPatch, endpoint: str
) -> None:
    encoded_in: list[int] = []
    encode = routes._png

    def spy(image: Image.Image, mode: str) -> bytes:
        encoded_in.append(threading.get_ident())
        return encode(image, mode)

    monkeypatch.setattr(routes, "_png", spy)
    server.script("Make it red", "reset", "500", "ok")

    async def run() -> int:
        model = edit(endpoint)
        made = await model.generate_async(["Make it red", Image.new("RGB", (8, 8))])
        await model.aclose()
        return made.attempts

    assert asyncio.run(run()) == 3
    assert len(encoded_in) == 1
    assert encoded_in[0] != threading.get_ident()
    assert len({request.item for request in server.requests}) == 1, "the very same request each time"


def test_order_of_several_images_is_kept_in_chat_and_responses(server: ImageServer) -> None:
    colours = ("red", "green", "blue")
    pictures = [Image.new("RGB", (8, 8), colour) for colour in colours]
    for endpoint in ("chat", "responses"):
        edit(endpoint).generate(["First", pictures[0], "second", *pictures[1:]])
        request = server.requests[-1]
        assert request.prompt == "First second"
        sent = [Image.open(io.BytesIO(part.data)).getpixel((0, 0)) for part in request.files]
        assert sent == [picture.getpixel((0, 0)) for picture in pictures]


@pytest.fixture(scope="module")
def huge() -> bytes:
    """A PNG of 3 MB, more than any buffer on its way."""
    buffer = io.BytesIO()
    Image.frombytes("RGB", (1000, 1000), os.urandom(3_000_000)).save(buffer, "PNG", compress_level=0)
    return buffer.getvalue()


def test_huge_image_comes_back_byte_for_byte(huge: bytes) -> None:
    chat = chat_reply({"content": f"{WORDS}\n![image]({data_url(huge)})\nEnjoy"})
    listed = chat_reply({"images": [{"image_url": {"url": data_url(huge)}}]})
    for name, body in (
        ("chat", chat),
        ("chat", listed),
        ("responses", response_reply(call(base64_of(huge)))),
    ):
        reply = routes.of(name).read(json.dumps(body).encode())
        assert isinstance(reply, ImageReply)
        assert reply.image and reply.image.data == huge
        assert len(json.dumps(reply.extra)) < 1000, "the words of a reply hold no image"


def test_words_around_images_are_kept_without_the_images() -> None:
    image, other = data_url(png_of("a")), data_url(png_of("b"))
    text = f"Before ![one]({image}) between\n<{other}>\n[load](https://files.example/x.png?a=1)\nafter"
    content = read_content(text)
    assert content.words == "Before between after"
    assert [found.encoded or found.url for found in content.images] == [
        image,
        other,
        "https://files.example/x.png?a=1",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "No image: see https://policy.example/a.png for why.",
        "data:image/png;base64,iVBORw0KGgo=",
        "![x](data:image/png;base64,AAAA)",
        "data:text/plain;base64," + "QUJD" * 40,
        "data:image/png;base64",
        "",
        None,
        7,
        {"text": None},
    ],
)
def test_text_without_an_image_holds_none(text: Any) -> None:
    assert read_content(text).images == []


@pytest.mark.parametrize("name", ["images", "chat", "responses"])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b'"x"',
        b"\xff\xfe",
        b"{}",
        b'{"choices": [null, 3, {"message": 4}], "data": [7], "output": [8, {"content": 9}]}',
        b'{"choices": {"message": {}}, "data": {}, "output": {}, "usage": []}',
        b'{"choices": [{"message": {"images": [null, 1, {"image_url": null}], "content": [null, 2]}}]}',
        b'{"output": [{"type": "image_generation_call", "result": 5}], "data": [{"b64_json": 5}]}',
        b'{"error": "x"}',
        b'{"error": [{"code": 1}]}',
    ],
)
def test_nonsense_is_a_transient_failure_and_never_an_exception(name: str, body: bytes) -> None:
    reply = routes.of(name).read(body)
    assert not isinstance(reply, ImageReply)
    assert reply.kind.retried


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 200_000,
        b'{"error":' * 200_000,
        b'{"error":{"details":' * 400 + b"1" + b"}}" * 400,
        b'{"usage":' + b'{"a":' * 985 + b"1" + b"}" * 986,
    ],
    ids=["lists", "objects", "details", "usage"],
)
def test_absurd_nesting_is_a_transient_failure(body: bytes) -> None:
    for name in ENDPOINTS:
        reply = routes.of(name).read(body)
        assert not isinstance(reply, ImageReply)
        assert reply.kind is Kind.TRANSIENT
    assert classify_status(500, {}, body.decode(), proven=False).kind is Kind.TRANSIENT


USAGE = {"input_tokens": 9, "output_tokens_details": {"image_tokens": 3}, "cost": 0.02}


@pytest.mark.parametrize(
    ("name", "reply"),
    [
        ("images", {"data": [{"b64_json": "AAAA"}]}),
        ("images", {"refusal": "No violence, please."}),
        ("chat", {"choices": [{"message": {"content": "What colour?"}}]}),
        ("chat", {"choices": [{"finish_reason": "content_filter", "message": {"content": ""}}]}),
        ("responses", {"output": [{"content": [{"refusal": "No violence, please."}]}]}),
    ],
)
def test_a_reply_without_an_image_tells_what_it_cost(name: str, reply: dict[str, Any]) -> None:
    failure = routes.of(name).read(json.dumps({**reply, "usage": USAGE}).encode())
    assert not isinstance(failure, ImageReply)
    assert failure.tokens == {"input_tokens": 9, "output_tokens_details.image_tokens": 3}
    assert failure.reported_cost == 0.02
    silent = routes.of(name).read(json.dumps(reply).encode())
    assert not isinstance(silent, ImageReply)
    assert (silent.tokens, silent.reported_cost) == ({}, None)


def test_gemini_models_are_chats_and_can_be_called_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    for task in ("t2i", "edit"):
        assert API_MODELS.keys() <= MODEL_SETTINGS[task].keys()
        setting = resolve_model("gemini-3-pro-image-preview", task, True, {})
        assert setting["model_kwargs"] == {"endpoint": "chat"}
        other = resolve_model("gemini-3-pro-image-preview", task, True, {"endpoint": "images"})
        assert resolve_model("gpt-image-1.5", task, True, {})["model_kwargs"] == {}
        # ids that the registry does not list, and a gateway's way of writing one
        assert resolve_model("google/gemini-9-image", task, True, {})["model_kwargs"] == {"endpoint": "chat"}
        assert resolve_model("some-model", task, True, {})["model_kwargs"] == {}
        changed = explain(settings_of(task, setting), settings_of(task, other))
        assert changed == "endpoint chat → (unset)", "images of another endpoint are stale"


@pytest.mark.parametrize("name", ["gpt-image-1.5", "some-model", "gemini-3-pro-image"])
def test_the_default_endpoint_is_the_same_said_or_not(name: str) -> None:
    said = resolve_model(name, "t2i", True, {"endpoint": "images", "quality": "low"})
    assert said["model_kwargs"] == {"quality": "low"}
    defaults = inspect.signature(OpenAIImagesT2I).parameters
    assert defaults["endpoint"].default == API_ENDPOINT


@pytest.mark.parametrize(
    ("name", "model_path", "kwargs"),
    [
        ("nano-banana", "google/gemini-3-pro-image", {"endpoint": "chat"}),
        ("gpt-image-1.5", "google/gemini-9-image", {"endpoint": "chat"}),
        ("gemini-3-pro-image", "openai/gpt-image-2", {}),
        ("gemini-3-pro-image", "my-deployment", {"endpoint": "chat"}),
        ("mine", "my-deployment", {}),
    ],
)
def test_the_id_decides_the_endpoint_and_the_name_where_it_is_unknown(
    name: str, model_path: str, kwargs: dict[str, Any]
) -> None:
    setting = resolve_model(name, "t2i", True, {"model_path": model_path})
    assert (setting["model_path"], setting["model_kwargs"]) == (model_path, kwargs)


def test_a_served_local_model_is_asked_for_by_the_id_of_its_weights() -> None:
    """Which is what vLLM-Omni and SGLang call it, unless they are told otherwise."""
    assert resolve_model("flux.1-dev", "t2i", True, {})["model_path"] == "black-forest-labs/FLUX.1-dev"
    assert resolve_model("flux.1-dev", "t2i", True, {})["model_kwargs"] == {}
    assert resolve_model("flux.1-dev", "t2i", True, {"model_path": "flux"})["model_path"] == "flux"
    assert resolve_model("diffusers", "t2i", True, {})["model_path"] == "diffusers"
    assert resolve_model("unknown", "t2i", True, {})["model_path"] == "unknown"
