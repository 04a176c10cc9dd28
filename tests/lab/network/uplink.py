"""A NIC of the node on a bridge of a private switch, made by ovs-vsctl, and
the parts of the node's network that tests compare.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from tests.lab.network.outside import QUEUES, Wire, wired
from tests.lab.node.links import drop_guards, links
from tests.lab.switch.switch import Switch, wait_until
from userspace_cni.attachment.steps import AddressMove
from userspace_cni.host.netlink import nftables_messages as nftables
from userspace_cni.host.node_net.nics import find_answering, look, merge_changes, plan_move
from userspace_cni.linux.boot import boot_id

BRIDGE = "br-net1"
V4, V6 = "192.0.2.11", "2001:db8::11"
ASKING = {nftables.get_generation().type, nftables.get_table("x").type}
"""Types of messages that change nothing."""


@dataclass(frozen=True)
class Uplink:
    """The NIC of `wire` as a port of the bridge, whose local link has the NIC's MAC address, is down and has no address."""

    wire: Wire
    switch: Switch
    bridge: str

    def kernel_has(self) -> dict[str, str]:
        """The addresses and routes of NIC and bridge, as ip(8) shows them, all rules of nft(8), and promote_secondaries.

        Without counters, states and IPv6's link-local addresses, for which the kernel looks for duplicates.
        """
        kept = {}
        for link in (self.wire.nic, self.bridge):
            shown = re.sub(r" *inet6 fe80.*\n.*\n", "", self.wire.on_node("ip", "-d", "addr", "show", link))
            kept[link] = re.sub(r"(valid_lft|mtu|state|qlen|qdisc) \S+|<\S+>", "", shown)
        for family in ("-4", "-6"):
            shown = self.wire.on_node("ip", "-d", family, "route", "show", "table", "all")
            kept[f"routes {family}"] = re.sub(r"\S+ (fe80|ff00)::.*\n", "", shown)
        promoting = [f"/proc/sys/net/ipv4/conf/{link}/promote_secondaries" for link in (self.wire.nic, self.bridge)]
        return kept | {"rules": self.wire.on_node("nft", "list", "ruleset"), "promoting": self.wire.on_node("cat", *promoting)}


@contextmanager
def uplink(wire: Wire, switch: Switch, *, port: str = "system", bridge: str = BRIDGE) -> Iterator[Uplink]:
    """Put the NIC on a bridge of its own; both are removed afterwards."""
    mac = json.dumps(links(wire.node)[wire.nic]["address"])
    made = ["add-br", bridge, "--", "set", "Bridge", bridge, "datapath_type=netdev", f"other_config:hwaddr={mac}"]
    # the kernel chooses the queue of a frame, differently at each boot: AF_XDP has to poll all
    queues = [f"options:n_rxq={QUEUES}"] if port == "afxdp" else []
    switch.vsctl(*made, "--", "add-port", bridge, wire.nic, "--", "set", "Interface", wire.nic, f"type={port}", *queues)
    try:
        wait_until(lambda: switch.interface(wire.nic)["ofport"] not in ([], -1), what="the NIC is a port")
        yield Uplink(wire, switch, bridge)
    finally:
        switch.vsctl("--if-exists", "del-br", bridge)
        drop_guards(wire.node)


@contextmanager
def small_uplink(switch: Switch) -> Iterator[Uplink]:
    """A NIC on its bridge, with an address of each family and a default route."""
    with wired(switch.netns, (f"{V4}/24", f"{V6}/64"), ("192.0.2.1/24", "2001:db8::1/64")) as wire:
        wire.on_node("ip", "route", "add", "default", "via", "192.0.2.1")
        wire.on_node("ip", "-6", "route", "add", "default", "via", "2001:db8::1")
        with uplink(wire, switch) as made:
            yield made


def has(link: str, switch: Switch) -> list[str]:
    """The permanent addresses of a link."""
    nic = look(link, switch.netns)
    return sorted(nic.shown_addresses) if nic else []


def planned(switch: Switch, *, name: str = "nic0", bridge: str = BRIDGE, cut: bool = True) -> AddressMove:
    """The move of everything that the NIC has, with the next hops that answer."""
    nic = look(name, switch.netns)
    assert nic
    step = plan_move(nic, bridge, store="store-of-the-test", boot_id=boot_id(), switch_netns=switch.netns, cut=cut)
    return replace(step, next_hops=find_answering(nic, switch.netns))


def current(switch: Switch, step: AddressMove) -> AddressMove:
    return merge_changes(step, look("nic0", switch.netns), look(BRIDGE, switch.netns))
