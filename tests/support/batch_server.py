"""``/v1/files`` and ``/v1/batches`` beside the endpoints of another server of the tests, whose answers the lines get.

In a test: ``with ImageBatches() as server: server.open.set()``. A batch ends when ``open`` is set, as ``ends`` says.
"""

from __future__ import annotations

import functools
import json
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.image_server import Handler, ImageServer, _HttpServer, _parts
from tests.support.judge_server import ReplyServer


class _Batching(ImageServer):
    """``ends`` are how batches end, the last one for all others; of one that does not complete, ``done`` lines are.

    ``uploaded``, ``created`` and ``downloading`` are called before the reply to such a request is sent. ``missing``:
    there is no Batch API. ``error`` is the code
    with which one fails. The files of one that has ended are told ``late`` looks after that; without ``counts`` nobody
    tells how many are done. So many times, the list does not show the batches (``hidden``), a look at a batch gets a
    404 (``gone``), and a download ends in the middle (``cut``). ``broken``: a batch is created, and the reply is a 500.
    ``dropped``: so many lines are missing in the output. ``id_last``: a line's id stands behind its response.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        self.files: dict[str, bytes] = {}
        self.batches: dict[str, dict[str, Any]] = {}
        self.ends, self.done = ["completed"], 0
        self.missing = False
        self.error, self.late, self.counts = "model_not_supported", 0, True
        self.hidden = self.gone = self.cut = self.dropped = 0
        self.broken = self.id_last = False
        self.open = threading.Event()
        self.open.set()
        self.uploaded: Callable[[], None] = lambda: None
        self.created: Callable[[], None] = lambda: None
        self.downloading: Callable[[], None] = lambda: None
        self.polled = 0
        super().__init__(*args, **options)

    def _listen(self, port: int) -> None:
        self._http = _HttpServer((self.host, port), functools.partial(_BatchHandler, self))
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True)

    def lines_of(self, batch: dict[str, Any]) -> list[dict[str, Any]]:
        """The requests of ``batch``."""
        return [json.loads(line) for line in self.files[batch["input_file_id"]].splitlines()]

    def add_file(self, data: bytes) -> str:
        """Keep ``data``; its id."""
        with self.lock:
            name = f"file-{len(self.files) + 1}"
            self.files[name] = data
        return name

    def create(self, asked: dict[str, Any]) -> dict[str, Any]:
        """A new batch, which is worked at from now on."""
        with self.lock:
            number = len(self.batches) + 1
            batch = {
                **asked,
                "id": f"batch_{number}",
                "object": "batch",
                "status": "in_progress",
                "created_at": int(time.time()),
            }
            self.batches[batch["id"]] = batch
        end = self.ends[min(number, len(self.ends)) - 1]
        threading.Thread(target=self._work, args=(batch, end), daemon=True).start()
        return batch

    def _work(self, batch: dict[str, Any], end: str) -> None:
        lines = self.lines_of(batch)
        batch["request_counts"] = {"total": len(lines), "completed": 0, "failed": 0}
        self.open.wait()
        if end == "failed":
            error = {"code": self.error, "message": "The model is not for batches.", "line": 1}
            batch["errors"] = {"object": "list", "data": [error]}
            lines = []
        good: list[dict[str, Any]] = []
        bad: list[dict[str, Any]] = []
        for line in lines if end == "completed" else lines[: self.done]:
            status, body = self._ask(line)
            answer = {
                "id": "r",
                "custom_id": line["custom_id"],
                "response": {"status_code": status, "body": body},
            }
            if self.id_last:
                answer["custom_id"] = answer.pop("custom_id")
                answer["response"]["padding"] = "x" * 5000
            (good if status == 200 else bad).append(answer)
            batch["request_counts"]["completed" if status == 200 else "failed"] += 1
        if end in ("expired", "cancelled"):
            error = {"code": f"batch_{end}", "message": "This request was not executed."}
            late = lines[self.done :]
            bad += [{"custom_id": line["custom_id"], "response": None, "error": error} for line in late]
        for name, answers in (("output_file_id", good[self.dropped :][::-1]), ("error_file_id", bad)):
            if answers:
                data = "".join(json.dumps(answer) + "\n" for answer in answers)
                batch[name] = self.add_file(data.encode())
        batch["status"] = end

    def _ask(self, line: dict[str, Any]) -> tuple[int, Any]:
        request = urllib.request.Request(
            self.origin + line["url"],
            json.dumps(line["body"]).encode(),
            {"Content-Type": "application/json"},
            method=line["method"],
        )
        try:
            with urllib.request.urlopen(request) as reply:
                return reply.status, json.load(reply)
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read() or b"{}")


class _BatchHandler(Handler):
    images: _Batching

    def do_POST(self) -> None:
        path = urlsplit(self.path).path
        if path not in ("/v1/files", "/v1/batches"):
            super().do_POST()
            return
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.images.missing:
            self.send_json(404, {"error": {"message": "Not Found", "code": None}})
        elif path == "/v1/files":
            boundary = re.search(r'boundary="?([^";]+)', self.headers["Content-Type"])
            assert boundary
            parts = {part.name: part for part in _parts(body, boundary[1].encode())}
            assert parts["purpose"].data == b"batch"
            name = self.images.add_file(parts["file"].data)
            self.images.uploaded()
            self.send_json(200, {"id": name, "object": "file", "purpose": "batch"})
        else:
            batch = self.images.create(json.loads(body))
            self.images.created()
            self.send_json(*((500, {"error": {"message": "oops"}}) if self.images.broken else (200, batch)))

    def do_GET(self) -> None:
        url, server = urlsplit(self.path), self.images
        file = re.fullmatch(r"/v1/files/(.+)/content", url.path)
        one = re.fullmatch(r"/v1/batches/(.+)", url.path)
        if file:
            server.downloading()
            data = server.files[file[1]]
            if server.cut:
                server.cut -= 1
                data = data[: len(data) // 2]
            self.send_body(200, data, "application/octet-stream")
        elif url.path.removeprefix("/v1/files/") in server.files:
            self.send_json(200, {"object": "file", "bytes": len(server.files[url.path[10:]])})
        elif one and server.gone:
            server.gone -= 1
            self.send_json(404, {"error": {"message": "No batch found", "code": None}})
        elif one and one[1] in server.batches:
            server.polled += 1
            told = dict(server.batches[one[1]])
            if told["status"] == "completed" and server.late:
                server.late -= 1
                told.pop("output_file_id", None)
            if not server.counts:
                told.pop("request_counts", None)
            self.send_json(200, told)
        elif url.path == "/v1/batches":  # pages of one, the newest first
            after = parse_qs(url.query).get("after", [""])[0]
            known = [] if server.hidden else list(server.batches.values())[::-1]
            server.hidden -= bool(server.hidden)
            start = 1 + [batch["id"] for batch in known].index(after) if after else 0
            page = known[start : start + 1]
            last = page[-1]["id"] if page else None
            more = start + 1 < len(known)
            self.send_json(200, {"object": "list", "data": page, "has_more": more, "last_id": last})
        else:
            super().do_GET()


class ImageBatches(_Batching):
    """A server with batches of images."""


class JudgeBatches(_Batching, ReplyServer):
    """A server with batches of questions, whose answer is 1."""

    reply = staticmethod(lambda request: "1")
