"""A node whose power is cut while pods are attached."""

from __future__ import annotations

import json

import pytest

from tests.lab.cluster.cluster import LEFT_S, RUNNING_S, Cluster
from tests.lab.cluster.node import BOOT_ID
from tests.lab.cluster.pods import attached_pod, network
from tests.lab.switch.switch import wait_until

pytestmark = pytest.mark.timeout(600)
NETWORK = "dpdk-net"
PODS = [f"app-{number}" for number in range(3)]


def test_pods_come_back_after_a_power_cut(clean: Cluster) -> None:
    """Each pod has one port and one address of the new boot, the agent is Ready, and nothing of the former boot is left."""
    clean.join(network(NETWORK))
    for name in PODS:
        clean.apply(attached_pod(name))
    clean.wait_running(*PODS)
    former = set(clean.node.ports())
    assert len(former) == len(PODS)
    boot = clean.path(BOOT_ID).read_text()
    clean.reboot()
    assert clean.path(BOOT_ID).read_text() != boot

    def ports() -> set[str]:
        return set(clean.node.ports())

    wait_until(lambda: len(ports() - former) == len(PODS), RUNNING_S, "a port of the new boot for each pod")
    wait_until(lambda: not ports() & former, LEFT_S, "no port of the former boot")
    clean.wait_running(*PODS)
    clean.wait_agent()
    attached = json.loads(clean.agent("list", "--json"))
    assert {f"{each['container'][:12]}-{each['ifname']}" for each in attached} == ports()
    assert len(clean.node.leases(NETWORK)) == len(PODS)
    boots = {clean.switch.port(port)["external_ids"]["boot-id"] for port in ports()}
    assert boots == {clean.path(BOOT_ID).read_text().strip()}
    assert clean.agent("check") == ""
