"""Reaching anything by network: loopback stands for all of it, and answers when nothing contains the attack."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Iterator

import pytest

from tests.attacks.arena import Arena


class Listener:
    """A TCP server that counts connections."""

    def __init__(self) -> None:
        self.heard = 0
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.heard += 1
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b"welcome")

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]


@pytest.fixture
def listener() -> Iterator[Listener]:
    made = Listener()
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join(10)


def test_no_http_request_leaves(arena: Arena, listener: Listener):
    def fetch(port: int) -> str:
        import urllib.request

        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5) as reply:
            return reply.read().decode()

    assert "raises in reset" in arena.contained(fetch, port=listener.port)
    assert listener.heard == 0
    assert "welcome" in arena.bare(fetch, port=listener.port)
    assert listener.heard == 1


def test_no_socket_is_opened(arena: Arena):
    def open_socket() -> str:
        import _socket

        return f"opened {_socket.socket(2, 1, 0).fileno()}"

    assert "PermissionError" in arena.contained(open_socket)
    assert "opened" in arena.bare(open_socket)


def test_no_datagram_is_sent(arena: Arena):
    def datagram(port: int) -> str:
        import socket

        return f"sent {socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', port))}"

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("127.0.0.1", 0))
        receiver.setblocking(False)
        port = receiver.getsockname()[1]
        assert "PermissionError" in arena.contained(datagram, port=port)
        with pytest.raises(BlockingIOError):
            receiver.recv(1)
        assert "sent 1" in arena.bare(datagram, port=port)
        assert receiver.recv(1) == b"x"


@pytest.mark.parametrize("abstract", [False, True], ids=["in_a_file", "abstract"])
def test_no_unix_socket_is_reached(arena: Arena, abstract: bool):
    def connect(address: str) -> str:
        import socket

        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        client.connect(address)
        return "connected"

    address = f"\0attack-{arena.folder.name}" if abstract else "service"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server, pytest.MonkeyPatch.context() as patch:
        patch.chdir(arena.folder)
        server.bind(address)
        server.listen()
        assert "PermissionError" in arena.contained(connect, address=address)
        assert "connected" in arena.bare(connect, address=address)


def test_no_raw_system_call_opens_a_socket(arena: Arena):
    def raw() -> str:
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        families = {"inet": 2, "unix": 1, "netlink": 16, "packet": 17, "vsock": 40}
        return " ".join(f"{n}={libc.syscall(41, f, 3 if f in (16, 17) else 1, 0)}" for n, f in families.items())

    assert arena.contained(raw) == "inet=-1 unix=-1 netlink=-1 packet=-1 vsock=-1"
    assert "inet=-1" not in arena.bare(raw)


def test_no_pair_of_sockets_is_made(arena: Arena):
    def pair() -> str:
        import socket

        return f"made {len(socket.socketpair())}"

    assert "PermissionError" in arena.contained(pair)
    assert "made 2" in arena.bare(pair)
