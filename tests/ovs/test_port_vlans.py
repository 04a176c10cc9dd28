"""The VLANs that a port of ours carries according to our rules are those that ovs-vswitchd lets through."""

from __future__ import annotations

import itertools
import re

from tests.lab.switch.switch import Switch
from userspace_cni.base.vlans import Vlan, list_carried_vlans

MODES = ("", "access", "trunk", "native-tagged", "native-untagged", "dot1q-tunnel")
PROBES = (0, 5, 100, 200)
"""VLANs of frames that enter; 0: a frame without a tag."""


def entered(switch: Switch, vlan: int) -> set[int]:
    """The VLAN in which a frame with this tag enters the bridge at the port; empty when the frame is dropped."""
    tagged = f",dl_vlan={vlan},dl_vlan_pcp=0" if vlan else ""
    flow = f"in_port=1,dl_src=02:00:00:00:00:01,dl_dst=02:00:00:00:00:02{tagged}"
    actions = switch.appctl("ofproto/trace", "br-test", flow).rpartition("Datapath actions: ")[2]
    if "drop" in actions:
        return set()
    pushed = re.search(r"push_vlan\((?:tpid=0x[0-9a-f]+,)?vid=([0-9]+)", actions)
    return {int(pushed[1]) if pushed else 0 if "pop_vlan" in actions else vlan}


def test_what_a_port_carries_is_what_the_switch_lets_in(switch: Switch) -> None:
    """With every VLAN mode, with and without tag and trunks, frames are in the VLANs that the rules count, and in no other.

    The one exception: the switch removes VLAN 0 from the trunks of a native port that has a tag; the rules count it.
    """
    path = f"options:vhost-server-path={switch.rundir}/none"
    ports = [("in", "1"), ("out", "2")]
    switch.vsctl("add-br", "br-test", "--", "set", "Bridge", "br-test", "datapath_type=netdev")
    for name, number in ports:
        columns = ["type=dpdkvhostuserclient", f"{path}-{name}", f"ofport_request={number}"]
        switch.vsctl("add-port", "br-test", name, "--", "set", "Interface", name, *columns)
    for mode, tag, trunks in itertools.product(MODES, (None, 100), ((), (5,), (0, 5))):
        columns = [f"tag={tag or '[]'}", f"trunks=[{','.join(map(str, trunks))}]", f"vlan_mode={mode or '[]'}"]
        switch.vsctl("set", "Port", "in", *columns)
        found = set().union(*(entered(switch, vlan) for vlan in PROBES))
        expected = list_carried_vlans(Vlan(tag, trunks, mode))
        counted = set(PROBES) if expected is None else set(expected)
        spared = {0} if mode.startswith("native-") and tag else set()
        assert (counted - spared, found - counted) == (found - spared, set()), (mode, tag, trunks)
