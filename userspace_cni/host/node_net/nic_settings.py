"""Settings of a NIC that OVS does not make: whether the kernel merges received frames, its MTU; and whether its ingress drops.

OVS drops a frame that is larger than the MTU, and generic and large receive offload (GRO, LRO) make such frames of those of a TCP
stream. Nothing here touches a link that it was not given by name.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from userspace_cni.base.errors import of_kernel
from userspace_cni.base.root import HERE, HostRoot
from userspace_cni.host.netlink import qdisc_messages as qdiscs
from userspace_cni.host.netlink.netns import open_switch_netns
from userspace_cni.host.pod_net.pod_links import connect, find_link, kernel_does

GRO: Final = "gro"
LRO: Final = "lro"

_SIOCSIFMTU: Final = 0x8922
_SIOCETHTOOL: Final = 0x8946
_GGRO: Final = 0x2B
_SGRO: Final = 0x2C
_GFLAGS: Final = 0x25
_SFLAGS: Final = 0x26
_FLAG_LRO: Final = 1 << 15
_GCHANNELS: Final = 0x3C
_RECEIVING: Final = (5, 8)
"""Where struct ethtool_channels has the numbers of channels that receive: those that only receive, and those that do both."""
_CHANNELS_LEN: Final = 9
"""linux/sockios.h and linux/ethtool.h."""
_NAME_MAX: Final = 15
_LACKING: Final = (errno.ENODEV, errno.EOPNOTSUPP)
"""There is no such link, or its driver has no such setting."""


def offloads(name: str, switch_netns: str = "", root: HostRoot = HERE) -> tuple[str, ...]:
    """Those of gro and lro that are on; () for a link that is not there. Raises Unavailable and StepFailed."""
    with _asking(name, "reading its offloads", switch_netns, root) as kernel:
        return merging(kernel.fileno(), name)
    return ()


def merging(fd: int, name: str) -> tuple[str, ...]:
    """As `offloads`, by any socket of that namespace. Raises OSError for a link that is not there."""
    found = (GRO, bool(_asked(fd, name, _GGRO))), (LRO, bool(_asked(fd, name, _GFLAGS) & _FLAG_LRO))
    return tuple(each for each, is_on in found if is_on)


def receive_queues(fd: int, name: str) -> int:
    """How many queues the link receives by; 0 where its driver does not say. Raises OSError for a link that is not there."""
    channels = array("I", [_GCHANNELS] + [0] * (_CHANNELS_LEN - 1))
    try:
        _ask(fd, name, channels)
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        return 0
    return sum(channels[each] for each in _RECEIVING)


def set_offload(name: str, offload: str, *, on: bool, switch_netns: str = "", root: HostRoot = HERE) -> None:
    """Turn gro or lro on, or off. A link that is not there, or whose driver has none, is left alone.

    Raises StepFailed when the driver refuses it, and Unavailable.
    """
    with _asking(name, f"turning {offload} {'on' if on else 'off'}", switch_netns, root) as kernel:
        fd = kernel.fileno()
        if offload == GRO:
            if bool(_asked(fd, name, _GGRO)) != on:
                _ethtool(fd, name, _SGRO, int(on))
            return
        flags = _asked(fd, name, _GFLAGS)
        if bool(flags & _FLAG_LRO) != on:
            _ethtool(fd, name, _SFLAGS, flags ^ _FLAG_LRO)


def set_mtu(name: str, mtu: int, switch_netns: str = "", root: HostRoot = HERE) -> None:
    """Set the MTU of a link that is there. Raises StepFailed when the driver refuses it, and Unavailable."""
    with _asking(name, f"setting the MTU {mtu}", switch_netns, root) as kernel:
        fcntl.ioctl(kernel.fileno(), _SIOCSIFMTU, struct.pack("16si20x", _named(name), mtu))


def polices(name: str, switch_netns: str = "", root: HostRoot = HERE) -> bool:
    """Whether the link has a filter for what it receives; False for a link that is not there. Raises Unavailable, StepFailed."""
    what = f"link {name}: reading its filters"
    with open_switch_netns(switch_netns, root) as switch, connect(switch, what) as kernel:
        link = find_link(kernel, name)
        if link is None:
            return False
        with kernel_does(what, f"tc filter show dev {name} ingress"):
            try:
                return bool(list(kernel.ask(qdiscs.dump_filters(link.index))))
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.ENOENT):
                    raise
                return False


@contextmanager
def _asking(name: str, what: str, switch_netns: str, root: HostRoot) -> Iterator[socket.socket]:
    """A socket by which a link of that namespace is set; one without that setting ends the block."""
    with open_switch_netns(switch_netns, root) as switch:
        try:
            with switch.do(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)) as kernel:
                yield kernel
        except OSError as error:
            if error.errno not in _LACKING:
                raise of_kernel(f"link {name}: {what}", error, f"ethtool -k {name}; ip -d link show {name}") from error


def _asked(fd: int, name: str, command: int) -> int:
    """A setting; 0 where the driver has none. Raises OSError for a link that is not there."""
    try:
        return _ethtool(fd, name, command, 0)
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        return 0


def _named(name: str) -> bytes:
    """The name as the kernel takes it. Raises OSError for one that no link can have: cut off it would be another's."""
    encoded = os.fsencode(name)
    if len(encoded) > _NAME_MAX:
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
    return encoded


def _ethtool(fd: int, name: str, command: int, value: int) -> int:
    """Give a value to a command, and the value that it answers. Source: linux/ethtool.h, struct ethtool_value."""
    given = array("I", [command, value])
    _ask(fd, name, given)
    return given[1]


def _ask(fd: int, name: str, given: array[int]) -> None:
    """Have the kernel fill in what a command answers, in place."""
    fcntl.ioctl(fd, _SIOCETHTOOL, struct.pack("16sP16x", _named(name), given.buffer_info()[0]))
