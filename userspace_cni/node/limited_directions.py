"""What limits of attachments are in force, and what they have dropped: asked for when a person or a scraper asks.

It asks of limited attachments alone, and never waits longer than its deadline.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from userspace_cni.attachment.listing import LimitedDirection, limits_of
from userspace_cni.attachment.steps import OvsPort, Shaper
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import UserspaceError
from userspace_cni.base.log import say
from userspace_cni.base.root import HostRoot

if TYPE_CHECKING:
    from userspace_cni.attachment.records import Record
    from userspace_cni.switch.counters import LimitDrops
    from userspace_cni.switch.ports import PortDriver


def list_limited(records: Iterable[Record], ports: PortDriver, root: HostRoot, deadline: Deadline) -> list[LimitedDirection]:
    """Each limited direction of these attachments; for a process that lives on. What does not answer leaves drops unknown."""
    found = [(each, each.port) for each in records if each.state == "ready" and each.port and limits_of(each)]
    counted = _of_switch(ports, deadline) if found else {}
    return [way for record, port in found for way in _ways(record, port, counted.get(port.name), root, deadline)]


def _ways(
    record: Record, port: OvsPort, counted: LimitDrops | None, root: HostRoot, deadline: Deadline
) -> Iterator[LimitedDirection]:
    limits, shaper = limits_of(record), record.shaper
    if limits.to_pod or limits.netem:
        rate = limits.to_pod.rate if limits.to_pod else None
        yield LimitedDirection(record.key, port, "to_pod", rate, counted.to_pod if counted else None)
    if limits.from_pod:
        drops = _of_pod(shaper, root, deadline) if shaper else counted.from_pod if counted else None
        yield LimitedDirection(record.key, port, "from_pod", limits.from_pod.rate, drops)


def _of_switch(ports: PortDriver, deadline: Deadline) -> dict[str, LimitDrops]:
    try:
        return {each.name: each for each in ports.read_limit_drops(deadline)}
    except UserspaceError as error:
        say("debug", "what limits have dropped is not known", error=error)
        return {}


def _of_pod(shaper: Shaper, root: HostRoot, deadline: Deadline) -> int | None:
    from userspace_cni.host.pod_net.shapers import ShaperDriver

    if not deadline.remaining():
        return None
    try:
        return ShaperDriver(root).drops(shaper)
    except UserspaceError as error:
        say("debug", "what a limit has dropped is not known", error=error)
        return None
