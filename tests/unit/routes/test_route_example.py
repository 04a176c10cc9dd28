"""The worked example of the original project: a pod of two networks, and its routing table with a Route."""

from __future__ import annotations

from tests.unit.routes.building import OURS, found, inside, lines, route, service
from userspace_cni.base.routing import Inside, PodRoute
from userspace_cni.routes.cluster_facts import RoutePod
from userspace_cni.routes.explanation import drift
from userspace_cni.routes.resolving import resolve
from userspace_cni.routes.rules import Rulebook

POD = RoutePod("default", "client", "u1", phase="Running")
SERVICES = (service("default/slow", "10.86.69.17"), service("default/fast", "10.86.205.109"))
ROUTE = route(
    "low-latency",
    "10.124.0.0/16 eth1 10.124.2.1",
    "172.16.10.0/24 eth1",
    "192.168.2.0/24 eth0",
    "default/slow eth0",
    "default/fast eth1",
)


def table(inside: Inside, wanted: tuple[PodRoute, ...]) -> set[str]:
    """The main table with the desired routes, as the example shows it: destination, gateway, device."""
    return {f"{each.dst} {each.via or 'on-link'} {each.dev}" for each in (*inside.routes, *wanted)}


def test_the_eight_lines() -> None:
    """Calico's two routes, the subnet of eth1 and the Route give exactly the eight lines of the example."""
    before = inside()
    book = Rulebook([ROUTE], SERVICES)
    resolved = resolve(book.claims(POD), before, book.cluster)
    assert (resolved.skipped, resolved.refusals, resolved.overridden) == ((), (), ())
    made = tuple(PodRoute(each.dst, each.via, each.dev, each.metric, OURS) for each in resolved.routes)
    assert table(before, made) == {
        "0.0.0.0/0 169.254.1.1 eth0",
        "169.254.1.1/32 on-link eth0",
        "10.86.69.17/32 on-link eth0",
        "10.86.205.109/32 on-link eth1",
        "10.124.0.0/16 10.124.2.1 eth1",
        "10.124.2.0/24 on-link eth1",
        "172.16.10.0/24 on-link eth1",
        "192.168.2.0/24 on-link eth0",
    }
    assert not [*drift(resolved, Inside(before.links, (*before.routes, *made))).findings("pod", resolved)]


def test_the_order_of_the_example() -> None:
    """Routes with long prefixes are made first."""
    book = Rulebook([ROUTE], SERVICES)
    assert lines(resolve(book.claims(POD), inside(), book.cluster)) == [
        "10.86.69.17/32 dev eth0",
        "10.86.205.109/32 dev eth1",
        "172.16.10.0/24 dev eth1",
        "192.168.2.0/24 dev eth0",
        "10.124.0.0/16 via 10.124.2.1 dev eth1",
    ]


def test_the_example_with_the_subnet_itself() -> None:
    """A Route that also asks for the subnet of eth1 changes nothing: the kernel has it already."""
    whole = route("low-latency", "10.124.0.0/16 eth1 10.124.2.1", "10.124.2.0/24 eth1")
    book = Rulebook([whole], ())
    resolved = resolve(book.claims(POD), inside(), book.cluster)
    assert lines(resolved) == ["10.124.0.0/16 via 10.124.2.1 dev eth1"]
    assert [each.kind for each in resolved.skipped] == ["skipped"]


def test_the_example_in_a_pod_of_one_network() -> None:
    """A pod without eth1 gets the routes by eth0, and the others are skipped."""
    one = Inside({"eth0": inside().links["eth0"]}, (found("0.0.0.0/0 eth0 169.254.1.1", 3), found("169.254.1.1/32 eth0", 3)))
    book = Rulebook([ROUTE], SERVICES)
    resolved = resolve(book.claims(POD), one, book.cluster)
    assert lines(resolved) == ["10.86.69.17/32 dev eth0", "192.168.2.0/24 dev eth0"]
    assert {each.text.rpartition(": ")[2] for each in resolved.skipped} == {"the pod has no device eth1"}
    assert len(resolved.skipped) == 3
