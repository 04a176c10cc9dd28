"""The commands that change OVSDB; each reads, decides and writes in one transaction.

Two sessions race: a row that was read may have changed, or vanished, when the transaction arrives, and a mutation of a vanished
bridge succeeds without leaving a port. So every command verifies (RFC 7047 `wait`) the values on which it decided, and runs again
when they have changed. No command here touches a row that is not marked as ours, but for adding and removing our port on an
administrator's bridge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from userspace_cni.attachment.steps import OvsPort, PortRef
from userspace_cni.base.errors import NameTaken, SwitchRefused, Unavailable
from userspace_cni.ovsdb.columns import changed_columns, new_columns
from userspace_cni.ovsdb.database import Clause, named, of_type
from userspace_cni.ovsdb.draft import Draft
from userspace_cni.ovsdb.groups import Command, Refused
from userspace_cni.ovsdb.replica import Watch
from userspace_cni.ovsdb.values import count, refers, value_of
from userspace_cni.switch.ovsdb import limits, mirrors
from userspace_cni.switch.ovsdb.bridge_drafts import bridge_draft
from userspace_cni.switch.ovsdb.database import SwitchSession
from userspace_cni.switch.ovsdb.put import Put
from userspace_cni.switch.ovsdb.reads import bridge_of, is_open, link_index, local_port_without_mtu
from userspace_cni.switch.ovsdb.rounds import Round
from userspace_cni.switch.ovsdb.rows.bridge import (
    DATAPATH_TYPE,
    LOCAL_MTU,
    bridge_columns,
    datapath_of,
    local_port_columns,
    other_datapath,
)
from userspace_cni.switch.ovsdb.rows.interface import AFXDP, VHOST_USER_TYPES, interface_row
from userspace_cni.switch.ovsdb.rows.marks import IFINDEX, is_nodes, is_ours, owns, require_own, whose
from userspace_cni.switch.ovsdb.rows.mirror import withdrawn
from userspace_cni.switch.ovsdb.rows.port import interface_columns, port_columns
from userspace_cni.switch.ovsdb.rows.qos import policing_columns, qos_row


class AddPort(Put[OvsPort]):
    """Adds the port with its interface to its bridge, and the bridge when it is missing.

    `anew`: an existing port must be opened anew, because the link that ovs-vswitchd made for it was deleted, or DPDK no longer
    connects to its application. `held`: the names that the caller has reserved among the kernel's links. `unheld`: those that
    it has to reserve first; while there is one, nothing is written. `opened`: whether ovs-vswitchd has opened the interface:
    (True, ""), or (False, the reason), or nothing yet. `closed`: the port was there, and ovs-vswitchd had not opened it.
    `stale`: the port must be opened anew (ovs-vswitchd may keep the socket of a deleted link, for example); so it was removed,
    and the caller adds it again once that is `done`. `flows_after`: the number of the configuration after which flows in use
    must be renewed, because a mirror has changed; None if not.
    """

    opened: Watch[tuple[bool, str]]

    def __init__(
        self, session: SwitchSession, step: OvsPort, marks: dict[str, str], afxdp_max: int = 0, *, anew: bool = False
    ) -> None:
        super().__init__(session, step, marks)
        self._afxdp_max = afxdp_max
        self._anew = anew
        self._renews_flows = False
        self._flows: Round | None = None
        self.held: frozenset[str] = frozenset()
        self.unheld: frozenset[str] = frozenset()
        self.closed = False
        self.stale = False
        self.flows_after: int | None = None

    def needs(self) -> frozenset[Clause]:
        """The rows with the port's name, those with the bridge's, and those of its mirrors and limits, if it has or had some."""
        port = self.api.row("Port", self._step.name)
        ids = value_of(port, "external_ids") if port is not None else {}
        limited = self._step.limits or (port is not None and value_of(port, "qos"))
        clauses = named(self._step.name, self._step.bridge) | mirrors.clauses_of(self._step, ids)
        clauses |= limits.clauses_of(self._step) if limited else frozenset()
        return clauses | (of_type(AFXDP) if self._is_afxdp else frozenset())

    @property
    def _is_afxdp(self) -> bool:
        return interface_row(self._step).type == AFXDP

    @property
    def unanswered(self) -> bool:
        """Whether ovs-vswitchd has said nothing of the interface."""
        return self.api.look(lambda _: self._look()) is None

    def run_idl(self, txn: Draft) -> None:
        """Insert the rows, or update them when they are ours."""
        step, api, wanted = self._step, self.api, interface_row(self._step)
        self._round, self._flows, self.stale, self.unheld = None, None, False, frozenset()
        qos_row(step)  # raises for a limit that the port cannot have: nothing may be written then
        bridge = api.row("Bridge", step.bridge)
        kind = step.datapath if bridge is None else datapath_of(value_of(bridge, "datapath_type"))
        if kind != step.datapath:
            raise SwitchRefused(
                f"bridge {step.bridge} has datapath_type {kind}, {wanted.called} of this network needs {step.datapath}",
                other_datapath(step.bridge, step.datapath, count(bridge, "ports") - 1),
            )
        port = api.row("Port", step.name)
        if port is not None:
            self._require_own(port, bridge)
        mirrors.require_part(api.replica, step, bridge, bridge_draft(txn, step.bridge, bridge))
        local = local_port_without_mtu(api, bridge)
        self._renews_flows = mirrors.has_part(step.mirrors, step.mirror_outputs, port)
        if port is not None:
            self._update(txn, port, bridge)
            self._keep_mtu(txn, local)
            return
        require_allowed(step, bridge)
        if api.row("Interface", step.name) is not None:
            raise NameTaken(f"an interface of another port has the name {step.name}", f"ovs-vsctl list Interface {step.name}")
        if bridge is None and api.row("Port", step.bridge) is not None:
            raise NameTaken(f"bridge {step.bridge} cannot be made: a port has its name", f"ovs-vsctl list Port {step.bridge}")
        if bridge is None and step.foreign_bridge:
            raise Unavailable(
                f"bridge {step.bridge} is missing: it was an administrator's, so it is not made here",
                f"ovs-vsctl add-br {step.bridge} -- set Bridge {step.bridge} datapath_type={step.datapath}",
            )
        self.api.root()  # raises when there is no row to add a bridge to
        bridge_draft(txn, step.bridge, bridge).require_maker("pod")
        self.unheld = lacking(api, names_of(step)) - self.held
        if self.unheld:
            return
        if self._is_afxdp:
            require_memory(txn, self.api, step.name, self._afxdp_max)
        qos = limits.make(txn, step, self._marks)
        interface = txn.write("Interface", new_columns(interface_columns(step, self._marks)))
        added = txn.write("Port", port_columns(step, self._marks) | {"interfaces": interface, "qos": qos})
        draft = bridge_draft(txn, step.bridge, bridge)
        draft.add(added)
        mirrors.take_part(draft, api.replica, step, self._marks, added, living=None)
        if self._renews_flows:
            self._flows = Round(txn)
        self._keep_mtu(txn, local)
        if bridge is None:
            draft.make(bridge_columns(step.bridge, step.datapath), *local_port_columns(step.bridge))
        if bridge is None or step.interface.link_by == "switch" or step.datapath != DATAPATH_TYPE:
            # of a bridge that it cannot make ovs-vswitchd says nothing; of a tap it shows in the kernel whether it is open
            self._round = Round(txn)

    def post_commit(self, txn: Draft) -> None:
        """Watch for what ovs-vswitchd says of rows and interface."""
        super().post_commit(txn)
        self.flows_after = self._flows.configuration if self._flows else None
        self.watch_opened()

    def watch_opened(self) -> None:
        """Watch for what ovs-vswitchd says of the interface from now on."""
        self.opened = self.api.watch("Interface", self._step.name, self._look)

    def _look(self) -> tuple[bool, str] | None:
        row = self.api.row("Interface", self._step.name)
        if row is None:
            return False, "another process deleted its rows"
        if error := value_of(row, "error"):
            return False, str(error[0])
        ofport = value_of(row, "ofport")
        return (True, "") if ofport and ofport[0] > 0 else None

    def _require_own(self, port: Any, bridge: Any) -> None:
        """Raise NameTaken unless the port, which exists, is this attachment's, and on the bridge."""
        step, marks = self._step, value_of(port, "external_ids")
        hint = f"ovs-vsctl list Port {step.name}; it goes with the DEL of that attachment, or by the program that made it"
        require_own(step, marks, f"port {step.name} exists and", hint)
        if bridge is None or not refers(bridge, "ports", port.uuid):
            raise NameTaken(f"port {step.name} of this attachment exists, but not on bridge {step.bridge}", "its DEL removes it")
        if self.api.row("Interface", step.name) is None:
            raise SwitchRefused(f"port {step.name} exists without an interface of that name", f"ovs-vsctl list Port {step.name}")

    def _update(self, txn: Draft, port: Any, bridge: Any) -> None:
        step, interface = self._step, self.api.row("Interface", self._step.name)
        columns = port_columns(step, self._marks)
        columns["external_ids"] |= withdrawn(value_of(port, "external_ids"), step.mirrors)
        txn.verify(bridge, "name", "datapath_type")
        txn.verify(port, "qos")
        if self._anew or self._marks.get(IFINDEX) != value_of(port, "external_ids").get(IFINDEX):
            self._remove(txn, port, bridge)
            return
        told = policing_columns(step).keys() | ({"mac", "mtu_request"} if step.interface.link_by == "switch" else set())
        awaited = limits.converge(txn, self.api.replica, step, port, self._marks)
        for row, wanted in (
            (port, columns),
            (interface, interface_columns(step, self._marks)),
        ):
            txn.verify(row, "external_ids")
            found = {column: value_of(row, column) for column in wanted}
            if changes := changed_columns(wanted, found):
                txn.update(row, changes)
                awaited = awaited or not told.isdisjoint(changes)
        draft = bridge_draft(txn, step.bridge, bridge)
        mirrors.take_part(draft, self.api.replica, step, self._marks, ("uuid", str(port.uuid)), living=port)
        if self._renews_flows:
            self._flows = Round(txn)
        self.closed = not is_open(interface)
        if self.closed and interface_row(step).can_reopen:
            self._try_again(txn, interface)
        elif awaited:
            self._round = Round(txn)  # no other event follows the change of a living port

    @staticmethod
    def _keep_mtu(txn: Draft, local: Any) -> None:
        """Have the local port of a bridge of ours keep its MTU, whatever the ports on it have."""
        if local is not None:
            txn.update(local, {"mtu_request": [LOCAL_MTU]})

    def _remove(self, txn: Draft, port: Any, bridge: Any) -> None:
        """Remove the port that is to be opened anew, and keep the bridge for the next transaction, which adds it again.

        Deleted and added within one of ovs-vswitchd's rounds it would keep what it has, as the socket of a link that has gone.
        """
        txn.verify(port, "external_ids")
        limits.drop(txn, self._step, port)
        bridge_draft(txn, self._step.bridge, bridge).remove(port, ours=False)
        self._round = Round(txn)
        self.stale = True

    def _try_again(self, txn: Draft, interface: Any) -> None:
        """Make ovs-vswitchd open the interface again: it tries for every new configuration, and answers as for a new row.

        Rows that are deleted and added within one of its rounds are no change for it.
        """
        txn.update(interface, {"ofport": [], "error": []})
        txn.increment(self.api.root(), "next_cfg")


