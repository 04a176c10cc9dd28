"""Keeps the node's own stack from the frames of pods: the driver of `Guard`, and what is guarded.

OVS reads a host end of type `system` by a packet socket, which takes copies: each frame goes on into the stack of the namespace
that has the host end. There the node answers ARP for all of its addresses, and forwards, past the VLAN of the port. So a chain
drops the frame there (`ingress_drops`), in a table of this installation's, named by its store.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from userspace_cni.attachment.drift import Drift
from userspace_cni.attachment.steps import Driver, Guard, Rest, SharedReads
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import StepFailed
from userspace_cni.base.root import HERE, HostRoot
from userspace_cni.host.netlink.netns import is_gone
from userspace_cni.host.pod_net.ingress_drops import NEEDED, Drops, differences


def table_of(store: str) -> str:
    """The name of our table."""
    return f"userspace-cni-{store}"


def find_guarded(switch_netns: str, store: str, root: HostRoot = HERE) -> Mapping[str, bool]:
    """The host ends that have a chain of ours, and whether it drops what arrives there. Raises UserspaceError."""
    chains = Drops(switch_netns, table_of(store), root)()
    return {name: not list(differences(name, chain)) for name, chain in chains.items()}


_NEEDED: Final = f"{NEEDED}; the ports afxdp and af_xdp need no guard"


class GuardDriver(Driver[Guard]):
    """The chain that drops what arrives at a host end. `root` is the host's: the path of the switch's namespace is the host's."""

    def __init__(self, root: HostRoot = HERE) -> None:
        self._root = root

    def apply(self, step: Guard, deadline: Deadline) -> Rest | None:
        """Make the chain before its link exists: then no frame is too early for it.

        Kernels before 6.16 make none for a link that is not there; on those the rest makes it, before the pod's containers run.
        """
        deadline.require(_what(step))
        return None if self._drops(step).make(step.link) else partial(self._make_late, step)

    def undo(self, step: Guard, deadline: Deadline) -> None:
        """Delete the chain, and the table if nothing is left in it. A namespace that is gone took them with it."""
        deadline.require(_what(step))
        if step.switch_netns and is_gone(step.switch_netns, self._root):
            return
        self._drops(step).remove(step.link)

    def check(self, step: Guard, deadline: Deadline) -> list[Drift]:
        """The chain is there, at the hook of its host end alone, drops, and has no rules that could let frames pass."""
        deadline.require(_what(step))
        look = f"in the switch's network namespace: nft list table netdev {table_of(step.store)}"
        chain = self._drops(step)().get(step.link)
        return [Drift(_what(step), *difference, look) for difference in differences(step.link, chain)]

    def is_lost(self, step: Guard, seen: SharedReads, deadline: Deadline) -> bool:
        """Whether the chain is missing, or is not called for the host end."""
        deadline.require(_what(step))
        chain = seen.once(self._drops(step)).get(step.link)
        return chain is None or not chain.hook or step.link not in chain.devices

    def find_changes(self, step: Guard, seen: SharedReads, deadline: Deadline) -> list[Drift]:
        """What differs of a chain that is called: it lets frames pass."""
        deadline.require(_what(step))
        chain = seen.once(self._drops(step)).get(step.link)
        return [] if chain is None else [Drift(_what(step), *difference) for difference in differences(step.link, chain)]

    def _drops(self, step: Guard) -> Drops:
        return Drops(step.switch_netns, table_of(step.store), self._root)

    def _make_late(self, step: Guard) -> None:
        if not self._drops(step).make(step.link):
            raise StepFailed(f"{_what(step)}: making it: the kernel has no such link, or no such chains", _NEEDED)


def _what(step: Guard) -> str:
    return f"guard of {step.link}"
