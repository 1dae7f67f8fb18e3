"""The wire formats: the real openai client against the real server, every shape of reply and failure."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageDraw

from custom_models.load_model import API_MODELS, MODEL_SETTINGS
from custom_models.model_utils import image_routes as routes
from custom_models.model_utils.image_replies import ImageReply
from custom_models.model_utils.openai_images import OpenAIImagesEdit, OpenAIImagesT2I
from imageevalkit.api.failures import Kind, classify_status
from imageevalkit.generate.model import GenerationError, ItemFailed, ModelUnusable, Refused
from imageevalkit.plan.models import resolve_model
from imageevalkit.store.fingerprint import explain, settings_of
from tests.support.image_replies import CHATS, IMAGES, REFUSAL_WORDS, RESPONSES, WORDS, png_of
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
    "chat_file_url": "scheme 'file'",
    "chat_stream_cut": "the reply is a stream of events that breaks off",
    "chat_words": "the reply (HTTP 200) holds no image: What colour shall the cat have?",
    "chat_null": "holds no image",
    "chat_error": "holds an error: Provider returned error",
    "response_half": "does not decode",
    "response_words": "holds no image: What colour shall the cat have?",
    "response_incomplete": "holds no image (status incomplete: max_output_tokens)",
    "response_failed": "The server had an error",
}
REFUSALS = {
    "chat_refusal": "No violence, please.",
    "chat_refuses": "I'm sorry, but I can't create that picture.",
    "chat_content_filter": "finish reason content_filter",
    "chat_image_safety": "finish reason IMAGE_SAFETY",
    "chat_blocked": "PROHIBITED_CONTENT",
    "response_blocked": REFUSAL_WORDS,
    "response_flagged": "Your prompt was flagged as potentially violating our usage policy.",
    "response_refusal": "No violence, please.",
}
WITH_IMAGE = sorted(
    {*CHATS, *IMAGES, *RESPONSES} - {*TRANSIENT, *REFUSALS, "chat_choice_429", "response_bad_image"}
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


@pytest.mark.parametrize("fault", REFUSALS)
def test_refusal_keeps_the_words_and_is_not_retried(server: ImageServer, fault: str) -> None:
    server.default = fault
    with pytest.raises(Refused) as caught:
        t2i(endpoint_of(fault)).generate("a cat")
    assert str(caught.value) == REFUSALS[fault]
    assert caught.value.attempts == 1 == len(server.requests)


def test_rate_limit_inside_a_200_is_one(server: ImageServer) -> None:
    server.script("a cat", *["chat_choice_429"] * 4, "ok")
    made = t2i("chat", backoff=0.005).generate("a cat")
    assert made.attempts == 5, "rate limits do not count against max_attempts"


def test_error_about_the_uploaded_image_fails_the_item_at_once(server: ImageServer) -> None:
    server.default = "response_bad_image"
    with pytest.raises(ItemFailed, match="not a picture") as caught:
        edit("responses").generate(["a cat", Image.new("RGB", (8, 8))])
    assert not caught.value.transient
    assert caught.value.attempts == 1


@pytest.mark.parametrize("endpoint", ["chat", "responses"])
@pytest.mark.parametrize(
    ("fault", "kind"), [("refuse", Refused), ("401", ModelUnusable), ("truncated", ItemFailed)]
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


@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        # new-api, OpenAI's text models, OpenRouter
        (400, {"message": "request blocked by Gemini API: OTHER", "code": "prompt_blocked"}, Kind.REFUSAL),
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


def test_what_an_endpoint_cannot_do_stops_the_model(server: ImageServer) -> None:
    with pytest.raises(ModelUnusable, match=r"not 'chta' \(did you mean 'chat'"):
        OpenAIImagesT2I("served-1", endpoint="chta")
    with pytest.raises(ModelUnusable, match="'tools' cannot be given"):
        OpenAIImagesT2I("served-1", endpoint="responses", tools=[])


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


def test_pixels_in_memory_win_over_the_file(tmp_path: Path) -> None:
    image = Image.open(photo(tmp_path / "a.png"))
    ImageDraw.Draw(image).rectangle((0, 0, 9, 9), fill="red")
    (sent,) = routes.inputs_of("", [image]).images
    assert decoded(sent).tobytes() == image.tobytes()


def test_file_that_servers_could_see_differently_is_sent_as_rgb_pixels(tmp_path: Path) -> None:
    turned = Image.Exif()
    turned[0x0112] = 6
    frames = [Image.new("RGB", (48, 32), colour) for colour in ("red", "blue")]
    paths = [
        photo(tmp_path / "alpha.png", mode="RGBA"),
        photo(tmp_path / "print.jpg", mode="CMYK"),
        photo(tmp_path / "turned.jpg", exif=turned),
        photo(tmp_path / "moving.webp", save_all=True, append_images=frames, lossless=True),
    ]
    for path in paths:
        (sent,) = routes.inputs_of("", [Image.open(path)]).images
        image = decoded(sent)
        assert (image.mode, image.tobytes()) == ("RGB", Image.open(path).convert("RGB").tobytes()), path.name


def mask_for(size: tuple[int, int] = (48, 32), mode: str = "RGBA") -> Image.Image:
    mask = Image.new(mode, size, "white")
    if mode == "RGBA":
        mask.paste((0, 0, 0, 0), (4, 4, 20, 20))
    mask.info["role"] = "mask"
    return mask


@pytest.mark.parametrize("endpoint", ["images", "responses"])
def test_mask_is_sent_as_a_mask(server: ImageServer, endpoint: str) -> None:
    edit(endpoint).generate(["Fill it", mask_for(), Image.new("RGB", (48, 32), "blue")])
    sent = {part.name: part for part in server.requests[0].files}
    assert sent.keys() == {"mask", "image" if endpoint == "images" else "image_url"}
    assert sent["mask"].mime_type == "image/png"
    assert sent["mask"].filename == ("mask.png" if endpoint == "images" else None)
    received = Image.open(io.BytesIO(sent["mask"].data))
    assert received.mode == "RGBA"
    assert received.tobytes() == mask_for().tobytes()


@pytest.mark.parametrize(
    ("endpoint", "masks", "says"),
    [
        ("chat", [mask_for()], "/chat/completions takes none: use endpoint=images or responses"),
        ("images", [mask_for(mode="L")], "the mask has no transparent area"),
        ("images", [mask_for((9, 9))], "differ in size: 9x9 and 48x32"),
    ],
)
def test_mask_that_cannot_be_sent_fails_the_item_without_a_request(
    server: ImageServer, endpoint: str, masks: list[Image.Image], says: str
) -> None:
    with pytest.raises(ItemFailed, match=says) as caught:
        edit(endpoint).generate(["Fill it", Image.new("RGB", (48, 32)), *masks])
    assert caught.value.attempts == 0
    assert not server.requests


def test_order_of_several_images_is_kept_in_chat_and_responses(server: ImageServer) -> None:
    colours = ("red", "green", "blue")
    pictures = [Image.new("RGB", (8, 8), colour) for colour in colours]
    for endpoint in ("chat", "responses"):
        edit(endpoint).generate(["First", pictures[0], "second", *pictures[1:]])
        request = server.requests[-1]
        assert request.prompt == "First second"
        sent = [Image.open(io.BytesIO(part.data)).getpixel((0, 0)) for part in request.files]
        assert sent == [picture.getpixel((0, 0)) for picture in pictures]


@pytest.mark.parametrize("name", ["images", "chat", "responses"])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"choices": [null, 3, {"message": 4}], "data": [7], "output": [8, {"content": 9}]}',
        b'{"choices": [{"message": {"images": [null, 1, {"image_url": null}], "content": [null, 2]}}]}',
    ],
)
def test_nonsense_is_a_transient_failure_and_never_an_exception(name: str, body: bytes) -> None:
    reply = routes.of(name).read(body)
    assert not isinstance(reply, ImageReply)
    assert reply.kind.retried


USAGE = {"input_tokens": 9, "output_tokens_details": {"image_tokens": 3}, "cost": 0.02}


@pytest.mark.parametrize(
    ("name", "reply"),
    [
        ("images", {"data": [{"b64_json": "AAAA"}]}),
        ("chat", {"choices": [{"message": {"content": "What colour?"}}]}),
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


@pytest.mark.parametrize(
    ("name", "model_path", "kwargs"),
    [
        ("nano-banana", "google/gemini-3-pro-image", {"endpoint": "chat"}),
        ("gpt-image-1.5", "google/gemini-9-image", {"endpoint": "chat"}),
        ("gemini-3-pro-image", "openai/gpt-image-2", {}),
        ("gemini-3-pro-image", "my-deployment", {"endpoint": "chat"}),
    ],
)
def test_the_id_decides_the_endpoint_and_the_name_where_it_is_unknown(
    name: str, model_path: str, kwargs: dict[str, Any]
) -> None:
    setting = resolve_model(name, "t2i", True, {"model_path": model_path})
    assert (setting["model_path"], setting["model_kwargs"]) == (model_path, kwargs)
