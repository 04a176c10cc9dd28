"""cnitool as a caller: the library that runtimes use, from its own authors, on each kind of port.

It is Debian 13's, unless PATH has one; a verb that it lacks is not tried.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.cni.spec import away, row_of, switch_of
from tests.lab.lanes.callers import callers
from tests.lab.lanes.table import lane
from tests.lab.node.links import links
from tests.lab.node.node import Node
from tests.lab.runtimes.cnitool import IFNAME, Cnitool, CnitoolError, container_of, forgotten
from tests.lab.runtimes.containerd_host import RuntimeHost, runtime_host
from tests.lab.runtimes.runtime import CURRENT
from tests.runtimes.seen import addressed, conflist, listed, ports, witness

VHOST = ("client", "server")
KINDS = (*VHOST, "system", "af_packet", "af_xdp", "afxdp")
OLDER = ("0.4.0", "1.0.0")
MAC = "02:00:00:aa:bb:01"


@pytest.fixture
def host(node: Node, machine_as_it_was: None) -> Iterator[RuntimeHost]:
    """The directories that cnitool uses, on a node without an agent: its calls are the plugin's, as a process."""
    with runtime_host(node) as made:
        yield made


@pytest.fixture
def cnitool(host: RuntimeHost, sandbox: str) -> Iterator[Cnitool]:
    """The cnitool; libcni keeps nothing of its calls for the sandbox after the test."""
    with forgotten(sandbox):
        yield Cnitool(host, Path(shutil.which("cnitool") or callers(lane("trixie")) / "cnitool"))


def host_block(kind: str) -> dict[str, Any]:
    """The host's side of a port of that kind."""
    told = {"iftype": "vhostuser", "vhost": {"mode": kind}} if kind in VHOST else {"iftype": "veth", "port": kind}
    return {"engine": "ovs-dpdk", "bridge": {"bridgeName": "br-test"}, **told}


def offer(host: RuntimeHost, *plugins: dict[str, Any], version: str = "1.0.0") -> None:
    """Give the host the network `net` of these plugins, in this version."""
    host.write_networks(conflist(*plugins) | {"cniVersion": version})


def of_the_tool(cnitool: Cnitool, version: str) -> str:
    """The version, or the highest that a cnitool without STATUS knows: both came with 1.1.0."""
    return version if "status" in cnitool.verbs else min(version, "1.0.0")


@pytest.mark.parametrize(
    ("kind", "version"), [*((kind, CURRENT) for kind in KINDS), *((kind, old) for kind in ("client", "system") for old in OLDER)]
)
def test_from_add_to_del(node: Node, cnitool: Cnitool, host: RuntimeHost, sandbox: str, kind: str, version: str) -> None:
    """On each kind of port and in each version, libcni keeps our result, CHECK passes, and DEL, also a second one, leaves
    nothing.

    In the versions that Debian 12's plugins know, one of them gives an address; one more follows ours if there is a link to
    CHECK.
    """
    version = of_the_tool(cnitool, version)
    network: Callable[..., dict[str, Any]] = partial(addressed, node) if version in OLDER else node.network
    tuning = {"type": "tuning", "sysctl": {"net.ipv4.conf.lo.forwarding": "1"}}
    behind = [tuning] if version in OLDER and kind not in VHOST else []
    offer(host, network(host=host_block(kind), capabilities={"mac": True}), *behind, version=version)
    result = cnitool.call("add", sandbox, capabilities={"mac": MAC})
    assert result == cnitool.cached(sandbox)
    assert result["cniVersion"] == version
    [inside] = [each for each in result["interfaces"] if each.get("sandbox")]
    assert (inside["name"], inside["mac"], inside["sandbox"]) == (IFNAME, MAC, sandbox)
    assert [each["address"] for each in result.get("ips", [])] == (["10.56.0.2/24"] if version in OLDER else [])
    assert set(links(sandbox)) == (set() if kind in VHOST else {IFNAME})
    cnitool.call("check", sandbox, capabilities={"mac": MAC})
    cnitool.call("status", sandbox)
    for _ in range(2):
        cnitool.call("del", sandbox)
    assert cnitool.cached(sandbox) == {}
    assert node.leftovers() == {}


@pytest.mark.parametrize("kind", ["client", "system"])
def test_check_tells_of_a_lost_port(node: Node, cnitool: Cnitool, host: RuntimeHost, sandbox: str, kind: str) -> None:
    """CHECK fails with our message before an ADD, and when another program removed the port; DEL succeeds then."""
    offer(host, node.network(host=host_block(kind)))
    with pytest.raises(CnitoolError, match="prevResult"):
        cnitool.call("check", sandbox)
    cnitool.call("add", sandbox)
    [port] = ports(node)
    assert row_of(node, port)["external_ids"]["container-id"] == container_of(sandbox)
    switch_of(node).vsctl("del-port", "br-test", port)
    with pytest.raises(CnitoolError, match=port):
        cnitool.call("check", sandbox)
    cnitool.call("del", sandbox)
    assert node.leftovers() == {}


def test_an_add_that_fails(node: Node, cnitool: Cnitool, host: RuntimeHost, sandbox: str) -> None:
    """The message is ours, libcni keeps nothing and sends no DEL by itself, and nothing is left."""
    watched = witness(host)
    offer(host, listed(watched), addressed(node, host=host_block("client") | {"engine": "vpp"}))
    with pytest.raises(CnitoolError, match=r'plugin type="userspace".* failed \(add\): .*engine'):
        cnitool.call("add", sandbox)
    assert watched.commands() == ["ADD"]
    assert cnitool.cached(sandbox) == {}
    assert node.leftovers() == {}


def test_status(node: Node, cnitool: Cnitool, host: RuntimeHost) -> None:
    """A cnitool with the verb prints nothing while an ADD could be served, and our message otherwise."""
    watched = witness(host)
    offer(host, listed(watched), node.network(), version=CURRENT)
    cnitool.call("status", "none")
    assert watched.commands() == (["STATUS"] if "status" in cnitool.verbs else [])
    node.settings |= away(node)
    if "status" in cnitool.verbs:
        with pytest.raises(CnitoolError, match=r"no-such-db\.sock"):
            cnitool.call("status", "none")


def test_gc(node: Node, cnitool: Cnitool, host: RuntimeHost, sandbox: str) -> None:
    """cnitool's GC has no list: libcni sends a DEL for all that it keeps, and we refuse, because no list is not an empty list.

    A cnitool without the verb does nothing.
    """
    offer(host, node.network(host=host_block("client")), version=of_the_tool(cnitool, CURRENT))
    cnitool.call("add", sandbox)
    if "gc" in cnitool.verbs:
        with pytest.raises(CnitoolError, match=r"cni\.dev/valid-attachments"):
            cnitool.call("gc", "none")
    else:
        cnitool.call("gc", "none")
    assert bool(cnitool.cached(sandbox)) == bool(node.leftovers()) == ("gc" not in cnitool.verbs)
    cnitool.call("del", sandbox)
    assert node.leftovers() == {}
