"""An agent that reads kube-ovn's annotations of its Node, and nothing else of the API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.living import LiveNode
from tests.cni.spec import switch_of
from tests.lab.kube.apiserver import ApiServer, Fault
from tests.lab.kube.objectstore import Write
from tests.lab.node import agent
from tests.lab.node.forked_node import run_command
from tests.lab.node.links import inside
from tests.lab.switch.switch import wait_until
from userspace_cni.node.state import CHASSIS, KUBEOVN_CHASSIS

NAME = "n1"
PORT = "node-n1"
NODE = {
    "ip_address": "100.64.0.2",
    "cidr": "100.64.0.0/16",
    "mac_address": "00:00:00:7A:0B:01",
    "gateway": "100.64.0.1",
    "port_name": PORT,
    "ingress_rate": "20",
}


def annotate(api: ApiServer, **said: str | None) -> None:
    """Write to the Node what a controller of kube-ovn, or a user by hand, writes."""
    named = {f"ovn.kubernetes.io/{key}": value for key, value in said.items()}
    api.objects("nodes").patch("", NAME, {"metadata": {"annotations": named}}, Write("kube-ovn"))


def noted(api: ApiServer) -> dict[str, str]:
    """The switch's names in the Node's annotations."""
    found: dict[str, str] = api.objects("nodes").get("", NAME)["metadata"].get("annotations") or {}
    return {key: value for key, value in found.items() if key in (CHASSIS, KUBEOVN_CHASSIS)}


@pytest.fixture
def api() -> Iterator[ApiServer]:
    """An API server with the Node, which has none of our resources and lets no agent read them."""
    with ApiServer() as started:
        started.add({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NAME}})
        started.faults.append(Fault(status=403, about="userspace-cni.io"))
        yield started


@pytest.fixture
def read(live: LiveNode, api: ApiServer) -> Iterator[LiveNode]:
    """A node whose agent is not started yet."""
    live.follow(api, NAME)
    live.settings |= {
        "USERSPACE_CNI_KUBEOVN_ANNOTATIONS": "true",
        "USERSPACE_CNI_GATEWAY_BRIDGE": "br-int",
    }
    switch_of(live).vsctl("set", "Open_vSwitch", ".", "external_ids:system-id=chassis-1")
    yield live
    live.close()
    uninstalled = run_command(live.environ, "uninstall", "--force", f"--bin-dir={Path(live.plugin).parent}")
    assert uninstalled.returncode == 0


def spec(live: LiveNode) -> dict[str, Any]:
    """The status of the gateway, {} while there is none."""
    _, body = agent.get(live.socket, "/api/v1/network")
    found: dict[str, dict[str, Any]] = {each["name"]: each for each in json.loads(body)["specs"]}
    return found.get(PORT, {})


def test_a_node_of_kubeovns_controller(read: LiveNode, api: ApiServer) -> None:
    """The gateway waits for OVN's bridge, and then is the logical port of its name. The Node gets the switch's name, in
    kube-ovn's words, too; the port's limit follows the annotation.

    An invalid value keeps the former one; `gateway status` says what such a gateway does not do.
    """
    annotate(api, **NODE)
    read.start()
    missing = "bridge br-int, OVN's integration bridge, is not there"
    wait_until(lambda: missing in spec(read).get("problem", ""), what="the gateway waits for the bridge")
    switch_of(read).vsctl("add-br", "br-int", "--", "set", "Bridge", "br-int", "datapath_type=netdev", "fail_mode=secure")
    wait_until(lambda: spec(read).get("ready"), what="the gateway")
    ids = switch_of(read).interface(PORT)["external_ids"]
    assert (ids["iface-id"], ids["ip"]) == (PORT, NODE["ip_address"])
    wait_until(lambda: noted(api) == {CHASSIS: "chassis-1", KUBEOVN_CHASSIS: "chassis-1"}, what="the switch's name at the Node")
    place = switch_of(read).netns
    assert "rate 20Mbit" in inside(place, "tc", "class", "show", "dev", PORT)
    annotate(api, ingress_rate="30")
    wait_until(lambda: "rate 30Mbit" in inside(place, "tc", "class", "show", "dev", PORT), what="the other rate")
    annotate(api, ingress_rate="30M")
    wait_until(lambda: "'30M'" in spec(read).get("problem", ""), what="the refusal")
    assert "rate 30Mbit" in inside(place, "tc", "class", "show", "dev", PORT)
    annotate(api, ingress_rate=None)
    wait_until(lambda: "htb" not in inside(place, "tc", "qdisc", "show", "dev", PORT), what="no limit")
    told = run_command(read.environ, "gateway", "status")
    assert (PORT in told.stdout, "neither masquerade nor clamp_mss nor routes" in told.stderr.replace("\n", " ")) == (True, True)
    assert "cannot report" not in read.log.read_text()


def test_a_bridge_for_annotations_that_are_not_read(read: LiveNode, api: ApiServer) -> None:
    """The agent says at its start that one setting has no effect without the other, and writes nothing to the Node."""
    read.settings["USERSPACE_CNI_KUBEOVN_ANNOTATIONS"] = "false"
    annotate(api, **NODE)
    read.start()
    assert "gateway_bridge has no effect" in read.log.read_text()
    assert (spec(read), noted(api)) == ({}, {})
