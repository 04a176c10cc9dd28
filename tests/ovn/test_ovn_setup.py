"""`userspace-cni ovn` with OVN whole: from nothing to two nodes, a chassis, and packets between their ports."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from socket import gethostname
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.lab.network.gateways import kept
from tests.lab.node.links import inside
from tests.lab.node.node import Node
from tests.lab.ovn.central import CHASSIS, INTEGRATION, Ovn
from tests.lab.pages import ROOT
from tests.lab.samples import COLUMNS, check_sample
from tests.lab.switch.switch import Switch, wait_until
from tests.unit.cli.test_cli_streams import environ
from userspace_cni.base.gateways import read_gateways
from userspace_cni.cli.main import userspace_cni

PORTS = {"ns_a": ("n1", "10.244.1.5"), "ns_b": ("n1", "10.244.1.6"), "ns_c": ("n2", "10.244.2.5")}
ENCAP = "192.0.2.11"
"""The node's address for tunnels."""
PAGE = ROOT / "docs" / "ovn.md"
Run = Callable[..., Result]


@pytest.fixture
def ovn(switch: Switch) -> Iterator[Ovn]:
    """OVN with the run's switch as its chassis."""
    with TemporaryDirectory(prefix="ovn-") as directory, Ovn(switch, Path(directory)) as started:
        inside(switch.netns, "ip", "address", "replace", f"{ENCAP}/32", "dev", "lo")
        yield started
        inside(switch.netns, "ip", "address", "del", f"{ENCAP}/32", "dev", "lo")
        switch.vsctl("--no-wait", "remove", "Open_vSwitch", ".", "external_ids", "ovn-nb", "ovn-encap-csum")
    for bridge in switch.bridges():
        switch.vsctl("--no-wait", "del-br", bridge)


@pytest.fixture
def run(switch: Switch, ovn: Ovn, tmp_path: Path) -> Run:
    """Runs a command of `ovn` on the switch's node; it has to end with `code`."""
    settings = tmp_path / "config.toml"
    settings.touch()

    def invoke(*arguments: str, code: int = 0) -> Result:
        databases = {f"USERSPACE_CNI_OVN_{each.upper()}": ovn.remote(each) for each in ("nb", "sb")}
        there = {"USERSPACE_CNI_OVSDB": switch.ovsdb, "OVS_RUNDIR": switch.rundir, "USERSPACE_CNI_CONFIG": str(settings)}
        there |= {"USERSPACE_CNI_SWITCH_NETNS": switch.netns, "COLUMNS": str(COLUMNS)}
        done = CliRunner(env={**environ(tmp_path), **there, **databases}).invoke(userspace_cni, ["ovn", *arguments])
        assert done.exit_code == code, done.output
        return done

    return invoke


def told(run: Run, command: str, code: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(command, "--json", code=code).stdout)
    return found


