"""Routes in pods of real runtimes: two networks of Debian's bridge plugin, of which nothing is ours."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from tests.lab.kube.pods import Pod
from tests.lab.node.node import Node
from tests.lab.runtimes.containerd import Containerd
from tests.lab.runtimes.containerd_host import RuntimeHost, shared_mounts
from tests.lab.runtimes.podman import Podman
from tests.lab.switch.switch import wait_until
from tests.lab.switch.veths import inside
from tests.runtimes.seen import conflist
from userspace_cni.attachment.attachment_store import AttachmentStore
from userspace_cni.base.settings import Settings
from userspace_cni.node.installation import Installation
from userspace_cni.node.local_node import LocalNode
from userspace_cni.routes.cluster_facts import ClusterService
from userspace_cni.routes.cluster_facts import RoutePod as KnownPod
from userspace_cni.routes.known import KnownCluster
from userspace_cni.routes.passes import Passes
from userspace_cni.routes.places import LocatedSandbox, NamespaceSources
from userspace_cni.routes.routes_service import NodeRoutes, compose

SERVICE, MOVED = "10.96.0.7", "10.96.0.8"
NODE = "10.88.0.1"
PINGS = 100
CLIENT = """
import socket, sys, time
with socket.create_connection((sys.argv[1], int(sys.argv[2])), 10) as stream:
    print("connected", flush=True)
    for line in sys.stdin:
        stream.sendall(line.encode())
        print(stream.recv(64).decode().strip(), flush=True)
"""


@pytest.fixture
def runtime_node(bare_node: Node) -> Iterator[Node]:
    with shared_mounts(bare_node.directory.parent):
        yield bare_node


def networks(node: Node) -> list[dict[str, Any]]:
    """Two networks; the node has .1 in each, and the first has the default route."""
    made = []
    for number, routes in ((88, [{"dst": "0.0.0.0/0"}]), (89, [])):
        ipam = {**node.host_local(f"10.{number}.0.0/24"), "routes": routes}
        bridge = {"type": "bridge", "bridge": f"cni{number}", "isGateway": True, "ipam": ipam}
        made.append(conflist(bridge, name=f"net{number}"))
    return made


def _of(settings: Settings) -> tuple[Installation, AttachmentStore]:
    node = LocalNode(settings, {}, resident=True)
    return node.installation, node.store


class Kept:
    """An agent's passes over a runtime's pods, with Routes that the test gives."""

    def __init__(self, state: Path, **settings: Any) -> None:
        made = Settings(routes=True, state_dir=str(state / "state"), run_dir=str(state / "run"), **settings)
        self.passes: Passes
        self.places: NamespaceSources
        self.passes, self.places = compose(*_of(made))

    def place_of(self, pod: Pod) -> LocatedSandbox:
        """The pod's sandbox; the cache at its usual place has other runtimes' pods, too."""
        [found] = [each for each in self.places.locate() if each.uid == pod.uid]
        return found

    def visit(self, pod: Pod, *entries: dict[str, Any], service: str = "") -> None:
        """Make the pod's routes as a Route with these entries asks."""
        svc = [{"namespace": "default", "name": "nginx", "dev": "eth1"}] if service else []
        thing = {"metadata": {"name": "one"}, "spec": {"route": list(entries), "svc": svc}}
        services = (ClusterService("default", "nginx", (ip_address(service),)),) if service else ()
        known = KnownPod(pod.namespace, pod.name, pod.uid)
        self.passes.learn(KnownCluster((thing,), (), services, {pod.uid: known}, has_api=True))
        self.passes.visit(self.places.locate(), everything=True)
        assert [each.state for each in self.passes.visited.values()] == ["applied"], self.passes.visited


def routes(path: str) -> list[str]:
    """Our routes in the namespace."""
    found = json.loads(inside(path, "ip", "-json", "-N", "route", "show", "proto", "148"))
    return [f"{each['dst']} {each.get('gateway', '-')} {each['dev']}" for each in found]