class AfxdpPorts:
    """The interfaces of type afxdp that a transaction adds: those of all commands of a group count."""

    def __init__(self) -> None:
        self._added: dict[str, frozenset[str]] = {}

    def take(self, name: str, others: frozenset[str], most: int) -> bool:
        """Count one more, if there are no more than `most` with the `others` then; whether that is so."""
        fits = len(others | self._added.keys() | {name}) <= most
        if fits:
            self._added[name] = others
        return fits

    def write(self, draft: Draft) -> None:
        """Commit only if the database has no others."""
        if self._added:
            names = sorted(frozenset(self._added).union(*self._added.values()))
            draft.expect("Interface", [["type", "==", AFXDP]], [{"name": name} for name in names])


def require_memory(txn: Draft, session: SwitchSession, name: str, most: int) -> None:
    """Raise SwitchRefused if the switch has as many ports of type afxdp as it may have; commit only if it has no others."""
    if not txn.part(AfxdpPorts, AFXDP, AfxdpPorts).take(name, afxdp_ports(session) - {name}, most):
        raise too_many_afxdp(name, most)


def afxdp_ports(session: SwitchSession) -> frozenset[str]:
    return frozenset(value_of(row, "name") for row in session.rows("Interface") if value_of(row, "type") == AFXDP)


