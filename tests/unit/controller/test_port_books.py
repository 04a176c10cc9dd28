"""What the controller keeps of logical ports is bounded by the pods and rows that there are, however many have come and gone."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from tests.unit.ovn.test_logical_ports_of_pods import SWITCHES, World, a_network, a_pod
from userspace_cni.base.notices import LOGICAL_PORT_MISSING, Recipient
from userspace_cni.controller.note_writers import NoteQueue
from userspace_cni.controller.port_news import PortNews, ToldPorts
from userspace_cni.controller.port_rounds import pause_after
from userspace_cni.ovn.cluster_pods import keep_network, keep_node
from userspace_cni.ovn.pod_notes import AddressNote
from userspace_cni.ovn.pod_ports import LogicalFacts
from userspace_cni.ovn.port_rows import FoundLogicalPort

ROUNDS = 1000
LIVING = 6


def count_kept(thing: Any) -> int:
    """How many objects of ours, and entries of collections, are reached from this one."""
    seen: set[int] = set()
    waiting, found = [thing], 0
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, Mapping):
            inner = [*each.keys(), *each.values()]
        elif isinstance(each, (list, tuple, set, frozenset, deque)):
            inner = list(each)
        elif type(each).__module__.startswith("userspace_cni."):
            slots = [name for kind in type(each).__mro__ for name in getattr(kind, "__slots__", ())]
            inner = [*vars(each).values()] if hasattr(each, "__dict__") else [getattr(each, name) for name in slots]
        else:
            continue
        found += 1 + len(inner)
        waiting += inner
    return found


def test_pods_that_come_and_go_leave_nothing() -> None:
    """Pods with ports, with one that cannot be, of a network, with an address that a port made by hand gets, too."""
    networks = {"default/red-nad": keep_network(a_network())}
    nodes = {name: keep_node({"metadata": {"name": name}}) for name in ("n1", "n2")}
    world = World(facts=LogicalFacts(nodes, networks, SWITCHES))
    sizes = []
    for number in range(ROUNDS):
        world.raw.clear()
        for index in range(LIVING):
            pod = a_pod(f"p{number:05}-{index}", ("n1", "n2", "elsewhere")[index % 3], uid=f"u{number:05}-{index}")
            pod["metadata"]["annotations"] = {"k8s.v1.cni.cncf.io/networks": "red-nad, none"} if index % 2 else {}
            world.add(pod)
        former = [name for name in world.rows if name.startswith("hand")]
        for name in former:
            del world.rows[name]
        world.changed.update(former)
        world.settle()
        address = world.rows[f"default_p{number:05}-0"].addresses[0].split()[1]
        hand = f"hand{number:05}"
        world.rows[hand] = FoundLogicalPort(hand, (f"0a:00:00:00:00:01 {address}",))
        world.settled()
        assert len(world.ports.doubtful) == 1
        world.now += 61.0
        sizes.append(count_kept(world.ports))
    assert max(sizes[ROUNDS // 2 :]) <= max(sizes[10 : ROUNDS // 10])


def test_notes_and_news_of_pods_that_have_gone_leave_nothing() -> None:
    """Notes that are written, refused again and again, and forgotten with their pods; and what was told of ports."""
    told: list[Recipient] = []
    queue, news = NoteQueue(), PortNews(LOGICAL_PORT_MISSING, "", lambda recipient, _: told.append(recipient))
    ports = ToldPorts(news)
    sizes, now = [], 0.0
    for number in range(ROUNDS):
        names = [f"p{number:05}-{index}" for index in range(LIVING)]
        queue.put([AddressNote("default", name, name, {}, ()) for name in names])
        for again in range(3):
            now += 61.0
            while (note := queue.next(now)) is not None:
                if note.name == names[0]:
                    queue.done(note)
                else:
                    queue.rest(note, now)
                now += 0.1
            assert len(queue) == LIVING - 1, again
        for name in names:
            queue.forget(("default", name))
        ports.take(dict.fromkeys(names, "no switch"), lambda name: [Recipient("default", name, name, "")])
        now += 61.0
        assert queue.next(now) is None
        sizes.append(count_kept((queue, ports)))
    assert len(told) == ROUNDS * LIVING
    assert max(sizes[ROUNDS // 2 :]) <= max(sizes[10 : ROUNDS // 10])


def test_what_it_costs_to_look_again_at_ports_that_cannot_be() -> None:
    """One part in a hundred of a core, however many there are; few are judged again after five seconds."""
    assert [pause_after(seconds) for seconds in (0.0, 0.001, 1.0, 4.0)] == [5.0, 5.0, 100.0, 400.0]
