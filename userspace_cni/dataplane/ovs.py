"""Ports on Open vSwitch: the driver of the Port step.

Rows are written and removed in one transaction each, and what ovs-vswitchd made of them is read back, because a commit succeeds
even when the interface can not be opened. It runs no program, and deletes nothing that is not marked as ours (or named by a
record of the plugin that this one replaces). Importing this module is cheap: ovs and ovsdbapp are loaded when the first call
needs them.

All methods may be called from several threads, and raise only errors of `userspace_cni.errors`: Unavailable when OVSDB or
ovs-vswitchd does not answer in time; then nobody knows what happened, and `undo` is to be called until it succeeds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from userspace_cni.dataplane import ovs_rows, vswitchd
from userspace_cni.deadline import Deadline
from userspace_cni.errors import Drift, NotServing, SwitchRefused, Unavailable
from userspace_cni.log import say
from userspace_cni.steps import OWNER, Port

if TYPE_CHECKING:
    from userspace_cni.dataplane.session import Clause, Session

T = TypeVar("T")

PATIENCE_SECONDS = 1.0
"""How long the read-back waits before it asks whether ovs-vswitchd lives: opening a port takes 5 to 50 ms."""

SERVING_SECONDS = 2.0
LAST_LOOK_SECONDS = 0.05
"""What ovs-vswitchd gets to answer when the deadline has passed and only the reason is still to be found."""

_RUNNING_PODS_SUFFER = 51


@dataclass(frozen=True)
class FoundPort:
    """A port by its name, whoever made it. `marks`: those of its external_ids that are ours, {} if nobody marked it."""

    name: str
    bridge: str
    interface_type: str
    server_path: str
    marks: dict[str, str]


class PortDriver:
    """Applies, undoes and checks Port steps over one session with OVSDB, opened when it is first needed.

    `ovsdb`: the database, `unix:PATH` or `tcp:HOST:PORT`. `ovs_rundir`: where ovs-vswitchd has its control socket. `store`: the
    id of our state directory, for the mark of that name.
    """

    def __init__(self, ovsdb: str, ovs_rundir: str, store: Callable[[], str]) -> None:
        self._ovsdb = ovsdb
        self._ovs_rundir = ovs_rundir
        self._store = store
        self._lock = threading.Lock()
        self._session: Session | None = None

    def reach(self, name: str, bridge: str, deadline: Deadline) -> None:
        """Open the session with OVSDB for this port. Raises Unavailable, before anything that would have to be undone."""
        from userspace_cni.dataplane.session import named

        self._with_session(lambda _: None, named(name, bridge), f"port {name}: before adding it", deadline)

    def apply(self, step: Port, deadline: Deadline) -> None:
        """Make the port, and its bridge if that is missing; returns when ovs-vswitchd has opened the interface.

        NameTaken: the row is somebody else's. SwitchRefused: a bridge of another datapath type, rows that ovsdb-server rejects,
        or Interface.error of ovs-vswitchd.
        """
        from userspace_cni.dataplane.commands import AddPort

        marks = ovs_rows.marks_of(step, step.marks.get("store") or self._store())

        def add(session: Session) -> None:
            session.transact([AddPort(session, step, marks)], deadline)
            self._read_back(session, step.name, deadline)

        self._with_session(add, self._names(step), f"port {step.name}: adding it to bridge {step.bridge}", deadline)

    def undo(self, step: Port, deadline: Deadline) -> None:
        """Delete port, interface and QoS row, and the bridge if we made it and this was its last port.

        A row that is not ours is left alone, with a line on stderr, and counts as absent. Returns when the database says so,
        whether ovs-vswitchd lives or not.
        """
        from userspace_cni.dataplane.commands import DeletePort

        def delete(session: Session) -> str:
            command = DeletePort(session, step)
            session.transact([command], deadline)
            return command.left_alone

        left_alone = self._with_session(delete, self._names(step), f"port {step.name}: deleting it", deadline)
        if left_alone:
            say("warning", f"port {step.name} is left alone: {left_alone}")

    def check(self, step: Port, deadline: Deadline) -> list[Drift]:
        """Every difference between the step and the rows, and an interface that is not open."""
        rows = self._port_rows(self._names(step), f"port {step.name}: reading it", deadline)
        drifts = ovs_rows.differences(step, next((row for row in rows if row.port["name"] == step.name), None))
        liveness = self._liveness(deadline)
        if liveness.state == "dead":
            drifts.append(Drift(f"port {step.name}: expected a switch that serves it, found ovs-vswitchd dead", liveness.reason))
        return drifts

    def present(self, step: Port) -> bool:  # noqa: ARG002 - the interface
        """False: a port is never shared."""
        return False

    def marked(
        self, deadline: Deadline, *, network: str | None = None, container_id: str | None = None, ifname: str | None = None
    ) -> list[Port]:
        """Every port with our owner mark and these others, as steps; whichever store it is of."""
        from userspace_cni.dataplane.session import with_marks

        chosen = {"network": network, "container-id": container_id, "ifname": ifname}
        wanted = {"owner": OWNER} | {key: value for key, value in chosen.items() if value is not None}
        rows = self._port_rows(with_marks(wanted), "listing our ports", deadline)
        steps = [ovs_rows.port_from_row(row) for row in rows if wanted.items() <= row.marks.items()]
        return sorted(steps, key=lambda step: step.name)

    def find(self, name: str, deadline: Deadline) -> FoundPort | None:
        """The port of that name, None if there is none."""
        from userspace_cni.dataplane.session import named

        rows = self._port_rows(named(name), f"port {name}: looking for it", deadline)
        for row in rows:
            if row.port["name"] == name:
                path = row.interface["options"].get(ovs_rows.SERVER_PATH, "")
                return FoundPort(name, row.bridge, row.interface["type"], path, row.marks)
        return None

    def vhost_sock_dir(self, deadline: Deadline) -> str:
        """Open_vSwitch.other_config:vhost-sock-dir, relative to OVS's run directory; "" if unset."""

        def look(session: Session) -> str:
            return str(session.root().other_config.get("vhost-sock-dir", ""))

        return self._read(look, frozenset(), "reading vhost-sock-dir", deadline)

    def serving(self, bridge: str, deadline: Deadline) -> None:
        """NotServing if a port could not be added to `bridge` now: 50, or 51 when running pods suffer too. Writes nothing."""
        deadline = deadline.within(SERVING_SECONDS)

        def look(session: Session) -> tuple[bool, str | None]:
            row = session.row("Bridge", bridge)
            return session.root().dpdk_initialized, None if row is None else row.datapath_type

        try:
            dpdk, datapath_type = self._read(look, frozenset(), "asking OVSDB", deadline)
        except Unavailable as error:
            raise NotServing(error.message, error.details) from error
        liveness = self._liveness(deadline)
        if liveness.state in ("dead", "silent"):
            raise NotServing(f"ovs-vswitchd is {liveness.state}: {liveness.reason}", "see its log", code=_RUNNING_PODS_SUFFER)
        if not dpdk:
            hint = "ovs-vsctl get Open_vSwitch . dpdk_initialized other_config, and the log of ovs-vswitchd"
            raise NotServing("ovs-vswitchd runs without DPDK", hint, code=_RUNNING_PODS_SUFFER)
        if datapath_type not in (None, ovs_rows.DATAPATH_TYPE):
            raise NotServing(f"bridge {bridge} has datapath_type {datapath_type or 'system (the default)'}", "netdev is needed")

    def close(self) -> None:
        """End the session; the next call opens another one."""
        with self._lock:
            session, self._session = self._session, None
        if session is not None:
            session.close()

    def _liveness(self, deadline: Deadline) -> vswitchd.Liveness:
        left = max(deadline.remaining(), LAST_LOOK_SECONDS)
        return vswitchd.ask(self._ovsdb, self._ovs_rundir, min(left, vswitchd.ANSWER_SECONDS))

    def _names(self, step: Port) -> frozenset[Clause]:
        from userspace_cni.dataplane.session import named

        return named(step.name, step.bridge)

    def _port_rows(self, needs: frozenset[Clause], what: str, deadline: Deadline) -> list[ovs_rows.PortRow]:
        from userspace_cni.dataplane.commands import port_rows

        return self._read(port_rows, needs, what, deadline)

    def _read(self, look: Callable[[Session], T], needs: frozenset[Clause], what: str, deadline: Deadline) -> T:
        from userspace_cni.dataplane.commands import Read

        def read(session: Session) -> T:
            command = Read(session, needs, look)
            session.transact([command], deadline)
            result: T = command.result
            return result

        return self._with_session(read, needs, what, deadline)

    def _with_session(self, use: Callable[[Session], T], needs: frozenset[Clause], what: str, deadline: Deadline) -> T:
        """`use` with a session that stands. When that breaks, once more with a new one: every use looks before it acts."""
        from userspace_cni.dataplane.session import Refused, SessionLost

        try:
            session = self._open(needs, deadline)
            try:
                return use(session)
            except SessionLost:
                deadline.require(what)
                return use(self._open(needs, deadline))
        except Unavailable as error:
            raise Unavailable(f"{what}: {error.message}", error.details) from None
        except Refused as error:
            raise SwitchRefused(f"{what}: ovsdb-server rejected it: {error.error}", error.details) from None

    def _open(self, needs: frozenset[Clause], deadline: Deadline) -> Session:
        from userspace_cni.dataplane.session import Session

        if not self._lock.acquire(timeout=deadline.require("opening a session with OVSDB")):
            raise Unavailable("another thread is still connecting to OVSDB", f"does ovsdb-server at {self._ovsdb} answer?")
        try:
            if self._session is not None and not self._session.usable:
                self._session.close()
                self._session = None
            if self._session is None:
                self._session = Session(self._ovsdb, needs, deadline)
            return self._session
        finally:
            self._lock.release()

    def _read_back(self, session: Session, name: str, deadline: Deadline) -> None:
        """Wait until ovs-vswitchd says that the interface is open, or why not."""

        def look() -> tuple[bool, str] | None:
            row: Any = session.row("Interface", name)
            if row is None:
                return False, "somebody deleted its rows"
            if row.error:
                return False, str(row.error[0])
            return (True, "") if row.ofport and row.ofport[0] > 0 else None

        while (answer := session.wait_for(look, deadline.within(PATIENCE_SECONDS))) is None:
            liveness = self._liveness(deadline)
            if liveness.state == "dead":
                raise Unavailable(f"ovs-vswitchd is dead: {liveness.reason}", "see its log, and restart it")
            if not deadline.remaining():
                raise Unavailable(
                    f"ovs-vswitchd has not opened the interface in time; it is {liveness.state}: {liveness.reason}", "see its log"
                )
        opened, reason = answer
        if not opened:
            raise SwitchRefused(f"port {name}: {reason}", f"ovs-vsctl list Interface {name}, and the log of ovs-vswitchd")
