"""The wire formats of image models: the files and the body of a request, and the image in the reply."""

from __future__ import annotations

import base64
import html
import io
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

from PIL import Image

from custom_models.model_utils.image_replies import (
    ImageReply,
    decoded,
    found_below,
    found_in,
    no_image,
    refusal_in_words,
    strings_of,
)
from imageevalkit.api.client import Request
from imageevalkit.api.failures import LONGEST_MESSAGE, Failure, Kind
from imageevalkit.api.prices import reported_cost
from imageevalkit.api.replies import (
    failure_in,
    finish_reasons,
    list_of,
    objects_in,
    read_json,
    stopped_by_policy,
    tokens_of,
)
from imageevalkit.common.errors import UserError, suggest
from imageevalkit.common.images import as_rgb, is_plain
from imageevalkit.common.machine import when_one_is_free
from imageevalkit.common.redaction import one_line
from imageevalkit.common.text import to_bytes

# The formats that every image endpoint accepts. Others (MPO, GIF, TIFF) are sent as PNG.
_SENT_AS_THEY_ARE = {
    "PNG": ("png", "image/png"),
    "JPEG": ("jpg", "image/jpeg"),
    "WEBP": ("webp", "image/webp"),
}
# PNG is lossless at any level. The default level takes four times as long and saves a tenth of the bytes.
_QUICK = 1


class MaskError(ValueError):
    """The mask of an item cannot be used."""


class Upload(NamedTuple):
    """A file as HTTP clients take it: name, bytes and MIME type."""

    name: str
    data: bytes
    mime_type: str

    def data_url(self) -> str:
        """Returns the file as a ``data:`` URL."""
        return f"data:{self.mime_type};base64,{base64.b64encode(self.data).decode()}"


class Inputs(NamedTuple):
    """The inputs of an item. ``mask`` is a PNG whose fully transparent area is to be edited."""

    prompt: str
    images: tuple[Upload, ...] = ()
    mask: Upload | None = None


def inputs_of(prompt: str, pictures: Sequence[Image.Image]) -> Inputs:
    """Encodes ``pictures``. A picture whose ``info["role"]`` is "mask" is the mask. Takes CPU time.

    The bytes of an unchanged PNG, JPEG or WebP file are sent as they are if all servers decode the same RGB
    pixels (no alpha, rotation, frames). Any other picture becomes an RGB PNG without alpha, as for local
    models.

    Raises MaskError: there is more than one mask, or the mask is unusable.
    """
    masks = [picture for picture in pictures if picture.info.get("role") == "mask"]
    images = [picture for picture in pictures if picture.info.get("role") != "mask"]
    if len(masks) > 1:
        raise MaskError(f"the item has {len(masks)} masks: endpoints take one")
    uploads = tuple(_image(n, image) for n, image in enumerate(images))
    return Inputs(prompt, uploads, _mask(masks[0], images) if masks else None)


def _image(n: int, image: Image.Image) -> Upload:
    suffix, mime_type = _SENT_AS_THEY_ARE.get(image.format or "", ("", ""))
    data = _file_bytes(image) if mime_type else None
    if data is None or not is_plain(data):
        return Upload(f"image_{n}.png", _png(image, "RGB"), "image/png")
    return Upload(f"image_{n}.{suffix}", data, mime_type)


def _mask(mask: Image.Image, images: Sequence[Image.Image]) -> Upload:
    if not mask.has_transparency_data:
        raise MaskError("the mask has no transparent area, which marks the part to edit")
    if images and mask.size != images[0].size:
        sizes = " and ".join(f"{width}x{height}" for width, height in (mask.size, images[0].size))
        raise MaskError(f"the mask and the image differ in size: {sizes}")
    data = _file_bytes(mask) if mask.format == "PNG" else None
    return Upload("mask.png", data or _png(mask, "RGBA"), "image/png")


