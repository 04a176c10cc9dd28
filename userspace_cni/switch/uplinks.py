"""Ports of the node's uplinks: the driver of UplinkPort.

A commit succeeds whatever ovs-vswitchd can do, so `apply` reads back that it has opened the interfaces, with the MTU that was
asked for. Of a bond one has to be open; the others are told. An interface that another port has, of another program or of a pod,
is refused and never changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from userspace_cni.attachment.drift import Dead, Drift
from userspace_cni.attachment.steps import Driver, SharedReads, UplinkPort
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import SwitchRefused, Unavailable
from userspace_cni.base.log import say
from userspace_cni.base.retries import Retries
from userspace_cni.switch.kernel_links import Nics, NoLinks
from userspace_cni.switch.link_names import LinkNames
from userspace_cni.switch.ovsdb.rows.desired import MarkedRows
from userspace_cni.switch.ovsdb.rows.marks import IFINDEX, marks_of
from userspace_cni.switch.ovsdb.rows.uplink_row import (
    SYSTEM,
    UplinkRow,
    desired_uplink,
    find_kernel_link,
    find_uplink_differences,
    find_written_differences,
    why_closed,
    why_other_mtu,
    why_unable,
)
from userspace_cni.switch.ports import PortDriver, RowWriter
from userspace_cni.switch.read_back import ReadBack

if TYPE_CHECKING:
    from userspace_cni.switch.ovsdb.switch_database import SwitchSession

_MERGING: Final = ("gro", "lro")
LET_GO_S: Final = 2.0
_MTU_S: Final = 1.0
"""ovs-vswitchd writes Interface.mtu after it has said that it has gone through its rows."""


class UplinkDriver(Driver[UplinkPort]):
    """Uplinks through the client of `ports`. `store`: the id of our state directory; `links` gives the links of the network
    namespace of that path; `afxdp_max`: how many ports of type afxdp the switch may have."""

    def __init__(self, ports: PortDriver, store: Callable[[], str], links: Callable[[str], Nics], afxdp_max: int) -> None:
        self._client = ports.client
        self._daemon = ports.daemon
        self._read_back = ReadBack(ports.daemon)
        self._store = store
        self._links = links
        self._afxdp_max = afxdp_max
        self._retries = Retries()

    def apply(self, step: UplinkPort, deadline: Deadline) -> None:
        """Add the port, or change the one that is there, and wait until it is open.

        NameTaken: port, bridge or an interface is another's. SwitchRefused: no such NIC, a kind that this switch cannot open, no
        interface that it has opened, another MTU than asked. Unavailable: it does not answer, or the bridge is missing.
        """
        from userspace_cni.ovsdb.database import every_name
        from userspace_cni.switch.ovsdb.switch_reads import read_abilities

        nics, marks = self._links(step.switch_netns), marks_of(step, self._store())
        rows = desired_uplink(step, marks, self._indexes(step, nics))
        held = LinkNames(NoLinks(), self._read_back)
        writer = RowWriter(rows, held, self._afxdp_max, f"uplink {step.name}: what ovs-vswitchd has open is recreated")
        for each in step.present:
            if each.type == SYSTEM:
                nics.set_offloads(each.name, _MERGING, on=False)

        def put(session: SwitchSession) -> None:
            if unable := why_unable(step, session.look(read_abilities)):
                raise SwitchRefused(*unable)
            command = writer.write(session, deadline)
            self._read_back.wait(command.done, deadline)
            self._require(step, session, deadline)

        self._client.use(put, every_name(), f"uplink {step.name}: adding it to bridge {step.bridge}", deadline)
        self._detach([device for device, present in step.devices.items() if not present], deadline)
        for name in filter(None, map(find_kernel_link, step.present)):
            # closing a former link of this name, ovs-vswitchd writes back the flags that it knew: this one may be down by now
            nics.set_up(name)

    def undo(self, step: UplinkPort, deadline: Deadline) -> None:
        """Delete the port, if it is ours, and give its NICs the settings back that they had."""
        from userspace_cni.ovsdb.database import named
        from userspace_cni.switch.ovsdb.delete import Delete

        def delete(session: SwitchSession) -> Delete:
            command = Delete(session, MarkedRows(step.marks, step.name, step.bridge, awaited=True))
            session.transact([command], deadline)
            return command

        done = self._client.use(delete, named(step.name, step.bridge), f"uplink {step.name}: deleting it", deadline)
        self._retries.forget(step.name)
        if done.left_alone:
            say("warning", f"uplink {step.name} is left alone: {done.left_alone}")
            return
        with suppress(Unavailable):  # the rows are gone, and a switch that hangs lets go of the NIC when it goes on
            self._read_back.wait(done.done, deadline.within(LET_GO_S), or_dead=True)
        self._detach(step.devices, deadline)
        nics = self._links(step.switch_netns)
        for each in step.interfaces:
            if name := find_kernel_link(each):
                nics.set_offloads(name, each.offloads or (), on=True)
                if each.mtu:
                    nics.set_mtu(name, each.mtu)

    def describe_effects(self, step: UplinkPort) -> tuple[Sequence[str], Sequence[str]]:
        """What passes the uplink."""
        tags = [str(tag) for tag in step.trunks if tag]
        untagged = "frames without a tag" if not step.trunks or 0 in step.trunks else ""
        vlans = f"VLANs {', '.join(tags)}" if tags else "" if step.trunks else "all VLANs"
        mtu = f", MTU {step.mtu}" if step.mtu else ""
        return (f"it carries {' and '.join(filter(None, (untagged, vlans)))}{mtu}",), ()

    def _detach(self, devices: Iterable[str], deadline: Deadline) -> None:
        """Have DPDK let go of PCI devices that no port has: one that was there when it started it keeps beyond its port, and who
        takes the device from vfio-pci, or out of its slot, waits. A dead ovs-vswitchd has none."""
        for device in devices:
            try:
                self._daemon.run_command("netdev-dpdk/detach", device, deadline=deadline.within(LET_GO_S))
            except SwitchRefused as error:
                if "not found" not in error.message:  # else it has let the device go with its port
                    say("warning", f"DPDK keeps PCI device {device}", error=error)
            except Unavailable:
                if self._daemon.peek().state in ("alive", "silent"):
                    raise  # the step stays, and is undone again: nothing else would ask once more

    def check(self, step: UplinkPort, deadline: Deadline) -> list[Drift]:
        """Every difference between the step and the rows, NICs that were made anew, and offloads that break TCP."""
        from userspace_cni.ovsdb.database import every_name

        nics = self._links(step.switch_netns)
        indexes = self._found(step, nics)

        def look(session: SwitchSession) -> list[Drift]:
            return find_uplink_differences(step, self._row(step, session), indexes)

        drifts = self._client.read(
            look, every_name(), f"uplink {step.name}: reading it", deadline, enough=lambda found: not found
        )
        liveness = self._daemon.ask(deadline)
        if liveness.state == "dead":
            dead = Dead("ovs-vswitchd dead")
            drifts.append(Drift(f"uplink {step.name}", "", "a switch that serves it", dead, liveness.reason))
        return drifts + self._offloads_on(step, nics)

    def find_changes(self, step: UplinkPort, seen: SharedReads, deadline: Deadline) -> list[Drift]:  # noqa: ARG002 - it is all in the replica
        """What of its rows another program has written: VLANs, bond, MTU, queues. And offloads of its NICs that break TCP."""
        if seen.ports is None:
            return []
        row = self._client.require_session().look(partial(self._row, step))
        return [*(find_written_differences(step, row) if row else ()), *self._offloads_on(step, self._links(step.switch_netns))]

    @staticmethod
    def _offloads_on(step: UplinkPort, nics: Nics) -> list[Drift]:
        drifts = []
        for name in (each.name for each in step.present if each.type == SYSTEM):
            if on := nics.offloads(name):
                why = f"OVS drops what the kernel has merged: ethtool -K {name} {' '.join(f'{each} off' for each in on)}"
                drifts.append(Drift(f"NIC {name}", "offloads", "gro and lro off", f"{' and '.join(on)} on", why))
        return drifts

    def is_lost(self, step: UplinkPort, seen: SharedReads, deadline: Deadline) -> bool:  # noqa: ARG002 - it is all in the replica
        """Whether the port is missing; lacks an interface; has an interface whose NIC is gone or was made anew; or was not
        opened and its next retry is due."""
        if seen.ports is None:
            return False
        row = self._client.require_session().look(partial(self._row, step))
        if row is None or row.bridge != step.bridge:
            return True
        found = seen.once(self._links(step.switch_netns))
        closed = False
        for each in step.present:
            columns, link = row.interfaces.get(each.name), find_kernel_link(each)
            if columns is None:
                return True
            if link and columns["external_ids"].get(IFINDEX) != str(found[link].index if link in found else 0):
                return True
            closed = closed or self._is_closed(columns)
        if not closed:
            self._retries.forget(step.name)
        return closed and self._retries.is_due(step.name, self._daemon.name)

    def _is_closed(self, columns: Mapping[str, Any]) -> bool:
        """Whether ovs-vswitchd could not open the interface, or says nothing of it although it lives."""
        seen = self._daemon.seen
        answered = bool(columns["error"] or columns["ofport"])
        return bool(why_closed(columns)) and (answered or (seen is not None and seen.state == "alive"))

    @staticmethod
    def _row(step: UplinkPort, session: SwitchSession) -> UplinkRow | None:
        from userspace_cni.switch.ovsdb.switch_reads import find_uplink

        return find_uplink(session, step)

    def _indexes(self, step: UplinkPort, nics: Nics) -> dict[str, int]:
        """As `_found`. Raises SwitchRefused unless one of the NICs is there; another of a bond is told."""
        found = self._found(step, nics)
        missing = [name for name, index in found.items() if not index]
        if missing and len(missing) == len(step.present):
            raise SwitchRefused(
                f"uplink {step.name}: there is no NIC {', '.join(missing)}",
                "ip link, in the network namespace of ovs-vswitchd: is setting switch_netns right?",
            )
        for name in missing:
            say("warning", f"uplink {step.name}: its bond lacks {name}, for there is no such NIC")
        return found

    @staticmethod
    def _found(step: UplinkPort, nics: Nics) -> dict[str, int]:
        """The index of the link behind each interface, 0 for a missing one; those that the kernel does not know are left out."""
        links = {each.name: find_kernel_link(each) for each in step.present}
        return {name: nics.index(link) for name, link in links.items() if link}

    def _require(self, step: UplinkPort, session: SwitchSession, deadline: Deadline) -> None:
        """Raise SwitchRefused unless the port is open, with its MTU; interfaces of a bond that are not are told."""
        for interface in step.present:
            self._read_back.await_word(interface.name, session, deadline)
        row = session.look(partial(self._row, step))
        if row is None:
            raise SwitchRefused(f"uplink {step.name}: another process deleted its rows", "ovs-vsctl show")
        reasons = {name: why_closed(columns) for name, columns in row.interfaces.items()}
        closed = [f"{name}: {why}" for name, why in reasons.items() if why]
        if closed:
            self._retries.note_try(step.name, self._daemon.name)
        if len(closed) == len(reasons):
            raise SwitchRefused(
                f"uplink {step.name}: ovs-vswitchd has not opened it: {'; '.join(closed)}",
                f"ovs-vsctl list Interface {' '.join(reasons)}, and the log of ovs-vswitchd",
            )
        for each in closed:
            say("warning", f"uplink {step.name}: an interface of its bond is not open: {each}")
        self._require_mtu(step, session, [name for name, why in reasons.items() if not why], deadline)

    def _require_mtu(self, step: UplinkPort, session: SwitchSession, names: Iterable[str], deadline: Deadline) -> None:
        """Raise SwitchRefused for an open interface with another MTU: ovs-vswitchd says why in its log alone."""
        for name in names if step.mtu else ():
            watch = session.watch("Interface", name, partial(self._has_mtu, step, name, session))
            if watch.wait(deadline.within(_MTU_S).remaining()) is None:
                watch.forget()
                other = session.look(lambda session, name=name: self._other_mtu(step, name, session))  # type: ignore[misc]
                if other:
                    raise SwitchRefused(
                        f"uplink {step.name}: {other}", "the NIC's driver does not take it; see the log of ovs-vswitchd"
                    )

    def _has_mtu(self, step: UplinkPort, name: str, session: SwitchSession) -> Literal[True] | None:
        return None if self._other_mtu(step, name, session) else True

    def _other_mtu(self, step: UplinkPort, name: str, session: SwitchSession) -> str:
        row = self._row(step, session)
        return "" if row is None or name not in row.interfaces else why_other_mtu(step, name, row.interfaces[name])
