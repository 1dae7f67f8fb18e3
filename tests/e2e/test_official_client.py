"""Requests of the official client: Azure, organisations, headers, and the reading of its failures."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from custom_models.model_utils.openai_images import OpenAIImagesEdit, OpenAIImagesT2I
from imageevalkit import registry
from imageevalkit.benchmark.question import Message, Question, Sampling
from imageevalkit.common.redaction import environ_with, redact
from imageevalkit.generate.model import GenerationError
from imageevalkit.judges.choice import JudgeOptions
from tests.support.image_server import ImageServer, png_of
from tests.support.judge_server import JudgeServer

KEY = "sk-azure-0123456789abcdef"
VERSION = "2025-04-01-preview"


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("API_KEY", "BASE_URL", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_API_VERSION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def server() -> Iterator[ImageServer]:
    with ImageServer() as running:
        yield running


def azure(server: ImageServer, **more: Any) -> dict[str, Any]:
    return {"azure_endpoint": server.origin, "api_version": VERSION, "backoff": 0.01, **more}


def test_azure_makes_images_under_its_deployment(
    server: ImageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", KEY)
    made = OpenAIImagesT2I("gpt-image-2", **azure(server)).generate("a cat")
    assert made.image == png_of("a cat")
    other = azure(server, azure_deployment="my-images")
    source = Image.new("RGB", (8, 8), "teal")
    assert OpenAIImagesEdit("gpt-image-2", **other).generate(["make it red", source]).image
    first, second = server.requests
    assert first.path == f"/openai/deployments/gpt-image-2/images/generations?api-version={VERSION}"
    assert second.path == f"/openai/deployments/my-images/images/edits?api-version={VERSION}"
    assert [file.data[:4] for file in second.files] == [b"\x89PNG"]
    for request in (first, second):
        assert request.headers["api-key"] == KEY
        assert "authorization" not in request.headers
        assert request.headers["x-client-request-id"]


def test_azure_is_known_by_the_variables_of_the_official_client(
    server: ImageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", f"{server.origin}/")
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_API_VERSION", VERSION)
    OpenAIImagesT2I("gpt-image-2").generate("a cat")
    OpenAIImagesT2I("gpt-5", endpoint="responses").generate("a cat")
    assert [request.path.partition("?")[0] for request in server.requests] == [
        "/openai/deployments/gpt-image-2/images/generations",
        "/openai/responses",
    ]

    monkeypatch.setenv("API_KEY", "sk-of-somebody-else-0123456789")
    monkeypatch.setenv("BASE_URL", server.base_url)
    OpenAIImagesT2I("gpt-image-2").generate("a dog")
    assert server.requests[-1].path == "/v1/images/generations", "what is set for the toolkit itself wins"


def question(words: str) -> Question:
    return Question("q", (Message("user", (words,)),), Sampling(10, 0.0), item="1")


def test_a_judge_on_azure_and_an_organisation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_ORG_ID", "org-1")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "proj-1")
    with JudgeServer() as server:
        given = azure(server, azure_deployment="judges")
        (answer,) = registry.judge("openai:gpt-4o", {}, options=JudgeOptions(given)).ask([question("Score?")])
    assert answer.text
    (request,) = server.requests
    assert request.path == f"/openai/deployments/judges/chat/completions?api-version={VERSION}"
    assert request.headers["api-key"] == KEY
    assert (request.headers["openai-organization"], request.headers["openai-project"]) == ("org-1", "proj-1")


def test_what_belongs_to_the_default_key_goes_nowhere_else(
    server: ImageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_KEY", KEY)
    monkeypatch.setenv("OTHER_API_KEY", KEY)
    monkeypatch.setenv("BASE_URL", server.base_url)
    monkeypatch.setenv("OPENAI_ORG_ID", "org-1")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Gateway: gateway-secret")
    OpenAIImagesT2I("m").generate("a cat")
    OpenAIImagesT2I("m", api_key_env="OTHER_API_KEY").generate("a cat")
    OpenAIImagesT2I("m", base_url=server.base_url).generate("a cat")
    told = [(r.headers.get("openai-organization"), r.headers.get("x-gateway")) for r in server.requests]
    assert told == [("org-1", "gateway-secret"), (None, None), (None, None)]
    assert redact("it says gateway-secret") == "it says <OPENAI_CUSTOM_HEADERS>"
    assert environ_with([]).get("OPENAI_CUSTOM_HEADERS") is None


def test_an_authorization_of_the_environment_replaces_no_other_key(
    server: ImageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_KEY", KEY)
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "Authorization: Bearer of-the-default-account")
    OpenAIImagesT2I("m", base_url=server.base_url).generate("a cat")
    assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"


def test_a_request_states_nothing_about_this_machine(
    server: ImageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_KEY", KEY)
    OpenAIImagesT2I("m", base_url=server.base_url, endpoint="chat").generate("a cat")
    headers = server.requests[0].headers
    assert headers["user-agent"] == "ImageEvalKit" and headers["content-type"] == "application/json"
    assert [name for name in map(str.lower, headers) if name.startswith("x-")] == ["x-client-request-id"]


def damaged_tls(certificate: Path) -> int:
    """The port of a server whose replies are broken off by a TLS record that nobody can read."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            with contextlib.suppress(OSError), listening.accept()[0] as raw:
                raw.settimeout(10)
                stream = context.wrap_socket(raw.dup(), server_side=True)
                stream.recv(1 << 16)
                stream.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{")
                raw.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))
                os.close(stream.detach())
                raw.recv(1 << 16)  # its alert

    threading.Thread(target=serve, daemon=True).start()
    return int(listening.getsockname()[1])


@pytest.mark.skipif(not shutil.which("openssl"), reason="no openssl to make a certificate with")
def test_a_damaged_tls_record_is_a_reply_that_broke_on_its_way(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    certificate = tmp_path / "both.pem"
    words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(certificate)]
    names += ["-out", str(tmp_path / "one.pem")]
    subprocess.run(["openssl", *words.split(), *names], check=True, capture_output=True)
    with certificate.open("a") as both:
        both.write((tmp_path / "one.pem").read_text())
    monkeypatch.setenv("API_KEY", KEY)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "one.pem"))
    url = f"https://127.0.0.1:{damaged_tls(certificate)}/v1"
    model = OpenAIImagesT2I("m", base_url=url, max_attempts=2, backoff=0.01, price=0.01, timeout=9)
    with pytest.raises(GenerationError, match=r"SSLError.*gave up after 2 attempts") as raised:
        model.generate("a cat")
    bill = raised.value.bill
    assert bill and (bill.cost, bill.maybe_billed) == (0.02, 2)
