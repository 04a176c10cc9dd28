"""Pods without DPDK: `userspace-cni tap` makes kernel links of their vhost-user ports, in client and in server mode."""

from __future__ import annotations

import pytest

from tests.lab.cluster.cluster import Cluster
from tests.lab.cluster.machine import MachineError
from tests.lab.cluster.pods import network, tap_pod

pytestmark = pytest.mark.timeout(600)  # the first test of a run starts the cluster
BY_MODE = {"eth1": "client", "eth2": "server"}


def reached(cluster: Cluster, ifname: str) -> bool:
    """Whether an answer to a ping comes from the pod `right`, to which `left` has only this way."""
    address = cluster.note_of("right", ifname)["ipResult"]["ips"][0]["address"].partition("/")[0]
    try:
        cluster.exec("left", "busybox", "ping", "-c", "1", "-W", "1", address, container="app")
    except MachineError:
        return False
    return True


def wait_reached(cluster: Cluster) -> None:
    """Wait until `right` answers over each of the networks."""
    for ifname in BY_MODE:
        cluster.wait(lambda: reached(cluster, ifname), f"an answer over {ifname}")  # noqa: B023 -- at once


def test_pings_outlive_a_killed_tap_and_a_restarted_switch(clean: Cluster) -> None:
    """Two pods with a link on each of two networks reach each other, also after SIGKILL of their taps and a restart of OVS."""
    networks = enumerate(BY_MODE.values())
    clean.join(
        *(network(mode, f"10.56.{n}.0/24", vhost={"mode": mode}, bridge={"bridgeName": f"br-{n}"}) for n, mode in networks)
    )
    clean.apply(*(tap_pod(name, *BY_MODE) for name in ("left", "right")))
    clean.wait_running("left", "right")
    wait_reached(clean)
    for ifname in BY_MODE:
        clean.kill_container("left", f"tap-{ifname}")
    wait_reached(clean)
    clean.switch.restart_vswitchd()
    wait_reached(clean)
    clean.wait(lambda: not clean.differences(), "nothing that differs")
    reasons = {event.partition(":")[0] for event in clean.events("left")}
    assert not reasons & {"HugepagesMissing", "VolumeMissing", "KeyIgnored", "PortDegraded"}
