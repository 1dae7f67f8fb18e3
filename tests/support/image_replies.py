"""The bodies that OpenAI's endpoints and the gateways in front of other models answer with."""

from __future__ import annotations

import base64
import functools
import hashlib
import io
import json
from collections.abc import Callable
from typing import Any

from PIL import Image

REFUSAL_WORDS = (
    "Your request was rejected by the safety system. safety_violations=[violence]. (request id: req-7)"
)
USAGE = {
    "input_tokens": 12,
    "input_tokens_details": {"image_tokens": 0, "text_tokens": 12},
    "output_tokens": 272,
    "total_tokens": 284,
}
CHAT_USAGE = {
    "prompt_tokens": 9,
    "completion_tokens": 1300,
    "total_tokens": 1309,
    "completion_tokens_details": {"image_tokens": 1290, "reasoning_tokens": 0},
    "cost": 0.0387,
}
TOOL_USAGE = {"image_gen": {"input_tokens": 40, "output_tokens": 1056, "total_tokens": 1096}}
WORDS = "Here is your picture."
# A program, which never ends: what draws an EPS runs it.
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n{ } loop\n%%EOF\n"


@functools.lru_cache(maxsize=4096)
def png_of(prompt: str, side: int = 256) -> bytes:
    """A valid PNG whose pattern depends on ``prompt``; never one flat colour."""
    cells = b"".join(hashlib.sha256(f"{n}:{prompt}".encode()).digest() for n in range(24))
    buffer = io.BytesIO()
    Image.frombytes("RGB", (16, 16), cells).resize((side, side), Image.Resampling.NEAREST).save(buffer, "PNG")
    return buffer.getvalue()


def draft_of(prompt: str) -> bytes:
    """Another picture, which a model that thinks shows before the result."""
    return png_of(f"draft of {prompt}")


def base64_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


def data_url(data: bytes) -> str:
    return f"data:image/png;base64,{base64_of(data)}"


def in_lines(data: bytes) -> str:
    """A data URL whose base64 comes in lines of 76 characters."""
    return f"data:image/png;base64,{base64.encodebytes(data).decode().strip()}"


def stream_of(*events: dict[str, Any], end: str = "[DONE]") -> bytes:
    """Server-sent events, with a comment that keeps the connection open before them."""
    lines = [": PROCESSING", *(f"data: {json.dumps(event)}" for event in events), f"data: {end}" * bool(end)]
    return "\n\n".join([*lines, ""]).encode()


def chunks_of(reply: dict[str, Any], finish: str = "stop") -> list[dict[str, Any]]:
    """``reply``, a chat completion, as the events of a stream: its content in pieces of 100 characters."""
    (choice,) = reply["choices"]
    message, rest = choice["message"], {k: v for k, v in reply.items() if k not in ("choices", "usage")}
    content = message.get("content") or ""
    deltas: list[dict[str, Any]] = [{k: v for k, v in message.items() if k != "content"}]
    deltas += [{"content": content[at : at + 100]} for at in range(0, len(content), 100)]
    logprobs = choice.get("logprobs")
    events = [{**rest, "choices": [{"index": 0, "delta": d, "finish_reason": None}]} for d in deltas]
    last = {"index": 0, "delta": {}, "logprobs": logprobs, "finish_reason": finish or None}
    return [*events, {**rest, "choices": [last]}, {**rest, "choices": [], "usage": reply["usage"]}]


def images_reply(image: dict[str, Any]) -> dict[str, Any]:
    """``/images/…``: ``image`` has ``b64_json`` or ``url``."""
    return {"created": 1, "data": [image], "size": "256x256", "usage": USAGE}


def chat_reply(message: dict[str, Any], finish: str | None = "stop", **choice: Any) -> dict[str, Any]:
    """``/chat/completions`` with one message of the assistant."""
    return {
        "id": "gen-17",
        "object": "chat.completion",
        "model": "gemini-served",
        "provider": "Google",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "refusal": None,
                    "reasoning": "I can't create it yet",
                    **message,
                },
                "finish_reason": finish,
                **choice,
            }
        ],
        "usage": CHAT_USAGE,
    }


def response_reply(*output: dict[str, Any], status: str = "completed", **more: Any) -> dict[str, Any]:
    """``/responses`` with these items; the request's own settings are echoed as OpenAI does."""
    return {
        "id": "resp-17",
        "object": "response",
        "status": status,
        "error": None,
        "incomplete_details": None,
        "model": "text-served",
        "instructions": "Obey the content policy.",
        "tools": [{"type": "image_generation", "moderation": "auto"}],
        "output": [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "thinking"}]}, *output],
        "usage": USAGE,
        "tool_usage": TOOL_USAGE,
        **more,
    }