def _file_bytes(image: Image.Image) -> bytes | None:
    """Returns the bytes of the image's file, or None if the pixels may have changed since."""
    # not by `tile`, which a WebP lacks before loading, too
    loaded = getattr(image, "_im", image) is not None
    file = getattr(image, "filename", "")
    if loaded or not file:
        return None
    try:
        return when_one_is_free(Path(file).read_bytes)
    except OSError:
        return None  # the file was deleted, but Pillow may hold it open


def _png(image: Image.Image, mode: str) -> bytes:
    buffer = io.BytesIO()
    (as_rgb(image) if mode == "RGB" else image.convert(mode)).save(buffer, "PNG", compress_level=_QUICK)
    return buffer.getvalue()


class Route(ABC):
    """One wire format.

    A user removes one of ``defaults`` with None. ``reserved`` maps parameters that a user cannot set to the
    reason.
    """

    name: ClassVar[str]
    path: ClassVar[str]
    takes_seed: ClassVar[bool] = True
    takes_mask: ClassVar[bool] = True
    takes_size: ClassVar[bool] = True
    defaults: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    reserved: ClassVar[Mapping[str, str]] = MappingProxyType({})

    def prepare(
        self, model_id: str, inputs: Inputs, parameters: Mapping[str, Any], batched: bool = False
    ) -> Request:
        """Returns the request, which may be sent several times or in a batch. Takes CPU time with images."""
        body = json.dumps(self.body(model_id, inputs, parameters), separators=(",", ":")).encode()
        return Request(self.path, (body,))

    @abstractmethod
    def body(self, model_id: str, inputs: Inputs, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the JSON body of a request."""

    def read(self, content: bytes) -> ImageReply | Failure:
        """Returns the checked image (or its URL) in the body of a 200, or a Failure. Takes CPU time."""
        return read_json(content, self._read)

    def _read(self, reply: Mapping[str, Any]) -> ImageReply | Failure:
        found = self.image_in(reply)
        if isinstance(found, ImageReply) and found.url is None:
            image = decoded(found.encoded)
            found = image if isinstance(image, Failure) else found._replace(image=image, encoded=None)
        # /responses reports the usage of its tools separately
        tokens = tokens_of(reply.get("usage")) | tokens_of(reply.get("tool_usage"), "tool_usage.")
        # a Failure, too: a refusal is billed
        return found._replace(tokens=tokens, reported_cost=reported_cost(reply.get("usage")))

    @abstractmethod
    def image_in(self, reply: Mapping[str, Any]) -> ImageReply | Failure:
        """Returns the image in the parsed ``reply`` of a 200, or the Failure that the reply means."""


class Content(NamedTuple):
    """The images of a message in their order, and its text without them."""

    images: list[ImageReply]
    words: str


# At least 64 characters: fewer contain no image, and a quoted prompt may mention data URLs. No pattern can
# fail after the base64, which would backtrack through megabytes. No pattern reads past the start of another,
# which would scan them repeatedly.
_LETTER = r"[A-Za-z0-9+/_-]"
# Base64 may have line breaks after 64 or more characters. A shorter last line must be complete base64 up to
# its end, because words may follow the image.
_BASE64 = (
    rf"{_LETTER}{{64,}}(?:\r?\n[ \t]*{_LETTER}{{64,}})*"
    rf"(?:={{1,2}}|\r?\n[ \t]*(?:{_LETTER}{{4}}){{0,15}}{_LETTER}{{2}}(?:==|{_LETTER}=|{_LETTER}{{2}})"
    r"(?=[ \t]*(?:[)>\"'\r\n]|\Z)))?"
)
_DATA_URL = rf"data:image/[\w.+-]{{1,50}}(?:;[\w=.+-]{{1,50}}){{0,3}};base64,\s{{0,10}}{_BASE64}"
_MARKDOWN = r"!\[(?:(?!!\[)[^\]]){0,500}\]\(\s*<?"
_HTML = r"<(?i:img)\b[^<>]{0,500}?\b(?i:src)\s{0,10}=\s{0,10}[\"']?"
_IMAGE = re.compile(
    rf"(?:{_MARKDOWN}|{_HTML}|<)?({_DATA_URL})(?:[\"'][^<>]{{0,500}}>|>?\)?)"
    rf"|{_MARKDOWN}(https?://[^\s)>]+)>?(?:\s+\"[^\"\n]{{0,300}}\")?\)?"
    rf"|{_HTML}(https?://[^\s\"'<>]+)[^<>]{{0,500}}>?"
    # a plain URL must have its own line: in a sentence it is a source or a policy
    r"|^[ \t]*(?:\[[^\]\n]{0,500}\]\()?(https?://[^\s)]+)\)?[ \t]*$",
    re.MULTILINE,
)
_OF_AN_IMAGE = re.compile(r"\.(?:png|jpe?g|webp)(?:\?|$)")
_NOTHING_BUT_A_URL = re.compile(r"\s*(https?://\S+)\s*")


def read_content(content: Any) -> Content:
    """Splits ``content`` into images and text. Gateways put images into text as Markdown, too."""
    images: list[ImageReply] = []
    words: list[str] = []
    for part in content if isinstance(content, list) else [content]:
        text = part.get("text") if isinstance(part, dict) else part
        if isinstance(text, str):
            words.extend(_take_apart(text, images))
        elif isinstance(part, dict) and (found := found_in(part)):
            images.append(found)
    return Content(images, " ".join(" ".join(words).split()))


def _take_apart(text: str, images: list[ImageReply]) -> Iterator[str]:
    """Yields the words of ``text`` and adds its images to ``images``. One pass: it may have megabytes."""
    if alone := _NOTHING_BUT_A_URL.fullmatch(text):
        images.append(ImageReply(url=alone[1]))
        return
    end = looked_at = 0
    while match := _IMAGE.search(text, looked_at):
        data_url, in_markdown, in_html, on_its_own = match.groups()
        if on_its_own and not _OF_AN_IMAGE.search(on_its_own):
            looked_at = match.start() + 1  # this line cannot match a second time
            continue
        url = html.unescape(in_html) if in_html else in_markdown or on_its_own
        images.append(ImageReply(encoded=data_url) if data_url else ImageReply(url=url))
        yield text[end : match.start()]
        end = looked_at = match.end()
    yield text[end:]


def form(path: str, fields: Mapping[str, Any], files: Sequence[tuple[str, Upload]]) -> Request:
    """Returns the multipart request that posts ``fields`` and ``files`` (names may repeat) to ``path``."""
    import httpx2

    data: dict[str, list[bytes]] = {}
    for name, value in fields.items():
        for flat, text in _flat(name, value):
            data.setdefault(flat, []).append(text)
    request = httpx2.Request(
        "POST",
        "http://form",
        data=data,
        files=[(name, (file.name, file.data, file.mime_type)) for name, file in files],
    )
    return Request(path, (request.read(),), request.headers["content-type"])


def _flat(name: str, value: Any) -> Iterator[tuple[str, bytes]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(f"{name}[{key}]", inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _flat(f"{name}[]", inner)
    elif isinstance(value, bool):
        yield name, str(value).lower().encode()
    elif value is not None:
        yield name, to_bytes(str(value))


_EDITS = "/images/edits"
_SAID_ABOUT_REPLY = ("model", "size", "quality", "background", "output_format", "id")


class Images(Route):
    """OpenAI's image API and the compatible APIs of open-model servers."""

    name = "images"
    path = "/images/generations"

    def body(self, model_id: str, inputs: Inputs, parameters: Mapping[str, Any]) -> dict[str, Any]:
        return {"model": model_id, "prompt": inputs.prompt, **parameters}

    def prepare(
        self, model_id: str, inputs: Inputs, parameters: Mapping[str, Any], batched: bool = False
    ) -> Request:
        if not inputs.images:
            return super().prepare(model_id, inputs, parameters)
        if batched:  # the lines of a batch are JSON, with other field names than a form
            body = self.body(model_id, inputs, parameters)
            body["images"] = [{"image_url": image.data_url()} for image in inputs.images]
            if inputs.mask:
                body["mask"] = {"image_url": inputs.mask.data_url()}
            return Request(_EDITS, (json.dumps(body, separators=(",", ":")).encode(),))
        # one image as `image`, several as `image[]`: servers other than OpenAI's accept only these names
        name = "image" if len(inputs.images) == 1 else "image[]"
        files = [(name, upload) for upload in inputs.images]
        if inputs.mask:
            files.append(("mask", inputs.mask))
        return form(_EDITS, self.body(model_id, inputs, parameters), files)

    def image_in(self, reply: Mapping[str, Any]) -> ImageReply | Failure:
        entry = next(iter(objects_in(list_of(reply.get("data"))[:1])), {})
        if found := found_in(entry):
            extra = strings_of(reply, *_SAID_ABOUT_REPLY) | strings_of(entry, "revised_prompt")
            return found._replace(extra=extra)
        # check errors first: an error reply may repeat the input images
        return failure_in(reply, entry) or found_below(reply) or refusal_in_words(reply) or no_image(reply)


_MOST_CHOICES = 100  # choices that are searched: one was requested


class Chat(Route):
    """Chat completions with the image in one of three places.

    Images are in ``message.images`` (OpenRouter, LiteLLM, Vercel), in ``content`` as Markdown, data URL or
    URL (new-api), or among its parts. If there are several images, the last one is the result. The earlier
    ones are drafts of a model that thinks
    (https://ai.google.dev/gemini-api/docs/image-generation#thinking-process).
    """

    name = "chat"
    path = "/chat/completions"
    takes_mask = takes_size = False
    # OpenRouter, LiteLLM and Vercel need it, new-api ignores it. If a server rejects it: modalities=null.
    defaults = MappingProxyType({"modalities": ["image", "text"]})

    def body(self, model_id: str, inputs: Inputs, parameters: Mapping[str, Any]) -> dict[str, Any]:
        content: str | list[dict[str, Any]] = inputs.prompt
        if inputs.images:
            urls = [{"type": "image_url", "image_url": {"url": i.data_url()}} for i in inputs.images]
            content = [{"type": "text", "text": inputs.prompt}, *urls]
        return {"model": model_id, "messages": [{"role": "user", "content": content}], **parameters}

    def image_in(self, reply: Mapping[str, Any]) -> ImageReply | Failure:
        choices = objects_in(list_of(reply.get("choices"))[:_MOST_CHOICES])
        messages = [choice["message"] for choice in choices if isinstance(choice.get("message"), dict)]
        contents = [
            read_content(message.get(name))
            for message in messages
            for name in ("content", "multi_mod_content")
        ]
        # both fields may contain the same words
        words = one_line(" ".join(dict.fromkeys(c.words for c in contents if c.words)), LONGEST_MESSAGE)
        listed = [list_of(message.get("images")) or [message.get("image")] for message in messages]
        in_fields = [[found for value in values if (found := found_in(value))] for values in listed]
        extra = strings_of(reply, "model", "id", "provider") | ({"text": words} if words else {})
        for images in (*in_fields, *(content.images for content in contents)):
            if images:
                return images[-1]._replace(extra=extra)
        if failure := failure_in(reply, *choices, *messages):
            return failure
        # some gateways return the format of the image API for a chat request
        if found := found_below(reply):
            return found._replace(extra=extra)
        return (
            next(filter(None, (stopped_by_policy(reply, choice, words) for choice in choices)), None)
            or refusal_in_words([*messages, {**reply, "choices": None}])
            or no_image(reply, words, _why(reply, choices))
        )


def _why(reply: Mapping[str, Any], choices: Iterable[Mapping[str, Any]]) -> str:
    said = (reason for choice in choices for reason in finish_reasons(reply, choice))
    reasons = dict.fromkeys(reason for reason in said if reason and reason.lower() != "stop")
    return f"finish reason {', '.join(reasons)}" if reasons else ""


# settings of the tool (openai 3: ImageGeneration in tool_param.py); `model` is its image model there
_OF_TOOL = re.compile(
    "action|background|complexity|input_fidelity|moderation|output_compression|output_format|quality|size"
)
_SAID_ABOUT_IMAGE = ("revised_prompt", "size", "quality", "background", "output_format", "action")


class Responses(Route):
    """An OpenAI text model that must call its image tool; ``image_model`` names the tool's model."""

    name = "responses"
    path = "/responses"
    takes_seed = False
    defaults = MappingProxyType({"tool_choice": {"type": "image_generation"}})
    reserved = MappingProxyType({"tools": "the settings of the image tool are given by name (quality=high)"})

    def body(self, model_id: str, inputs: Inputs, parameters: Mapping[str, Any]) -> dict[str, Any]:
        tool: dict[str, Any] = {"type": "image_generation"}
        tool.update((name, value) for name, value in parameters.items() if _OF_TOOL.fullmatch(name))
        if "image_model" in parameters:
            tool["model"] = parameters["image_model"]
        if inputs.mask:
            tool["input_image_mask"] = {"image_url": inputs.mask.data_url()}
        asked: str | list[dict[str, Any]] = inputs.prompt
        if inputs.images:
            images = [{"type": "input_image", "image_url": image.data_url()} for image in inputs.images]
            asked = [
                {"role": "user", "content": [{"type": "input_text", "text": inputs.prompt}, *images]},
            ]
        rest = {n: v for n, v in parameters.items() if not _OF_TOOL.fullmatch(n) and n != "image_model"}
        return {"model": model_id, "input": asked, "tools": [tool], **rest}

    def image_in(self, reply: Mapping[str, Any]) -> ImageReply | Failure:
        output = objects_in(reply.get("output"))
        calls = [item for item in output if item.get("type") == "image_generation_call"]
        parts = [part for item in output for part in objects_in(item.get("content"))]
        texts = [part["text"] for part in parts if isinstance(part.get("text"), str)]
        words = one_line(" ".join(texts), LONGEST_MESSAGE)
        done = [call for call in calls if call.get("result") and call.get("status") != "failed"]
        if done:
            extra = strings_of(reply, "model", "id") | strings_of(done[-1], *_SAID_ABOUT_IMAGE)
            result = done[-1]["result"]
            is_link = isinstance(result, str) and result.startswith(("http://", "https://"))
            found = ImageReply(url=result) if is_link else ImageReply(encoded=result)
            return found._replace(extra=extra | ({"text": words} if words else {}))
        if failure := failure_in(*calls, reply, *parts):
            return failure
        cut = reply.get("incomplete_details")
        reason = str(cut.get("reason") or "") if isinstance(cut, dict) else ""
        if reason == "content_filter":
            return Failure(Kind.REFUSAL, words or reason)
        status = reply.get("status")
        because = ": ".join(filter(None, (str(status), reason))) if status not in (None, "completed") else ""
        return refusal_in_words(output) or no_image(reply, words, because and f"status {because}")


_ROUTES: dict[str, Route] = {route.name: route for route in (Images(), Chat(), Responses())}


def of(name: Any) -> Route:
    """Returns the route with that ``name``. Raises UserError: there is no such route."""
    if isinstance(name, str) and name in _ROUTES:
        return _ROUTES[name]
    hint = suggest(str(name), _ROUTES)
    raise UserError(f"endpoint must be one of {', '.join(_ROUTES)}, not {name!r}{hint}")
