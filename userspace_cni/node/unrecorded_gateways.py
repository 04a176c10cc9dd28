"""What the kernel has of a gateway whose record was lost, and of the table of all gateways' address translation.

What we make there carries NODE_PROTOCOL, which says neither of which gateway nor of which installation it is. So a gateway's own
are the things at its link: its addresses, the routes by it, and the policy rules for the networks of its addresses, with the
routing table to which they lead. What is elsewhere is its own only where nothing else can have made it (`alone`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from userspace_cni.attachment.steps import NodeLink, NodeRoute, PolicyRoute, Step, Steps, Translation
from userspace_cni.base.deadline import Deadline
from userspace_cni.host.netlink.nftables_messages import INET
from userspace_cni.host.netlink.node_kernel import NODE_PROTOCOL, Kernel, at_node
from userspace_cni.host.netlink.route_messages import MAIN
from userspace_cni.host.node_net import nft_program
from userspace_cni.host.node_net.translation_parts import parts_of
from userspace_cni.host.pod_net.guards import table_of
from userspace_cni.host.pod_net.ingress_drops import has_table

if TYPE_CHECKING:
    from userspace_cni.base.root import HostRoot
    from userspace_cni.host.netlink.link_messages import FoundLink


@dataclass(frozen=True)
class UnrecordedGateway:
    """The gateway whose port is `link`. `recorded`: the steps of all records of the node.

    `alone`: of no other gateway that the switch has a port of, of any installation, is it unknown what it has.
    """

    link: str
    recorded: Steps
    alone: bool
    switch_netns: str
    root: HostRoot

    def steps(self) -> tuple[Step, ...]:
        """Its link, routes and policy routes, in the order of a plan. Raises UserspaceError."""
        return at_node(self.switch_netns, self.root, f"gateway {self.link}: looking for what it has", self._look)

    def _look(self, kernel: Kernel) -> tuple[Step, ...]:
        link = kernel.links().get(self.link)
        found = [each for each in kernel.addresses() if link and each.index == link.index]
        marked = tuple(str(each.interface) for each in found if _is_ours(each.protocol))
        own = [NodeLink(self.link, marked, self.switch_netns)] if marked else []
        subnets = {str(each.interface.network) for each in found}
        return (*own, *self._routes(kernel, link), *self._policy_routes(kernel, link, subnets))

    def _routes(self, kernel: Kernel, link: FoundLink | None) -> Iterator[NodeRoute]:
        named = {each.dst for each in self.recorded.node_routes}
        for each in kernel.routes(protocol=NODE_PROTOCOL):
            dst, near = str(each.route.dst), link is not None and each.index == link.index
            if each.route.gw and dst not in named and (near or self.alone):
                yield NodeRoute(dst, str(each.route.gw), self.switch_netns)

    def _policy_routes(self, kernel: Kernel, link: FoundLink | None, subnets: Collection[str]) -> Iterator[PolicyRoute]:
        named = {each.table for each in self.recorded.policy_routes}
        rules = [each for each in kernel.rules() if _is_ours(each.protocol) and each.source]
        ours = [each for each in rules if each.table not in (MAIN, *named)]
        for table in sorted({each.table for each in ours if self.alone or each.source in subnets}):
            there = [each for each in ours if each.table == table]
            ways = [each for each in kernel.routes(table=table, protocol=NODE_PROTOCOL) if each.route.gw]
            yield PolicyRoute(
                sources=tuple(dict.fromkeys(each.source for each in there)),
                via=str(ways[0].route.gw) if ways else "",
                table=table,
                priority=there[0].priority,
                link=self.link if ways and link and ways[0].index == link.index else "",
                switch_netns=self.switch_netns,
            )


def has_translation(store: str, switch_netns: str, root: HostRoot) -> bool:
    """Whether our table of address translation is there. Raises UserspaceError."""
    return has_table(table_of(store), INET, switch_netns, root)


def translation(store: str, switch_netns: str, root: HostRoot, deadline: Deadline) -> tuple[Translation, ...]:
    """The step that has made our table, of what the table says; () without one. Raises UserspaceError."""
    if not has_translation(store, switch_netns, root):
        return ()
    found = nft_program.list_table(table_of(store), switch_netns, root, deadline)
    return (Translation(store, parts_of(found), switch_netns),) if found else ()


def _is_ours(protocol: int) -> bool:
    return protocol == NODE_PROTOCOL
