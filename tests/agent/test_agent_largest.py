"""The largest inputs of a tenant: what is accepted is served, a refusal costs one line, and the agent answers meanwhile."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.agent.living import LiveNode
from tests.cni.spec import refused, succeeded
from tests.lab.kube.apiserver import ApiServer
from tests.lab.kube.pods import Pod
from tests.lab.node import agent
from tests.lab.node.links import addresses, routes
from userspace_cni.cni.outline import NEW
from userspace_cni.cni.result import ADDRESSES_MAX, ROUTES_MAX

Network = Callable[[LiveNode], dict[str, Any] | bytes]


@contextmanager
def healthy(live: LiveNode) -> Iterator[None]:
    """During the block /healthz is asked again and again; each answer has to be 200."""
    ended = threading.Event()
    found: list[int] = []

    def ask() -> None:
        while not ended.wait(0.02):
            found.append(agent.get(live.socket, "/healthz")[0])

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        yield
    finally:
        ended.set()
        asking.join()
    assert set(found) <= {200}


def podnet(live: LiveNode, count: int = ROUTES_MAX) -> dict[str, Any]:
    """A network of ordinary pods with so many routes, and the most addresses that an interface can have."""
    host = {"iftype": "veth", "bridge": {"bridgeName": "br-test"}}
    ranges = [[{"subnet": f"10.56.{number}.0/24"}] for number in range(ADDRESSES_MAX)]
    ways = [{"dst": f"172.{16 + number // 256}.{number % 256}.0/24", "gw": "10.56.0.1"} for number in range(count)]
    ipam = {**live.host_local(), "ranges": ranges, "routes": ways}
    return {"cniVersion": "1.0.0", "name": "podnet", "type": "userspace", "host": host, "ipam": ipam}


def long(live: LiveNode, **keys: Any) -> bytes:
    return json.dumps(live.network(args={"x": "y" * (1 << 20)}, **keys)).encode()


def test_as_many_routes_as_an_interface_has(live: LiveNode, sandbox: str) -> None:
    """A pod gets the most addresses and routes, CHECK finds them, DEL leaves nothing, and the agent is healthy all the time."""
    live.start()
    with healthy(live):
        result = succeeded(live.run("ADD", podnet(live), sandbox, ifname="eth0"))
        checked = live.run("CHECK", {**podnet(live), "prevResult": result}, sandbox, ifname="eth0")
    assert (len(result["ips"]), len(result["routes"]), checked.status) == (ADDRESSES_MAX, ROUTES_MAX, 0)
    assert len(addresses(sandbox, "eth0")) == ADDRESSES_MAX
    assert len([each for each in routes(sandbox) if each["protocol"] == "static"]) == ROUTES_MAX
    succeeded(live.run("DEL", podnet(live), sandbox, ifname="eth0"))
    live.require_clean()


@pytest.mark.parametrize(
    ("network", "named"),
    [
        (long, f"at most {NEW.octets} bytes"),
        (lambda live: long(live, host=[{"colour": 1}] * 60_000), f"at most {NEW.octets} bytes"),
        (lambda live: live.network(args={"x": [1] * NEW.marks}), f"and {NEW.marks} of these are read"),
        (lambda live: podnet(live, ROUTES_MAX + 1), "key 'ipam.routes' has 1025 items"),
        (lambda live: live.network(mirrors=[{"colour": 1}] * 3000), "key 'mirrors' has 3000 items"),
    ],
    ids=["bytes", "list", "values", "routes", "mirrors"],
)
def test_larger_than_an_agent_takes(live: LiveNode, sandbox: str, network: Network, named: str) -> None:
    """Its ADD is refused with 7 and one line of the log; its DEL succeeds, so that the pod can be removed."""
    live.start()
    with healthy(live):
        error = refused(live.run("ADD", network(live), sandbox), 7)
    assert named in error["msg"] + error["details"]
    assert len([line for line in live.log.read_text().splitlines() if "verb=ADD" in line]) == 1
    assert live.run("DEL", network(live), sandbox).status == 0
    live.require_clean()


def test_del_of_a_network_that_has_grown(live: LiveNode, sandbox: str) -> None:
    """DEL works from the record though the network is larger by now than ADD accepts; another network's attachment stays."""
    live.start()
    succeeded(live.run("ADD", live.network(), sandbox))
    assert live.run("DEL", long(live).replace(b'"net"', b'"other"'), sandbox).status == 0
    assert live.leftovers()["records"]
    assert live.run("DEL", long(live), sandbox).status == 0
    live.require_clean()


def test_an_annotation_of_a_quarter_of_a_megabyte(live: LiveNode, sandbox: str) -> None:
    """An annotation longer than any valid value is refused by its length with 7, and the agent is healthy meanwhile."""
    pod = Pod()
    with ApiServer() as api:
        live.settings["USERSPACE_CNI_KUBECONFIG"] = api.kubeconfig(live.directory)
        manifest = pod.manifest()
        members = ",".join(f'"key{number}":1' for number in range(18_000))
        manifest["metadata"]["annotations"] = {"userspace/bandwidth": f'{{{members},"key17999":1}}'}
        api.add_pod(manifest)
        live.start()
        with healthy(live):
            error = refused(live.run("ADD", podnet(live, 1), sandbox, ifname="eth0", CNI_ARGS=pod.args), 7)
        assert error["msg"].startswith("annotation 'userspace/bandwidth' has 2")
        live.end()
    live.require_clean()