def too_many_afxdp(name: str, most: int) -> SwitchRefused:
    return SwitchRefused(
        f"port {name}: the switch has {most} ports of type afxdp, which is all that it may have",
        "each takes 76 MiB of ovs-vswitchd's memory: setting afxdp_max; or open it as system, af_packet or af_xdp",
    )


def require_allowed(step: OvsPort, bridge: Any) -> None:
    """Raise Unavailable for a pod's port on a bridge that has become the node's own since the rules were asked about it."""
    marks = value_of(bridge, "external_ids") if bridge is not None else {}
    if is_nodes(marks) and not step.foreign_bridge and not is_nodes(step.marks):
        raise Unavailable(
            f"bridge {step.bridge} belongs to {whose(marks)} by now, and did not when the port was planned",
            "a setting [[rule]] has to allow its use; the next ADD asks the rules anew",
        )


def names_of(step: OvsPort) -> frozenset[str]:
    """The names that OVSDB may get with this port, but for a host end's: its link is there, and is known by its index."""
    names = ("" if step.foreign_bridge else step.bridge, "" if step.interface.link_by == "us" else step.name)
    return frozenset(filter(None, names))


def lacking(session: SwitchSession, names: Iterable[str]) -> frozenset[str]:
    """Those of the names that no replicated bridge or port has. Needs no lock: a transaction may be under way."""
    index = session.index
    return frozenset(name for name in names if name not in index.bridge_marks and name not in index.marks)


