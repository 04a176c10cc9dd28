"""The whole agent without a switch: requests of people and scrapers take nothing from the verbs."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.lab.node.front import ADD, SECONDS, answer_on
from tests.lab.switch.switch import wait_until
from tests.unit.agent.test_agent_pages import CROWD, METRICS
from userspace_cni.agent import served_pages
from userspace_cni.agent.agent_service import Agent
from userspace_cni.agent.exchange import Exchange
from userspace_cni.base.settings import Settings
from userspace_cni.cni import protocol

NETWORK = b'{"cniVersion":"1.1.0","name":"net","type":"userspace"}'
STATUS = protocol.request_bytes("/api/v1/status", {}, NETWORK)
PAGES = [("GET", "/metrics"), ("GET", "/readyz"), ("GET", "/api/v1/attachments"), ("POST", "/api/v1/reconcile")]


class Served:
    """An agent whose socket is served, and whose watchdog is not started."""

    def __init__(self, directory: Path) -> None:
        settings = Settings(
            ovsdb=f"unix:{directory}/none",
            ovs_rundir=str(directory),
            state_dir=f"{directory}/state",
            run_dir=f"{directory}/run",
            short_dir=f"{directory}/short",
            legacy_state_dir=f"{directory}/legacy",
            default_shared_dir=f"{directory}/shared",
            kubelet_dir=f"{directory}/kubelet",
            deadline_s=0.2,
            health_listen="127.0.0.1:0",
        )
        self.agent = Agent(settings, {})
        self.path = settings.agent_socket

    def send(self, raw: bytes) -> socket.socket:
        """A connection on which `raw` was sent."""
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(SECONDS)
        client.connect(self.path)
        client.sendall(raw)
        return client


@pytest.fixture
def served() -> Iterator[Served]:
    with TemporaryDirectory(prefix="uc-") as directory:
        served = Served(Path(directory))
        served.agent.threads.begin(served.agent.server)
        try:
            yield served
        finally:
            served.agent.workers.close()
            served.agent.server.stop()


@pytest.mark.parametrize(("method", "target"), PAGES)
def test_a_page_that_hangs_takes_nothing_from_the_verbs(served: Served, method: str, target: str) -> None:
    """While a page cannot be made, and three hundred wait for it, no thread of the verbs is taken, and STATUS is answered."""
    go = threading.Event()
    begun = threading.Event()
    made = []
    page = served.agent.pages[method, target]
    make = page._make

    def slowly() -> served_pages.PageContent:
        made.append(1)
        begun.set()
        go.wait(SECONDS)
        return served_pages.PageContent(200, b"made") if method == "POST" else make()

    page._make = slowly
    asked = protocol.request_bytes(target, {}, method=method)
    with ExitStack() as stack:
        stack.callback(go.set)
        crowd = [stack.enter_context(served.send(asked))]
        assert begun.wait(SECONDS)
        crowd += [stack.enter_context(served.send(asked)) for _ in range(CROWD)]
        wait_until(lambda: served.agent.server.connections == CROWD + 1, SECONDS, "all connections")
        assert (served.agent.workers.busy, served.agent.workers.queued, served.agent.workers.threads) == (0, 0, 0)
        with stack.enter_context(served.send(STATUS)) as client:
            assert b'"code":50' in answer_on(client).body
        assert made == [1]
        go.set()
        assert {answer_on(client).status for client in crowd} <= {200, 503}
    assert len(made) == 2


def test_a_thread_that_hangs_is_told_to_a_probe(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the socket's thread hangs, the kubelet's probe is answered all the same, and says so."""
    monkeypatch.setattr(served.agent.server, "_limits", replace(served.agent.server._limits, round_s=0.05))
    over, hung = threading.Event(), threading.Event()

    def hang(exchange: Exchange) -> None:
        hung.set()
        over.wait(SECONDS)
        exchange.answer(200, b"")

    served.agent.server._call = hang
    [probes] = served.agent.over_tcp
    probes.start()
    with ExitStack() as stack:
        stack.callback(probes.stop)
        stack.callback(over.set)
        stack.enter_context(served.send(STATUS))
        assert hung.wait(SECONDS)

        def told() -> bool:
            client = stack.enter_context(socket.create_connection(("127.0.0.1", probes.port), SECONDS))
            client.sendall(b"GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n")
            answer = answer_on(client)
            return answer.status == 503 and b"server's thread has been stuck" in answer.body

        wait_until(told, SECONDS, "the hung thread to be told")


def test_every_other_page_is_refused(served: Served) -> None:
    """What is not served is refused with 404 by the thread that read it."""
    for raw in (b"GET /nothing HTTP/1.1\r\n\r\n", b"POST /metrics HTTP/1.1\r\n\r\n", b"HEAD /metrics HTTP/1.1\r\n\r\n"):
        with served.send(raw) as client:
            assert answer_on(client).status == 404
    with served.send(METRICS) as client:
        assert b"userspace_cni_build_info" in answer_on(client).body
    assert served.agent.workers.threads == 0


