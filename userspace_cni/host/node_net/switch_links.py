"""The links where ovs-vswitchd opens its ports, for the room of the switch.

What speaks netlink is imported by the first question: a process that lives for one call of a vhost-user interface asks none.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from userspace_cni.base.root import HERE, HostRoot

if TYPE_CHECKING:
    from userspace_cni.host.netlink.link_messages import FoundLink
    from userspace_cni.host.node_net.switch_taps import ExistingLink, KeptConnections


@dataclass(frozen=True)
class SwitchLinks:
    """The links of the network namespace `switch_netns`, "" for that of this process."""

    switch_netns: str = ""
    root: HostRoot = HERE
    _kept: list[KeptConnections] = field(default_factory=list, init=False, repr=False, compare=False)
    """Where the connections for the next `find` are, once there was one."""

    def __call__(self) -> Mapping[str, FoundLink]:
        """Every link, by name. Raises Unavailable."""
        from userspace_cni.host.pod_net.pod_links import ListedLinks

        return ListedLinks(self.switch_netns, self.root)()

    def index(self, name: str) -> int:
        """The index of the link of that name, 0 when there is none. Raises Unavailable."""
        from userspace_cni.host.pod_net.pod_links import ifindex

        return ifindex(name, self.switch_netns, self.root)

    def find(self, name: str) -> ExistingLink | None:
        """The link of this name or alternative name, None if there is none. Raises Unavailable."""
        from userspace_cni.host.node_net.switch_taps import KeptConnections, SwitchTaps

        if not self._kept:
            self._kept.append(KeptConnections())
        return SwitchTaps(self.switch_netns, self.root).find(name, self._kept[0])

    def take(self, name: str) -> bool:
        """Make a tap of this name for ovs-vswitchd; False where a link has the name. Raises Unavailable."""
        from userspace_cni.host.node_net.switch_taps import SwitchTaps

        return SwitchTaps(self.switch_netns, self.root).take(name)

    def let_go(self, name: str, opened: int = 0) -> bool:
        """Delete such a tap, or that of the index `opened`, unless a process has it open; whether it was deleted.

        Raises Unavailable.
        """
        from userspace_cni.host.node_net.switch_taps import SwitchTaps

        return SwitchTaps(self.switch_netns, self.root).let_go(name, opened)

    def mark(self, name: str, opened: int) -> None:
        """Mark the tap of this index, which ovs-vswitchd has opened for a row of ours. Raises Unavailable."""
        from userspace_cni.host.node_net.switch_taps import SwitchTaps

        SwitchTaps(self.switch_netns, self.root).mark(name, opened)

    def set_up(self, name: str) -> None:
        """Set the link up if it is there and down. Raises StepFailed and Unavailable."""
        from userspace_cni.host.pod_net.pod_links import set_up

        set_up(name, self.switch_netns, self.root)

    def polices(self, name: str) -> bool:
        """Whether the link has a filter for the frames that it receives. Raises Unavailable."""
        from userspace_cni.host.node_net.nic_settings import polices

        return polices(name, self.switch_netns, self.root)

    def offloads(self, name: str) -> tuple[str, ...]:
        """Those of gro and lro that are on. Raises Unavailable."""
        from userspace_cni.host.node_net.nic_settings import offloads

        return offloads(name, self.switch_netns, self.root)

    def set_offloads(self, name: str, offloads: Iterable[str], *, on: bool) -> None:
        """Turn these of gro and lro on, or off. Raises StepFailed and Unavailable."""
        from userspace_cni.host.node_net.nic_settings import set_offload

        for each in offloads:
            set_offload(name, each, on=on, switch_netns=self.switch_netns, root=self.root)

    def set_mtu(self, name: str, mtu: int) -> None:
        """Set the link's MTU. Raises StepFailed and Unavailable."""
        from userspace_cni.host.node_net.nic_settings import set_mtu

        set_mtu(name, mtu, self.switch_netns, self.root)


def addresses_of(names: Iterable[str], switch_netns: str, root: HostRoot) -> dict[str, tuple[str, ...]]:
    """The addresses of these links where ovs-vswitchd opens its ports, without prefix length and those of a link alone.

    A link that is not there is left out. Raises Unavailable.
    """
    from userspace_cni.host.netlink import address_messages as addresses
    from userspace_cni.host.netlink.netns import open_switch_netns
    from userspace_cni.host.pod_net.pod_links import connect, find_link, kernel_does

    what = "reading the addresses of the node's own links"
    with open_switch_netns(switch_netns, root) as switch, connect(switch, what) as kernel, kernel_does(what):
        held: dict[str, tuple[str, ...]] = {}
        for link in (link for name in names if (link := find_link(kernel, name))):
            # asked link by link: the node's other links can have thousands, as that of kube-proxy's virtual servers
            try:
                replies = kernel.ask(addresses.dump(link.index))
            except OSError as error:
                if error.errno != errno.ENODEV:  # it has gone since it was found
                    raise
                continue
            found = (addresses.read(payload).interface for _, payload in replies)
            held[link.name] = tuple(str(each.ip) for each in found if not each.is_link_local)
    return held
