"""Ports of uplinks that are polled once the NIC's addresses have left it: the driver of PolledUplink.

The type changes in place, in one transaction, and no frame is without a port for longer than ovs-vswitchd needs to open another
socket. `undo` makes it a port of type system again, of which the node's stack hears the frames, too.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal

from userspace_cni.attachment.drift import Drift
from userspace_cni.attachment.steps import SharedReads, StillTaken, UplinkPort
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import NameTaken, UserspaceError
from userspace_cni.switch.ovsdb.rows.interface_row import AFXDP
from userspace_cni.switch.ovsdb.rows.marks import IFINDEX, marks_of, owns
from userspace_cni.switch.ovsdb.rows.uplink_row import SYSTEM, UplinkRow, desired_uplink
from userspace_cni.switch.uplinks import LET_GO_S, UplinkDriver

if TYPE_CHECKING:
    from userspace_cni.ovsdb.replica import Watch
    from userspace_cni.switch.ovsdb.switch_database import SwitchSession


class PolledUplinkDriver(UplinkDriver):
    """As that of uplinks, by which it is applied."""

    def undo(self, step: UplinkPort, deadline: Deadline) -> None:
        """Open the interface as system again, where the port is there, is ours and has the NIC that is there.

        Raises StillTaken while ovs-vswitchd may have the NIC's frames, also where its row cannot be written, or is another's by
        now: addresses that go back to the NIC would hear nothing. A daemon that is dead has none, and finds the type when it is
        started; one that hangs, when it goes on.
        """
        from userspace_cni.ovsdb.database import every_name
        from userspace_cni.switch.ovsdb.put import Put

        plain = replace(step, interfaces=tuple(replace(each, type=SYSTEM) for each in step.interfaces), rx_queues=0)
        indexes = self._found(step, self._links(step.switch_netns))

        def put(session: SwitchSession) -> Watch[Literal[True]] | None:
            row = session.look(partial(self._row, step))
            if row is None or not _has(row, indexes):
                return None
            command = Put(session, desired_uplink(plain, marks_of(step, self._store()), indexes), self._afxdp_max)
            try:
                session.transact([command], deadline)
            except NameTaken:  # the port or its bridge is another's by now, which is not changed; a port of ours goes next
                is_polled = any(columns["type"] == AFXDP for columns in row.interfaces.values())
                if is_polled and not owns(step.marks, row.port["external_ids"]):
                    raise
                return None
            return command.done

        try:
            done = self._client.use(put, every_name(), f"uplink {step.name}: opening it as system", deadline)
            self._read_back.wait(done, deadline.within(LET_GO_S), or_dead=True)
        except UserspaceError as error:
            if self._daemon.peek().state == "dead":
                if isinstance(error, NameTaken):
                    return
                raise
            names = ", ".join(each.name for each in step.interfaces)
            raise StillTaken(
                f"ovs-vswitchd may have the frames of {names} by AF_XDP still; {error.message}",
                f"what {step.bridge} has of addresses stays there until it opens the uplink as system, or ends; {error.details}",
            ) from error

    def check(self, step: UplinkPort, deadline: Deadline) -> list[Drift]:
        """The type of each interface; the rest is its port's."""
        from userspace_cni.ovsdb.database import every_name

        def look(session: SwitchSession) -> list[Drift]:
            row, found = self._row(step, session), []
            for each in step.interfaces if row else ():
                kind = row.interfaces[each.name]["type"] if row and each.name in row.interfaces else each.type
                if kind != each.type:
                    look = f"ovs-vsctl list Interface {each.name}"
                    found.append(Drift(f"uplink {step.name}", f"{each.name} type", each.type, kind, look))
            return found

        return self._client.read(look, every_name(), f"uplink {step.name}: reading it", deadline, enough=lambda found: not found)

    def is_lost(self, step: UplinkPort, seen: SharedReads, deadline: Deadline) -> bool:  # noqa: ARG002 - it is all in the replica
        """Whether the switch has no such port, or opens it otherwise."""
        if seen.ports is None:
            return False
        row = self._client.require_session().look(partial(self._row, step))
        return row is None or any(row.interfaces.get(each.name, {}).get("type") != each.type for each in step.interfaces)

    def find_changes(self, step: UplinkPort, seen: SharedReads, deadline: Deadline) -> list[Drift]:  # noqa: ARG002 - the interface
        """Nothing: the port's step reports other changes."""
        return []


def _has(row: UplinkRow, indexes: dict[str, int]) -> bool:
    """Whether its interfaces are those of the links that are there: one that was made anew is not polled."""
    recorded = {name: columns["external_ids"].get(IFINDEX) for name, columns in row.interfaces.items()}
    return all(recorded.get(name) == str(index) for name, index in indexes.items())
