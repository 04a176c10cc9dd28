"""Pages over TCP are served to every peer, whatever other peers do, without a line in the log."""

from __future__ import annotations

import http.client
import random
import socket
import struct
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

from tests.lab.node.front import SECONDS
from tests.lab.switch.switch import wait_until
from userspace_cni.agent.served_pages import PageContent, ServedPage
from userspace_cni.agent.tcp import TcpPages, parse_listen
from userspace_cni.base.errors import InvalidConfig, Unavailable

BODY = b"x 1\n" * 300_000
"""More bytes than any socket buffer holds."""
GET = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
GARBAGE = {
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n",
    "nul": b"GET /\0 HTTP/1.1\r\n\r\n",
    "bytes": b"GET /\xff\xfe HTTP/1.1\r\nHost: \xff\r\n\r\n",
    "version": b"GET / HTTP/9.9.9\r\n\r\n",
    "length": b"POST /metrics HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    "headers": b"GET /metrics HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n",
    "line": b"GET /" + b"a" * 300_000 + b" HTTP/1.1\r\n\r\n",
    "half": b"GET /metr",
    "nothing": b"",
}


@contextmanager
def scrapes(host: str = "127.0.0.1", body: bytes = BODY) -> Iterator[TcpPages]:
    """The port with such a page."""
    page = ServedPage("/metrics", lambda: PageContent(200, body, "text/plain; version=0.0.4"))
    served = TcpPages("metrics_listen", f"{host}:0", {"/metrics": page})
    served.start()
    try:
        yield served
    finally:
        served.stop()


def connect(served: TcpPages) -> socket.socket:
    return socket.create_connection(("127.0.0.1", served.port), SECONDS)


def well(served: TcpPages, target: str = "/metrics") -> bool:
    """Whether a scrape gets the whole page."""
    with urllib.request.urlopen(f"http://127.0.0.1:{served.port}{target}", timeout=SECONDS) as answer:
        return bool(answer.read() == BODY)


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "localhost"])
def test_the_tcp_port_serves_metrics(host: str) -> None:
    """GET /metrics over TCP, on IPv4, IPv6 and names, until it is closed."""
    with scrapes(host) as served:
        url = f"http://{host}:{served.port}/metrics"
        with urllib.request.urlopen(url, timeout=SECONDS) as answer:
            assert "text/plain" in answer.headers["Content-Type"]
            assert answer.read() == BODY
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(url, timeout=SECONDS)


def test_every_address() -> None:
    """[::] means every address of the node, IPv4 included."""
    with scrapes("[::]") as served:
        assert well(served)


def test_a_query_is_passed_over() -> None:
    """What a scraper appends to the path changes nothing; other pages do not exist."""
    with scrapes() as served:
        assert well(served, "/metrics?name[]=x")
        for method, target in (("GET", "/"), ("GET", "/healthz"), ("POST", "/api/v1/add"), ("POST", "/metrics")):
            client = http.client.HTTPConnection("127.0.0.1", served.port, timeout=SECONDS)
            client.request(method, target)
            assert client.getresponse().status == 404
            client.close()


def test_a_connection_ends_with_its_answer() -> None:
    """A peer that reads to the end of the connection does not wait, and nothing of it stays."""
    with scrapes() as served:
        with connect(served) as client:
            client.sendall(GET)
            raw = b""
            while chunk := client.recv(65536):
                raw += chunk
            assert raw.endswith(BODY)
        wait_until(lambda: served.connections == 0, SECONDS, "no connection left")


def test_silent_peers_do_not_stop_a_scrape() -> None:
    """More silent connections than are allowed delay no other."""
    with scrapes() as served, ExitStack() as idle:
        for _ in range(200):
            idle.enter_context(connect(served))
        assert well(served)


def test_garbage_leaves_no_word_in_the_log(capfd: pytest.CaptureFixture[str]) -> None:
    """Whatever comes, read or not, ended or reset: the port goes on serving,
    and the log gets nothing, least of all a traceback.
    """
    dice = random.Random(6)
    with scrapes() as served:
        for raw in [*GARBAGE.values(), *(dice.randbytes(dice.randrange(1, 3000)) + b"\r\n\r\n" for _ in range(50)), GET]:
            for reset in (False, True):
                with connect(served) as client, suppress(OSError):
                    client.sendall(raw)
                    if reset:
                        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    else:
                        client.shutdown(socket.SHUT_WR)
                        client.recv(100)
        assert well(served)
        wait_until(lambda: served.connections == 0, SECONDS, "no connection left")
    assert capfd.readouterr().err == ""


def test_a_taken_port_is_named() -> None:
    """A port that another program has is an error that names the setting."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        listen = f"127.0.0.1:{other.getsockname()[1]}"
        served = TcpPages("health_listen", listen, {})
        with pytest.raises(Unavailable, match=f"{listen}.*health_listen"):
            served.start()
        served.stop()


@pytest.mark.parametrize("host", ["a..b", "[1::2::3]", "no-such-host.invalid"])
def test_a_host_that_is_none_is_named(host: str) -> None:
    """A host without an address is an error that names the setting."""
    with pytest.raises(Unavailable, match="listening on"), scrapes(host):
        pass


@pytest.mark.parametrize("listen", ["127.0.0.1:9090", "[::1]:9090", "0.0.0.0:1", "node-1.example:65535"])
def test_what_metrics_listen_may_be(listen: str) -> None:
    """Host and port; IPv6 in brackets."""
    host, port = parse_listen("metrics_listen", listen)
    assert listen in (f"{host}:{port}", f"[{host}]:{port}")


@pytest.mark.parametrize(
    "listen", ["", "9090", ":9090", "::1:9090", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:-1", "a b:1", "h:1/x"]
)
def test_what_metrics_listen_may_not_be(listen: str) -> None:
    """Anything else is refused by name."""
    with pytest.raises(InvalidConfig, match="metrics_listen"):
        parse_listen("metrics_listen", listen)