def body(**keys: object) -> bytes:
    """A network that is valid except for these keys, which may have any JSON value."""
    return json.dumps({"cniVersion": "1.1.0", "name": "n", "type": "userspace", **keys}).encode()


CLIENT = {"engine": "ovs-dpdk", "iftype": "vhostuser", "vhost": {"mode": "client"}, "bridge": {"bridgeName": "br0"}}
LONE = "\ud800"
BODIES = [
    *(
        b"",
        b"{",
        b"null",
        b"[]",
        b'"x"',
        b"\xff\xfe",
        b"\xef\xbb\xbf{}",
        b'{"x":NaN}',
        b'{"x":1e999}',
        b'{"x":' + b"1" * 5000 + b"}",
    ),
    *(b"[" * 100_000, b'{"a":' * 100_000),
    *(body(name=LONE), body(cniVersion=LONE), body(type=LONE), body(host={"engine": LONE}), body(ipam={"type": LONE})),
    *(body(host={**CLIENT, "bridge": {"bridgeName": LONE}}), body(host={**CLIENT, "vhost": {"mode": "client", "user": LONE}})),
    *(body(host=CLIENT, sharedDir=f"/x{LONE}"), body(host=CLIENT, sharedDir="/x\0"), body(host=CLIENT, logLevel=LONE)),
    *(body(host=CLIENT, kubeconfig=f"/etc/cni/{LONE}"), body(host=CLIENT, kubeconfig="/etc/cni/\0")),
    *(body(host=CLIENT, runtimeConfig={"CNIDeviceInfoFile": f"/var/run/{LONE}", "mac": LONE, "ips": [LONE]}),),
    *(body(prevResult={"cniVersion": "1.1.0", "interfaces": [{"name": LONE}]}),),
    *(body(**{"cni.dev/valid-attachments": [{"containerID": LONE, "ifname": LONE}]}),),
]
NAMES = ["c0ffee", "..%2F..", "%FF%FE", "%ED%A0%80", "a%0Ab", "a" * 300, "-x", "%F0%9F%98%80"]
HEADS = [
    b"\r\n\r\n",
    b"\0" * 100 + b"\r\n\r\n",
    b"POST /api/v1/add HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    b"POST /api/v1/add HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n",
    b"POST /api/v1/add HTTP/1.1\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
    "POST /api/v1/add HTTP/1.1\r\nContent-Length: \uff12\r\n\r\n{}".encode(),
    *(b"POST /api/v1/add HTTP/1.1\r\nUserspace-Cni-Protocol: " + raw + b"\r\n\r\n" for raw in (b"", b"2", b"x" * 5000)),
    *(ADD.replace(b"c0ffee", raw) for raw in (b"%", b"%4", b"%zz", b"%00", b"\xff")),
    *(
        ADD.replace(b"Content", b"Called-Boot-Id: x\r\nCalled-Boottime-Ns: " + raw + b"\r\nContent")
        for raw in (b"-1", b"1e9", b"9" * 99)
    ),
    *(ADD.replace(b"Content", b"Userspace-Cni-State-Dir: " + raw + b"\r\nContent") for raw in (b"%00", b"x", b"%FF", b"/..")),
    *(b"GET " + raw + b" HTTP/1.1\r\n\r\n" for raw in (b"/%ff", b"/../..", b"*", b"/metrics?x", b"/readyz/", b"\xff")),
]


@pytest.mark.parametrize("end", ["read", "half", "reset"])
def test_malformed_requests_leave_no_traceback(served: Served, capfd: pytest.CaptureFixture[str], end: str) -> None:
    """Whatever is wrong with a request, and however its caller ends: the
    answer is an error of ours, without "bug" or traceback.
    """
    verbs = [f"/api/v1/{verb}" for verb in ("add", "del", "check", "gc", "status")]
    named = [
        protocol.request_bytes(verbs[number % len(verbs)], {"CNI_IFNAME": "net1", "CNI_NETNS": "/x"}, NETWORK, extra=extra)
        for number, name in enumerate(NAMES)
        for extra in ({"Cni-Containerid": name}, {"Cni-Containerid": "c0ffee", "Cni-Args": f"K8S_POD_UID={name}"})
    ]
    environ = {"CNI_CONTAINERID": "c0ffee", "CNI_IFNAME": "net1", "CNI_NETNS": "/x"}
    whole = [protocol.request_bytes(verb, environ, raw) for raw in BODIES for verb in verbs]
    for raw in [*HEADS, *named, *whole]:
        with served.send(raw) as client, suppress(ConnectionResetError):
            if end == "half":
                client.shutdown(socket.SHUT_WR)
            if end == "reset":
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            else:
                reply = answer_on(client)
                assert b'"code":999' not in reply.body, (raw[-500:], reply)
    wait_until(lambda: served.agent.workers.busy == 0 and served.agent.server.connections == 0, SECONDS, "all calls to end")
    log = capfd.readouterr().err
    assert "Traceback" not in log
    assert "a bug" not in log