def test_from_nothing_to_packets(switch: Switch, ovn: Ovn, run: Run) -> None:
    """OVN binds ports of both nodes, and a packet finds its way within a switch and between two."""
    assert "ovn-no-cluster" in {each["name"] for each in told(run, "check", 1)["findings"]}
    run("init-cluster", "--cluster-subnet", "10.244.0.0/16")
    here = ("init-node", "--node", "n1", "--subnet", "10.244.1.0/24", "--encap-ip", ENCAP, "--no-encap-csum")
    run(*here)
    ids = switch.rows("Open_vSwitch")[0]["external_ids"]
    assert (ids["system-id"], ids["ovn-nb"], ids["ovn-encap-csum"]) == (CHASSIS, ovn.remote("nb"), "false")
    assert ovn.nbctl("get", "Logical_Switch_Port", "k8s-n1", "options:requested-chassis") == CHASSIS
    assert json.loads(run(*here, "--json").stdout) == {"node": "n1", "changes": [], "external_ids": {}, "dry_run": False}
    run("init-node", "--no-chassis", "--node", "n2", "--subnet", "10.244.2.0/24")
    wait_until(lambda: switch.bridge(INTEGRATION), what="the controller has made the bridge")
    for number, (name, (node, address)) in enumerate(PORTS.items()):
        mac = f"02:00:00:00:00:0{number}"
        ovn.nbctl("lsp-add", node, name, "--", "lsp-set-addresses", name, f"{mac} {address}")
        switch.vsctl(
            "add-port",
            INTEGRATION,
            f"v{number}",
            "--",
            "set",
            "Interface",
            f"v{number}",
            f"external_ids:iface-id={name}",
            "type=internal",
        )
    wait_until(lambda: all(each["up"] for each in told(run, "status")["ports"] if each["name"] in PORTS), what="all are up")
    status = told(run, "status")
    assert status["router"] == "ovn_cluster_router"
    assert [(each["name"], each["ports"]) for each in status["chassis"]] == [(CHASSIS, len(PORTS))]
    check_sample(PAGE, "userspace-cni ovn status", re.sub(rf"\b{gethostname()}\b", "n1", run("status").output))
    for target in ("ns/b", "c"):
        assert "eth.src == 02:00:00:00:00:00" in run("trace", "ns/a", target).output
    assert {each["severity"] for each in told(run, "check")["findings"]} <= {"note"}


def test_what_was_broken_by_hand_is_found_and_mended(ovn: Ovn, run: Run) -> None:
    """A row that is gone, and one that differs: by the same commands they are as before."""
    commands = (
        ("init-cluster", "--cluster-subnet", "10.244.0.0/16"),
        ("init-node", "--node", "n1", "--subnet", "10.244.1.0/24", "--encap-ip", ENCAP),
    )
    for each in commands:
        run(*each)
    ovn.nbctl("lsp-del", "jtor-ovn_cluster_router", "--", "remove", "Logical_Switch", "n1", "other_config", "exclude_ips")
    found = {each["message"] for each in told(run, "check", 1)["findings"] if each["name"] == "ovn-row-differs"}
    assert found == {
        "Logical_Switch_Port jtor-ovn_cluster_router is missing",
        "Logical_Switch n1 differs in other_config",
    }
    check_sample(PAGE, "userspace-cni ovn check", run("check", code=1).output)
    for each in commands:
        run(*each)
    assert "ovn-row-differs" not in {each["name"] for each in told(run, "check")["findings"]}


def test_the_nodes_own_port_reaches_routers(switch: Switch, ovn: Ovn, run: Run, node: Node, tmp_path: Path) -> None:
    """What init-node wrote into the settings is a gateway that the node keeps, and OVN binds it: it reaches all subnets.

    It is made while OVN's bridge has a tunnel to another chassis, too.
    """
    run("init-cluster", "--cluster-subnet", "10.244.0.0/16")
    run("init-node", "--node", "n1", "--subnet", "10.244.1.0/24", "--encap-ip", ENCAP)
    run("init-node", "--no-chassis", "--node", "n2", "--subnet", "10.244.2.0/24")
    (gateway,) = read_gateways(tomllib.loads((tmp_path / "config.toml").read_text())["gateway"], "the settings")
    wait_until(lambda: switch.bridge(INTEGRATION), what="the controller has made the bridge")
    tunnel = ("set", "Interface", "ovn-n2-0", "type=geneve", "options:remote_ip=192.0.2.12", "options:key=flow")
    switch.vsctl("add-port", INTEGRATION, "ovn-n2-0", "--", *tunnel)
    with kept(node, switch.netns) as site:
        assert site.keep(gateway) == {"k8s-n1": ""}
        for address in ("10.244.1.1", "10.244.2.1"):
            wait_until(lambda address=address: is_answering(site.place, address), what=f"{address} answers")  # type: ignore[misc]
        assert "10.244.0.0/16 via 10.244.1.1 dev k8s-n1" in inside(site.place, "ip", "route")


def is_answering(place: str, address: str) -> bool:
    """Whether an echo comes back, asked for in the node's own network."""
    return " 0% packet loss" in inside(place, "ping", "-c", "1", "-W", "1", address, check=False)
