"""Ports on Open vSwitch: the driver of OvsPort.

Rows are written and removed in one transaction, which callers at the same time share. Then the driver reads back whether
ovs-vswitchd opened the interface, because a commit succeeds even when it cannot. It runs no program, and deletes nothing that is
not marked as ours (or named by a record of the plugin that this one replaces).

All methods may be called from several threads, and raise only errors of `userspace_cni.base.errors`: Unavailable when OVSDB or
ovs-vswitchd does not answer in time; then it is unknown what happened, and `undo` is to be called until it succeeds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from userspace_cni.attachment.drift import Dead, Drift
from userspace_cni.attachment.steps import Driver, OvsPort, PortRef, SharedReads
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import SwitchRefused, Unavailable
from userspace_cni.base.log import say
from userspace_cni.base.retries import Retries
from userspace_cni.switch.flow_renewal import FlowRenewal
from userspace_cni.switch.kernel_links import KernelLinks, NoLinks
from userspace_cni.switch.link_names import LinkNames
from userspace_cni.switch.ovn_installation import LogicalPorts
from userspace_cni.switch.ovsdb.rows.desired import MirrorPart
from userspace_cni.switch.ovsdb.rows.marks import IFINDEX, marks_of, select_identity
from userspace_cni.switch.ovsdb.rows.port_row import desired_port, find_differences, find_written_differences, marked_port
from userspace_cni.switch.ovsdb.switch_database import SwitchClient
from userspace_cni.switch.port_sockets import GivenUp, NoSockets, PortSockets
from userspace_cni.switch.read_back import ReadBack
from userspace_cni.switch.switch_view import SwitchView

if TYPE_CHECKING:
    from userspace_cni.base.findings import Finding
    from userspace_cni.ovsdb.database import Clause
    from userspace_cni.switch.ovsdb.put import Put
    from userspace_cni.switch.ovsdb.rows.desired import DesiredRows
    from userspace_cni.switch.ovsdb.switch_database import SwitchSession


@dataclass(frozen=True)
class PortSettings:
    """What the node's settings say of ports. `afxdp_max`: how many of type afxdp the switch may have. `ovn_rundir`: where
    ovn-controller has its control socket."""

    afxdp_max: int = 0
    ovn_rundir: str = "/var/run/ovn"


class RowWriter:
    """Writes one set of rows. `held`: the names that it takes; `afxdp_max`: as that of Put; `why_anew`: what a warning says when
    ovs-vswitchd has to open anew what is there."""

    def __init__(self, rows: DesiredRows, held: LinkNames, afxdp_max: int, why_anew: str = "") -> None:
        self._rows = rows
        self._held = held
        self._afxdp_max = afxdp_max
        self._why_anew = why_anew

    def write(self, session: SwitchSession, deadline: Deadline) -> Put:
        """Commit the rows; the command that has written the last of them. Raises as Put and LinkNames."""
        from userspace_cni.switch.ovsdb.put import Put
        from userspace_cni.switch.ovsdb.switch_reads import find_missing

        rows, held = self._rows, self._held
        while True:
            for name in find_missing(session, rows.new_names) - held.names:
                held.hold(name, session, deadline, gets_tap=rows.new_names[name])
            command = Put(session, rows, self._afxdp_max, frozenset(held.names))
            session.transact([command], deadline)
            if command.stale:
                say("warning", self._why_anew)
                held.read_back.wait(command.done, deadline, or_dead=True)
            elif not command.unheld:  # else another process has taken the bridge away since the look
                return command


class PortDriver(SwitchView, Driver[OvsPort]):
    """Applies, undoes and checks ports through the one client of OVSDB, and answers other questions about the switch.

    `ovs_rundir`: where ovs-vswitchd has its control socket. `store`: the id of our state directory, for the mark of that name.
    `sockets`: the files behind ports. `links`: the kernel links where ovs-vswitchd opens its ports.
    """

    def __init__(
        self,
        client: SwitchClient,
        ovs_rundir: str,
        store: Callable[[], str],
        sockets: PortSockets | None = None,
        links: KernelLinks | None = None,
        settings: PortSettings = PortSettings(),
    ) -> None:
        super().__init__(client, ovs_rundir)
        self._store = store
        self._links = links or NoLinks()
        self._read_back = ReadBack(self.daemon, self._links)
        self._sockets = sockets or NoSockets()
        self._given_up = GivenUp(self._sockets.find_waiting_socket)
        self._flows = FlowRenewal(self.daemon)
        self._logical = LogicalPorts(client, self.daemon, settings.ovn_rundir)
        self._afxdp_max = settings.afxdp_max
        self._retries = Retries()

    def apply(self, step: OvsPort, deadline: Deadline) -> Callable[[], None]:
        """Commit the port, and its bridge if that is missing; returns a function that waits until the interface is open, and a
        logical port installed by OVN.

        A port that exists and could not be opened is tried again if its application makes the socket.
        A kernel port whose link was made anew is removed first: ovs-vswitchd keeps the socket of the link that has gone. So is a
        port that DPDK has given up.
        LinkNameTaken: a link that is not ours has a name that OVSDB would get. NameTaken: the row has another owner.
        BadRequest: the port that it shows has gone.
        SwitchRefused: a bridge of another datapath type, a limit that this kind of port cannot have, rows that ovsdb-server
        rejects, or, from the returned function, Interface.error of ovs-vswitchd and a limit that it has not set.
        """
        from userspace_cni.ovsdb.replica import SessionLost

        anew = step.interface.link_by == "switch" and not self._links.index(step.name)
        anew = anew or self._given_up.take(step.name)

        if step.switch_makes_socket:
            self._sockets.free(step.name, deadline)
        marks = marks_of(step, step.marks.get("store") or self._store()) | self._link_mark(step)
        needs, what = _rows_of(step), f"port {step.name}: adding it to bridge {step.bridge}"
        held = LinkNames(self._links, self._read_back)
        why = "DPDK does not connect to its application any more" if step.server_path else "its link was"
        anew_because = f"port {step.name} is recreated, because {why}"
        writer = RowWriter(desired_port(step, marks, anew=anew), held, self._afxdp_max, anew_because)

        add = partial(writer.write, deadline=deadline)

        def served(command: Put) -> None:
            if command.closed:
                self._retries.note_try(step.name, self.daemon.name)
            if held.taps and command.done is not None:
                self._read_back.wait(command.done, deadline)
                held.settle(command.api, deadline)
            self._read_back.require(command, step, deadline)
            if step.interface.link_by == "us":
                # closing a former link of this name, ovs-vswitchd writes back the flags that it knew: this one may be down by now
                self._links.set_up(step.name)
            if command.flows_after is not None:
                self._flows.renew_after(command.api, command.flows_after, deadline)
            self._logical.await_installed(command.api, step, deadline)

        added = self.client.use(add, needs, what, deadline)

        def rest() -> None:
            try:
                with self.client.describe_attempt(what):
                    served(added)
            except SessionLost:
                self.client.use(lambda session: served(add(session)), needs, what, deadline)

        return rest

    def announce(self, name: str) -> AbstractContextManager[None]:
        """Within the block the port of that name is about to be applied: others that are wait a moment to share a transaction."""
        return self.client.announce(name)

    def find_ovn_faults(self, step: OvsPort, deadline: Deadline) -> tuple[tuple[str, str], tuple[Finding, ...]]:
        """Name and hostname of this chassis of OVN, and what the step's logical port lacks here. Raises Unavailable."""
        return self._logical.find_faults(step, deadline)

    def make_again(self, step: OvsPort, deadline: Deadline) -> Callable[[], None]:
        """As `apply`; OVN installs a port that is there again when it can, and nothing is left to be done here then."""
        return self.apply(_not_awaited(step), deadline)

    def put_back(self, step: OvsPort, deadline: Deadline) -> Callable[[], None]:
        """As `make_again`."""
        return self.apply(_not_awaited(step), deadline)

    def undo(self, step: OvsPort | PortRef, deadline: Deadline) -> None:
        """Delete port, interface and QoS row, and the bridge if we made it and this was its last port.

        A row that is not ours is left alone, with a line on stderr, and counts as absent. Returns when the database says so,
        whether ovs-vswitchd lives or not. ovs-vswitchd, if it lives, removes its own socket; a dead one is removed here. It
        deletes the links that it has open; those that it has not are deleted here.
        """
        from userspace_cni.ovsdb.database import named
        from userspace_cni.switch.ovsdb.delete import Delete
        from userspace_cni.switch.ovsdb.switch_reads import find_missing

        def delete(session: SwitchSession) -> tuple[Delete, frozenset[str]]:
            command = Delete(session, marked_port(step.ref))
            session.transact([command], deadline)
            return command, find_missing(session, command.links)

        needs = named(step.name, step.bridge) | _marked(step)
        done, gone = self.client.use(delete, needs, f"port {step.name}: deleting it", deadline)
        if done.left_alone:
            say("warning", f"port {step.name} is left alone: {done.left_alone}")
        else:
            self._delete_links({name: done.links[name] for name in sorted(gone)})
        if step.switch_makes_socket:
            self._sockets.free(step.name, deadline)

    def _delete_links(self, opened: Mapping[str, int]) -> None:
        """Delete those of our links with these names that ovs-vswitchd does not have open. `opened`: the index of each."""
        for name, index in opened.items():
            try:
                self._links.let_go(name, index)
            except Unavailable as error:  # the rows are gone; a link that stays is marked, and serves the next bridge of its name
                say("warning", f"{error.message}: it may be left", hint=error.details)

    def check(self, step: OvsPort, deadline: Deadline) -> list[Drift]:
        """Every difference between the step and the rows, an interface that is not open, and a limit that is not in force."""
        from userspace_cni.switch.ovsdb.switch_reads import find_port

        index = self._links.index(step.name) if step.interface.link_by == "us" else None

        def look(session: SwitchSession) -> list[Drift]:
            return find_differences(step, find_port(session, step.name), index)

        # The replica may lag behind writes of other processes: so the server is asked before a drift is reported.
        what = f"port {step.name}: reading it"
        drifts = self.client.read(look, _rows_of(step), what, deadline, enough=lambda found: not found)
        liveness = self.daemon.ask(deadline)
        if liveness.state == "alive":
            drifts += self._read_back.find_drifts(step, deadline)
        if liveness.state == "dead":
            drifts.append(Drift(f"port {step.name}", "", "a switch that serves it", Dead("ovs-vswitchd dead"), liveness.reason))
        return drifts

    def is_lost(self, step: OvsPort, seen: SharedReads, deadline: Deadline) -> bool:  # noqa: ARG002 - it is all in the replica
        """Whether the port is missing; was not opened and its next retry is due; was given up by DPDK; has a link that is gone
        or was made anew; or lacks one of its mirrors."""
        return self._is_lost(step, seen)

    def _is_lost(self, step: OvsPort, seen: SharedReads) -> bool:
        if seen.ports is None:
            return False
        marks = seen.ports.get(step.name)
        if marks is None or step.name in seen.once(self.list_closed_ports):
            return True
        if step.interface.link_by == "us":
            link = seen.once(self._links).get(step.name)
            if link is None or marks.get(IFINDEX) != str(link.index):
                return True
        if step.interface.link_by == "switch" and step.name not in seen.once(self._links):
            return True
        if step.server_path and step.name in seen.once(self.list_unconnected_ports) and self._given_up.look(step):
            return True
        return any((name, step.name) not in seen.once(self.list_mirror_outputs) for name in step.mirror_outputs)

    def find_changes(self, step: OvsPort, seen: SharedReads, deadline: Deadline) -> list[Drift]:  # noqa: ARG002 - it is all in the replica
        """What of its rows another program has written."""
        from userspace_cni.switch.ovsdb.switch_reads import find_port

        if seen.ports is None:
            return []
        row = self.client.require_session().look(lambda session: find_port(session, step.name))
        return find_written_differences(step, row) if row else []

    def signs(self, step: OvsPort, seen: SharedReads, before: object) -> object:  # noqa: ARG002 - the rows alone tell
        """The versions of its rows. What else makes it lost is looked at each time."""
        if seen.ports is None:
            return None
        versions = seen.once(self._list_versions).get(step.name)
        return None if self._is_lost(step, seen) else versions

    def _list_versions(self) -> Mapping[str, object]:
        from userspace_cni.switch.ovsdb.switch_reads import list_versions

        return self.client.require_session().look(list_versions)

    def list_closed_ports(self) -> frozenset[str]:
        """Names of the ports of attachments and of the node that ovs-vswitchd could not open, and for which a retry is due.

        From the replica of a resident driver. Raises Unavailable.
        """
        from userspace_cni.switch.ovsdb.switch_reads import list_closed_ports

        seen = self.daemon.seen
        lives = seen is not None and seen.state == "alive"
        closed = self.client.require_session().look(lambda session: list_closed_ports(session, unseen=lives))
        self._retries.keep(set(closed))
        return frozenset(name for name in closed if self._retries.is_due(name, self.daemon.name))

    def list_unconnected_ports(self) -> frozenset[str]:
        """Names of the ports of attachments to whose applications DPDK connects, and is not connected.

        None of them where ovs-vswitchd did not live at the last look. From the replica of a resident driver. Raises Unavailable.
        """
        from userspace_cni.switch.ovsdb.switch_reads import list_unconnected_ports

        seen = self.daemon.seen
        lives = seen is not None and seen.state == "alive"
        found = self.client.require_session().look(list_unconnected_ports) if lives else frozenset[str]()
        self._given_up.keep(found)
        return found

    def require_free(self, names: Collection[str], deadline: Deadline) -> None:
        """Raise LinkNameTaken if OVSDB lacks one of these names and a link that is not ours has it, or OVS keeps it for itself.

        Raises Unavailable where that cannot be seen: unknown is not free.
        """
        from userspace_cni.ovsdb.database import named
        from userspace_cni.switch.ovsdb.switch_reads import find_missing

        def judge(session: SwitchSession) -> None:
            for name in find_missing(session, names):
                LinkNames(self._links, self._read_back).require_free(name, session, deadline)

        self.client.use(judge, named(*names), "looking for the names of a port", deadline)

    def sweep_mirrors(self, keep: Callable[[Mapping[str, str]], bool], deadline: Deadline) -> int:
        """Delete mirrors of ours whose output was deleted by hand, unless `keep`, given their marks, says so; how many.

        `keep` gets mirrors of all stores, and must keep those that a record names: their output is made again. Needs a resident
        driver.
        """
        from userspace_cni.switch.ovsdb.bridge_mirrors import find_without_output
        from userspace_cni.switch.ovsdb.sweeps import SweepMirrors

        def sweep(session: SwitchSession) -> int:
            command = SweepMirrors(session, keep)
            session.transact([command], deadline)
            return command.swept

        def orphans(session: SwitchSession) -> bool:
            return any(not keep(value_of(row, "external_ids")) for _, row in find_without_output(session.replica))

        from userspace_cni.ovsdb.column_values import value_of

        what = "removing mirrors without an output"
        if not self.client.require_session().look(orphans):
            return 0
        return self.client.use(sweep, frozenset(), what, deadline)

    def sweep_limits(self, deadline: Deadline) -> int:
        """Delete the QoS and Queue rows of this store to which no port refers; how many there were. For a resident driver.

        A port that another program deleted leaves them. Raises Unavailable.
        """
        from userspace_cni.switch.ovsdb.port_limits import find_orphans
        from userspace_cni.switch.ovsdb.sweeps import SweepLimits

        store = self._store()
        if not self.client.require_session().look(lambda session: find_orphans(session.replica, store)):
            return 0

        def sweep(session: SwitchSession) -> int:
            command = SweepLimits(session, store)
            session.transact([command], deadline)
            return command.swept

        return self.client.use(sweep, frozenset(), "deleting limits of ports that are gone", deadline)

    def _link_mark(self, step: OvsPort) -> dict[str, str]:
        """The mark by which the link behind a kernel port is known again. Raises SwitchRefused when there is no link."""
        if step.interface.link_by != "us":
            return {}
        index = self._links.index(step.name)
        if not index:
            hint = "the host end of a veth has to be in the network namespace of ovs-vswitchd: is setting switch_netns right?"
            raise SwitchRefused(f"port {step.name}: there is no link of that name", hint)
        return {IFINDEX: str(index)}


def _not_awaited(step: OvsPort) -> OvsPort:
    return replace(step, logical=replace(step.logical, waits=False)) if step.logical else step


def _rows_of(step: OvsPort) -> frozenset[Clause]:
    from userspace_cni.ovsdb.database import named
    from userspace_cni.switch.ovsdb.bridge_mirrors import clauses_of

    part = MirrorPart(step.mirrors, step.mirror_outputs, step.shows)
    return named(step.name, step.bridge) | clauses_of(part, {}) | (_marked(step) if step.limits else frozenset())


def _marked(step: OvsPort | PortRef) -> frozenset[Clause]:
    from userspace_cni.ovsdb.database import with_ids

    return with_ids(select_identity(step.marks)) if step.marks else frozenset()
