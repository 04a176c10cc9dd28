"""What needs the kernel's links and the node at once: which guards there are, and what no record names any more."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from userspace_cni.attachment.steps import Guard
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import UserspaceError
from userspace_cni.base.log import say

if TYPE_CHECKING:
    from userspace_cni.attachment.journal import Journal
    from userspace_cni.node.installation import Installation
    from userspace_cni.switch.ports import PortDriver

_SWEEP_S: Final = 5.0


def guards(here: Installation, journal: Journal) -> tuple[int, int]:
    """How many of the recorded host ends that need a guard have one that drops, and how many need one. Raises UserspaceError."""
    from userspace_cni.host.pod_net.guards import find_guarded

    needed = [record.guard for record in journal.records() if record.guard]
    there = find_guarded(here.settings.switch_netns, journal.identity(), here.root) if needed else {}
    return sum(there.get(step.link, False) for step in needed), len(needed)


def sweep(here: Installation, journal: Journal, ports: PortDriver | None) -> int:
    """Remove guards of host ends that are gone, limits without a port and mirrors without an output, which no record names.

    `ports`: None for a process that does not know all ports, and looks at guards alone. Never fails.
    """
    works: list[Callable[[], int]] = [partial(_sweep_guards, here, journal)]
    if ports:
        works += [partial(_sweep_limits, ports), partial(_sweep_mirrors, journal, ports)]
    swept, problems = 0, set()
    for work in works:
        try:
            swept += work()
        except UserspaceError as error:
            problems.add(str(error))
    for each in sorted(problems):
        say("warning", "what no attachment needs any more could not be removed", error=each)
    return swept


def _sweep_guards(here: Installation, journal: Journal) -> int:
    from userspace_cni.host.pod_net.guards import GuardDriver, find_guarded
    from userspace_cni.host.pod_net.pod_links import host_ends

    store, netns = journal.identity(), here.settings.switch_netns
    there = find_guarded(netns, store, here.root)
    if not there:
        return 0
    # in this order: an ADD records its guard before it makes it
    needed = {record.guard.link for record in journal.records() if record.guard}
    needed |= {end.host for end in host_ends(store, netns, here.root)}
    unneeded = [Guard(name, store, netns) for name in there if name not in needed]
    for guard in unneeded:
        say("info", "removing the guard of a host end that is gone", link=guard.link)
        GuardDriver(here.root).undo(guard, Deadline.after(_SWEEP_S))
    return len(unneeded)


def _sweep_limits(ports: PortDriver) -> int:
    return ports.sweep_limits(Deadline.after(_SWEEP_S))


def _sweep_mirrors(journal: Journal, ports: PortDriver) -> int:
    store, recorded = journal.identity(), {(record.container_id, record.ifname) for record in journal.records()}

    def keep(marks: Mapping[str, str]) -> bool:
        return marks.get("store") != store or (marks.get("container-id", ""), marks.get("ifname", "")) in recorded

    return ports.sweep_mirrors(keep, Deadline.after(_SWEEP_S))
