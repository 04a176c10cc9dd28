"""A NIC of the node on a bridge of a private switch, made by ovs-vsctl, and what of the node's network a test compares."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.lab.network.outside import Wire
from tests.lab.node.links import drop_guards, links
from tests.lab.switch.switch import Switch, wait_until

BRIDGE = "br-net1"


@dataclass(frozen=True)
class Uplink:
    """The NIC of `wire` as a port of the bridge, whose local link has the NIC's MAC address, is down and has nothing."""

    wire: Wire
    switch: Switch
    bridge: str

    def kernel_has(self) -> dict[str, str]:
        """What ip(8) shows of the addresses and routes of NIC and bridge, and nft(8) of all rules.

        Without counters and states, and without the link-local addresses of IPv6, for which the kernel looks for duplicates.
        """
        kept = {}
        for link in (self.wire.nic, self.bridge):
            shown = re.sub(r" *inet6 fe80.*\n.*\n", "", self.wire.on_node("ip", "-d", "addr", "show", link))
            kept[link] = re.sub(r"(valid_lft|mtu|state|qlen|qdisc) \S+|<\S+>", "", shown)
        for family in ("-4", "-6"):
            shown = self.wire.on_node("ip", "-d", family, "route", "show", "table", "all")
            kept[f"routes {family}"] = re.sub(r"\S+ (fe80|ff00)::.*\n", "", shown)
        return kept | {"rules": self.wire.on_node("nft", "list", "ruleset")}


@contextmanager
def uplink(wire: Wire, switch: Switch, *, port: str = "system", bridge: str = BRIDGE) -> Iterator[Uplink]:
    """Plug the NIC into a bridge of its own; both are gone afterwards."""
    mac = json.dumps(links(wire.node)[wire.nic]["address"])
    made = ["add-br", bridge, "--", "set", "Bridge", bridge, "datapath_type=netdev", f"other_config:hwaddr={mac}"]
    switch.vsctl(*made, "--", "add-port", bridge, wire.nic, "--", "set", "Interface", wire.nic, f"type={port}")
    try:
        wait_until(lambda: switch.interface(wire.nic)["ofport"] not in ([], -1), what="the NIC is a port")
        yield Uplink(wire, switch, bridge)
    finally:
        switch.vsctl("--if-exists", "del-br", bridge)
        drop_guards(wire.node)
