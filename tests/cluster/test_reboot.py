"""A node whose power is cut while pods are attached."""

from __future__ import annotations

import json

import pytest

from tests.lab.cluster.cluster import LEFT_S, RUNNING_S, Cluster
from tests.lab.cluster.node import BOOT_ID
from tests.lab.cluster.pods import attached_pod, link_network, network
from tests.lab.switch.switch import wait_until

pytestmark = pytest.mark.timeout(600)
NETWORK, LINKS = "dpdk-net", "links"
PODS = [f"app-{number}" for number in range(3)]


def test_pods_come_back_after_a_power_cut(clean: Cluster) -> None:
    """Each pod has a vhost-user port, a kernel link's port and their addresses of
    the new boot, and nothing of the former boot is left.
    """
    clean.join(network(NETWORK), link_network(LINKS, "10.57.0.0/24"))
    clean.apply(*(attached_pod(name) for name in PODS))
    clean.wait_running(*PODS)
    former = set(clean.node.ports())
    assert len(former) == 2 * len(PODS)
    boot = clean.path(BOOT_ID).read_text()
    clean.reboot()
    assert clean.path(BOOT_ID).read_text() != boot

    def ports() -> set[str]:
        return set(clean.node.ports())

    wait_until(lambda: len(ports() - former) == 2 * len(PODS), RUNNING_S, "the ports of the new boot")
    wait_until(lambda: not ports() & former, LEFT_S, "no port of the former boot")
    clean.wait_running(*PODS)
    clean.wait_agent()
    attached = json.loads(clean.agent("list", "--json"))
    assert {each["port"] for each in attached} == ports()
    assert [len(clean.node.leases(name)) for name in (NETWORK, LINKS)] == [len(PODS)] * 2
    boots = {clean.switch.port(port)["external_ids"]["boot-id"] for port in ports()}
    assert boots == {clean.path(BOOT_ID).read_text().strip()}
    clean.wait_as_made()
