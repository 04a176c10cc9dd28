"""What pods are told, by Events, of the uplink of their bridge: that it carries nothing, why, and that it carries again.

It goes by what the node has and the switch says, not by whether all is as it was asked for: an uplink that keeps working while a
change of it is refused is no matter of a pod's. Each interface is told once, and again when the cause is another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from userspace_cni.attachment.specs import SpecStatus
from userspace_cni.base.findings import Finding
from userspace_cni.base.notices import UPLINK_DOWN, UPLINK_UP
from userspace_cni.base.provider_networks import usual_bridge
from userspace_cni.network.spec_list import PROVIDER_NETWORK

if TYPE_CHECKING:
    from userspace_cni.attachment.journal import Journal
    from userspace_cni.attachment.records import Record
    from userspace_cni.base.notices import Recipient


class _Port(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def link_state(self) -> str: ...

    @property
    def error(self) -> str: ...


def down(statuses: Iterable[SpecStatus], ports: Iterable[_Port]) -> Mapping[str, str]:
    """The bridges of provider networks whose uplink carries nothing, each with the cause. `ports`: those that the switch has.

    Of a bond only what became of the whole is known: it is not among the ports.
    """
    known = {port.name: port for port in ports}
    found: dict[str, str] = {}
    for each in statuses:
        if each.kind != PROVIDER_NETWORK or not each.desired:
            continue
        uplink = each.uplink
        port = known.get(uplink.name) if uplink else None
        if port is None:
            cause = each.problem if uplink is None or len(uplink.interfaces) == 1 else ""
        else:
            cause = port.error or (f"{port.name} has no link" if port.link_state == "down" else "")
        if cause:
            found[each.node_bridge.name if each.node_bridge else usual_bridge(each.name)] = cause
    return found


class UplinkNews:
    """Has the pods of the attachments in the journal told, by `tell`. For one thread."""

    def __init__(self, journal: Journal, tell: Callable[[Recipient, Sequence[Finding]], None]) -> None:
        self._journal = journal
        self._tell = tell
        self._told: dict[str, str] = {}

    def tell(self, statuses: Sequence[SpecStatus], ports: Iterable[_Port]) -> None:
        """Tell those whose uplink has failed, or carries again, since the last call. Raises UserspaceError without records."""
        causes = down(statuses, ports)
        if not causes and not self._told:
            return
        records = {record.key: record for record in self._journal.records() if record.state == "ready"}
        now = {key: cause for key, record in records.items() if (cause := causes.get(_bridge(record), ""))}
        for key, record in records.items():
            before, bridge = self._told.get(key, ""), _bridge(record)
            if key in now and now[key] != before:
                self._say(record, UPLINK_DOWN.finding(f"the uplink of its bridge {bridge} carries nothing: {now[key]}"))
            elif before and key not in now:
                self._say(record, UPLINK_UP.finding(f"the uplink of its bridge {bridge} carries again"))
        self._told = now

    def _say(self, record: Record, notice: Finding) -> None:
        self._tell(record.recipient, (notice,))


def _bridge(record: Record) -> str:
    return record.port.bridge if record.port else ""
