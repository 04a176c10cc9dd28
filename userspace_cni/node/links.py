"""What needs the kernel's links and the node at once: which guards there are, and what no record names any more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from userspace_cni.attachment.steps import Guard
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import UserspaceError
from userspace_cni.base.log import say

if TYPE_CHECKING:
    from userspace_cni.node.local import LocalNode

_SWEEP_S: Final = 5.0


def guards(node: LocalNode) -> tuple[int, int]:
    """How many of the recorded host ends that need a guard have one that drops, and how many need one. Raises UserspaceError."""
    from userspace_cni.host.pod_net.guards import guarded

    needed = [record.guard for record in node.journal.records() if record.guard]
    there = guarded(node.settings.switch_netns, node.journal.identity(), node.root) if needed else {}
    return sum(there.get(step.link, False) for step in needed), len(needed)


def sweep(node: LocalNode) -> int:
    """Remove guards of host ends that are gone, limits without a port and mirrors without an output, which no record names.

    Never fails.
    """
    swept, problems = 0, set()
    for work in (_sweep_guards, _sweep_limits, _sweep_mirrors):
        try:
            swept += work(node)
        except UserspaceError as error:
            problems.add(str(error))
    for each in sorted(problems):
        say("warning", "what no attachment needs any more could not be removed", error=each)
    return swept


def _sweep_guards(node: LocalNode) -> int:
    from userspace_cni.host.pod_net.guards import guarded
    from userspace_cni.host.pod_net.pod_links import host_ends

    store, netns = node.journal.identity(), node.settings.switch_netns
    there = guarded(netns, store, node.root)
    if not there:
        return 0
    # in this order: an ADD records its guard before it makes it
    needed = {record.guard.link for record in node.journal.records() if record.guard}
    needed |= {end.host for end in host_ends(store, netns, node.root)}
    unneeded = [Guard(name, store, netns) for name in there if name not in needed]
    for guard in unneeded:
        say("info", "removing the guard of a host end that is gone", link=guard.link)
        node.driver(guard).undo(guard, Deadline.after(_SWEEP_S))
    return len(unneeded)


def _sweep_limits(node: LocalNode) -> int:
    return node.ports.sweep_limits(Deadline.after(_SWEEP_S)) if node.resident else 0


def _sweep_mirrors(node: LocalNode) -> int:
    if not node.resident:
        return 0
    store, recorded = node.journal.identity(), {(record.container_id, record.ifname) for record in node.journal.records()}

    def keep(marks: Mapping[str, str]) -> bool:
        return marks.get("store") != store or (marks.get("container-id", ""), marks.get("ifname", "")) in recorded

    return node.ports.sweep_mirrors(keep, Deadline.after(_SWEEP_S))
