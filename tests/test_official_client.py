"""Our requests equal those that OpenAI's own client makes of the same input, as a real server receives them."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from typing import Any

import openai
import pytest
from PIL import Image

from custom_models.model_utils.openai_images import OpenAIImagesEdit, OpenAIImagesT2I
from tests.support.image_server import KEY, ImageServer, Received

PARAMETERS: dict[str, Any] = {
    "size": "256x256",
    "quality": "high",
    "output_compression": 80,
    "guidance_scale": 4.5,
    "moderate": True,
    "styles": ["ink", "wash"],
    "options": {"steps": 4, "sampler": {"name": "euler"}},
}


def same(server: ImageServer, ask: Callable[[openai.OpenAI], object]) -> tuple[Received, Received]:
    """Our request, which is there already, and the official client's."""
    with openai.OpenAI(api_key=KEY, base_url=server.base_url, max_retries=0) as client:
        ask(client)
    ours, theirs = server.requests
    return ours, theirs


def check(ours: Received, theirs: Received) -> None:
    assert ours.path == theirs.path
    assert ours.fields == theirs.fields
    assert ours.files == theirs.files
    assert ours.headers["authorization"] == theirs.headers["authorization"]
    kind = ours.headers["content-type"].partition(";")[0]
    assert kind == theirs.headers["content-type"].partition(";")[0]


def test_generations(server: ImageServer) -> None:
    OpenAIImagesT2I("m-1", **PARAMETERS).generate('a cat, 一只猫 \u2028 "quoted"')
    ours, theirs = same(
        server,
        lambda client: client.images.generate(
            model="m-1", prompt='a cat, 一只猫 \u2028 "quoted"', extra_body=PARAMETERS
        ),
    )
    check(ours, theirs)


def png(color: str, mode: str = "RGB") -> Image.Image:
    return Image.new(mode, (20, 16), color)


def encoded(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("masked", [False, True])
def test_edits(server: ImageServer, count: int, masked: bool) -> None:
    pictures = [png(color) for color in ("red", "green", "blue")[:count]]
    inputs: list[Any] = ["make it night, 夜晚", *pictures]
    if masked:
        mask = png("#00000080", "RGBA")
        mask.info["role"] = "mask"
        inputs.append(mask)
    asyncio.run(edit(inputs))
    sent = {part.name: part for part in server.requests[0].files}
    files = [(part.filename, part.data, part.mime_type) for part in server.requests[0].files]
    images: Any = files[0] if count == 1 else files[:count]
    extra: dict[str, Any] = {"mask": files[-1]} if masked else {}
    ours, theirs = same(
        server,
        lambda client: client.images.edit(
            model="m-1", prompt="make it night, 夜晚", image=images, extra_body=PARAMETERS, **extra
        ),
    )
    check(ours, theirs)
    assert ("mask" in sent) == masked


async def edit(inputs: list[Any]) -> None:
    model = OpenAIImagesEdit("m-1", **PARAMETERS)
    await model.generate_async(inputs)
    await model.aclose()


def test_chat(server: ImageServer) -> None:
    OpenAIImagesT2I("m-1", endpoint="chat", seed_hint=4).generate("a cat")
    body = server.requests[0].fields
    ours, theirs = same(
        server,
        lambda client: client.chat.completions.create(
            model="m-1",
            messages=[{"role": "user", "content": body["messages"][0]["content"]}],
            modalities=body["modalities"],
            extra_body={"seed_hint": 4},
        ),
    )
    check(ours, theirs)


def test_responses(server: ImageServer) -> None:
    OpenAIImagesT2I("m-1", endpoint="responses", quality="low").generate("a cat")
    body = server.requests[0].fields
    ours, theirs = same(
        server,
        lambda client: client.responses.create(
            **{name: body[name] for name in ("model", "input", "tools", "tool_choice")},
            extra_body={k: v for k, v in body.items() if k not in ("model", "input", "tools", "tool_choice")},
        ),
    )
    check(ours, theirs)
