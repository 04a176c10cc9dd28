"""Pods without DPDK: with `userspace-cni tap` at their vhost-user ports, in client and in server mode, and ordinary ones."""

from __future__ import annotations

import pytest

from tests.lab.cluster.cluster import Cluster
from tests.lab.cluster.machine import MachineError
from tests.lab.cluster.pods import link_network, network, pod, tap_pod

pytestmark = pytest.mark.timeout(600)  # the first test of a run starts the cluster
BY_MODE = {"eth1": "client", "eth2": "server"}


def reached(cluster: Cluster, ifname: str) -> bool:
    """Whether a ping of `left`, which has only this way, is answered by the pod `right`."""
    return answered(cluster, cluster.note_of("right", ifname)["ipResult"]["ips"][0]["address"].partition("/")[0])


def answered(cluster: Cluster, address: str) -> bool:
    """Whether a ping of `left` is answered from there."""
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
    clean.wait_as_made()
    reasons = {event.partition(":")[0] for event in clean.events("left")}
    assert not reasons & {"HugepagesMissing", "VolumeMissing", "KeyIgnored", "PortDegraded"}


def test_ordinary_pods(clean: Cluster) -> None:
    """Two pods as any other, with an interface on our network beside eth0: the agent in its container makes their links."""
    clean.join(link_network("links", "10.57.0.0/24"))
    clean.apply(pod("left"), pod("right"))
    clean.wait_running("left", "right")
    shown = clean.exec("right", "busybox", "ip", "-4", "-o", "address", "show", "dev", "eth1")
    address = shown.split()[3].partition("/")[0]
    clean.wait(lambda: answered(clean, address), "an answer over eth1")
    clean.wait_as_made()
    assert not {event.partition(":")[0] for event in clean.events("left")} & {"KeyIgnored", "PortDegraded", "VolumeMissing"}
