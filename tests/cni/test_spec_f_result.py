"""Items 54 to 62 of the specification's checklist: the result of ADD."""

from __future__ import annotations

import ipaddress
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.cni.spec import LEASED, PORT, SUPPORTED, ipam, refused, refused_soon, scripted, succeeded, switch_of
from tests.lab.node.node import CONTAINER, Node
from tests.lab.runtimes.runtime import Runtime

MODERN = ("1.0.0", "1.1.0")
KEYS = {
    "": {"cniVersion", "interfaces", "ips", "routes", "dns"},
    "interfaces": {"name", "mac", "mtu", "sandbox", "socketPath", "pciID"},
    "ips": {"version", "interface", "address", "gateway"},
    "routes": {"dst", "gw", "mtu", "advmss", "priority", "table", "scope"},
}
ROUTED = {**LEASED, "routes": [{"dst": "0.0.0.0/0", "gw": "10.1.2.1"}, {"dst": "2001:db8::/32"}]}


@pytest.mark.parametrize("version", SUPPORTED)
def test_054_fields_of_each_version(node: Node, sandbox: str, version: str) -> None:
    """The result has the input's version, and exactly the fields of that version."""
    old = version not in MODERN
    network = node.network(version, ipam=node.host_local() if version != "1.1.0" else ipam(scripted(node)))
    network["host"]["mtu"] = 2000
    result = succeeded(node.run("ADD", network, sandbox))
    assert result["cniVersion"] == version
    assert [entry.get("version") for entry in result["ips"]] == ["4" if old else None]
    (entry,) = result["interfaces"]
    assert entry.keys() == {"name", "mac", "sandbox"} | (set() if old else {"mtu", "socketPath"})
    assert result.get("dns") == ({} if old else None)
    succeeded(node.run("DEL", network, sandbox))
    assert node.leftovers() == {}


@pytest.mark.parametrize("spelling", ["{}", "/{}", "{0}/../{1}"])
def test_055_the_container_interface(node: Node, sandbox: str, spelling: str) -> None:
    """The result has one interface, in the container, with CNI_IFNAME and
    CNI_NETNS byte for byte, though the kernel has no such link.
    """
    netns = spelling.format(sandbox, Path(sandbox).name) if "1" not in spelling else _roundabout(sandbox)
    result = succeeded(node.run("ADD", node.network(), netns))
    assert [(entry["name"], entry["sandbox"]) for entry in result["interfaces"]] == [("net1", netns)]
    succeeded(node.run("CHECK", {**node.network(), "prevResult": result}, netns))
    succeeded(node.run("DEL", node.network(), netns))


def _roundabout(path: str) -> str:
    parent = Path(path).parent
    return f"{parent}/../{parent.name}/./{Path(path).name}"


def test_056_what_is_said_of_the_interface(node: Node, sandbox: str) -> None:
    """mac is in lower case, mtu a number, socketPath absolute and the port's; there is no pciID, with any deviceID."""
    network = node.network(runtimeConfig={"mac": "0A:BC:DE:F0:12:34", "deviceID": "0000:00:01.0"}, deviceID="0000:00:01.0")
    network["host"]["mtu"] = 9000
    (entry,) = succeeded(node.run("ADD", network, sandbox))["interfaces"]
    path = switch_of(node).interface(PORT)["options"]["vhost-server-path"]
    assert entry == {"name": "net1", "mac": "0a:bc:de:f0:12:34", "mtu": 9000, "sandbox": sandbox, "socketPath": path}
    assert path.startswith("/")
    succeeded(node.run("DEL", network, sandbox))


def test_057_addresses(node: Node, sandbox: str) -> None:
    """An address is in CIDR form, a gateway plain, and the interface is the index of the container's entry."""
    answer = {
        "cniVersion": "0.4.0",
        "ips": [
            {"version": "4", "address": "10.1.2.3/24", "gateway": "10.1.2.1"},
            {"version": "6", "address": "2001:db8::7/64", "interface": 9},
        ],
    }
    previous = {"interfaces": [{"name": "a"}, {"name": "b", "sandbox": sandbox}]}
    network = node.network(ipam=ipam(scripted(node).tell("ADD", answer=answer)), prevResult=previous)
    result = succeeded(node.run("ADD", network, sandbox))
    assert [result["interfaces"][entry["interface"]]["name"] for entry in result["ips"]] == ["net1", "net1"]
    for entry in result["ips"]:
        assert str(ipaddress.ip_interface(entry["address"])) == entry["address"]
    assert [entry.get("gateway") for entry in result["ips"]] == ["10.1.2.1", None]
    succeeded(node.run("DEL", network, sandbox))