def call(result: str | None, **more: Any) -> dict[str, Any]:
    """The item of ``output`` that is a call of the image tool."""
    return {"type": "image_generation_call", "id": "ig-1", "status": "completed", "result": result, **more}


def said(text: str, kind: str = "output_text") -> dict[str, Any]:
    """The item of ``output`` that is a message."""
    key = "refusal" if kind == "refusal" else "text"
    return {"type": "message", "role": "assistant", "content": [{"type": kind, key: text}]}


def _listed(image: dict[str, Any]) -> dict[str, Any]:
    url = image.get("url") or f"data:image/png;base64,{image['b64_json']}"
    return chat_reply({"content": WORDS, "images": [{"type": "image_url", "image_url": {"url": url}}]})


def _called(image: dict[str, Any]) -> dict[str, Any]:
    facts = {"revised_prompt": image.get("revised_prompt"), "size": "256x256"}
    return response_reply(call(image.get("b64_json") or image["url"], **facts), said(WORDS))


# path -> how it wraps an image
ENDPOINTS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "/v1/images/generations": images_reply,
    "/v1/images/edits": images_reply,
    "/v1/chat/completions": _listed,
    "/v1/responses": _called,
}

Shape = Callable[[str, str], dict[str, Any] | bytes]
"""From a prompt and the URL of its picture to a reply: JSON, or a stream of events."""


def _content(make: Callable[[str, str], Any]) -> Shape:
    return lambda prompt, url: chat_reply({"content": make(prompt, url)})


def _silent(finish: str | None, content: str | None = "", **choice: Any) -> Shape:
    return lambda prompt, url: chat_reply({"content": content}, finish, **choice)


def _parts(make: Callable[[str], list[dict[str, Any]]]) -> Shape:
    return lambda prompt, url: chat_reply({"content": [{"type": "text", "text": WORDS}, *make(prompt)]})


def _answered(reply: dict[str, Any]) -> Shape:
    return lambda prompt, url: reply


def _markdown(data: bytes) -> str:
    return f"![image]({data_url(data)})"


