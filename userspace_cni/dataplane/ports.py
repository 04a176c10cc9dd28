"""Ports on Open vSwitch: the driver of OvsPort.

Rows are written and removed in one transaction, which callers at the same time share. Then the driver reads back whether
ovs-vswitchd opened the interface, because a commit succeeds even when it cannot. It runs no program, and deletes nothing that is
not marked as ours (or named by a record of the plugin that this one replaces). Importing this module is cheap: ovs and ovsdbapp
are loaded when the first call needs them.

All methods may be called from several threads, and raise only errors of `userspace_cni.base.errors`: Unavailable when OVSDB or
ovs-vswitchd does not answer in time; then it is unknown what happened, and `undo` is to be called until it succeeds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from userspace_cni.attachment.drift import Dead, Drift
from userspace_cni.attachment.steps import NODE_OWNER, OWNER, Driver, HostEnd, Internal, OvsPort, PortRef, Seen
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import NotServing, SwitchRefused, Unavailable
from userspace_cni.base.log import say
from userspace_cni.base.port_kinds import Datapath
from userspace_cni.base.retries import Retries
from userspace_cni.dataplane.flow_renewal import FlowRenewal
from userspace_cni.dataplane.kernel_links import KernelLinks, NoLinks
from userspace_cni.dataplane.ovsdb.client import Client
from userspace_cni.dataplane.ovsdb.rows.bridge import DATAPATH_TYPE, datapath_of
from userspace_cni.dataplane.ovsdb.rows.interface import SERVER_PATH
from userspace_cni.dataplane.ovsdb.rows.marks import IFINDEX, BridgeMaker, is_ours, made_by, marks_of
from userspace_cni.dataplane.ovsdb.rows.port import KnownPort, differences, ref_of, written_differences
from userspace_cni.dataplane.ovsdb.rows.switch import Abilities, SwitchFacts
from userspace_cni.dataplane.read_back import ReadBack
from userspace_cni.dataplane.vswitchd import Daemon, Liveness

if TYPE_CHECKING:
    from userspace_cni.dataplane.counters import Counters, LimitDrops
    from userspace_cni.dataplane.ovsdb.commands import AddPort
    from userspace_cni.dataplane.ovsdb.session import Clause, Session

T = TypeVar("T")

SERVING_SECONDS = 2.0

_RUNNING_PODS_SUFFER = 51


@dataclass(frozen=True)
class FoundPort:
    """A port, ours or another. `marks`: our marks among its external_ids, {} if there are none."""

    name: str
    bridge: str
    interface_type: str
    server_path: str
    marks: dict[str, str]


class PortDriver(Driver[OvsPort]):
    """Applies, undoes and checks ports through the one client of OVSDB, and answers other questions about the switch.

    `ovs_rundir`: where ovs-vswitchd has its control socket. `store`: the id of our state directory, for the mark of that name.
    `free_name` removes the dead socket of a killed ovs-vswitchd at the path that OVS gives a port of that name: it would keep the
    port from being opened. `links`: the kernel links where ovs-vswitchd opens its ports.
    `afxdp_max`: how many ports of type afxdp the switch may have.
    """

    def __init__(
        self,
        client: Client,
        ovs_rundir: str,
        store: Callable[[], str],
        free_name: Callable[[str, Deadline], object] = lambda _name, _deadline: None,
        links: KernelLinks | None = None,
        afxdp_max: int = 0,
    ) -> None:
        self.client = client
        self.daemon = Daemon(client.remote, ovs_rundir)
        self._store = store
        self._links = links or NoLinks()
        self._read_back = ReadBack(self.daemon, self._links)
        self._free_name = free_name
        self._flows = FlowRenewal(self.daemon)
        self._afxdp_max = afxdp_max
        self._retries = Retries()

    def connect(self, deadline: Deadline) -> None:
        """Open a session unless one is open. Raises Unavailable."""
        self.client.connect(deadline)

    @property
    def connected(self) -> bool:
        """Whether a session is open."""
        return self.client.connected

    @property
    def sessions(self) -> int:
        """The number of sessions opened so far."""
        return self.client.sessions

    def close(self) -> None:
        """End the session; calls that wait for it fail. The next call opens another; a resident driver's call fails."""
        self.client.close()

    def watch_liveness(self) -> Liveness:
        """Ask ovs-vswitchd whether it lives, for up to 500 ms, and remember it for `serving`."""
        return self.daemon.watch()

    def glance(self) -> Liveness:
        """Ask ovs-vswitchd for 30 ms whether it lives; when it is silent, the result of the last `watch_liveness`."""
        return self.daemon.glance()

    def reach(self, name: str, bridge: str, deadline: Deadline) -> BridgeMaker:
        """Open the session with OVSDB for this port; returns who made its bridge.

        Raises Unavailable, before any effect that would have to be undone.
        """
        from userspace_cni.dataplane.ovsdb.session import named

        def look(session: Session) -> BridgeMaker:
            marks = session.replica.bridge_marks.get(bridge)
            return "" if marks is None else made_by(marks)

        return self.client.use(look, named(name, bridge), f"port {name}: before adding it", deadline)

    def apply(self, step: OvsPort, deadline: Deadline) -> Callable[[], None]:
        """Commit the port, and its bridge if that is missing; returns a function that waits until the interface is open.

        A port that exists and could not be opened is tried again if its application makes the socket.
        A kernel port whose link was made anew is removed first: ovs-vswitchd keeps the socket of the link that has gone.
        NameTaken: the row has another owner. SwitchRefused: a bridge of another datapath type, a limit that this kind of port
        cannot have, rows that ovsdb-server rejects, or, from the returned function, Interface.error of ovs-vswitchd and a limit
        that it has not set.
        """
        from userspace_cni.dataplane.ovsdb.commands import AddPort

        link_gone = isinstance(step.interface, Internal) and not self._links.index(step.name)
        return self._add(step, partial(AddPort, link_gone=link_gone), deadline)

    def capture(self, step: OvsPort, source: str, deadline: Deadline) -> None:
        """As `apply`, of a port that is the output of a mirror, and shows the port `source`; waits until it is open.

        Raises BadRequest when there is no such port any more.
        """
        from userspace_cni.dataplane.ovsdb.captures import AddCapture

        self._add(step, partial(AddCapture, source=source), deadline)()

    def _add(
        self, step: OvsPort, make: Callable[[Session, OvsPort, dict[str, str], int], AddPort], deadline: Deadline
    ) -> Callable[[], None]:
        """As `apply`, by the command that `make` makes of what AddPort is made of."""
        from userspace_cni.dataplane.ovsdb.session import SessionLost

        if step.switch_makes_socket:
            self._free_name(step.name, deadline)
        marks = marks_of(step, step.marks.get("store") or self._store()) | self._link_mark(step)
        needs, what = _rows_of(step), f"port {step.name}: adding it to bridge {step.bridge}"

        def add(session: Session) -> AddPort:
            command = make(session, step, marks, self._afxdp_max)
            session.transact([command], deadline)
            if command.stale:
                say("warning", f"port {step.name} is made anew, because its link was")
                self._read_back.wait(command.done, deadline, or_dead=True)
                command = make(session, step, marks, self._afxdp_max)
                session.transact([command], deadline)
            if command.closed:
                self._retries.tried(step.name, self.daemon.name)
            return command

        def served(command: AddPort) -> None:
            self._read_back.require(command, step, deadline)
            if isinstance(step.interface, HostEnd):
                # closing a former link of this name, ovs-vswitchd writes back the flags that it knew: this one may be down by now
                self._links.set_up(step.name)
            if command.flows_after is not None:
                self._flows.after(command.api, command.flows_after, deadline)

        added = self.client.use(add, needs, what, deadline)

        def rest() -> None:
            try:
                with self.client.attempting(what):
                    served(added)
            except SessionLost:
                self.client.use(lambda session: served(add(session)), needs, what, deadline)

        return rest

    def undo(self, step: OvsPort | PortRef, deadline: Deadline) -> None:
        """Delete port, interface and QoS row, and the bridge if we made it and this was its last port.

        A row that is not ours is left alone, with a line on stderr, and counts as absent. Returns when the database says so,
        whether ovs-vswitchd lives or not. ovs-vswitchd, if it lives, removes its own socket; a dead one is removed here.
        """
        from userspace_cni.dataplane.ovsdb.commands import DeletePort

        def delete(session: Session) -> str:
            command = DeletePort(session, step.ref)
            session.transact([command], deadline)
            return command.left_alone

        left_alone = self.client.use(delete, _names(step), f"port {step.name}: deleting it", deadline)
        if left_alone:
            say("warning", f"port {step.name} is left alone: {left_alone}")
        if step.switch_makes_socket:
            self._free_name(step.name, deadline)

    def check(self, step: OvsPort, deadline: Deadline) -> list[Drift]:
        """Every difference between the step and the rows, an interface that is not open, and a limit that is not in force."""
        from userspace_cni.dataplane.ovsdb.reads import find_port

        index = self._links.index(step.name) if isinstance(step.interface, HostEnd) else None

        def look(session: Session) -> list[Drift]:
            return differences(step, find_port(session, step.name), index)

        # The replica may lag behind writes of other processes: so the server is asked before a drift is reported.
        what = f"port {step.name}: reading it"
        drifts = self.client.read(look, _rows_of(step), what, deadline, enough=lambda found: not found)
        liveness = self.daemon.ask(deadline)
        if liveness.state == "alive":
            drifts += self._read_back.drifts(step, deadline)
        if liveness.state == "dead":
            drifts.append(Drift(f"port {step.name}", "", "a switch that serves it", Dead("ovs-vswitchd dead"), liveness.reason))
        return drifts

    def lost(self, step: OvsPort, seen: Seen, deadline: Deadline) -> bool:  # noqa: ARG002 - it is all in the replica
        """Whether the switch has no such port, one that it could not open and may be asked to again by now, one whose link has
        gone or was made anew, or none of its mirror."""
        if seen.ports is None:
            return False
        marks = seen.ports.get(step.name)
        if marks is None or step.name in seen.once(self.closed_ports):
            return True
        if isinstance(step.interface, HostEnd):
            link = seen.once(self._links).get(step.name)
            if link is None or marks.get(IFINDEX) != str(link.index):
                return True
        if isinstance(step.interface, Internal) and step.name not in seen.once(self._links):
            return True
        return bool(step.mirror_output) and step.name not in seen.once(self.mirror_outputs)

    def changed(self, step: OvsPort, seen: Seen, deadline: Deadline) -> list[Drift]:  # noqa: ARG002 - it is all in the replica
        """What of its rows another program has written."""
        from userspace_cni.dataplane.ovsdb.reads import find_port

        if seen.ports is None:
            return []
        row = self.client.standing().look(lambda session: find_port(session, step.name))
        return written_differences(step, row) if row else []

    def marked(
        self, deadline: Deadline, *, network: str | None = None, container_id: str | None = None, ifname: str | None = None
    ) -> list[PortRef]:
        """Every port with our owner mark and the given marks, of any store."""
        from userspace_cni.dataplane.ovsdb.reads import port_rows
        from userspace_cni.dataplane.ovsdb.session import with_marks

        chosen = {"network": network, "container-id": container_id, "ifname": ifname}
        wanted = {"owner": OWNER} | {key: value for key, value in chosen.items() if value is not None}
        rows = self.client.read(lambda session: port_rows(session, wanted), with_marks(wanted), "listing our ports", deadline)
        return sorted(map(ref_of, rows), key=lambda step: step.name)

    def owned(self) -> dict[str, Mapping[str, str]]:
        """external_ids of every port with our owner mark, by name, from the replica of a resident driver. Raises Unavailable."""
        marks = self.client.standing().replica.marks.copy()
        return {name: of for name, of in marks.items() if is_ours(of)}

    def of_node(self, store: str) -> dict[str, Mapping[str, str]]:
        """external_ids of every port of this store's node attachments, by name, from the replica of a resident driver.

        Raises Unavailable.
        """
        marks = self.client.standing().replica.marks.copy()
        return {name: of for name, of in marks.items() if of.get("owner") == NODE_OWNER and of.get("store") == store}

    def closed_ports(self) -> frozenset[str]:
        """Names of the ports of attachments and of the node that ovs-vswitchd could not open, and for which a retry is due.

        From the replica of a resident driver. Raises Unavailable.
        """
        from userspace_cni.dataplane.ovsdb.reads import closed_ports

        seen = self.daemon.seen
        lives = seen is not None and seen.state == "alive"
        closed = self.client.standing().look(lambda session: closed_ports(session, unseen=lives))
        self._retries.keep(set(closed))
        return frozenset(name for name in closed if self._retries.due(name, self.daemon.name))

    def sweep_mirrors(self, keep: Callable[[Mapping[str, str]], bool], deadline: Deadline) -> int:
        """Delete mirrors of ours whose output was deleted by hand, unless `keep`, given their marks, says so; how many.

        `keep` gets mirrors of all stores, and must keep those that a record names: their output is made again. Needs a resident
        driver.
        """
        from userspace_cni.dataplane.ovsdb.commands import SweepMirrors
        from userspace_cni.dataplane.ovsdb.mirrors import without_output

        def sweep(session: Session) -> int:
            command = SweepMirrors(session, keep)
            session.transact([command], deadline)
            return command.swept

        def orphans(session: Session) -> bool:
            return any(not keep(value_of(row, "external_ids")) for _, row in without_output(session.replica))

        from userspace_cni.dataplane.ovsdb.replica import value_of

        what = "removing mirrors without an output"
        if not self.client.standing().look(orphans):
            return 0
        return self.client.use(sweep, frozenset(), what, deadline)

    def mirror_outputs(self) -> frozenset[str]:
        """Names of the ports that are the output of a mirror of ours. From a resident replica. May raise Unavailable."""
        from userspace_cni.dataplane.ovsdb.reads import mirror_outputs

        return self.client.standing().look(mirror_outputs)

    def has_failed(self, name: str, deadline: Deadline) -> bool:
        """Whether an ovs-vswitchd that may be alive could not open the port of that name. Raises Unavailable."""
        from userspace_cni.dataplane.ovsdb.reads import is_closed
        from userspace_cni.dataplane.ovsdb.session import named

        if self.daemon.peek().state == "dead":
            return False
        # The caller removes the socket of a port that has not failed. The replica may lag: so the server must confirm it.
        what = f"port {name}: looking at it"
        return self.client.read(lambda session: is_closed(session, name), named(name), what, deadline, enough=bool)

    def known(self) -> list[KnownPort]:
        """All ports but the local ones of bridges, from the replica of a resident driver. Raises Unavailable."""
        from userspace_cni.dataplane.ovsdb.reads import known_ports

        return self.client.standing().look(known_ports)

    @property
    def dpdk(self) -> bool:
        """Whether DPDK runs, from the replica of a resident driver. Raises Unavailable."""
        return self.client.standing().replica.dpdk

    def administrators_bridges(self) -> frozenset[str]:
        """Names of the bridges that are not ours and can have vhost-user ports, from the replica of a resident driver.

        Costs no lock. Raises Unavailable.
        """
        replica = self.client.standing().replica
        marks = replica.bridge_marks.copy()
        kinds = replica.datapaths.copy().items()
        return frozenset(name for name, kind in kinds if kind == DATAPATH_TYPE and not is_ours(marks.get(name, {})))

    def hardware(self) -> tuple[Mapping[str, tuple[str, ...]], str]:
        """The device arguments of the NICs of each bridge, and other_config:pmd-cpu-mask, "" if unset.

        From the replica of a resident driver. Raises Unavailable.
        """
        from userspace_cni.dataplane.ovsdb.reads import other_config, uplinks

        return self.client.standing().look(lambda session: (uplinks(session), other_config(session).get("pmd-cpu-mask", "")))

    def able(self, deadline: Deadline) -> Abilities:
        """What kinds of ports and bridges the switch can have. Raises Unavailable."""
        from userspace_cni.dataplane.ovsdb.reads import abilities

        return self.client.read(abilities, frozenset(), "asking what the switch can do", deadline)

    def sweep_limits(self, deadline: Deadline) -> int:
        """Delete the QoS and Queue rows of this store to which no port refers; how many there were. For a resident driver.

        A port that another program deleted leaves them. Raises Unavailable.
        """
        from userspace_cni.dataplane.ovsdb.limits import SweepLimits, orphans

        store = self._store()
        if not self.client.standing().look(lambda session: orphans(session.replica, store)):
            return 0

        def sweep(session: Session) -> int:
            command = SweepLimits(session, store)
            session.transact([command], deadline)
            return command.swept

        return self.client.use(sweep, frozenset(), "deleting limits of ports that are gone", deadline)

    def limit_drops(self, deadline: Deadline) -> list[LimitDrops]:
        """The frames that limits of our ports have dropped; asks of limited ports alone. For a resident driver.

        Raises Unavailable and SwitchRefused.
        """
        from userspace_cni.dataplane import counters

        return counters.ask_drops(self.client, self.daemon, deadline)

    def counters(self, deadline: Deadline) -> list[Counters]:
        """The switch's counters of the ports with our owner mark. Raises Unavailable and SwitchRefused."""
        from userspace_cni.dataplane import counters

        return counters.ask(self.client, self.daemon.rundir, deadline)

    def find(self, name: str, deadline: Deadline) -> FoundPort | None:
        """The port `name`, None if there is none."""
        from userspace_cni.dataplane.ovsdb.reads import find_port
        from userspace_cni.dataplane.ovsdb.session import named

        what = f"port {name}: looking for it"
        row = self.client.read(lambda session: find_port(session, name), named(name), what, deadline, enough=bool)
        if row is None:
            return None
        return FoundPort(name, row.bridge, row.interface["type"], row.interface["options"].get(SERVER_PATH, ""), row.marks)

    def look(self, look: Callable[[Session], T], chosen: Mapping[str, str], what: str, deadline: Deadline) -> T:
        """The result of `look` on a session with the ports that have these external_ids; a resident driver's has all ports."""
        from userspace_cni.dataplane.ovsdb.session import with_marks

        return self.client.read(look, with_marks(dict(chosen)), what, deadline)

    def facts(self, deadline: Deadline) -> SwitchFacts:
        """The settings of the switch, of a resident driver with the MTUs of all ports. Raises Unavailable."""
        from userspace_cni.dataplane.ovsdb.reads import switch_facts

        return self.client.read(switch_facts, frozenset(), "reading the switch's settings", deadline)

    def vhost_sock_dir(self, deadline: Deadline) -> str:
        """Open_vSwitch.other_config:vhost-sock-dir, relative to OVS's run directory; "" if unset."""

        from userspace_cni.dataplane.ovsdb.reads import other_config

        return self.client.read(other_config, frozenset(), "reading vhost-sock-dir", deadline).get("vhost-sock-dir", "")

    def serving(self, bridge: str, deadline: Deadline, *, datapath: Datapath = DATAPATH_TYPE, needs_dpdk: bool = True) -> None:
        """NotServing if a port could not be added to `bridge` now: 50, or 51 when running pods suffer too. Writes nothing.

        `datapath`: the datapath_type that the bridge must have. `needs_dpdk`: of all ports but those opened as system or afxdp.
        """
        try:
            dpdk, datapath_type = self._facts(bridge, deadline.within(SERVING_SECONDS))
        except Unavailable as error:
            raise NotServing(error.message, error.details) from error
        liveness = self.daemon.glance() if self.client.resident else self.daemon.ask(deadline.within(SERVING_SECONDS))
        if liveness.state in ("dead", "silent"):
            raise NotServing(f"ovs-vswitchd is {liveness.state}: {liveness.reason}", "see its log", code=_RUNNING_PODS_SUFFER)
        if needs_dpdk and not dpdk:
            hint = "ovs-vsctl get Open_vSwitch . dpdk_initialized other_config, and the log of ovs-vswitchd"
            raise NotServing("ovs-vswitchd runs without DPDK", hint, code=_RUNNING_PODS_SUFFER)
        if datapath_type is not None and datapath_of(datapath_type) != datapath:
            raise NotServing(f"bridge {bridge} has datapath_type {datapath_of(datapath_type)}", f"{datapath} is needed")

    def _facts(self, bridge: str, deadline: Deadline) -> tuple[bool, str | None]:
        """Whether DPDK runs, and the datapath type of the bridge (None: there is none); a resident driver does not wait."""
        if self.client.resident:
            replica = self.client.standing().replica
            return replica.dpdk, replica.datapaths.get(bridge)

        def look(session: Session) -> tuple[bool, str | None]:
            return session.replica.dpdk, session.replica.datapaths.get(bridge)

        return self.client.read(look, frozenset(), "asking OVSDB", deadline)

    def _link_mark(self, step: OvsPort) -> dict[str, str]:
        """The mark by which the link behind a kernel port is known again. Raises SwitchRefused when there is no link."""
        if not isinstance(step.interface, HostEnd):
            return {}
        index = self._links.index(step.name)
        if not index:
            hint = "the host end of a veth has to be in the network namespace of ovs-vswitchd: is setting switch_netns right?"
            raise SwitchRefused(f"port {step.name}: there is no link of that name", hint)
        return {IFINDEX: str(index)}


def _rows_of(step: OvsPort) -> frozenset[Clause]:
    from userspace_cni.dataplane.ovsdb import limits

    return _names(step) | (limits.clauses_of(step) if step.limits else frozenset())


def _names(step: OvsPort | PortRef) -> frozenset[Clause]:
    from userspace_cni.dataplane.ovsdb.mirrors import clauses_of
    from userspace_cni.dataplane.ovsdb.session import named

    return named(step.name, step.bridge) | clauses_of(step)