def test_058_routes(node: Node, sandbox: str) -> None:
    """A route's dst is a network in CIDR form and its gw plain; a delegate that says "default" is refused."""
    delegate = scripted(node).tell("ADD", answer=ROUTED)
    network = node.network(ipam=ipam(delegate))
    result = succeeded(node.run("ADD", network, sandbox))
    assert result["routes"] == ROUTED["routes"]
    succeeded(node.run("DEL", network, sandbox))
    for route in ({"dst": "default"}, {"dst": "0.0.0.0"}, {"dst": "10.0.0.0/8", "gw": "10.1.2.1/24"}, {"gw": "10.1.2.1"}):
        delegate.tell("ADD", answer={**LEASED, "routes": [route]})
        refused(node.run("ADD", network, sandbox), 108, "routes[0]")
    assert node.leftovers() == {}


def test_059_no_private_keys(node: Node, sandbox: str) -> None:
    """The result has only keys of the specification: libcni's structs lose nothing, and CHECK and DEL get all of it back."""
    secret: dict[str, Any] = {"secret": 1, "interfaces": [{"name": "x"}], "dns": {"domain": "d", "secret": 2}}
    delegate = scripted(node).tell("ADD", answer={**ROUTED, **secret, "ips": [{"address": "10.1.2.3/24", "secret": 3}]})
    conf_dir = node.directory / "net.d"
    conf_dir.mkdir()
    plugin = node.network(ipam=ipam(delegate))
    (conf_dir / "net.conflist").write_text(json.dumps({"cniVersion": "1.1.0", "name": "net", "plugins": [plugin]}))
    runtime = Runtime(conf_dir, [node.bin], node.directory / "cache", node.variables("ADD"))
    cached = runtime.add("net", CONTAINER, sandbox, "net1")
    printed: dict[str, Any] = runtime.calls[-1].document
    assert printed == cached
    assert printed.keys() <= KEYS[""]
    for kind in ("interfaces", "ips", "routes"):
        assert all(entry.keys() <= KEYS[kind] for entry in printed[kind])
    runtime.check("net", CONTAINER, sandbox, "net1")
    runtime.delete("net", CONTAINER, sandbox, "net1")
    assert node.leftovers() == {}


@pytest.mark.parametrize("version", ["0.3.1", "0.4.0"])
def test_060_the_socket_path_is_in_the_record(node: Node, sandbox: str, version: str) -> None:
    """Old results have no socketPath: CHECK takes the port's path from the record, and DEL removes everything."""
    network = node.network(version)
    result = succeeded(node.run("ADD", network, sandbox))
    assert "socketPath" not in result["interfaces"][0]
    if version == "0.4.0":
        succeeded(node.run("CHECK", {**network, "prevResult": result}, sandbox))

        def change() -> None:
            switch_of(node).vsctl("set", "Interface", PORT, "options:vhost-server-path=/nowhere")

        change()
        checking = partial(node.run, "CHECK", {**network, "prevResult": result}, sandbox)
        refused_soon(checking, 103, "vhost-server-path", "/nowhere", again=change)
    succeeded(node.run("DEL", {**network, "prevResult": result}, sandbox))
    assert node.leftovers() == {}


def test_061_version_of_the_previous_result(node: Node, sandbox: str) -> None:
    """A prevResult without a version counts as of the configuration's; any supported version is accepted, others are refused."""
    address = {"address": "192.0.2.7/24"}
    for version in (None, "0.3.0", "0.4.0", "1.0.0"):
        previous: dict[str, Any] = {"ips": [{**address, "version": "4"} if version and version < "1" else address]}
        previous |= {"cniVersion": version} if version else {}
        result = succeeded(node.run("ADD", node.network(prevResult=previous), sandbox))
        assert (result["cniVersion"], result["ips"]) == ("1.1.0", [address])
        succeeded(node.run("DEL", node.network(prevResult=previous), sandbox))
    for version in ("0.2.0", "9.9.9", "x"):
        refused(node.run("ADD", node.network(prevResult={"cniVersion": version}), sandbox), 7, "prevResult", version)
    malformed: list[Any] = [[], "x", {"ips": {}}, {"interfaces": [1]}, {"interfaces": [{"name": 1}]}]
    for wrong in malformed:
        refused(node.run("ADD", node.network(prevResult=wrong), sandbox), 6, "prevResult")
    assert node.leftovers() == {}


@pytest.mark.parametrize("version", SUPPORTED)
def test_062_never_empty(node: Node, sandbox: str, version: str) -> None:
    """The result has the container's interface even without an address: Multus publishes nothing of an empty one."""
    result = succeeded(node.run("ADD", node.network(version), sandbox))
    assert [(entry["name"], entry["sandbox"]) for entry in result["interfaces"]] == [("net1", sandbox)]
    assert "ips" not in result
    succeeded(node.run("DEL", node.network(version), sandbox))
