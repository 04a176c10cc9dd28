"""The links where ovs-vswitchd opens its ports, for the room of the switch.

What speaks netlink is imported by the first question: a process that lives for one call of a vhost-user interface asks none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from userspace_cni.base.root import HERE, HostRoot

if TYPE_CHECKING:
    from userspace_cni.host.netlink.links import FoundLink


@dataclass(frozen=True)
class SwitchLinks:
    """The links of the network namespace `switch_netns`, "" for that of this process."""

    switch_netns: str = ""
    root: HostRoot = HERE

    def __call__(self) -> Mapping[str, FoundLink]:
        """Every link, by name. Raises Unavailable."""
        from userspace_cni.host.links import Listed

        return Listed(self.switch_netns, self.root)()

    def index(self, name: str) -> int:
        """The index of the link of that name, 0 when there is none. Raises Unavailable."""
        from userspace_cni.host.links import ifindex

        return ifindex(name, self.switch_netns, self.root)

    def set_up(self, name: str) -> None:
        """Set the link up if it is there and down. Raises StepFailed and Unavailable."""
        from userspace_cni.host.links import set_up

        set_up(name, self.switch_netns, self.root)