class AnotherRound(Command[SwitchSession]):
    """Has ovs-vswitchd go through all rows, and try again to open those of the interfaces `closed` that are. `done`: it has."""

    done: Watch[Literal[True]]

    def __init__(self, session: SwitchSession, closed: Iterable[str] = ()) -> None:
        super().__init__(session)
        self._closed = tuple(closed)

    def needs(self) -> frozenset[Clause]:
        return named(*self._closed)

    def run_idl(self, txn: Draft) -> None:
        """Forget what it has said of them, and ask for the round."""
        for row in (self.api.row("Interface", name) for name in self._closed):
            if row is not None and not is_open(row):
                txn.update(row, {"ofport": [], "error": []})
        self._round = Round(txn)

    def post_commit(self, txn: Draft) -> None:  # noqa: ARG002 - the interface
        """Watch for ovs-vswitchd's answer."""
        self.done = self._round.watch(self.api)


class DeletePort(Command[SwitchSession]):
    """Deletes port, interface, limits, and the mirror that it is the output of; and the bridge, if it is ours and now empty.

    `left_alone`: why the port was not deleted, "" if it was. `links`: the names of ours of which ovs-vswitchd may have had a
    link, with its index, 0 for unknown.
    """

    def __init__(self, session: SwitchSession, step: PortRef) -> None:
        super().__init__(session)
        self.target = step.name
        self._step = step
        self._shared_qos = False
        self.left_alone = ""
        self.links: dict[str, int] = {}

    def needs(self) -> frozenset[Clause]:
        """The rows with the port's name, and the local port of the bridge that it is on, whichever it is."""
        bridge = self._bridge_of(self.api.row("Port", self._step.name))
        names = named(self._step.name, self._step.bridge, *([value_of(bridge, "name")] if bridge is not None else []))
        return names | mirrors.clauses_of(self._step)

    def run_idl(self, txn: Draft) -> None:
        """Remove the references to the rows, which deletes them; if there are no rows, have the server confirm that."""
        name = self._step.name
        port = self.api.row("Port", name)
        bridge = self._bridge_of(port)
        if port is None or bridge is None:
            self.links = dict.fromkeys(filter(None, (self._step.bridge, name)), 0)  # a call that died may have taken them
            txn.expect("Port", [["name", "==", name]], [])
            bridge = self.api.row("Bridge", self._step.bridge) if self._step.bridge else None
            self._leave_mirrors(txn, bridge)
            if not self._shared_qos:
                limits.drop(txn, self._step, None)
            self._delete_if_empty(txn, bridge)
            return
        txn.verify(port, "external_ids", "qos")
        self.left_alone = self._why_foreign(port)
        if self.left_alone:
            return
        self._leave_mirrors(txn, bridge)
        if not self._shared_qos:
            limits.drop(txn, self._step, port)
        ours, on = is_ours(value_of(bridge, "external_ids")), value_of(bridge, "name")
        row = self.api.row("Interface", name)
        internal = row is not None and value_of(row, "type") == "internal"
        self.links = {each: link_index(self.api, each) for each in (*([on] if ours else []), *([name] if internal else []))}
        bridge_draft(txn, on, bridge).remove(port, ours=ours)

    def should_retry(self, refused: Refused) -> bool:
        """Whether another port uses the QoS row too: then the row stays."""
        first = not self._shared_qos
        self._shared_qos = refused.error == "referential integrity violation"
        return self._shared_qos and first

    def _leave_mirrors(self, txn: Draft, bridge: Any) -> None:
        """Delete the mirrors whose output the port is, or was before another process deleted it."""
        for each in self.api.rows("Bridge") if bridge is None else [bridge]:
            mirrors.leave(bridge_draft(txn, value_of(each, "name"), each), self.api.replica, self._step)

    def _delete_if_empty(self, txn: Draft, bridge: Any) -> None:
        """Delete the bridge if it is ours and empty, after another process deleted our port."""
        if bridge is not None and is_ours(value_of(bridge, "external_ids")):
            bridge_draft(txn, self._step.bridge, bridge).remove(None, ours=True)

    def _bridge_of(self, port: Any) -> Any:
        return None if port is None else bridge_of(self.api, port, self._step.bridge)

    def _why_foreign(self, port: Any) -> str:
        """Why the port is not ours to delete; "" if it is."""
        step, marks = self._step, value_of(port, "external_ids")
        if step.legacy and not marks.get("owner"):
            interface = self.api.row("Interface", step.name)
            kind = value_of(interface, "type") if interface is not None else "none"
            return "" if kind in VHOST_USER_TYPES else f"it is not a vhost-user port: type {kind}"
        return "" if owns(step, marks) else f"it belongs to {whose(marks)}"


class SweepMirrors(Command[SwitchSession]):
    """Deletes mirrors of ours without an output, but those for which `keep`, given their marks, says so. Needs all rows.

    `swept`: how many.
    """

    def __init__(self, session: SwitchSession, keep: Callable[[Mapping[str, str]], bool]) -> None:
        super().__init__(session)
        self._keep = keep
        self.swept = 0

    def run_idl(self, txn: Draft) -> None:
        """Remove the references to the rows, which deletes them."""
        self.swept = 0
        for bridge, row in mirrors.without_output(self.api.replica):
            if not self._keep(value_of(row, "external_ids")):
                bridge_draft(txn, value_of(bridge, "name"), bridge).mirror(value_of(row, "name"), row).remove()
                self.swept += 1
