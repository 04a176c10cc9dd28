"""An ordinary pod's kernel link: a veth whose host end is a port of the switch, and what belongs to it on both sides.

"Host end" and "pod's end" are the two ends. `switch_netns` is the path of the network namespace in which ovs-vswitchd opens its
ports, "" for this process's own; `netns` and `netns_inode` are the pod's. A path may lead to another namespace by now: a driver
compares the inode before it acts there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from userspace_cni.attachment.steps.step import Step
from userspace_cni.base.limits import Limits, Rate
from userspace_cni.base.stages import Stage

_WHOSE_MAX: Final = 160
_HOST_END: Final = "uc"
_DIGITS: Final = 12


def host_end(container_id: str, ifname: str) -> str:
    """Name of the host end of an attachment, and of its port: OVS finds a kernel port by its link's name of 15 bytes at most."""
    return _HOST_END + hashlib.sha256(f"{container_id}@{ifname}".encode("utf-8", "surrogateescape")).hexdigest()[:_DIGITS]


def is_host_end(name: str) -> bool:
    """Whether a link may be the host end of an attachment, by its name."""
    return len(name) == len(_HOST_END) + _DIGITS and name.startswith(_HOST_END)


def host_alias(store: str, container_id: str, ifname: str) -> str:
    """The owner mark on a host end; a link with another one is not ours. A link's alias has 255 bytes at most."""
    whose = f"{container_id}@{ifname}"
    if len(whose) > _WHOSE_MAX:
        whose = hashlib.sha256(whose.encode("utf-8", "surrogateescape")).hexdigest()
    return f"userspace-cni {store} {whose}"


@dataclass(frozen=True)
class Guard(Step):
    """The node's own stack drops what arrives at a host end, so that the pod's frames reach the switch alone.

    A chain of its own in our nftables table of family netdev; made before the link is, and removed after it.
    """

    kind: ClassVar[str] = "guard"
    stage: ClassVar[Stage] = "link"
    link: str
    store: str
    switch_netns: str = ""

    @property
    def links(self) -> tuple[str, ...]:
        return (self.link,)

    @property
    def summary(self) -> str:
        return f"frames arriving at {self.link} are dropped by the node's stack"


@dataclass(frozen=True)
class Link(Step):
    """A veth, made in one netlink message, with the addresses, routes and settings of both ends.

    `host` is the host end's name, `alias` the owner mark on it; `queue` its txqueuelen in packets, 0 for the kernel's own.
    `addresses` are with prefix length. `routes` are those of CNI 1.1 (dst, gw, mtu, advmss, priority, table, scope) as the kernel
    is to have them: without `gw` it is on the link.
    """

    kind: ClassVar[str] = "link"
    stage: ClassVar[Stage] = "link"
    host: str
    host_mac: str
    alias: str
    name: str
    mac: str
    mtu: int
    netns: str
    netns_inode: int
    switch_netns: str = ""
    queue: int = 0
    addresses: tuple[str, ...] = ()
    routes: tuple[Mapping[str, Any], ...] = ()

    @property
    def links(self) -> tuple[str, ...]:
        return (self.host,)

    def limited(self, limit: Rate) -> Shaper:
        """The step that limits what leaves the pod by it."""
        return Shaper(self.name, self.netns, self.netns_inode, limit.rate, limit.burst)

    @property
    def summary(self) -> str:
        return f"veth {self.name} in the pod, {self.host} at the switch"


@dataclass(frozen=True)
class LinkRef(Step):
    """A veth that is only undone, found by its host end; one with another `alias` is not ours and stays."""

    kind: ClassVar[str] = "link-ref"
    stage: ClassVar[Stage] = "link"
    host: str
    alias: str
    switch_netns: str = ""

    @property
    def summary(self) -> str:
        return f"veth with the host end {self.host}"


@dataclass(frozen=True)
class Shaper(Step):
    """A limit for what leaves the pod, at the root of the pod's end (tc-tbf(8)). `rate` in bit/s, `burst` in bits."""

    kind: ClassVar[str] = "shaper"
    stage: ClassVar[Stage] = "link"
    name: str
    netns: str
    netns_inode: int
    rate: int
    burst: int

    @property
    def limits(self) -> Limits:
        return Limits(from_pod=Rate(self.rate, self.burst))

    @property
    def summary(self) -> str:
        return f"{self.name} sends at most {self.rate} bit/s"


@dataclass(frozen=True)
class Announcement(Step):
    """The neighbours are told who has the addresses, once the port is open; optionally two questions are asked before.

    `duplicate_check`: refuse an address that another machine answers for. `gateways`: refuse unless these answer.
    """

    kind: ClassVar[str] = "announcement"
    stage: ClassVar[Stage] = "link"
    from_switch: ClassVar[bool] = True
    name: str
    mac: str
    netns: str
    netns_inode: int
    addresses: tuple[str, ...] = ()
    duplicate_check: bool = False
    gateways: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        return ", ".join(self.addresses) or "no addresses"
