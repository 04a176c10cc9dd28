"""The way of a packet through the node's tables, from the kernel's trace; and which of their rules ask for another link.

It only reads. A rule that ends the packet is named as nft(8) writes it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Final

from userspace_cni.host.netlink import trace_messages as traces
from userspace_cni.host.netlink.link_messages import FoundLink
from userspace_cni.host.netlink.netns import Netns
from userspace_cni.host.netlink.trace_messages import FAMILY_NAMES, FORWARD, FORWARDED, LEAVING, POLICY, RULE, TraceNotice
from userspace_cni.linux.netlink import NETFILTER, NetlinkConnection

BEFORE: Final = "before the hooks of IP"
ROUTING: Final = "after prerouting and before forward, by routing"
IN_FORWARD: Final = "in the hook forward, and not by nftables"
IN_POSTROUTING: Final = "in the hook postrouting, and not by nftables"
AFTER: Final = "after the hook postrouting"


@dataclass
class Trail:
    """Of one packet that the table `table` traces from its chain `begin`."""

    table: str
    begin: str
    numbers: set[int] = field(default_factory=set)
    points: set[str] = field(default_factory=set)
    chains: set[tuple[int, str, str]] = field(default_factory=set)
    end: TraceNotice | None = None
    queued_by: str = ""

    def follow(self, traced: TraceNotice) -> bool:
        """Take in what the kernel tells, if it is of this packet; whether it is."""
        is_ours = traced.table == self.table
        if is_ours and traced.chain == self.begin and traced.kind == RULE:
            self.numbers.add(traced.number)
        if traced.number not in self.numbers:
            return False
        if is_ours:
            self.points.add(traced.chain)
        else:
            names = {traced.chain, traced.leads_to} - {""}
            self.chains |= {(traced.family, traced.table, name) for name in names}
        if traced.ended:
            self.end = traced
        if traced.queued:
            self.queued_by = f"{FAMILY_NAMES.get(traced.family, traced.family)} {traced.table} {traced.chain}"
        return True

    @property
    def may_come(self) -> bool:
        """Whether it was seen behind the last hook, or a program has it: what follows may take its time."""
        return (LEAVING in self.points or bool(self.queued_by)) and self.end is None

    @property
    def led_away(self) -> int:
        """The index of the link by which it would have left, where that is not the one that is meant; else 0."""
        return self.end.link if self.end and self.end.table == self.table else 0

    @property
    def dropped_by(self) -> tuple[tuple[str, str, str], int] | None:
        """Family, table and name of the chain that has ended it, and the rule's handle, 0 for its policy."""
        if self.end is None or self.end.table == self.table:
            return None
        family = FAMILY_NAMES.get(self.end.family, str(self.end.family))
        return (family, self.end.table, self.end.chain), 0 if self.end.kind == POLICY else self.end.rule

    @property
    def lost_at(self) -> str:
        """Between which points it was lost, where no rule of nftables has ended it."""
        for point, where in ((self.begin, BEFORE), (FORWARD, ROUTING), (FORWARDED, IN_FORWARD), (LEAVING, IN_POSTROUTING)):
            if point not in self.points:
                return where
        return AFTER


def find_asking_chains(
    uplink: FoundLink, chains: Collection[tuple[int, str, str]], netns: Netns, *, diverting: bool
) -> Iterator[str]:
    """Those of the chains with a rule that asks whether a packet's link is the uplink, as `ip filter FORWARD`; `diverting`: only
    rules that end packets, or lead them elsewhere. Raises OSError."""
    with netns.do(lambda: NetlinkConnection(NETFILTER)) as kernel:
        for family, table, chain in sorted(chains):
            rules = [traces.naming(payload) for _, payload in kernel.ask(traces.get_rules(family, table, chain))]
            for rule in rules:
                if not rule or (diverting and not rule.diverts):
                    continue
                keys = [key for name in rule.sets for key in _keys(kernel, family, table, name)]
                values = [*rule.values, *(value for value, ends in keys if not ends)]
                if any(traces.is_of(uplink.name, uplink.index, each) for each in values) or traces.is_between(uplink.name, keys):
                    yield f"{FAMILY_NAMES.get(family, family)} {table} {chain}"
                    break


def _keys(kernel: NetlinkConnection, family: int, table: str, name: str) -> Iterator[tuple[bytes, bool]]:
    for _, payload in kernel.ask(traces.get_elements(family, table, name)):
        yield from traces.elements(payload)
