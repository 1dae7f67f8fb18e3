"""Without a way to a host, nothing is tried for minutes."""

from __future__ import annotations

import socket

import pytest

from imageevalkit.assets import http
from imageevalkit.common.errors import CellFailure


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_PAUSE", 0.0)
    http._why.cache_clear()
    for name in ("https_proxy", "http_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def test_a_host_without_an_address_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def nobody(host: str, *_: object) -> None:
        asked.append(host)
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", nobody)
    for path in ("a", "b"):
        with pytest.raises(CellFailure) as caught:
            http.check_reach(f"https://hub.example/{path}", "go on")
        assert str(caught.value) == "hub.example cannot be reached (Name or service not known); go on"
    assert asked == ["hub.example"] * 2, "a resolver may be away for a moment"


def test_behind_a_proxy_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: pytest.fail("the proxy looks hosts up"))
    http.check_reach("https://hub.example/")
