"""What of the node its gateways need: sysctls, neighbours.

All of it is only read, but that the kernel is made to ask a neighbour, as any packet to it would make it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import sleep
from typing import Final

from userspace_cni.base.deadline import Deadline
from userspace_cni.base.root import HERE, HostRoot
from userspace_cni.host.netlink import link_messages as links
from userspace_cni.host.netlink.kept_messages import default_routes
from userspace_cni.host.netlink.netns import open_switch_netns
from userspace_cni.host.netlink.node_kernel import RIGHTS, Kernel, at_node
from userspace_cni.host.pod_net.pod_links import connect, kernel_does

NEIGHBOUR_S: Final = 1.0
"""How long neighbours that were never heard have to answer; those that were are known."""
_AGAIN_S: Final = 0.2


@dataclass(frozen=True)
class NodeNamespace:
    """The namespace of the node's own network."""

    switch_netns: str = ""
    root: HostRoot = HERE

    def sysctls(self, names: Iterable[str]) -> Mapping[str, str]:
        """The values of these below /proc/sys, as `net/ipv4/ip_forward`; "" for one that is not there. Raises Unavailable."""

        def read() -> Mapping[str, str]:
            return {name: _value(name) for name in names}

        with open_switch_netns(self.switch_netns, self.root) as netns:
            return netns.do(read)

    def next_hops(self) -> Mapping[int, tuple[str, str]]:
        """By version of IP: the next hop of the node's default route, and the link that leads to it. Raises as `at_node`."""
        what = "looking at the node's default routes"
        with open_switch_netns(self.switch_netns, self.root) as netns, connect(netns, what) as kernel, kernel_does(what, RIGHTS):
            names = {each.index: each.name for _, payload in kernel.ask(links.dump()) for each in (links.read(payload),)}
            found = [(hop, names[index]) for hop, index in default_routes(kernel) if index in names]
        return {6 if ":" in hop else 4: (hop, name) for hop, name in reversed(found)}

    def ways(self, hops: Iterable[str]) -> Mapping[str, str]:
        """The link of each of these routers that is a neighbour. Raises as `at_node`."""

        def look(kernel: Kernel) -> Mapping[str, str]:
            names = {each.index: name for name, each in kernel.links().items()}
            found = {hop: kernel.way_to(hop) for hop in hops}
            return {hop: names[way.index] for hop, way in found.items() if way and not way.route.gw and way.index in names}

        return at_node(self.switch_netns, self.root, "looking for routers", look)

    def find_silent(self, ways: Mapping[str, str], deadline: Deadline) -> frozenset[str]:
        """Those of these neighbours, given with their links, that do not answer ARP or NS. Raises as `at_node`."""
        return at_node(self.switch_netns, self.root, "asking neighbours", partial(_silent, ways=ways, deadline=deadline))


def _silent(kernel: Kernel, ways: Mapping[str, str], deadline: Deadline) -> frozenset[str]:
    there = kernel.links()
    waiting = {hop: there[name].index for hop, name in ways.items() if name in there}
    for hop, index in waiting.items():
        kernel.ask_neighbour(index, hop)
    end = deadline.within(NEIGHBOUR_S)
    while waiting := {hop: index for hop, index in waiting.items() if not kernel.has_neighbour(index, hop)}:
        if not end.remaining():
            break
        sleep(min(_AGAIN_S, end.remaining()))
    return frozenset(waiting).union(hop for hop, name in ways.items() if name not in there)


def _value(name: str) -> str:
    try:
        return Path("/proc/sys", name).read_text(encoding="ascii").strip()
    except OSError:
        return ""
