"""How OVS opens a kernel link, and on which kind of bridge: words that settings, networks and rows share. Pure."""

from __future__ import annotations

from typing import Final, Literal, get_args

KernelPort = Literal["system", "afxdp", "af_packet", "af_xdp"]
"""By an AF_PACKET or AF_XDP socket of its own, or by DPDK's vdev for either."""
PortKind = KernelPort | Literal["vhostuser"]
"""What limits depend on: a vhost-user port, or how OVS opens a kernel link."""
Datapath = Literal["netdev", "system"]
"""Bridge.datapath_type: in userspace, or the kernel's."""
AUTO: Final = "auto"
CHOICES: Final = (AUTO, *get_args(KernelPort))
"""What settings and networks may say; `auto` leaves it to the node."""
