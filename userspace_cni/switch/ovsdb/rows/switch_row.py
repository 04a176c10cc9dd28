"""The Open_vSwitch row: the switch's settings, and what it can do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from userspace_cni.base.port_kinds import Datapath, KernelPort
from userspace_cni.switch.ovsdb.rows.interface_row import AFXDP


@dataclass(frozen=True)
class SwitchSettings:
    """The settings Open_vSwitch.other_config, and the resulting Interface.mtu by name of the port."""

    other_config: Mapping[str, str]
    mtus: Mapping[str, int]


@dataclass(frozen=True)
class Abilities:
    """What ovs-vswitchd says it can do: Open_vSwitch.iface_types and datapath_types, empty before it has started.

    `dpdk`: DPDK runs. `dpdk_version`: of the DPDK that it is built with, "" for none. A datapath_type may be
    named that the kernel lacks: that shows when a bridge is made.
    """

    interface_types: frozenset[str]
    datapath_types: frozenset[str]
    dpdk: bool
    dpdk_version: str = ""

    def why_unable(self, opened_as: KernelPort, datapath: Datapath) -> str:
        """Why it cannot open a kernel link like that; "" if it can, or is not known yet."""
        if self.datapath_types and datapath not in self.datapath_types:
            return f"ovs-vswitchd has no datapath_type {datapath}, only {', '.join(sorted(self.datapath_types))}"
        if opened_as == "system":
            return ""
        if datapath == "system":
            return f"a bridge of datapath_type system opens links as system, not as {opened_as}"
        if opened_as != AFXDP:
            return "" if self.dpdk else "ovs-vswitchd runs without DPDK"
        missing = self.interface_types and AFXDP not in self.interface_types
        return "ovs-vswitchd is built without AF_XDP: Open_vSwitch.iface_types has no afxdp" if missing else ""
