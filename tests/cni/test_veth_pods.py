"""Ordinary pods: `iftype: veth`, through the agent and without one, as their namespaces show it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cni.spec import refused, succeeded, switch_of
from tests.cni.test_cli_node import cli, decoded
from tests.lab.node.links import addresses, guards, host_ends, inside, links, pings, routes
from tests.lab.node.node import CONTAINER, Node
from tests.lab.runtimes.runtime import call, netns
from tests.lab.switch.switch import wait_until

EITHER = pytest.mark.parametrize("node", ["", "agent"], indirect=True, ids=["process", "agent"])
OTHER = "b0" * 32


@pytest.fixture
def other() -> Iterator[str]:
    with netns() as path:
        yield path


def podnet(node: Node, version: str = "1.0.0", host: dict[str, Any] | None = None, **keys: Any) -> dict[str, Any]:
    """A network of ordinary pods on br-test, with addresses; `host` and `keys` override parts of it."""
    block = {"engine": "ovs-dpdk", "iftype": "veth", "bridge": {"bridgeName": "br-test"}, **(host or {})}
    ipam = {
        "type": "host-local",
        "dataDir": str(node.ipam_dir),
        "ranges": [[{"subnet": "10.56.0.0/24", "gateway": "10.56.0.1"}], [{"subnet": "fd00:56::/64", "gateway": "fd00:56::1"}]],
        "routes": [{"dst": "192.0.2.0/24"}, {"dst": "fd00:99::/64"}],
    }
    return {"cniVersion": version, "name": "podnet", "type": "userspace", "host": block, "ipam": ipam, **keys}


def left_in_switch(node: Node) -> dict[str, Any]:
    """What attachments left in the switch's namespace."""
    place = switch_of(node).netns
    return {key: found for key, found in (("links", host_ends(place)), ("guards", guards(place))) if found}


@EITHER
def test_two_pods_talk(node: Node, sandbox: str, other: str) -> None:
    """Two pods on one netdev bridge reach each other by IPv4 and IPv6; DEL leaves neither rows nor links nor guards."""
    network = podnet(node)
    first = succeeded(node.run("ADD", network, sandbox, ifname="eth0"))
    second = succeeded(node.run("ADD", network, other, OTHER, ifname="eth0"))
    [host, pod] = first["interfaces"]
    assert (pod["name"], pod["sandbox"], pod["mtu"]) == ("eth0", sandbox, 1500)
    assert "sandbox" not in host
    assert [each["interface"] for each in first["ips"]] == [1, 1]
    place = switch_of(node).netns
    assert host_ends(place)[host["name"]]["address"] == host["mac"]
    assert links(sandbox)["eth0"]["address"] == pod["mac"]
    assert addresses(sandbox, "eth0") == [each["address"] for each in first["ips"]]
    assert guards(place) == sorted(each["interfaces"][0]["name"] for each in (first, second))
    for each in second["ips"]:
        assert pings(sandbox, each["address"].partition("/")[0]) == 3
    assert node.run("CHECK", {**network, "prevResult": first}, sandbox, ifname="eth0").status == 0
    for place_of, container in ((sandbox, CONTAINER), (other, OTHER)):
        assert node.run("DEL", network, place_of, container, ifname="eth0").status == 0
    assert (node.leftovers(), left_in_switch(node)) == ({}, {})
    assert links(sandbox) == {}


def test_routes_and_protocol(node: Node, sandbox: str) -> None:
    """Routes of the IPAM plugin use the address's gateway and have protocol static; those to services exist beside them."""
    network = podnet(node, serviceCIDRs=["10.96.0.0/12"])
    succeeded(node.run("ADD", network, sandbox, ifname="eth0"))
    found = [(each["dst"], each["gateway"], each["protocol"]) for each in [*routes(sandbox), *routes(sandbox, "-6")]]
    assert sorted(found) == [
        ("10.96.0.0/12", "10.56.0.1", "static"),
        ("192.0.2.0/24", "10.56.0.1", "static"),
        ("fd00:99::/64", "fd00:56::1", "static"),
    ]
    assert node.run("DEL", network, sandbox, ifname="eth0").status == 0


