"""Requests go through the proxy that the environment names, and never through one that they do not need."""

from __future__ import annotations

import pytest

from custom_models.model_utils.openai_images import OpenAIImagesT2I
from imageevalkit.api.endpoint import Endpoint
from imageevalkit.common import network
from imageevalkit.common.errors import UserError
from imageevalkit.common.network import check_network, proxy_of
from imageevalkit.generate.model import ModelUnusable
from tests.support.image_server import KEY, ImageServer, png_of
from tests.support.socks_server import socks_server

NAMES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*NAMES, *(name.upper() for name in NAMES), "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("API_KEY", KEY)


def image(base_url: str) -> bytes:
    model = OpenAIImagesT2I("m", base_url=base_url, backoff=0.01, max_attempts=2)
    made = model.generate("a cat").image
    assert isinstance(made, bytes)
    return made


@pytest.mark.parametrize("fault", ["ok", "url"])
def test_a_socks_proxy_looks_the_host_up_and_leads_there(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    with ImageServer(fault) as server, socks_server(server.port) as proxy:
        server.file_origin = "http://files.invalid"
        monkeypatch.setenv("ALL_PROXY", proxy.url)
        assert image("http://gateway.invalid/v1") == png_of("a cat")
        assert set(proxy.asked) == {"gateway.invalid", *(["files.invalid"] if fault == "url" else [])}


@pytest.mark.parametrize("proxy", ["http://127.0.0.1:9", "socks5://127.0.0.1:9"])
def test_a_loopback_endpoint_is_asked_without_a_proxy(monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    monkeypatch.setenv("ALL_PROXY", proxy)
    with ImageServer("url") as server:
        assert image(server.base_url) == png_of("a cat")


@pytest.mark.parametrize(
    ("url", "bypassed"),
    [
        ("http://127.0.0.1:8000/v1", True),
        ("http://[::1]:8000/v1", True),
        ("https://api.corp.example/v1", True),
        ("https://notcorp.example/v1", False),
        ("https://a.starred.example", True),
        ("https://host.example:8443/v1", True),
        ("https://host.example/v1", False),
        ("http://10.20.30.40/v1", True),
        ("http://11.0.0.1/v1", False),
    ],
)
def test_no_proxy_wins_over_every_proxy(monkeypatch: pytest.MonkeyPatch, url: str, bypassed: bool) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "proxy.example:3128")
    monkeypatch.setenv("ALL_PROXY", "socks5h://proxy.example:1080")
    excepted = "Corp.example, .dotted.example,*.starred.example,host.example:8443,10.0.0.0/8,fd00::/8,"
    monkeypatch.setenv("NO_PROXY", excepted)
    through = "http://proxy.example:3128" if url.startswith("https") else "socks5h://proxy.example:1080"
    assert proxy_of(url) == (None if bypassed else through)
    monkeypatch.setenv("NO_PROXY", "*")
    assert proxy_of(url) is None


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("ALL_PROXY", "socks4://user:secret@proxy.example:1080", "ALL_PROXY: no proxy of the kind 'socks4'"),
        ("HTTPS_PROXY", "http://proxy.example:abc", "HTTPS_PROXY: it must look like http://host:port"),
        ("SSL_CERT_FILE", "/nowhere/ca.pem", "SSL_CERT_FILE: /nowhere/ca.pem does not exist"),
    ],
)
def test_what_cannot_be_used_is_named_before_a_request(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, says: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=says) as caught:
        Endpoint.of({"base_url": "https://gateway.example/v1"})
    assert "secret" not in str(caught.value)
    with pytest.raises(ModelUnusable, match=says):
        OpenAIImagesT2I("m", base_url="https://gateway.example/v1")
    if name.lower().endswith("_proxy"):
        monkeypatch.setenv("NO_PROXY", "gateway.example")
        Endpoint.of({"base_url": "https://gateway.example/v1"})


def test_a_socks_proxy_without_its_package_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://proxy.example:1080")
    monkeypatch.setattr(network.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="needs the package 'socksio': pip install"):
        check_network("https://gateway.example/v1")
