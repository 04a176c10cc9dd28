"""Limits of pods' logical ports as rows of OVN: what real meters let pass, to the pod and from it, of both kinds of ports."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import pytest

from tests.lab.frames.udp_rates import UdpFlow, offer
from tests.lab.ovn.central import INTEGRATION
from tests.lab.switch.switch import wait_until
from tests.ovn.test_two_chassis import KINDS, RunningPod, World, two_nodes
from userspace_cni.base.settings import Settings

INGRESS, EGRESS = "kubernetes.io/ingress-bandwidth", "kubernetes.io/egress-bandwidth"
M = 1_000_000
OFFERED = 20 * M
NEAR = 1.15
"""How much more than its limit a port may get: what its burst let pass is over by then."""
BETWEEN = pytest.mark.parametrize(
    ("limited", "other"), [(0, 1), (1, 0), (0, 3), (1, 2)], ids=["vhost", "veth", "vhost-far", "veth-far"]
)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """Two nodes with a pod of each kind, whose limits are OVN's."""
    with two_nodes(KINDS, Settings(ovn_default_limits="ovn")) as made:
        yield made


@pytest.fixture(autouse=True)
def no_limits(world: World) -> Iterator[None]:
    """Each test begins and ends without limits."""
    yield
    for number in range(len(KINDS)):
        annotate(world, number, {INGRESS: None, EGRESS: None})
    wait_until(lambda: not rows(world), what="no rows of limits")
    wait_until(lambda: not any(meters(world, each) for each in world.ovn.switches), what="no meters")


def annotate(world: World, number: int, said: dict[str, str | None]) -> None:
    """Annotate a pod, as its author does."""
    world.api.change("default", f"p{number}", {"metadata": {"annotations": said}})


def limit(world: World, number: int, **said: int) -> None:
    """Limit a pod in bit/s, and wait until all chassis have its rows."""
    annotate(world, number, {INGRESS: str(said["to_pod"]) if "to_pod" in said else None})
    annotate(world, number, {EGRESS: str(said["from_pod"]) if "from_pod" in said else None})
    wanted = {f"default_p{number} {rate // 1000}" for rate in said.values()}
    wait_until(lambda: {each for each in rows(world) if each.startswith(f"default_p{number} ")} == wanted, what=f"{wanted}")
    world.ovn.nbctl("--timeout=60", "--wait=hv", "sync")


def rows(world: World) -> set[str]:
    """Port and rate in kbit/s of each row of ours."""
    told = world.ovn.nbctl("--format=json", "--columns=external_ids,bandwidth", "find", "QoS", "external_ids:owner=userspace-cni")
    pairs = [(dict(ids), dict(bandwidth)) for (_, ids), (_, bandwidth) in json.loads(told)["data"]]
    return {f"{ids['port']} {bandwidth['rate']}" for ids, bandwidth in pairs}


def meters(world: World, node: str) -> list[str]:
    """The meters of the node's integration bridge."""
    target = f"unix:{world.ovn.switches[node].rundir}/{INTEGRATION}.mgmt"
    argv = ["ovs-ofctl", "-O", "OpenFlow15", "dump-meters", target]
    told = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    return [line for line in told.splitlines() if line.startswith("meter=")]


def flow(source: RunningPod, target: RunningPod) -> UdpFlow:
    return UdpFlow(source.netns, target.netns, target.address, OFFERED)


def assert_limited(*flows: tuple[UdpFlow, int]) -> None:
    """Never more arrives than the limits let pass, and so much does once this machine is quiet enough to carry it."""

    def is_reached() -> bool:
        found = offer([each for each, _ in flows])
        rates = [rate for _, rate in flows]
        assert all(each.received < rate * NEAR for each, rate in zip(found, rates, strict=True)), found
        return all(each.received > rate * 0.8 for each, rate in zip(found, rates, strict=True))

    wait_until(is_reached, seconds=120, what="the rate of the limits")


def assert_free(*flows: UdpFlow) -> None:
    """More than any limit here lets pass arrives, once this machine carries it."""
    wait_until(lambda: all(each.received > 8 * M for each in offer(flows)), seconds=120, what="frames without a limit")


@BETWEEN
def test_what_a_limit_lets_pass(world: World, limited: int, other: int) -> None:
    """To the pod and from it, each by its own rate; without limits a multiple of it arrives."""
    one, two = world.pods[limited], world.pods[other]
    assert_free(flow(two, one), flow(one, two))
    limit(world, limited, to_pod=2 * M, from_pod=3 * M)
    assert_limited((flow(two, one), 2 * M), (flow(one, two), 3 * M))


def test_a_changed_annotation(world: World) -> None:
    """The living port's limit is another: three times as much arrives; without the annotation all of it."""
    one, two = world.pods[0], world.pods[1]
    for rate in (2 * M, 6 * M):
        limit(world, 0, to_pod=rate)
        assert_limited((flow(two, one), rate))
    limit(world, 0)
    assert_free(flow(two, one))


def test_equal_limits_are_not_shared(world: World) -> None:
    """Two ports of one chassis with the same rate and burst have it each, and both directions of a port."""
    source = world.pods[2]
    for number in (0, 1):
        limit(world, number, to_pod=2 * M, from_pod=2 * M)
    one, two = world.pods[0], world.pods[1]
    assert_limited(*((each, 2 * M) for each in (flow(source, one), flow(source, two), flow(one, source), flow(two, source))))


def test_a_row_that_others_change_or_remove(world: World) -> None:
    """It is put back, and what others wrote for the switch stays."""
    limit(world, 0, to_pod=2 * M)
    world.ovn.nbctl("qos-add", "n1", "to-lport", "7", "1", "dscp=9")
    world.ovn.nbctl("qos-del", "n1", "to-lport", "2000", 'outport == "default_p0"')
    wait_until(lambda: rows(world) == {"default_p0 2000"}, what="the row again")
    (ours,) = world.ovn.nbctl("--bare", "--columns=_uuid", "find", "QoS", "priority=2000").split()
    world.ovn.nbctl("set", "QoS", ours, "bandwidth:rate=9", "match=1")
    wait_until(lambda: world.ovn.nbctl("get", "QoS", ours, "match") == r'"outport == \"default_p0\""', what="its match again")
    assert rows(world) == {"default_p0 2000"}
    assert "dscp=9" in world.ovn.nbctl("qos-list", "n1")
    world.ovn.nbctl("qos-del", "n1", "to-lport", "7", "1")


def test_the_end_of_a_pod(world: World) -> None:
    """Its rows go with its port, and those of others stay."""
    limit(world, 0, from_pod=2 * M)
    name = "short"
    world.api.add_pod(
        {
            "metadata": {"name": name, "annotations": {INGRESS: "4M", EGRESS: "5M"}},
            "spec": {"nodeName": "n2"},
            "status": {"phase": "Running"},
        }
    )
    wait_until(lambda: {"default_short 4000", "default_short 5000"} < rows(world), what="the rows of both directions")
    world.api.remove_pod("default", name)
    wait_until(lambda: rows(world) == {"default_p0 2000"}, what="only the other's row")
    wait_until(lambda: "default_short" not in world.ovn.nbctl("show", "n2"), what="no port of it")


def test_a_word_that_no_one_understands(world: World) -> None:
    """It lifts no limit."""
    limit(world, 0, to_pod=2 * M)
    annotate(world, 0, {INGRESS: "as little as possible"})
    limit(world, 1, to_pod=3 * M)  # a later change was judged, so the earlier one was
    assert rows(world) == {"default_p0 2000", "default_p1 3000"}