def test_services_of_the_nodes_file(node: Node, sandbox: str) -> None:
    """MTU and network of Services come from a file of openshift-sdn; until it exists, ADD answers "try again"."""
    file = node.directory / "config.json"
    node.settings["USERSPACE_CNI_MTU_FILE"] = str(file)
    network = podnet(node, serviceCIDRs="node")
    refused(node.run("ADD", network, sandbox, ifname="eth0"), 11, "not yet available")
    file.write_text('{"mtu": 1450, "serviceNetworkCIDR": "172.30.0.0/16"}')
    result = succeeded(node.run("ADD", network, sandbox, ifname="eth0"))
    assert ("172.30.0.0/16", "10.56.0.1") in [(each["dst"], each["gateway"]) for each in routes(sandbox)]
    assert links(sandbox)["eth0"]["mtu"] == 1450
    file.unlink()
    assert node.run("CHECK", {**network, "prevResult": result}, sandbox, ifname="eth0").status == 0
    assert node.run("DEL", network, sandbox, ifname="eth0").status == 0
    assert (node.leftovers(), left_in_switch(node)) == ({}, {})


def test_the_name_is_taken(node: Node, sandbox: str) -> None:
    """When the pod has a link of that name, ADD is 101 and leaves nothing."""
    inside(sandbox, "ip", "link", "add", "eth0", "type", "veth", "peer", "name", "x0")
    answer = node.run("ADD", podnet(node), sandbox, ifname="eth0")
    refused(answer, 101, "eth0")
    assert (node.leftovers(), left_in_switch(node)) == ({}, {})
    assert set(links(sandbox)) == {"eth0", "x0"}


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (("ip", "link", "set", "eth0", "mtu", "1400"), "1400"),
        (("ip", "address", "flush", "dev", "eth0"), "10.56.0.2/24"),
        (("ip", "route", "del", "192.0.2.0/24"), "192.0.2.0/24"),
        (("ethtool", "-K", "eth0", "tx", "on"), "checksum"),
        (("ip", "link", "set", "eth0", "down"), "up"),
    ],
    ids=["mtu", "address", "route", "checksum", "down"],
)
def test_check_tells_what_differs(node: Node, sandbox: str, spoil: tuple[str, ...], named: str) -> None:
    """CHECK reads back what ADD has set in the pod."""
    network = podnet(node)
    result = succeeded(node.run("ADD", network, sandbox, ifname="eth0"))
    inside(sandbox, *spoil)
    refused(node.run("CHECK", {**network, "prevResult": result}, sandbox, ifname="eth0"), 103, named)
    assert node.run("DEL", network, sandbox, ifname="eth0").status == 0


def test_check_after_tuning(node: Node, sandbox: str) -> None:
    """A value at the pod's end that a later plugin changed and put into its result is no drift; a value in neither is."""
    network = podnet(node)
    result = succeeded(node.run("ADD", network, sandbox, ifname="eth0"))
    mac = "02:00:5E:00:53:01"
    given = {"type": "tuning", "mac": mac, "mtu": 1400, "dataDir": str(node.directory / "tuning"), "prevResult": result}
    stdin = json.dumps({"cniVersion": "1.0.0", "name": "podnet", **given}).encode()
    tuned = succeeded(call("/usr/lib/cni/tuning", "ADD", node.variables("ADD", sandbox, ifname="eth0"), stdin))
    entry = next(each for each in tuned["interfaces"] if each["name"] == "eth0")
    assert links(sandbox)["eth0"]["address"] == entry["mac"].lower() == mac.lower()
    refused(node.run("CHECK", {**network, "prevResult": result}, sandbox, ifname="eth0"), 103, mac.lower(), "1400")
    assert "mtu" not in entry  # Debian's plugin knows no MTU in results
    entry["mtu"] = 1400
    assert node.run("CHECK", {**network, "prevResult": tuned}, sandbox, ifname="eth0").status == 0
    inside(sandbox, "ip", "link", "set", "eth0", "address", "02:00:5e:00:53:02")
    refused(node.run("CHECK", {**network, "prevResult": tuned}, sandbox, ifname="eth0"), 103, "02:00:5e:00:53:02")
    assert node.run("DEL", network, sandbox, ifname="eth0").status == 0


