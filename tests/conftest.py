"""Every test has its own output and log folders; none inherits the user's keys or endpoints."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.image_server import KEY, ImageServer


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IMAGEEVALKIT_OUTPUT", str(tmp_path / "output"))
    monkeypatch.setenv("IMAGEEVALKIT_LOG", str(tmp_path / "log"))
    for name in ("API_KEY", "BASE_URL", "HF_TOKEN", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ImageServer]:
    """A running API server that the environment names as the endpoint."""
    with ImageServer() as running:
        monkeypatch.setenv("API_KEY", KEY)
        monkeypatch.setenv("BASE_URL", running.base_url)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield running
