"""A fake of the part of the Kubernetes API that kubectl asks about Jobs. No pod runs: the Jobs end by themselves."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

_JOBS = "/apis/batch/v1/namespaces/default/jobs"
_VERSION = {"groupVersion": "batch/v1", "version": "v1"}
_VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]
_OF_THE_API: dict[str, Any] = {
    "/version": {"major": "1", "minor": "32", "gitVersion": "v1.32.4"},
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": []},
    "/apis": {
        "kind": "APIGroupList",
        "apiVersion": "v1",
        "groups": [{"name": "batch", "versions": [_VERSION], "preferredVersion": _VERSION}],
    },
    "/apis/batch/v1": {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": "batch/v1",
        "resources": [
            {"name": "jobs", "singularName": "job", "namespaced": True, "kind": "Job", "verbs": _VERBS}
        ],
    },
}
_SECONDS = 0.3


class FakeKubernetes:
    """Its Jobs by name, and ``begun``: for each Job the ends of all others when it was created.

    A new Job has no status, as in a cluster whose controller has not seen it. Once somebody watches it, a pod is
    active; then it ends as ``ends`` says of its annotation ``imageevalkit/job`` (Complete or Failed; Complete
    unless given). Who does not wait for a Job never sees its end.
    """

    def __init__(self, ends: dict[str, str]) -> None:
        self.jobs: dict[str, dict[str, Any]] = {}
        self.begun: dict[str, dict[str, str]] = {}
        self._ends, self._version, self.changed = ends, 0, threading.Condition()
        self.is_closed = False
        self._watched = set[str]()

    def create(self, job: dict[str, Any]) -> dict[str, Any]:
        name = job["metadata"]["annotations"]["imageevalkit/job"]
        with self.changed:
            self.begun[name] = {key: self._end_of(other) for key, other in self._by_name().items()}
            job["metadata"] |= {
                "namespace": "default",
                "uid": name,
                "creationTimestamp": "2026-01-01T00:00:00Z",
            }
            self._put(job, {})
        return self.jobs[job["metadata"]["name"]]

    def _by_name(self) -> dict[str, dict[str, Any]]:
        return {job["metadata"]["annotations"]["imageevalkit/job"]: job for job in self.jobs.values()}

    @staticmethod
    def _end_of(job: dict[str, Any]) -> str:
        return next((one["type"] for one in job["status"].get("conditions", [])), "")

    def _put(self, job: dict[str, Any], status: dict[str, Any]) -> None:
        self._version += 1
        metadata = {**job["metadata"], "resourceVersion": str(self._version)}
        self.jobs[metadata["name"]] = {**job, "metadata": metadata, "status": status}
        self.changed.notify_all()

    def watch(self, key: str) -> None:
        """Somebody waits for the Job called ``key``."""
        with self.changed:
            is_first = key in self.jobs and key not in self._watched
            self._watched.add(key)
        if is_first:
            threading.Thread(target=self._run, args=(key,), daemon=True).start()

    def _run(self, key: str) -> None:
        end = self._ends.get(self.jobs[key]["metadata"]["annotations"]["imageevalkit/job"], "Complete")
        time.sleep(_SECONDS)
        with self.changed:
            self._put(self.jobs[key], {"active": 1})
        time.sleep(_SECONDS)
        with self.changed:
            self._put(self.jobs[key], {"conditions": [{"type": end, "status": "True"}]})

    def events(self, name: str, seconds: float) -> Iterator[dict[str, Any]]:
        """The states of the Job called ``name`` from now on."""
        until, seen = time.monotonic() + seconds, None
        while time.monotonic() < until and not self.is_closed:
            with self.changed:
                job = self.jobs.get(name)
                if job is seen:
                    self.changed.wait(0.2)
                    continue
            if job is not None:
                yield {"type": "MODIFIED" if seen else "ADDED", "object": job}
            seen = job


@contextmanager
def fake_kubernetes(kubeconfig: Path, ends: dict[str, str]) -> Iterator[FakeKubernetes]:
    """Serves a fake API, to which kubectl goes with ``kubeconfig``."""
    cluster = FakeKubernetes(ends)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            asked = {key: values[0] for key, values in parse_qs(url.query).items()}
            name = asked.get("fieldSelector", "").removeprefix("metadata.name=")
            if name:
                cluster.watch(name)
            if url.path == "/openapi/v2":  # without schemas kubectl leaves validation to the server
                self._answer(200, None)
            elif url.path in _OF_THE_API:
                self._answer(200, _OF_THE_API[url.path])
            elif url.path == _JOBS and asked.get("watch"):
                self._stream(cluster.events(name, float(asked.get("timeoutSeconds", 60))))
            elif url.path == _JOBS:
                with cluster.changed:
                    items = [job for key, job in cluster.jobs.items() if name in ("", key)]
                kind = {"kind": "JobList", "apiVersion": "batch/v1", "metadata": {"resourceVersion": "1"}}
                self._answer(200, {**kind, "items": items})
            elif job := cluster.jobs.get(url.path.removeprefix(f"{_JOBS}/")):
                self._answer(200, job)
            else:
                status = {"kind": "Status", "apiVersion": "v1", "status": "Failure"}
                self._answer(404, {**status, "reason": "NotFound", "code": 404, "message": "not found"})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self._answer(201, cluster.create(json.loads(body)))

        def _answer(self, code: int, body: dict[str, Any] | None) -> None:
            data = b"" if body is None else json.dumps(body).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _stream(self, events: Iterator[dict[str, Any]]) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Connection", "close")
            self.end_headers()
            self.close_connection = True
            for event in events:
                try:
                    self.wfile.write(json.dumps(event).encode() + b"\n")
                    self.wfile.flush()
                except OSError:  # kubectl has seen enough
                    return

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    where = {"server": f"http://127.0.0.1:{server.server_port}"}
    context = {"cluster": "fake", "user": "fake", "namespace": "default"}
    config = {"apiVersion": "v1", "kind": "Config", "current-context": "fake"}
    config["clusters"] = [{"name": "fake", "cluster": where}]  # type: ignore[assignment]
    config |= {"contexts": [{"name": "fake", "context": context}], "users": [{"name": "fake", "user": {}}]}  # type: ignore[dict-item]
    kubeconfig.write_text(json.dumps(config))
    try:
        yield cluster
    finally:
        cluster.is_closed = True
        server.shutdown()
        server.server_close()
        thread.join()