# name -> reply, from a prompt and the URL of its picture
CHATS: dict[str, Shape] = {
    "chat_images": lambda p, u: _listed({"b64_json": base64_of(png_of(p))}),
    "chat_images_flat": lambda p, u: chat_reply({"content": None, "images": [{"url": data_url(png_of(p))}]}),
    "chat_drafts": lambda p, u: chat_reply(
        {"images": [{"image_url": {"url": data_url(data)}} for data in (draft_of(p), draft_of(p), png_of(p))]}
    ),
    "chat_markdown_quote": _content(
        lambda p, u: f'{_markdown(png_of(p))}\nYou asked: "{p}" with data:image/png;base64,iVBORw0KGgo= in it'
    ),
    "chat_markdown_url": _content(lambda p, u: f'{WORDS}\n\n![it]({u} "title")'),
    "chat_url_line": _content(lambda p, u: f"{WORDS}\n{u}\nEnjoy, see https://gateway.example/terms.png too"),
    "chat_parts": _parts(lambda p: [{"type": "image_url", "image_url": {"url": data_url(png_of(p))}}]),
    "chat_parts_inline": _parts(
        lambda p: [
            {"inline_data": {"mime_type": "image/png", "data": base64_of(draft_of(p))}, "thought": True},
            {"inlineData": {"mimeType": "image/png", "data": base64_of(png_of(p))}},
            {"inline_data": {"mime_type": "audio/wav", "data": "UklGRg=="}},
        ]
    ),
    "chat_parts_source": _parts(
        lambda p: [
            {
                "type": "image",
                "source": {"type": "base64", "media_type": "image/png", "data": base64_of(png_of(p))},
            }
        ]
    ),
    "chat_multi_mod": lambda p, u: chat_reply(
        {
            "content": WORDS,
            "multi_mod_content": [
                {"text": WORDS},
                {"inline_data": {"mime_type": "image/png", "data": base64_of(png_of(p))}},
            ],
        }
    ),
    "chat_img": _content(lambda p, u: f'{WORDS} <img alt="a" src="{data_url(png_of(p))}" width=9/> Enjoy'),
    "chat_lines": _content(lambda p, u: f"![image]({in_lines(png_of(p))})\nEnjoy it"),
    "chat_images_bare": lambda p, u: chat_reply({"images": [{"url": base64_of(png_of(p))}]}),
    "chat_as_image": lambda p, u: {"id": "x", "image": u},
    "chat_stream": lambda p, u: stream_of(
        *chunks_of(chat_reply({"content": f"{WORDS}\n{_markdown(png_of(p))}"}))
    ),
    "chat_stream_images": lambda p, u: stream_of(
        *chunks_of(chat_reply({"content": WORDS, "images": [{"image_url": {"url": data_url(png_of(p))}}]})),
        end="",
    ),
    "chat_filtered_image": lambda p, u: chat_reply(
        {"images": [{"image_url": {"url": data_url(png_of(p))}}]}, "content_filter"
    ),
    "chat_half": _content(lambda p, u: _markdown(png_of(p))[:-601]),
    "chat_file_url": lambda p, u: chat_reply({"images": [{"image_url": {"url": "file:///etc/hostname"}}]}),
    "chat_stream_cut": lambda p, u: stream_of(
        *chunks_of(chat_reply({"content": _markdown(png_of(p))}), finish=""), end=""
    ),
    "chat_words": _silent("stop", "What colour shall the cat have?"),
    "chat_null": lambda p, u: {"id": "x", "choices": None},
    "chat_error": lambda p, u: {"error": {"message": "Provider returned error", "code": 502}},
    "chat_choice_429": _silent("error", error={"code": 429, "message": "slow down"}),
    "chat_refusal": lambda p, u: chat_reply({"content": None, "refusal": "No violence, please."}),
    "chat_refuses": _silent("stop", "I'm sorry, but I can't create that picture."),
    "chat_content_filter": _silent("content_filter"),
    "chat_image_safety": _silent("stop", None, native_finish_reason="IMAGE_SAFETY"),
    "chat_blocked": lambda p, u: {"choices": [], "promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}},
}
IMAGES: dict[str, Shape] = {
    "images_list": lambda p, u: {"images": [{"url": u}], "timings": {"inference": 1.5}, "seed": 7},
    "images_one": lambda p, u: {"image": u, "id": "x"},
    "images_in_data": lambda p, u: {"code": 0, "message": "ok", "data": {"images": [{"url": u}]}},
    "images_lines": lambda p, u: images_reply({"url": f"\n{in_lines(png_of(p))}"}),
    "images_stream": lambda p, u: stream_of(
        {
            "type": "image_generation.partial_image",
            "b64_json": base64_of(draft_of(p)),
            "partial_image_index": 0,
        },
        {"type": "image_generation.completed", "b64_json": base64_of(png_of(p)), "usage": USAGE},
        end="",
    ),
}
RESPONSES: dict[str, Shape] = {
    "response_stream": lambda p, u: stream_of(
        {"type": "response.created", "response": response_reply(status="in_progress")},
        {"type": "response.image_generation_call.partial_image", "partial_image_b64": base64_of(draft_of(p))},
        {"type": "response.completed", "response": response_reply(call(base64_of(png_of(p))))},
        end="",
    ),
    "response_drafts": lambda p, u: response_reply(call(base64_of(draft_of(p))), call(base64_of(png_of(p)))),
    "response_cut_after": lambda p, u: response_reply(
        call(base64_of(png_of(p))), status="incomplete", incomplete_details={"reason": "max_output_tokens"}
    ),
    "response_half": lambda p, u: response_reply(call(base64_of(png_of(p)[:-400]))),
    "response_words": _answered(response_reply(said("What colour shall the cat have?"))),
    "response_incomplete": _answered(
        response_reply(status="incomplete", incomplete_details={"reason": "max_output_tokens"})
    ),
    "response_failed": _answered(
        response_reply(status="failed", error={"code": "server_error", "message": "The server had an error"})
    ),
    "response_bad_image": _answered(
        response_reply(status="failed", error={"code": "invalid_image_format", "message": "not a picture"})
    ),
    "response_blocked": _answered(
        response_reply(
            call(None, status="failed", error={"code": "moderation_blocked", "message": REFUSAL_WORDS})
        )
    ),
    "response_flagged": _answered(
        response_reply(
            status="failed",
            error={
                "code": "invalid_prompt",
                "message": "Your prompt was flagged as potentially violating our usage policy.",
            },
        )
    ),
    "response_refusal": _answered(response_reply(said("No violence, please.", "refusal"))),
}
