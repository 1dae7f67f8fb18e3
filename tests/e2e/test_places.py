"""Where the image URLs of replies may lead: to nothing on this machine or its network, unless the endpoint is there."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import httpx2
import pytest

from custom_models.model_utils.image_downloads import NotAllowed, Places, kind_of
from custom_models.model_utils.openai_images import OpenAIImagesT2I
from imageevalkit.generate.model import GenerationError, ItemFailed
from tests.support.checkout import REPO, run_command
from tests.support.image_server import KEY, ImageServer, png_of

PUBLIC, OTHER_PUBLIC = "93.184.216.34", "93.184.216.35"
PRIVATE, LINK_LOCAL = "10.1.2.3", "169.254.169.254"


def test_kinds_of_addresses() -> None:
    for kind, addresses in (
        ("public", ["93.184.216.34", "2606:2800:220:1::1", "::ffff:8.8.8.8", "64:ff9b::808:808"]),
        ("loopback", ["127.8.8.8", "::1", "0.0.0.0", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::"]),
        ("link-local", ["169.254.169.254", "fe80::1%eth0"]),
        ("private", ["10.1.2.3", "192.168.1.1", "100.64.0.1", "fd00::1", "192.0.2.1", "fec0::1"]),
        ("stand-in", ["198.18.0.7"]),
        ("special", ["224.0.0.1", "255.255.255.255", "ff02::1"]),
    ):
        assert {address: kind_of(address) for address in addresses} == dict.fromkeys(addresses, kind)


def check(base_url: str, url: str) -> str:
    """Why ``url`` is not fetched for an endpoint that nothing was asked of yet; empty if it is."""
    try:
        asyncio.run(Places(base_url).guard(httpx2.Request("GET", url)))
    except NotAllowed as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("base_url", "url", "says"),
    [
        (f"http://{PUBLIC}/v1", f"http://{OTHER_PUBLIC}/a.png", ""),
        ("http://localhost:1/v1", "http://127.0.0.1:2/a.png", ""),
        ("http://198.18.0.3/v1", "http://198.18.0.9/a.png", ""),
        (f"http://{PUBLIC}/v1", "http://2130706433/a.png", "from 2130706433 (127.0.0.1) is not fetched"),
        (f"http://{PUBLIC}/v1", "http://[::ffff:10.0.0.1]/a.png", "that is a private address"),
        (
            "http://10.9.9.9/v1",
            "http://127.0.0.1/a.png",
            "loopback address, and the endpoint is at a private one",
        ),
        ("http://127.0.0.1/v1", "http://169.254.169.254/a.png", "that is a link-local address"),
    ],
)
def test_a_place_is_allowed_where_the_endpoint_is_at_one_of_its_kind(
    base_url: str, url: str, says: str
) -> None:
    assert says in check(base_url, url)
    assert bool(says) == bool(check(base_url, url))


class _ProxyHandler(BaseHTTPRequestHandler):
    """Answers for every host that it is asked for: posts with an image's ``link``, gets with an image."""

    link = ""
    got: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._send(json.dumps({"data": [{"url": self.link}]}).encode())

    def do_GET(self) -> None:
        self.got.append(self.path)
        self._send(png_of("a cat"))

    def _send(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Silent."""


def test_a_proxy_is_not_asked_for_what_leads_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy looks names up itself, and is at a place of its own: that is not the endpoint's."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _ProxyHandler) as proxy:
        threading.Thread(target=proxy.serve_forever, args=(0.01,), daemon=True).start()
        for name in ("NO_PROXY", "no_proxy", "ALL_PROXY", "all_proxy", "http_proxy"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy.server_port}")
        monkeypatch.setenv("API_KEY", KEY)
        model = OpenAIImagesT2I("m", base_url="http://gateway.invalid/v1", backoff=0.01)
        _ProxyHandler.link = "http://files.invalid/a.png"
        assert model.generate("a cat").image == png_of("a cat")
        assert _ProxyHandler.got == ["http://files.invalid/a.png"]
        for host in ("127.0.0.1", "localhost", "169.254.169.254", "10.0.0.1"):
            _ProxyHandler.link = f"http://{host}:9/a.png"
            with pytest.raises(ItemFailed, match="is not fetched: that is a"):
                model.generate("a cat")
        assert len(_ProxyHandler.got) == 1
        proxy.shutdown()


# in a network of its own, where this machine has public and private addresses


def has_namespaces() -> bool:
    words = ["unshare", "-rn", "ip", "link", "set", "lo", "up"]
    found = shutil.which("unshare") and shutil.which("ip")
    return bool(found) and subprocess.run(words, capture_output=True, check=False).returncode == 0


needs_network = pytest.mark.skipif(not has_namespaces(), reason="unshare -rn or ip does not work here")


def alone(scene: Callable[..., Any], *given: str) -> Any:
    """Returns the result of ``scene`` in a network namespace whose loopback interface has all addresses of
    the tests.
    """
    addresses = [PUBLIC, OTHER_PUBLIC, PRIVATE, LINK_LOCAL]
    commands = ["ip link set lo up", *(f"ip addr add {address}/32 dev lo" for address in addresses)]
    code = "import json, sys; from tests.e2e import test_places; "
    code += "print(json.dumps(getattr(test_places, sys.argv[1])(*sys.argv[2:])))"
    program = subprocess.list2cmdline([sys.executable, "-c", code, scene.__name__, *given])
    ended = run_command(
        ["unshare", "-rn", "bash", "-ec", "; ".join([*commands, f"exec {program}"])],
        cwd=REPO,
        env={
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "PYTHONPATH": f"{REPO}:{REPO / 'infer'}",
            "API_KEY": KEY,
        },
        status=0,
    )
    return json.loads(ended.stdout)


class Public(ImageServer):
    host = PUBLIC


class OtherPublic(ImageServer):
    host = OTHER_PUBLIC


class Private(ImageServer):
    host = PRIVATE


class LinkLocal(ImageServer):
    host = LINK_LOCAL


def made(endpoint: ImageServer) -> str:
    """The error of an image of ``endpoint``; empty where there is none."""
    model = OpenAIImagesT2I("m", base_url=endpoint.base_url, backoff=0.01, price=0.04)
    try:
        assert model.generate("a cat").image == png_of("a cat")
    except GenerationError as error:
        assert type(error) is ItemFailed and not error.transient
        assert error.bill and (error.bill.cost, error.bill.maybe_billed) == (0.04, 1)
        return str(error)
    return ""


def scene_of_links() -> dict[str, Any]:
    """Returns the outcomes of a public endpoint's replies that point to other servers, and the requests to these."""
    with Public("url") as endpoint, OtherPublic() as other, ExitStack() as stack:
        here, private, link_local = map(stack.enter_context, (ImageServer(), Private(), LinkLocal()))
        links = {
            "its own": None,
            "another public host": other.origin,
            "loopback": here.origin,
            "localhost": f"http://localhost:{here.port}",
            "loopback by IPv6": f"http://[::1]:{here.port}",
            "unspecified": f"http://0.0.0.0:{here.port}",
            "private": private.origin,
            "link-local": link_local.origin,
        }
        said = {}
        for name, origin in links.items():
            endpoint.file_origin = origin
            said[name] = made(endpoint)
        endpoint.file_origin, other.redirect_to = other.origin, here.origin
        other.file_faults = ["redirect"]
        said["a redirect"] = made(endpoint)
        own = [here, private, link_local]
        return {"said": said, "asked": [len(server.file_requests) for server in own]}


@needs_network
def test_a_public_endpoint_reaches_public_places_only() -> None:
    scene = alone(scene_of_links)
    said = scene["said"]
    assert said.pop("its own") == said.pop("another public host") == ""
    kinds = {"private": "private", "link-local": "link-local"}
    for name, text in said.items():
        expected = f"that is a {kinds.get(name, 'loopback')} address, and the endpoint is at a public one"
        assert expected in text, name
        assert "sig" not in text and "/files" not in text
    assert scene["asked"] == [0, 0, 0]


def scene_of_rebinding() -> dict[str, Any]:
    """A name that is public when it is looked at, and this machine when it is connected to."""
    real, looked_up = socket.getaddrinfo, 0

    def getaddrinfo(host: Any, *given: Any, **more: Any) -> Any:
        nonlocal looked_up
        if host in ("rebind.test", b"rebind.test"):
            looked_up += 1
            host = PUBLIC if looked_up == 1 else "127.0.0.1"
        return real(host, *given, **more)

    with Public("url") as endpoint, ImageServer() as here:
        socket.getaddrinfo = getaddrinfo
        endpoint.file_origin = f"http://rebind.test:{here.port}"
        said = made(endpoint)
        return {"said": said, "asked": len(here.file_requests), "looked_up": looked_up}


@needs_network
def test_what_counts_is_the_address_that_is_connected_to() -> None:
    scene = alone(scene_of_rebinding)
    assert scene["looked_up"] == 2
    assert "from rebind.test (127.0.0.1) is not fetched: that is a loopback address" in scene["said"]
    assert scene["asked"] == 0