@contextmanager
def pinging(path: str, address: str) -> Iterator[Callable[[], bool]]:
    """Pings from the namespace, a hundred a second; yields a function that says whether they go on. All have to be answered."""
    with subprocess.Popen(
        ["nsenter", f"--net={path}", "ping", "-c", str(PINGS), "-i", "0.01", "-W", "1", address],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield lambda: process.poll() is None
        said, _ = process.communicate(timeout=60)
    assert len(re.findall(r"icmp_seq=\d+ ttl", said)) == PINGS, said


@pytest.mark.parametrize("source", ["cache", "cri"])
def test_a_pod_of_containerd(runtime_node: Node, containerd: Containerd, tmp_path: Path, source: str) -> None:
    """The default route moves to eth1 and back, and the node answers each ping; what the runtime made is as before."""
    containerd.start(*networks(runtime_node))
    pod = Pod()
    containerd.cri.run(pod)
    socket_path = f"{containerd.directory}/containerd.sock"
    where = {} if source == "cache" else {"cni_cache_dir": str(tmp_path)}
    kept = Kept(tmp_path, cri_socket=socket_path, **where)
    located = kept.place_of(pod)
    assert (located.uid, located.source) == (pod.uid, source)
    path = located.place.path
    before = inside(path, "ip", "route")
    with pinging(path, NODE) as goes_on:
        while goes_on():
            kept.visit(pod, {"dst": "default", "dev": "eth1", "via": "10.89.0.1"}, {"dst": "172.16.0.0/16", "dev": "eth1"})
            assert routes(path) == ["default 10.89.0.1 eth1", "172.16.0.0/16 - eth1"]
            assert "dev eth1" in inside(path, "ip", "route", "get", "198.51.100.1")
            kept.visit(pod, {"dst": "172.16.0.0/16", "dev": "eth1"})
            assert "dev eth0" in inside(path, "ip", "route", "get", "198.51.100.1")
    kept.visit(pod, {"dst": "172.17.0.0/16", "dev": "eth0"})
    inside(path, "ip", "route", "flush", "proto", "148")
    assert inside(path, "ip", "route") == before


def test_a_service_that_moves_under_a_client(runtime_node: Node, containerd: Containerd, tmp_path: Path) -> None:
    """Its ClusterIP changes: the client's connection goes on, and the next one uses the new address by the same device."""
    containerd.start(*networks(runtime_node))
    pod = Pod()
    containerd.cri.run(pod)
    kept = Kept(tmp_path)
    located = kept.place_of(pod)
    host, path = containerd.host, located.place.path
    for address in (SERVICE, MOVED):
        host.run("ip", "address", "add", f"{address}/32", "dev", "cni89")
    with echoing(host) as port:
        kept.visit(pod, service=SERVICE)
        assert routes(path) == [f"{SERVICE} - eth1"]
        with client(path, SERVICE, port) as first:
            assert said(first, "one") == "one"
            kept.visit(pod, service=MOVED)
            assert routes(path) == [f"{MOVED} - eth1"]
            assert said(first, "two") == "two"
        with client(path, MOVED, port) as second:
            assert said(second, "three") == "three"
        assert "dev eth1" in inside(path, "ip", "route", "get", MOVED)


@contextmanager
def echoing(host: RuntimeHost) -> Iterator[int]:
    """A TCP server on the runtime's host that answers what it hears; its port."""
    program = (
        "import socketserver\n"
        "class Echo(socketserver.BaseRequestHandler):\n"
        "    def handle(self):\n"
        "        while data := self.request.recv(64): self.request.sendall(data)\n"
        "with socketserver.ThreadingTCPServer(('0.0.0.0', 0), Echo) as server:\n"
        "    print(server.server_address[1], flush=True)\n"
        "    server.serve_forever()\n"
    )
    with subprocess.Popen(host.command(sys.executable, "-c", program), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


@contextmanager
def client(path: str, address: str, port: int) -> Iterator[subprocess.Popen[str]]:
    """A TCP client in the namespace."""
    argv = ["nsenter", f"--net={path}", sys.executable, "-c", CLIENT, address, str(port)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            assert process.stdout.readline().strip() == "connected"
            yield process
        finally:
            process.kill()


def said(process: subprocess.Popen[str], word: str) -> str:
    """What the server answers to a word."""
    assert process.stdin
    assert process.stdout
    process.stdin.write(f"{word}\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def test_a_container_of_podman(runtime_node: Node, podman: Podman, tmp_path: Path) -> None:
    """Without a cluster a file gives routes to a container with two networks, from its start to its end."""
    podman.host.write_networks(*networks(runtime_node))
    file = tmp_path / "cr-config.yaml"
    file.write_text("- {route: 172.16.0.0/16, dev: eth1}\n")  # podman 4 gives the devices to the networks in any order
    settings = Settings(
        routes=True,
        routes_file=str(file),
        state_dir=str(tmp_path / "state"),
        run_dir=str(tmp_path / "run"),
        cri_socket="",
    )
    (tmp_path / "state").mkdir(mode=0o700)
    kept = NodeRoutes(*_of(settings), lambda *_: None, lambda _: None)
    kept.start()
    try:
        container = podman.run("/bin/sleep", "1000", networks="net88,net89")
        [shown] = json.loads(podman.call("container", "inspect", container))
        path = shown["NetworkSettings"]["SandboxKey"]
        wait_until(lambda: routes(path) == ["172.16.0.0/16 - eth1"], what="the route of the file")
        file.write_text("- {route: 172.17.0.0/16, dev: eth0}\n")
        wait_until(lambda: routes(path) == ["172.17.0.0/16 - eth0"], what="the file's other route")
        podman.remove(container)
        wait_until(lambda: kept.describe()["pods"] == [], what="the container to be forgotten")
    finally:
        kept.stop()
