"""A real HTTP server that speaks OpenAI's endpoints for images (``ENDPOINTS``) and fails on request.

In a test: ``with ImageServer() as server: server.script("a prompt", "429", "ok")``.
Every fault of ``FAULTS`` can be named; the last one of a script repeats. "ok" and the faults of the image
answer in the shape of the endpoint that was asked; those named after an endpoint are its own.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import re
import socket
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from email.parser import BytesHeaderParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, unquote, urlsplit

from tests.support.image_replies import (
    CHATS,
    ENDPOINTS,
    EPS,
    IMAGES,
    REFUSAL_WORDS,
    RESPONSES,
    base64_of,
    data_url,
    png_of,
)
from tests.support.waiting import LONGEST_WAIT

__all__ = [
    "FAULTS",
    "HALF",
    "REFUSAL_WORDS",
    "STEERING",
    "Fault",
    "Handler",
    "ImageServer",
    "Part",
    "Received",
    "answering",
    "answering_json",
    "message_parts",
    "png_of",
    "random_faults",
]


@dataclass
class Part:
    """One part of a multipart body."""

    name: str
    filename: str | None
    mime_type: str | None
    data: bytes


HALF = "a smile \ud83d"
"""Half an emoji, as a gateway sends that cuts a text at a UTF-16 unit."""

STEERING = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202ereversed"
"""A terminal would take a title from it, lose its screen, turn red and write backwards."""

KEY = "sk-test-4f9d2c7b8a1e"
"""The key of the tests; the server takes any."""


@dataclass
class Received:
    """One request as it came in, at ``time`` (monotonic seconds), the first with ``number`` 1; ``fault`` is how it was
    answered."""

    path: str
    headers: dict[str, str]
    fields: dict[str, Any]
    files: list[Part] = field(default_factory=list)
    fault: str = ""
    time: float = field(default_factory=time.monotonic)
    number: int = 0

    @property
    def prompt(self) -> str:
        return _words(self.fields)

    @property
    def item(self) -> str:
        """Returns a key for the item of a request: the prompt, the seed if sent, and the uploaded images."""
        return f"{self.prompt}|{self.fields.get('seed', '')}|{self.images}"

    @property
    def images(self) -> str:
        """Returns a key for the uploaded images; empty without any."""
        digest = hashlib.sha256(b"".join(part.data for part in self.files)).hexdigest()[:8]
        return digest if self.files else ""


class ImageServer:
    """The server, on a free port of ``host`` and in its own threads while used as a context manager.

    ``default`` is the fault of requests without a script; ``latency`` is seconds before each answer, and no answer is
    sent before ``together`` requests have been in flight at once;
    ``retry_after`` is the header's value in a 429. ``file_faults`` are taken, one each, by the next
    requests for a file; ``redirect_to`` is where the ``redirect`` fault points. ``received`` counts ``requests``.
    ``replies`` are fixed replies by path.
    """

    host = "127.0.0.1"

    def __init__(self, default: str = "ok", latency: float = 0.0) -> None:
        self.default = default
        self.latency, self.together = latency, 0
        self.retry_after = "0"
        self.file_faults: list[str] = []
        self.file_origin: str | None = None
        self.redirect_to = "http://127.0.0.1:9/v1"
        self.replies: dict[str, Any] = {}
        self.choose: Callable[[Received, int], str] = self._scripted
        self.requests: list[Received] = []
        self.received = 0
        self.file_requests: list[Received] = []
        self.in_flight = self.max_in_flight = 0
        self.lock = threading.Lock()
        self._have_met = threading.Event()
        self._scripts: dict[str, tuple[str, ...]] = {}
        self._attempts: Counter[int] = Counter()
        self._listen(0)

    @property
    def faults(self) -> Mapping[str, Fault]:
        """The answers that can be asked for, by name."""
        return FAULTS

    @property
    def port(self) -> int:
        return int(self._http.server_address[1])

    @property
    def base_url(self) -> str:
        return f"{self.origin}/v1"

    @property
    def origin(self) -> str:
        return f"http://{self.host}:{self.port}"

    def script(self, prompt: str, *faults: str) -> None:
        """Answer the first, second, … request for ``prompt`` with these faults; the last one repeats."""
        unknown = set(faults) - self.faults.keys()
        assert not unknown, f"unknown faults {unknown}"
        self._scripts[prompt] = faults

    def _listen(self, port: int) -> None:
        self._http = _HttpServer((self.host, port), functools.partial(Handler, self))
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True)

    def close_port(self, seconds: float) -> None:
        """Refuse connections for ``seconds``; open ones go on. Called by another thread than a test's own."""
        port = self.port
        self._http.shutdown()
        self._http.server_close()
        time.sleep(seconds)
        self._listen(port)
        self._thread.start()

    def _scripted(self, request: Received, attempt: int) -> str:
        faults = self._scripts.get(request.prompt, (self.default,))
        return faults[min(attempt, len(faults)) - 1]

    def enter(self, request: Received) -> str:
        """Record a request and say how to answer it."""
        with self.lock:
            item = hash(request.item)  # the words of 100,000 questions would be gigabytes
            self._attempts[item] += 1
            request.fault = self.choose(request, self._attempts[item])
            self.record(request)
            self.in_flight += 1
            self.max_in_flight = max(self.max_in_flight, self.in_flight)
            if self.in_flight >= self.together:
                self._have_met.set()
        time.sleep(self.latency)
        self._have_met.wait(LONGEST_WAIT)
        with self.lock:  # before the answer is out: who has it may send the next request at once
            self.in_flight -= 1
        return request.fault

    def record(self, request: Received) -> None:
        """Count it; the lock is held."""
        self.received += 1
        request.number = self.received
        self.requests.append(request)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.shutdown()
        self._http.server_close()


