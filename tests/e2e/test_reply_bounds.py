"""Limits on a server's reply to models and judges: bytes, searched words, decoded pixels."""

from __future__ import annotations

import asyncio
import gzip
import json
import struct
import time
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from custom_models.model_utils.image_replies import refusal_in_words
from custom_models.model_utils.image_routes import Chat, read_content
from custom_models.model_utils.openai_images import OpenAIImagesT2I
from imageevalkit import registry
from imageevalkit.api.endpoint import Endpoint
from imageevalkit.api.failures import in_words, parse_error
from imageevalkit.benchmark.question import Answer, Message, Picture, Question, Sampling
from imageevalkit.common.images import CorruptImage, decode, facts, opened
from imageevalkit.common.redaction import beginning, one_line
from imageevalkit.generate.model import GenerationError, ItemFailed
from imageevalkit.judges.choice import JudgeOptions
from tests.support.image_server import FAULTS, KEY, Fault, Handler, ImageServer, Received, base64_of, png_of
from tests.support.judge_server import JUDGE_FAULTS, JudgeServer

MIB = 2**20
SLOW = 60.0  # seconds; what is bounded takes a tenth of a second, what is not minutes


def head_of_png(width: int, height: int) -> bytes:
    """The beginning of a PNG: a header that says its size, and a row."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = chunk(b"IDAT", zlib.compress(bytes(1 + 3 * width)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + rows + chunk(b"IEND", b"")


def pouring(status: int, piece: bytes, pieces: int, **headers: str) -> Fault:
    """An answer of many equal pieces; ``images.poured`` counts the bytes that went out."""

    def answer(handler: Handler, request: Received) -> None:
        handler.send_response(status)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(piece) * pieces))
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        for _ in range(pieces):
            handler.wfile.write(piece)
            handler.images.poured += len(piece)  # type: ignore[attr-defined]

    return answer


def sending(status: int, body: bytes, mime_type: str = "application/json", **headers: str) -> Fault:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda handler, request: handler.send_body(status, body, mime_type, named)


TITLES = b"<title>" * 60_000
BOUNDED: dict[str, Fault] = {
    "endless": pouring(200, b" " * MIB, 1024),
    "endless_500": pouring(500, b"no " * MIB, 300),
    "titles": sending(200, TITLES, "text/html"),
    "deep_500": sending(500, b'{"error":' * 20_000),
    "large": lambda h, r: h.send_bytes(head_of_png(13_300, 13_300)),
}


class Bounds(ImageServer):
    poured = 0

    @property
    def faults(self) -> Mapping[str, Fault]:
        return {**FAULTS, **BOUNDED}


class JudgeBounds(JudgeServer):
    poured = 0

    @property
    def faults(self) -> Mapping[str, Fault]:
        return {**JUDGE_FAULTS, **BOUNDED}


@pytest.fixture
def bounds(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bounds]:
    with Bounds() as running:
        reach(running, monkeypatch)
        yield running


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> Iterator[JudgeBounds]:
    with JudgeBounds() as running:
        reach(running, monkeypatch)
        yield running


def reach(server: ImageServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", KEY)
    monkeypatch.setenv("BASE_URL", server.base_url)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def failure(**kwargs: Any) -> GenerationError:
    model = OpenAIImagesT2I("m", **{"backoff": 0.01, "max_attempts": 2, **kwargs})
    with pytest.raises(GenerationError) as caught:
        model.generate("a cat")
    return caught.value


def answer(*parts: str | Picture) -> Answer:
    question = Question("q", (Message("user", parts or ("Score this",)),), Sampling(9), item="1")
    judge = registry.judge("openai:m", {}, options=JudgeOptions({"backoff": 0.01, "max_attempts": 2}))
    judge.has_answered()  # or a web page would stop it
    (answered,) = judge.ask([question])
    return answered


# bytes


def test_a_reply_is_read_up_to_the_largest_image_in_base64(bounds: Bounds) -> None:
    bounds.default = "endless"
    error = failure(price=0.04)
    assert type(error) is ItemFailed and not error.transient
    assert str(error) == "the reply (HTTP 200) is larger than 144 MiB"
    assert len(bounds.requests) == 1, "it would be so again"
    assert error.bill and error.bill.maybe_billed == 1
    assert bounds.poured < 200 * MIB


def test_a_judges_reply_is_read_up_to_what_words_take(judge: JudgeBounds) -> None:
    judge.default = "endless"
    answered = answer()
    assert answered.error == "the reply (HTTP 200) is larger than 4 MiB"
    assert answered.attempts == 1 and judge.poured < 64 * MIB


def test_what_inflates_too_far_is_given_up(judge: JudgeBounds) -> None:
    BOUNDED["packed"] = sending(200, gzip.compress(bytes(64 * MIB), 1), Content_Encoding="gzip")
    judge.default = "packed"
    assert answer().error == "the reply (HTTP 200) is larger than 4 MiB"


@pytest.mark.parametrize("coding", ["utf-8", "deflate", "X-GZip"])
def test_a_paid_image_is_read_whatever_the_server_calls_its_coding(bounds: Bounds, coding: str) -> None:
    body = json.dumps({"data": [{"b64_json": base64_of(png_of("a cat"))}]}).encode()
    if coding == "deflate":  # without the header of zlib, as some servers send it
        packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
        body = packer.compress(body) + packer.flush()
    elif "gzip" in coding.lower():
        body = gzip.compress(body)
    BOUNDED["coded"] = sending(200, body, Content_Encoding=coding)
    bounds.default = "coded"
    assert OpenAIImagesT2I("m", base_url=bounds.base_url, max_attempts=1).generate("a cat").image


def test_of_an_error_only_the_beginning_is_read(bounds: Bounds, judge: JudgeBounds) -> None:
    bounds.default = judge.default = "endless_500"
    assert "HTTP 500: no no no" in answer().error
    bounds_poured = judge.poured
    assert bounds_poured < 200 * MIB, "two requests"


# words


@pytest.mark.parametrize("fault", ["titles", "deep_500"])
def test_no_reply_holds_up_the_others(bounds: Bounds, judge: JudgeBounds, fault: str) -> None:
    judge.default = bounds.default = fault
    bounds.script("a dog", "ok")

    async def ask() -> tuple[float, Any]:
        longest, last = 0.0, time.monotonic()
        model = OpenAIImagesT2I("m", base_url=bounds.base_url, backoff=0.01, max_attempts=2)
        model.has_made_images()  # or a web page would stop it
        asked = asyncio.gather(
            model.generate_async("a cat"), model.generate_async("a dog"), return_exceptions=True
        )
        while not asked.done():
            await asyncio.sleep(0.01)
            longest, last = max(longest, time.monotonic() - last), time.monotonic()
        await model.aclose()
        return longest, asked.result()

    longest, (cat, dog) = asyncio.run(ask())
    assert longest < SLOW
    assert type(cat) is ItemFailed and cat.transient and len(str(cat)) < 600
    assert dog.image == png_of("a dog")
    started = time.monotonic()
    answered = answer()
    assert answered.text is None and answered.attempts == 2 and "Traceback" not in answered.error
    assert "RecursionError" not in answered.error and "ValueError" not in answered.error
    assert time.monotonic() - started < 4 * SLOW


@pytest.mark.parametrize("text", ["<title>" * 100_000, "bearer " * 100_000])
def test_words_are_searched_in_one_pass(text: str) -> None:
    endpoint = Endpoint("http://host/v1", KEY)
    started = time.monotonic()
    parse_error(text)
    parse_error(json.dumps({"error": {"message": text, "code": text, "param": text}}))
    in_words(text)
    one_line(text)
    endpoint.redact(text)
    refusal_in_words({"said": [text] * 3, "again": {"said": text}})
    assert time.monotonic() - started < SLOW


@pytest.mark.parametrize(
    "text",
    [
        "![](" + " " * 500_000 + "![](",
        "see\nhttp://host/a" + ".png?" * 100_000 + ")x",
        "data:image/png;base64," * 50_000,
    ],
)
def test_images_are_looked_for_in_one_pass(text: str) -> None:
    started = time.monotonic()
    assert not [found for found in read_content(text).images if found.encoded]
    reply = {"choices": [{"message": {"content": text}, "finish_reason": text}], "usage": {}}
    Chat().read(json.dumps(reply).encode())
    assert time.monotonic() - started < SLOW


def test_half_a_secret_is_not_shown_where_words_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", "zx81-4f9d2c7b8a1e")
    whole = ["it", "is", "<API_KEY>", "and", "more"]
    for blanks in range(9_960, 10_005):
        said = one_line("it is" + " " * blanks + "zx81-4f9d2c7b8a1e and more").split()
        assert said == whole[: len(said)] and len(said) >= 2
    assert beginning("x" * 30_000) == "x" * 10_000


# pixels

TOO_LARGE = "13300x13300 pixels are more than the 89,478,485 that are decoded"


def test_the_header_decides_before_anything_is_decoded() -> None:
    for look in (decode, facts, opened):
        with pytest.raises(CorruptImage, match=TOO_LARGE):
            look(head_of_png(13_300, 13_300))


def test_an_image_of_too_many_pixels_is_not_asked_for_again(bounds: Bounds) -> None:
    bounds.default = "large"
    error = failure(price=0.04)
    assert type(error) is ItemFailed and not error.transient
    assert TOO_LARGE in str(error)
    assert len(bounds.requests) == 1
    assert error.bill and error.bill.cost == 0.04, "it was made"


def test_images_at_the_bound_are_decoded(tmp_path: Path) -> None:
    path = tmp_path / "wide.png"
    Image.new("1", (89_478_485 // 5, 5)).save(path)
    assert facts(path.read_bytes()).size == (89_478_485 // 5, 5)
