"""vhost-user from Python, without DPDK: ports of a software switch, or of a VM, that send and receive Ethernet frames.

Import what is listed in `__all__` from here; where it is defined may change. docs/fastpath.md tells how it is used, and
docs/fastpath-reference.md has every signature. The parts, with the modules that have them:

- the front-end, which plays a VM or a DPDK application towards a switch, and the back-end, which plays the switch: `vhost`
- queue pairs and bursts, load, streams and round trips: `rings`
- a tap of the kernel, and the pump between it and a port: `tap`
- the huge pages of the machine: `memory`
- one tree of errors: `fastpath_errors`

Messages and decisions are Python. C does single, bounded operations: mappings that another process can truncate, virtqueues, and
loops that Python is too slow for. A *.cdef beside each C file declares what Python uses of it, and typed modules hide it.
Importing this package loads none of it: a name's module is loaded when the name is first used. Nothing here logs, or imports from
the rest of the program but `linux`. The only global states are the SIGBUS handler of `memory/guard.c`, and the list of open ports
that a child after fork(2) must not use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from userspace_cni.fastpath.fastpath_errors import (
        BreachReason,
        Closed,
        Disconnected,
        FastPathError,
        FrameRefused,
        MemoryShort,
        MessageRefused,
        NegotiationFailed,
        PeerError,
        RingFault,
        SocketRefused,
        TimedOut,
    )
    from userspace_cni.fastpath.memory.hugepages import HugepagePool, HugePages, HugetlbMount, read_hugepages
    from userspace_cni.fastpath.rings.burst import Burst
    from userspace_cni.fastpath.rings.generator import Echoes, Load, Slice, blast, blast_both, bounce, echo
    from userspace_cni.fastpath.rings.queue_pair import QueueCounters, QueuePair
    from userspace_cni.fastpath.rings.stream_generator import FrameStream, Generator, LatencyFigures, StreamFigures
    from userspace_cni.fastpath.rings.udp_flows import IMIX, UdpFlows
    from userspace_cni.fastpath.tap import (
        DirectionCounts,
        NoTapDevice,
        Pump,
        PumpCounts,
        PumpEnd,
        Tap,
        TapGone,
        TapRefused,
    )
    from userspace_cni.fastpath.vhost.back_end import BackEnd, BackEndListener, BackEndOptions
    from userspace_cni.fastpath.vhost.channel import Peer
    from userspace_cni.fastpath.vhost.front_end import FrontEnd, FrontEndListener, FrontEndOptions
    from userspace_cni.fastpath.vhost.offloads import OFFLOADS
    from userspace_cni.fastpath.vhost.socket_paths import SocketAccess
    from userspace_cni.fastpath.vhost.vhost_messages import Feature, ProtocolFeature
    from userspace_cni.fastpath.vhost.vhost_port import VhostPort
    from userspace_cni.linux.unix_sockets import connections_here

_HOMES: Final = {
    "vhost.front_end": ("FrontEnd", "FrontEndListener", "FrontEndOptions"),
    "vhost.back_end": ("BackEnd", "BackEndListener", "BackEndOptions"),
    "vhost.vhost_port": ("VhostPort",),
    "rings.queue_pair": ("QueueCounters", "QueuePair"),
    "rings.burst": ("Burst",),
    "rings.generator": ("Echoes", "Load", "Slice", "blast", "blast_both", "bounce", "echo"),
    "rings.stream_generator": ("Generator", "LatencyFigures", "FrameStream", "StreamFigures"),
    "rings.udp_flows": ("IMIX", "UdpFlows"),
    "tap": ("DirectionCounts", "NoTapDevice", "Pump", "PumpCounts", "PumpEnd", "Tap", "TapGone", "TapRefused"),
    "vhost.socket_paths": ("SocketAccess",),
    "vhost.channel": ("Peer",),
    "vhost.offloads": ("OFFLOADS",),
    "vhost.vhost_messages": ("Feature", "ProtocolFeature"),
    "memory.hugepages": ("HugePages", "HugepagePool", "HugetlbMount", "read_hugepages"),
    "fastpath_errors": (
        "BreachReason",
        "Closed",
        "Disconnected",
        "FastPathError",
        "FrameRefused",
        "MemoryShort",
        "MessageRefused",
        "NegotiationFailed",
        "PeerError",
        "RingFault",
        "SocketRefused",
        "TimedOut",
    ),
    "userspace_cni.linux.unix_sockets": ("connections_here",),
}
"""The module of each name: below this package, or by its full name."""

__all__ = [
    "IMIX",
    "OFFLOADS",
    "BackEnd",
    "BackEndListener",
    "BackEndOptions",
    "BreachReason",
    "Burst",
    "Closed",
    "DirectionCounts",
    "Disconnected",
    "Echoes",
    "FastPathError",
    "Feature",
    "FrameRefused",
    "FrameStream",
    "FrontEnd",
    "FrontEndListener",
    "FrontEndOptions",
    "Generator",
    "HugePages",
    "HugepagePool",
    "HugetlbMount",
    "LatencyFigures",
    "Load",
    "MemoryShort",
    "MessageRefused",
    "NegotiationFailed",
    "NoTapDevice",
    "Peer",
    "PeerError",
    "ProtocolFeature",
    "Pump",
    "PumpCounts",
    "PumpEnd",
    "QueueCounters",
    "QueuePair",
    "RingFault",
    "Slice",
    "SocketAccess",
    "SocketRefused",
    "StreamFigures",
    "Tap",
    "TapGone",
    "TapRefused",
    "TimedOut",
    "UdpFlows",
    "VhostPort",
    "blast",
    "blast_both",
    "bounce",
    "connections_here",
    "echo",
    "read_hugepages",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    for home, names in _HOMES.items():
        if name in names:
            module = home if home.startswith("userspace_cni.") else f"{__name__}.{home}"
            found = globals()[name] = getattr(import_module(module), name)
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; its names are in __all__")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
