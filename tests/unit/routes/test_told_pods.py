"""Events for pods about entries that cannot work in them: sent once, when the state has settled, and to few pods at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from tests.unit.routes.test_route_passes import ETH1, Node, known, located, route
from userspace_cni.base.findings import Finding
from userspace_cni.base.notices import Recipient
from userspace_cni.base.routing import Inside, PodRoute
from userspace_cni.routes.cluster_facts import ClusterService, RoutePod
from userspace_cni.routes.known import KnownCluster
from userspace_cni.routes.refusal_events import GRACE_S, PODS_MAX, REFILL_S, TEXTS_MAX, RefusalEvents
from userspace_cni.routes.reports import uses

OLD_S = 600.0


class Told(Node):
    """A node whose pods are looked at in rounds. `sent` has the Events about them."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[tuple[Recipient, list[str]]] = []
        self.events = RefusalEvents(self._send, lambda: self.now)

    def round(self, known: KnownCluster, after_s: float = 0.0) -> list[str]:
        """The pods that get an Event in a round this many seconds later."""
        self.now += after_s
        del self.sent[:]
        self.visit(known)
        self.events.tell(self.passes.visited.values())
        return [recipient.name for recipient, _ in self.sent]

    def _send(self, recipient: Recipient, notices: Sequence[Finding]) -> None:
        assert {each.name for each in notices} == {"RouteRefused"}
        self.sent.append((recipient, [each.message for each in notices]))


@pytest.fixture
def node() -> Told:
    """A node with the pods a and b, which have existed for long."""
    made = Told()
    made.round(known())
    made.now += OLD_S
    return made


def lost(name: str = "one", via: str = "192.0.2.9", **spec: Any) -> dict[str, Any]:
    """A Route by a next hop that no pod can reach."""
    entries = [{"dst": "172.16.0.0/16", "dev": "eth1"}, {"dst": "172.17.0.0/16", "dev": "eth1", "via": via}]
    return route(name, **{"route": entries, **spec})


def test_each_pod_is_told_once(node: Told) -> None:
    """The pods of the Route get one Event each, by name and UID, although later rounds look at them again."""
    assert node.round(known(lost())) == ["a", "b"]
    recipient, [text] = node.sent[0]
    assert recipient == Recipient("default", "a", "u-a", "")
    assert text.startswith("Route 'one': spec.route[1]")
    assert "192.0.2.9" in text
    assert [node.round(known(lost()), each) for each in (0.0, 1.0, OLD_S)] == [[], [], []]


def test_what_changes_is_told(node: Told) -> None:
    """Another text makes an Event, and so does the same text after a repair. A repair itself does not."""
    assert node.round(known(lost(pods=[{"name": "a"}]))) == ["a"]
    assert node.round(known(lost(pods=[{"name": "a"}], via="192.0.2.10"))) == ["a"]
    assert "192.0.2.10" in node.sent[0][1][0]
    assert node.round(known(route("one", "172.16.0.0/16"))) == []
    assert node.round(known(lost(pods=[{"name": "a"}], via="192.0.2.10"))) == ["a"]


def test_what_may_still_come(node: Told) -> None:
    """A new pod gets its Event after its addresses had time to come, by a look that is due then. If they came, it gets none."""
    node.located = [located("new"), located("late")]
    pods = (RoutePod("default", "new", "u-new"), RoutePod("default", "late", "u-late"))
    assert node.round(known(lost(), pods=pods)) == []
    assert node.round(known(lost(), pods=pods), GRACE_S - 0.1) == []
    node.kernel.inside["/ns/late"] = Inside({"eth1": ETH1}, (PodRoute(ip_network("192.0.2.0/24"), None, "eth1", 0, 2),))
    assert node.passes.next_due <= node.now + 0.11
    assert node.round(known(lost(), pods=pods), 0.11) == ["new"]


def test_many_pods(node: Told) -> None:
    """Ten pods get an Event about a Route that fails in all of them. The others get none, also later, until something changes."""
    names = [f"p{number:03}" for number in range(110)]
    node.located = [located(name) for name in names]
    pods = [RoutePod("default", name, f"u-{name}") for name in names]
    node.round(known(pods=pods))
    assert node.round(known(lost(), pods=pods), OLD_S) == names[:PODS_MAX]
    assert node.round(known(lost(), pods=pods), OLD_S) == []
    assert len(node.round(known(lost(via="192.0.2.10"), pods=pods))) == PODS_MAX
    assert node.round(known(lost(via="192.0.2.11"), pods=pods), 2 * REFILL_S) == names[:2]
    assert uses(node.passes)[0].failed == len(names)


def test_an_event_has_few_texts(node: Told) -> None:
    """An Event names some of many entries that cannot work."""
    entries = [{"dst": f"172.{number}.0.0/16", "dev": "eth1", "via": "192.0.2.9"} for number in range(16, 32)]
    assert node.round(known(route("one", route=entries, pods=[{"name": "a"}]))) == ["a"]
    assert len(node.sent[0][1]) == TEXTS_MAX


def test_more_than_a_pod_may_have(node: Told) -> None:
    """A pod with more than 1024 routes gets an Event, and the Route that has no room fails."""
    first = route("a", *(f"10.{net}.{number}.0/24" for net in range(4) for number in range(256)))
    second = route("b", *(f"10.4.{number}.0/24" for number in range(256)))
    assert node.round(known(first, second)) == ["a", "b"]
    assert node.sent[0][1] == ["Route 'b': 256 of its routes are left out: a pod has 1024 at most"]
    assert [(each.name, each.failed) for each in uses(node.passes)] == [("a", 0), ("b", 2)]


def test_what_no_pod_can_have(node: Told) -> None:
    """An entry that cannot work in any pod is reported only for the Route, before entries that may still work."""
    svc = [{"namespace": "default", "name": name, "dev": "eth1"} for name in ("web", "kubernetes")]
    here = replace(known(route("one", svc=svc)), services=(ClusterService("default", "kubernetes", (ip_address("10.96.0.1"),)),))
    assert node.round(here) == []
    [use] = uses(node.passes)
    assert "the gate allow-apiserver allows it" in use.message
    assert [each.kind for each in node.passes.book.expanded[0].told] == ["service", "refused"]
