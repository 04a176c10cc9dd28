"""The agent follows at once when others add or remove addresses at a NIC whose addresses have moved."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path

from tests.agent.living import LiveNode
from tests.lab.network.outside import NIC, Wire, wired
from tests.lab.node.forked_node import run_command
from tests.lab.switch.switch import wait_until
from userspace_cni.host.netlink.netns import open_switch_netns
from userspace_cni.linux.netlink import ROUTE, NetlinkConnection, attributes

TABLE = f"""
[[provider_network]]
name = "net1"
interface = "{NIC}"
move_addresses = true
"""
ADDRESS, ADDED = "192.0.2.11", "192.0.2.12"


def place(wire: Wire, address: str) -> str:
    shown = json.loads(wire.on_node("ip", "-j", "address", "show"))
    return ",".join(link["ifname"] for link in shown for each in link["addr_info"] if each["local"] == address)


IFADDRMSG = struct.calcsize("=BBBBI")
IPV4_ADDRESSES, ADDED_ADDRESS, IFA_LOCAL = 0x10, 20, 2
LAST = "127.0.0.9"


@contextmanager
def noticed(wire: Wire) -> Iterator[list[tuple[bool, str]]]:
    """The kernel's notices of IPv4 addresses of the node during the block, as added or removed; complete at the end."""
    found: list[tuple[bool, str]] = []
    with open_switch_netns(wire.node) as netns, netns.do(lambda: NetlinkConnection(ROUTE, IPV4_ADDRESSES)) as notices:
        yield found
        wire.on_node("ip", "address", "add", f"{LAST}/8", "dev", "lo")
        while (True, LAST) not in found:
            for kind, payload in notices.read_notices():
                found.append((kind == ADDED_ADDRESS, str(ip_address(attributes(payload[IFADDRMSG:])[IFA_LOCAL]))))
        wire.on_node("ip", "address", "delete", f"{LAST}/8", "dev", "lo")


def test_what_others_change_is_followed_at_once(live: LiveNode) -> None:
    """Long before the next pass an address added at the NIC is on the bridge, and one removed from the bridge is forgotten."""
    assert live.switch
    settings = live.directory / "network.toml"
    settings.write_text(TABLE)
    live.settings |= {"USERSPACE_CNI_CONFIG": str(settings), "USERSPACE_CNI_TICK_S": "3600"}
    with wired(live.switch.netns) as wire:
        live.start()
        wait_until(lambda: place(wire, ADDRESS) == "br-net1", what="the addresses have moved")
        wire.on_node("ip", "address", "add", f"{ADDED}/24", "dev", NIC)
        wait_until(lambda: place(wire, ADDED) == "br-net1", what="the added address has moved")
        assert wire.answers(ADDED)
        wire.on_node("ip", "address", "delete", f"{ADDED}/24", "dev", "br-net1")
        wire.on_node("ip", "address", "add", "192.0.2.13/24", "dev", NIC)
        wait_until(lambda: place(wire, "192.0.2.13") == "br-net1", what="another address has moved")
        assert place(wire, ADDED) == ""
        many = [f"192.0.2.{number}" for number in range(100, 130)]
        for each in many:
            wire.on_node("ip", "address", "add", f"{each}/24", "dev", NIC)
        wait_until(lambda: {place(wire, each) for each in many} == {"br-net1"}, what="all have moved")
        with noticed(wire) as changes:
            for each in many:
                wire.on_node("ip", "address", "delete", f"{each}/24", "dev", "br-net1")
            wire.on_node("ip", "address", "add", "192.0.2.14/24", "dev", NIC)
            wait_until(lambda: place(wire, "192.0.2.14") == "br-net1", what="yet another address has moved")
        assert [change for change in changes if change[1] in many] == [(False, each) for each in many]
        live.close()
        settings.write_text("")
        done = run_command(live.environ, "uninstall", "--force", f"--bin-dir={Path(live.plugin).parent}")
        assert done.returncode == 0, done.stderr
        assert (place(wire, ADDRESS), place(wire, "192.0.2.13"), place(wire, ADDED)) == (NIC, NIC, "")
        assert wire.answers(ADDRESS)
