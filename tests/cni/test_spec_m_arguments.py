"""Items 108 to 111 of the specification's checklist: arguments and capabilities."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cni.spec import PORT, refused, succeeded, switch_of
from tests.lab.node.node import CONTAINER, Node
from tests.lab.runtimes.runtime import Runtime

MACS = [f"02:00:00:00:00:0{number}" for number in range(4)]


def test_108_who_decides_the_mac(node: Node, sandbox: str) -> None:
    """The precedence is runtimeConfig, args.cni, CNI_ARGS, host.mac; without any of them the MAC is derived."""
    keys: dict[str, Any] = {"runtimeConfig": {"mac": MACS[0]}, "args": {"cni": {"mac": MACS[1]}}}
    network = node.network()
    network["host"]["mac"] = MACS[3]
    asked: list[tuple[dict[str, Any], str]] = [
        (network | keys, f"MAC={MACS[2]}"),
        (network | {"args": keys["args"]}, f"MAC={MACS[2]};MAC=nonsense"),
        (network, f"MAC={MACS[2]}"),
        (network, "MAC="),
    ]
    for (stdin, args), mac in zip(asked, MACS, strict=True):
        result = succeeded(node.run("ADD", stdin, sandbox, CNI_ARGS=args))
        assert result["interfaces"][0]["mac"] == mac
        assert switch_of(node).interface(PORT)["external_ids"]["attached-mac"] == mac
        succeeded(node.run("DEL", stdin, sandbox))
    derived = set()
    for _ in range(2):
        derived.add(succeeded(node.run("ADD", node.network(), sandbox))["interfaces"][0]["mac"])
        succeeded(node.run("DEL", node.network(), sandbox))
    (mac,) = derived
    assert int(mac[:2], 16) & 3 == 2
    refused(node.run("ADD", node.network(), sandbox, CNI_ARGS="MAC=nonsense"), 4, "CNI_ARGS", "nonsense")


def test_108_addresses_that_are_asked_for(node: Node, sandbox: str) -> None:
    """runtimeConfig.ips must be granted.

    Addresses in args.cni or CNI_ARGS are left to the IPAM plugin, as host-local serves them.
    """
    network = node.network("1.0.0", ipam=node.host_local())
    cases: list[tuple[dict[str, Any], str]] = [
        ({"runtimeConfig": {"ips": ["10.56.0.50"]}}, ""),
        ({"args": {"cni": {"ips": ["10.56.0.50"]}}}, ""),
        ({}, "IP=10.56.0.50"),
    ]
    for keys, args in cases:
        result = succeeded(node.run("ADD", network | keys, sandbox, CNI_ARGS=args))
        assert result["ips"][0]["address"] == "10.56.0.50/24"
        succeeded(node.run("DEL", network, sandbox))
    without = node.run("ADD", node.network(), sandbox, CNI_ARGS="IP=10.56.0.50")
    assert "ips" not in succeeded(without)
    assert b"10.56.0.50" in without.stderr
    succeeded(node.run("DEL", network, sandbox))
    assert node.leftovers() == {}


@pytest.mark.parametrize("declared", [True, False])
def test_109_only_declared_capabilities_arrive(node: Node, sandbox: str, declared: bool) -> None:
    """A runtime's argument reaches the plugin only if the network declares the capability; else nothing was asked for."""
    info = node.device_info / "info"
    capabilities = {"mac": declared, "CNIDeviceInfoFile": declared}
    plugins = [node.network(capabilities=capabilities)]
    conf_dir = node.directory / "net.d"
    conf_dir.mkdir()
    (conf_dir / "net.conflist").write_text(json.dumps({"cniVersion": "1.1.0", "name": "net", "plugins": plugins}))
    runtime = Runtime(conf_dir, [node.bin], node.directory / "cache", node.variables("ADD"))
    asked = {"mac": MACS[0], "CNIDeviceInfoFile": str(info), "bandwidth": {"ingressRate": 1}}
    result = runtime.add("net", CONTAINER, sandbox, "net1", "", asked)
    assert (result["interfaces"][0]["mac"] == MACS[0]) == declared
    assert info.exists() == declared
    runtime.check("net", CONTAINER, sandbox, "net1", "", asked)
    runtime.delete("net", CONTAINER, sandbox, "net1", "", asked)
    assert not info.exists()
    assert node.leftovers() == {}


def test_110_shapes_of_capabilities(node: Node, sandbox: str) -> None:
    """Every well-known argument is accepted in its shape, or ignored where it has no meaning here."""
    runtime: dict[str, Any] = {
        "mac": "02:00:00:00:00:07",
        "ips": ["10.9.8.7/24", "2001:db8::7/64"],
        "bandwidth": {"ingressRate": 0, "ingressBurst": 0, "egressRate": 0, "egressBurst": 0},
        "portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": "127.0.0.1"}],
        "ipRanges": [[{"subnet": "10.9.0.0/16"}]],
        "dns": {"servers": ["10.0.0.1"], "searches": ["example.org"], "options": ["ndots:5"]},
        "infinibandGUID": "c2:11:22:33:44:55:66:77",
        "deviceID": "0000:00:01.0",
        "aliases": ["a", "b"],
        "cgroupPath": "/sys/fs/cgroup/x",
        "CNIDeviceInfoFile": str(node.device_info / "info"),
    }
    network = node.network("1.0.0", ipam={"type": "static"}, capabilities=dict.fromkeys(runtime, True), runtimeConfig=runtime)
    result = succeeded(node.run("ADD", network, sandbox))
    assert [entry["address"] for entry in result["ips"]] == ["10.9.8.7/24", "2001:db8::7/64"]
    succeeded(node.run("CHECK", {**network, "prevResult": result}, sandbox))
    succeeded(node.run("DEL", network, sandbox))
    assert node.leftovers() == {}
