"""A SOCKS5 proxy without passwords (RFC 1928) that leads every host to one port of this machine."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
from collections.abc import Iterator


class SocksServer(socketserver.ThreadingTCPServer):
    """``asked`` are the hosts that clients wanted to reach."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.leads_to = port
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        return f"socks5://127.0.0.1:{self.server_address[1]}"


class _Handler(socketserver.BaseRequestHandler):
    server: SocksServer
    request: socket.socket

    def handle(self) -> None:
        _, methods = self._read(2)
        self._read(methods)
        self.request.sendall(b"\x05\x00")
        _, _, _, kind = self._read(4)
        self.server.asked.append(self._read(self._read(1)[0] if kind == 3 else 4).decode(errors="replace"))
        self._read(2)
        with socket.create_connection(("127.0.0.1", self.server.leads_to)) as onward:
            self.request.sendall(b"\x05\x00\x00\x01" + bytes(6))
            back = threading.Thread(target=_pass, args=(onward, self.request), daemon=True)
            back.start()
            _pass(self.request, onward)
            back.join()

    def _read(self, count: int) -> bytes:
        return self.request.recv(count, socket.MSG_WAITALL)


def _pass(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(1 << 16):
            sink.sendall(piece)
        sink.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def socks_server(port: int) -> Iterator[SocksServer]:
    """A running proxy that leads to ``port``."""
    with SocksServer(port) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()