class _HttpServer(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 512

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away (a timeout under test) is no error of the server."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def __init__(self, images: ImageServer, *args: Any) -> None:
        self.images = images
        super().__init__(*args)

    def log_message(self, format: str, *args: Any) -> None:
        """Silent: tests read ``requests``."""

    def do_POST(self) -> None:
        request = self._receive()
        fault = self.images.enter(request)
        if (reply := self.images.replies.get(self.path)) is not None:
            self.send_json(200, reply)
        elif self.endpoint not in ENDPOINTS:
            self.send_json(404, _error("no such path", "not_found"))
        else:
            self.images.faults[fault](self, request)

    @property
    def endpoint(self) -> str:
        """The path as OpenAI has it; Azure has a deployment, and a version, in it."""
        return re.sub(r"^/openai/(deployments/[^/]+/)?", "/v1/", urlsplit(self.path).path)

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        with self.images.lock:
            fault = self.images.file_faults.pop(0) if self.images.file_faults else "ok"
            self.images.file_requests.append(Received(path, _headers(self), {}, fault=fault))
        name = re.fullmatch(r"/files/(.*)\.png", path)
        if fault.isdigit() or not name:
            self.send_body(int(fault) if fault.isdigit() else 404, b"gone", "text/plain")
        elif fault == "redirect":
            self.send_body(302, b"", "text/plain", {"Location": self.images.redirect_to + self.path})
        else:
            data = png_of(unquote(name[1]))
            self.send_body(200, data[: len(data) // 2] if fault == "truncated" else data, "image/png")

    def _receive(self) -> Received:
        length = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(length)
        if len(body) < length:
            raise ConnectionError("the client was killed in the middle of its request")
        headers = _headers(self)
        boundary = re.match(r'multipart/form-data;.*boundary="?([^";]+)', headers.get("content-type", ""))
        if not boundary:
            fields = json.loads(body)
            return Received(self.path, headers, fields, list(_pictures(fields)))
        parts = _parts(body, boundary[1].encode())
        fields = {part.name: part.data.decode() for part in parts if part.filename is None}
        return Received(self.path, headers, fields, [part for part in parts if part.filename is not None])

    def send_body(
        self, status: int, body: bytes, mime_type: str, headers: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        for name, value in {
            "Content-Type": mime_type,
            "Content-Length": str(len(body)),
            **(headers or {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def send_json(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        self.send_body(status, json.dumps(body).encode(), "application/json", headers)

    def send_image(self, image: dict[str, Any]) -> None:
        """Send what the image API would call ``image``, in the shape of the endpoint that was asked."""
        self.send_json(200, ENDPOINTS[self.endpoint](image))

    def send_bytes(self, data: bytes) -> None:
        self.send_image({"b64_json": base64_of(data)})

    def reset(self) -> None:
        """End the connection with RST and no answer."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        socket.close(self.connection.detach())


def _headers(handler: BaseHTTPRequestHandler) -> dict[str, str]:
    return {name.lower(): value for name, value in handler.headers.items()}


def _parts(body: bytes, boundary: bytes) -> list[Part]:
    parts = []
    for chunk in body.split(b"--" + boundary)[1:-1]:
        head, _, data = chunk.removeprefix(b"\r\n").partition(b"\r\n\r\n")
        headers = BytesHeaderParser().parsebytes(head + b"\r\n\r\n")
        name = headers.get_param("name", header="content-disposition")
        mime_type = headers.get_content_type() if "content-type" in headers else None
        parts.append(Part(str(name), headers.get_filename(), mime_type, data.removesuffix(b"\r\n")))
    return parts


def message_parts(fields: dict[str, Any]) -> list[list[Any]]:
    """The parts of each message of a chat or a response."""
    messages = fields.get("messages") or fields.get("input") or []
    contents = [messages] if isinstance(messages, str) else [message["content"] for message in messages]
    return [[{"text": content}] if isinstance(content, str) else content for content in contents]


def _words(fields: dict[str, Any]) -> str:
    """The prompt, or the words of the last message."""
    last = (message_parts(fields) or [[]])[-1]
    return str(fields.get("prompt") or "".join(part.get("text", "") for part in last))


def _pictures(fields: dict[str, Any]) -> Iterator[Part]:
    """The images that a JSON body holds as data URLs, the mask of a tool included."""
    parts = [part for message in message_parts(fields) for part in message]
    holders = [*parts, *(tool.get("input_image_mask", {}) for tool in fields.get("tools", []))]
    for holder in holders:
        url = holder.get("image_url")
        url = url["url"] if isinstance(url, dict) else url
        if url:
            head, _, encoded = url.partition(";base64,")
            name = "mask" if holder not in parts else "image_url"
            yield Part(name, None, head.removeprefix("data:"), base64.b64decode(encoded, validate=True))


def _error(
    message: str, code: str | None, kind: str = "invalid_request_error", param: str | None = None
) -> Any:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def _url(handler: Handler, prompt: str) -> str:
    origin = handler.images.file_origin or handler.images.origin
    return f"{origin}/files/{quote(prompt, safe='')}.png?sig=signature"


def _wrong_key(handler: Handler, request: Received) -> None:
    sent = request.headers.get("authorization", "").removeprefix("Bearer ")
    message = f"Incorrect API key provided: {sent} ({sent[:7]}***{sent[-4:]})."
    handler.send_json(401, _error(message, "invalid_api_key"))


def _cut_short(handler: Handler, request: Received) -> None:
    """A body that ends before its Content-Length."""
    handler.send_response(200)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", "100000")
    handler.end_headers()
    handler.wfile.write(b'{"data": [{"b64_json": "')
    handler.close_connection = True


def _slow(handler: Handler, request: Received) -> None:
    time.sleep(2.0)
    handler.send_bytes(png_of(request.prompt))


Fault = Callable[[Handler, Received], None]


def answering(status: int, *error: str | None) -> Fault:
    """An answer with an error of this ``status``: its message, code, type and parameter."""
    return lambda handler, request: handler.send_json(status, _error(*error))  # type: ignore[arg-type]


def answering_json(body: Any) -> Fault:
    """An answer of status 200 with this ``body``."""
    return lambda handler, request: handler.send_json(200, body)


def _shape(shape: Callable[[str, str], Any]) -> Fault:
    """Answer with a reply of image_replies, made from the prompt and the URL of its picture."""

    def answer(handler: Handler, request: Received) -> None:
        reply = shape(request.prompt, _url(handler, request.prompt))
        if isinstance(reply, bytes):
            handler.send_body(200, reply, "text/event-stream")
        else:
            handler.send_json(200, reply)

    return answer


FAULTS: dict[str, Fault] = {
    "ok": lambda h, r: h.send_image(
        {"b64_json": base64_of(png_of(r.prompt)), "revised_prompt": f"{r.prompt}, revised"}
    ),
    "url": lambda h, r: h.send_image({"url": _url(h, r.prompt)}),
    "file_url": lambda h, r: h.send_image({"url": "file:///etc/hostname"}),
    "data_url": lambda h, r: h.send_image({"url": data_url(png_of(r.prompt))}),
    "last_of_window": lambda h, r: h.send_json(
        200,
        {"created": 1, "data": [{"b64_json": base64.b64encode(png_of(r.prompt)).decode()}]},
        {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "1s"},
    ),
    "429": lambda h, r: h.send_json(
        429, _error("Rate limit reached", "rate_limit_exceeded"), {"Retry-After": h.images.retry_after}
    ),
    "429_ms": lambda h, r: h.send_json(429, _error("Rate limit", None), {"retry-after-ms": "300"}),
    "429_bare": answering(429, "Rate limit reached", "rate_limit_exceeded"),
    "quota": answering(429, "You exceeded your current quota", "insufficient_quota", "insufficient_quota"),
    "500": answering(500, "The server had an error", None, "server_error"),
    "503": answering(503, "Service Unavailable", None, "server_error"),
    "502_html": lambda h, r: h.send_body(
        502, b"<html><title>502 Bad Gateway</title></html>", "text/html", {"Retry-After": "0"}
    ),
    "reset": lambda h, r: h.reset(),
    "cut_short": _cut_short,
    "slow": _slow,
    "refuse": answering(400, REFUSAL_WORDS, "moderation_blocked", "image_generation_user_error"),
    "half_refuse": answering(400, f"{REFUSAL_WORDS} {HALF}", "moderation_blocked"),
    "half_500": answering(500, f"The server had an error {HALF}", None, "server_error"),
    "half_ok": lambda h, r: h.send_json(
        200,
        {
            "model": f"served {HALF}",
            "data": [{"b64_json": base64_of(png_of(r.prompt)), "revised_prompt": f"{r.prompt} {HALF}"}],
        },
    ),
    "steering_refuse": answering(400, f"{REFUSAL_WORDS} {STEERING}", "moderation_blocked"),
    "refuse_200": answering_json(
        {"created": 1, "data": [], "message": "I'm sorry, I cannot create that image."}
    ),
    "error200": answering_json(_error("upstream went away", None, "upstream_error")),
    "no_image": answering_json(
        {
            "created": 1,
            "artifacts": [{"picture": "secret", "seed": 2}, {"other": 3}],
            "meta": {"id": "secret"},
        }
    ),
    "html": lambda h, r: h.send_body(200, b"<html><title>Sign in</title></html>", "text/html"),
    "garbage": lambda h, r: h.send_bytes(b"no image at all, " * 40),
    "eps": lambda h, r: h.send_bytes(EPS),
    "truncated": lambda h, r: h.send_bytes(png_of(r.prompt)[:-400]),
    "401": _wrong_key,
    "403": answering(403, "Your organization must be verified to use this model", None),
    "404": answering(404, "The model does not exist or you do not have access to it", "model_not_found"),
    "400": answering(400, "Invalid value: 'giant'", "invalid_value", "invalid_request_error", "size"),
    "too_long": answering(
        400,
        "Invalid 'prompt': string too long. Expected maximum length 32000",
        "string_above_max_length",
        "invalid_request_error",
        "prompt",
    ),
    "redirect": lambda h, r: h.send_body(
        307, b"", "text/plain", {"Location": h.images.redirect_to + h.path.removeprefix("/v1")}
    ),
    **{name: _shape(shape) for name, shape in {**CHATS, **IMAGES, **RESPONSES}.items()},
}


def random_faults(rates: list[tuple[float, str]], permanent: list[tuple[float, str]], seed: int) -> Any:
    """A ``choose`` that draws by item: ``rates`` hit its first attempt, later ones are ok.

    A refusal and the ``permanent`` rates hit every attempt of their items.
    """

    def draw(item: str, table: list[tuple[float, str]], salt: str) -> str | None:
        point = int.from_bytes(hashlib.sha256(f"{seed}:{salt}:{item}".encode()).digest()[:8], "big") / 2**64
        for rate, fault in table:
            if point < rate:
                return fault
            point -= rate
        return None

    def choose(request: Received, attempt: int) -> str:
        constant = draw(request.item, permanent, "permanent")
        first = draw(request.item, rates, "first")
        if constant:
            return constant
        return first if first and (attempt == 1 or first.startswith("refuse")) else "ok"

    return choose


class PausingServer(ImageServer):
    """Holds all requests for images beyond the first ``free`` until ``free`` is raised."""

    free = 10**9

    def enter(self, request: Received) -> str:
        fault = super().enter(request)
        while request.number > self.free:
            time.sleep(0.01)
        return fault
