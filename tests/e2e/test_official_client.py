"""Requests of the official client: Azure, organisations, headers, and the reading of its failures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from PIL import Image

from custom_models.model_utils.openai_images import OpenAIImagesEdit, OpenAIImagesT2I
from imageevalkit import registry
from imageevalkit.benchmark.question import Message, Question, Sampling
from imageevalkit.common.redaction import environ_with, redact
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
