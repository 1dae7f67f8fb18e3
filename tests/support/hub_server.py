"""A real HTTP server that speaks the parts of the Hugging Face Hub a download needs, and can misbehave."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

LARGE_FILES = (".safetensors", ".pt")
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def blob_id(data: bytes) -> str:
    """git's name for a file, which the hub sends as its ETag."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def etag(name: str, data: bytes) -> str:
    """Returns the hub's ETag of a file: weights are in large-file storage and have a SHA-256 there."""
    return hashlib.sha256(data).hexdigest() if name.endswith(LARGE_FILES) else blob_id(data)


class Seen(NamedTuple):
    """One request as the server got it."""

    method: str
    path: str
    range: str | None
    authorization: str | None


class HubServer(ThreadingHTTPServer):
    """Serves ``files`` as every repository called ``org/…``; others are unknown.

    ``cut_after`` bytes of a file body the connection is dropped, for the next ``cuts`` downloads.
    ``failures`` requests about a repository are answered with ``failure_status`` first. ``stalls`` downloads end in
    silence after ``cut_after`` bytes, until ``go_on`` is set. Weights are at ``content_network``, the address
    of another server, where it is given.
    """

    daemon_threads = True

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = files
        self.seen: list[Seen] = []
        self.cuts = 0
        self.cut_after = 0
        self.failures = 0
        self.failure_status = 503
        self.stalls = 0
        self.content_network = ""
        self.go_on = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def downloads(self) -> list[Seen]:
        return [s for s in self.seen if s.method == "GET" and "/resolve/" in s.path]


class _Handler(BaseHTTPRequestHandler):
    server: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.seen.append(
            Seen(self.command, path, self.headers.get("Range"), self.headers.get("Authorization"))
        )
        if self.server.failures and "/org/" in path:
            self.server.failures -= 1
            return self._send(self.server.failure_status, b"busy", {"Retry-After": "1"})
        if match := re.fullmatch(r"/api/(?:models|datasets)/org/[^/]+/revision/([^/]+)", path):
            if match[1] not in ("main", COMMIT):
                return self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            return self._json({"id": "org/tiny", "sha": COMMIT, "tags": [], "siblings": []})
        if match := re.fullmatch(r"/api/(?:models|datasets)/org/[^/]+/tree/([^/]+)", path):
            if match[1] != COMMIT:
                return self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            return self._json(
                [
                    {
                        "type": "file",
                        "path": name,
                        "size": len(data),
                        "oid": blob_id(data),
                        **_lfs(name, data),
                    }
                    for name, data in self.server.files.items()
                ]
            )
        match = re.fullmatch(rf"(?:/datasets)?/org/[^/]+/resolve/{COMMIT}/(.+)", path)
        if match and match[1] in self.server.files:
            return self._file(match[1], self.server.files[match[1]])
        code = "RepoNotFound" if "/org/" not in path else "EntryNotFound"
        return self._send(404, b"{}", {"X-Error-Code": code})

    def _json(self, value: object) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _file(self, name: str, data: bytes) -> None:
        headers = {
            "ETag": f'"{etag(name, data)}"',
            "X-Repo-Commit": COMMIT,
            "Accept-Ranges": "bytes",
        }
        if self.server.content_network and name.endswith(LARGE_FILES):
            place = {"Location": self.server.content_network + self.path, "X-Linked-Size": str(len(data))}
            self._send(302, b"", {**headers, **place, "X-Linked-Etag": headers["ETag"]})
            return
        start = 0
        is_same = self.headers.get("If-Range", headers["ETag"]) == headers["ETag"]
        if is_same and (match := re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")):
            start = int(match[1])
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        if start >= len(data) > 0:
            self._send(416, b"", {"Content-Range": f"bytes */{len(data)}"})
            return
        self._send(206 if start else 200, data[start:], headers, may_cut=True)

    def _send(
        self, status: int, body: bytes, headers: dict[str, str] | None = None, may_cut: bool = False
    ) -> None:
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if may_cut and self.server.cuts and len(body) > self.server.cut_after:
            self.server.cuts -= 1
            body = body[: self.server.cut_after]
            self.close_connection = True
        with suppress(BrokenPipeError, ConnectionResetError):  # a killed client
            if may_cut and self.server.stalls and len(body) > self.server.cut_after:
                self.server.stalls -= 1
                self.wfile.write(body[: self.server.cut_after])
                self.wfile.flush()
                self.server.go_on.wait(60)
                body = body[self.server.cut_after :]
            self.wfile.write(body)


def _lfs(name: str, data: bytes) -> dict[str, object]:
    if not name.endswith(LARGE_FILES):
        return {}
    return {"lfs": {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}}


@contextmanager
def hub_server(files: dict[str, bytes]) -> Iterator[HubServer]:
    """A running :class:`HubServer`, stopped at the end."""
    with HubServer(files) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