def test_check_tells_of_a_missing_guard(node: Node, sandbox: str) -> None:
    """CHECK reports a missing guard, without which the node's own stack sees the pod's frames."""
    network = podnet(node)
    result = succeeded(node.run("ADD", network, sandbox, ifname="eth0"))
    inside(switch_of(node).netns, "nft", "flush", "ruleset")
    host = result["interfaces"][0]["name"]
    refused(node.run("CHECK", {**network, "prevResult": result}, sandbox, ifname="eth0"), 103, host)
    assert decoded(node, "status", code=1)["guards"] == {"there": 0, "needed": 1, "problem": ""}
    assert "0 of 1 guarded" in cli(node, "status", code=1).stdout
    [drift] = decoded(node, "check", code=1)["drifts"]
    assert (drift["step"], host in drift["what"]) == ("guard", True)
    assert node.run("DEL", network, sandbox, ifname="eth0").status == 0
    assert (node.leftovers(), left_in_switch(node)) == ({}, {})


@EITHER
def test_the_namespace_is_gone(node: Node) -> None:
    """The link has gone with its namespace; DEL removes the rest, and a second DEL has nothing to do."""
    network = podnet(node)
    with netns() as path:
        succeeded(node.run("ADD", network, path, ifname="eth0"))
    wait_until(lambda: not host_ends(switch_of(node).netns), what="the link's end")
    for _ in range(2):
        assert node.run("DEL", network, "", ifname="eth0").status == 0
    assert (node.leftovers(), left_in_switch(node)) == ({}, {})


def test_a_lost_record(node: Node, sandbox: str) -> None:
    """DEL without a record finds port, link and guard by the names that ADD gave them."""
    network = podnet(node)
    succeeded(node.run("ADD", network, sandbox, ifname="eth0"))
    for path in (node.state / "attachments").iterdir():
        path.unlink()
    assert node.run("DEL", network, sandbox, ifname="eth0").status == 0
    assert left_in_switch(node) == {}
    assert node.leftovers().keys() <= {"leases"}


def test_both_kinds_in_one_pod(node: Node, sandbox: str) -> None:
    """A pod may have a kernel link and a vhost-user interface of one bridge, and lose one of them."""
    succeeded(node.run("ADD", podnet(node), sandbox, ifname="eth0"))
    vhost = node.network()
    succeeded(node.run("ADD", vhost, sandbox))
    assert len(switch_of(node).ports("br-test")) == 2
    assert node.run("DEL", vhost, sandbox).status == 0
    assert len(switch_of(node).ports("br-test")) == 1
    assert node.run("DEL", podnet(node), sandbox, ifname="eth0").status == 0
    assert (node.leftovers(), left_in_switch(node)) == ({}, {})


def test_the_steps_of_an_add_in_the_log(node: Node, sandbox: str, other: str) -> None:
    """With logLevel `debug`, the log has each step of an ADD and its milliseconds; networks without it have no such line."""
    addresses = [{"address": "10.56.0.1/24"}, {"address": "fd00:56::1/64"}]
    router = podnet(node, ipam={"type": "static", "addresses": addresses})
    quiet = node.run("ADD", router, other, OTHER, ifname="eth0")
    succeeded(quiet)
    assert quiet.stderr == b""
    network = podnet(node, gatewayCheck=True, logLevel="debug")
    answer = node.run("ADD", network, sandbox, ifname="eth0")
    succeeded(answer)
    lines = answer.stderr.decode().splitlines()
    for each in ("read pod, annotations and bridge", "leased addresses", "step=link", "step=port", "asked the gateways"):
        assert [line for line in lines if each in line and " ms=" in line], each
    assert "msg=answered" in lines[-1]
    assert node.run("DEL", network, sandbox, ifname="eth0").status == 0
    assert node.run("DEL", router, other, OTHER, ifname="eth0").status == 0
