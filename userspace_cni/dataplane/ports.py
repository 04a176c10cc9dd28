"""Ports on Open vSwitch: the driver of the Port step.

Rows are written and removed in one transaction, which several callers share when they come at the same time, and what
ovs-vswitchd made of them is read back, because a commit succeeds even when the interface can not be opened. It runs no program,
and deletes nothing that is not marked as ours (or named by a record of the plugin that this one replaces). Importing this module
is cheap: ovs and ovsdbapp are loaded when the first call needs them.

All methods may be called from several threads, and raise only errors of `userspace_cni.base.errors`: Unavailable when OVSDB or
ovs-vswitchd does not answer in time; then nobody knows what happened, and `undo` is to be called until it succeeds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from userspace_cni.attachment.drift import Dead, Drift
from userspace_cni.attachment.steps import OWNER, Port
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import NotServing, SwitchRefused, Unavailable
from userspace_cni.base.log import say
from userspace_cni.dataplane import vswitchd
from userspace_cni.dataplane.ovsdb.retries import Retries
from userspace_cni.dataplane.ovsdb.rows import port as ovs_rows
from userspace_cni.dataplane.ovsdb.rows.port import KnownPort, when_opened

if TYPE_CHECKING:
    from userspace_cni.dataplane.counters import Counters
    from userspace_cni.dataplane.ovsdb.session import Clause, Session, Watch

__all__ = ["FoundPort", "KnownPort", "PortDriver"]

T = TypeVar("T")

PATIENCE_SECONDS = 1.0
"""How long the read-back waits before it asks whether ovs-vswitchd lives: opening a port takes 5 to 50 ms."""

SERVING_SECONDS = 2.0
GLANCE_SECONDS = 0.03
"""What ovs-vswitchd gets to answer when somebody asks it regularly anyway, and a silent moment of it proves nothing."""
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
    id of our state directory, for the mark of that name. `resident`, for a process that lives long: keep a replica of all rows
    and read from it. Two are told something then, and must not wait: `grouped`, of how many callers' ports each transaction was;
    `parted`, of each vhost-user interface whose peer has gone.
    """

    def __init__(
        self,
        ovsdb: str,
        ovs_rundir: str,
        store: Callable[[], str],
        *,
        resident: bool = False,
        grouped: Callable[[int], None] = lambda _: None,
        parted: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._ovsdb = ovsdb
        self._ovs_rundir = ovs_rundir
        self._store = store
        self._resident = resident
        self._grouped = grouped
        self._parted = parted
        self._retries = Retries()
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._sessions = 0
        self._why_not = "nobody has connected yet"
        self._closed = False
        self._asking = threading.Lock()
        self._liveness_at = 0.0
        self._seen: vswitchd.Liveness | None = None

    def connect(self, deadline: Deadline) -> None:
        """Open the session unless one stands. Raises Unavailable."""
        with self._saying("connecting"):
            self._open(frozenset(), deadline)

    @property
    def connected(self) -> bool:
        """Whether a session stands."""
        session = self._session
        return session is not None and not session.lost

    @property
    def sessions(self) -> int:
        """How many sessions were opened so far."""
        return self._sessions

    def reach(self, name: str, bridge: str, deadline: Deadline) -> bool:
        """Open the session with OVSDB for this port; whether the bridge is there and an administrator's.

        Raises Unavailable, before anything that would have to be undone.
        """
        from userspace_cni.dataplane.ovsdb.session import named

        def look(session: Session) -> bool:
            marks = session.replica.bridge_marks.get(bridge)
            return marks is not None and not ovs_rows.is_ours(marks)

        return self._with_session(look, named(name, bridge), f"port {name}: before adding it", deadline)

    def apply(self, step: Port, deadline: Deadline) -> Callable[[], None]:
        """Commit the port, and its bridge if that is missing; what is returned waits until ovs-vswitchd has opened the interface.

        One that is there and could not be opened is tried again if its application makes the socket.
        NameTaken: the row is somebody else's. SwitchRefused: a bridge of another datapath type, rows that ovsdb-server rejects,
        or, from what is returned, Interface.error of ovs-vswitchd.
        """
        from userspace_cni.dataplane.ovsdb.commands import AddPort
        from userspace_cni.dataplane.ovsdb.session import SessionLost

        marks = ovs_rows.marks_of(step, step.marks.get("store") or self._store())
        needs, what = self._names(step), f"port {step.name}: adding it to bridge {step.bridge}"

        def add(session: Session) -> Watch[tuple[bool, str]]:
            command = AddPort(session, step, marks)
            session.transact([command], deadline)
            if command.closed:
                self._retries.tried(step.name, self._daemon)
            return command.opened

        opened = self._with_session(add, needs, what, deadline)

        def rest() -> None:
            try:
                with self._saying(what):
                    self._read_back(opened, step, deadline)
            except SessionLost:
                self._with_session(lambda session: self._read_back(add(session), step, deadline), needs, what, deadline)

        return rest

    def undo(self, step: Port, deadline: Deadline) -> None:
        """Delete port, interface and QoS row, and the bridge if we made it and this was its last port.

        A row that is not ours is left alone, with a line on stderr, and counts as absent. Returns when the database says so,
        whether ovs-vswitchd lives or not.
        """
        from userspace_cni.dataplane.ovsdb.commands import DeletePort

        def delete(session: Session) -> str:
            command = DeletePort(session, step)
            session.transact([command], deadline)
            return command.left_alone

        left_alone = self._with_session(delete, self._names(step), f"port {step.name}: deleting it", deadline)
        if left_alone:
            say("warning", f"port {step.name} is left alone: {left_alone}")

    def check(self, step: Port, deadline: Deadline) -> list[Drift]:
        """Every difference between the step and the rows, and an interface that is not open."""
        from userspace_cni.dataplane.ovsdb.commands import find_port

        def look(session: Session) -> list[Drift]:
            return ovs_rows.differences(step, find_port(session, step.name))

        # What was written a moment ago by somebody else may not be in the replica yet: a drift is the server's word.
        what = f"port {step.name}: reading it"
        drifts = self._read(look, self._names(step), what, deadline, enough=lambda found: not found)
        liveness = self._liveness(deadline)
        if liveness.state == "dead":
            drifts.append(Drift(f"port {step.name}", "", "a switch that serves it", Dead("ovs-vswitchd dead"), liveness.reason))
        return drifts

    def present(self, step: Port) -> bool:  # noqa: ARG002 - the interface
        """False: a port is never shared."""
        return False

    def marked(
        self, deadline: Deadline, *, network: str | None = None, container_id: str | None = None, ifname: str | None = None
    ) -> list[Port]:
        """Every port with our owner mark and these others, as steps; whichever store it is of."""
        from userspace_cni.dataplane.ovsdb.commands import port_rows
        from userspace_cni.dataplane.ovsdb.session import with_marks

        chosen = {"network": network, "container-id": container_id, "ifname": ifname}
        wanted = {"owner": OWNER} | {key: value for key, value in chosen.items() if value is not None}
        rows = self._read(lambda session: port_rows(session, wanted), with_marks(wanted), "listing our ports", deadline)
        return sorted(map(ovs_rows.port_from_row, rows), key=lambda step: step.name)

    def owned(self) -> dict[str, Mapping[str, str]]:
        """external_ids of every port with our owner mark, by name, from the replica of a resident driver. Raises Unavailable."""
        marks = self._standing().replica.marks.copy()
        return {name: of for name, of in marks.items() if ovs_rows.is_ours(of)}

    def closed_ports(self) -> frozenset[str]:
        """Names of the ports with our owner mark that ovs-vswitchd could not open, and may be asked to again by now.

        From the replica of a resident driver. Raises Unavailable.
        """
        from userspace_cni.dataplane.ovsdb.commands import closed_ports

        lives = self._seen is not None and self._seen.state == "alive"
        closed = self._standing().look(lambda session: closed_ports(session, unseen=lives))
        self._retries.keep(set(closed))
        return frozenset(name for name in closed if self._retries.due(name, self._daemon))

    def has_failed(self, name: str, deadline: Deadline) -> bool:
        """Whether an ovs-vswitchd that may be alive could not open the port of that name. Raises Unavailable."""
        from userspace_cni.dataplane.ovsdb.commands import is_closed
        from userspace_cni.dataplane.ovsdb.session import named

        if vswitchd.ask(self._ovsdb, self._ovs_rundir, GLANCE_SECONDS).state == "dead":
            return False
        # A replica that lags would have the socket removed under the daemon: that it has not failed is the server's word.
        what = f"port {name}: looking at it"
        return self._read(lambda session: is_closed(session, name), named(name), what, deadline, enough=bool)

    def known(self) -> list[KnownPort]:
        """All ports but the local ones of bridges, from the replica of a resident driver. Raises Unavailable."""
        from userspace_cni.dataplane.ovsdb.commands import known_ports

        return self._standing().look(known_ports)

    def counters(self, deadline: Deadline) -> list[Counters]:
        """What the switch has counted at the ports with our owner mark.

        A resident driver asks ovs-vswitchd; OVSDB where that is out of reach, or has none of these ports' numbers to tell.
        Raises Unavailable and SwitchRefused.
        """
        from userspace_cni.dataplane import counters

        if self._resident and self._ovsdb.startswith("unix:"):
            try:
                return self._asked_of_bridges(deadline)
            except SwitchRefused:
                pass  # an administrator has chosen other versions of OpenFlow
            except Unavailable as error:
                if not isinstance(error.__cause__, FileNotFoundError):
                    raise
        return counters.ask(self._ovsdb, deadline)

    def _asked_of_bridges(self, deadline: Deadline) -> list[Counters]:
        from userspace_cni.dataplane import counters
        from userspace_cni.dataplane.ovsdb.commands import counted_ports

        ports = self._standing().look(counted_ports)
        asked = [counters.ask_bridge(f"{self._ovs_rundir}/{bridge}.mgmt", of, deadline) for bridge, of in ports.items()]
        return [each for group in asked for each in group]

    def find(self, name: str, deadline: Deadline) -> FoundPort | None:
        """The port of that name, None if there is none."""
        from userspace_cni.dataplane.ovsdb.commands import find_port
        from userspace_cni.dataplane.ovsdb.session import named

        what = f"port {name}: looking for it"
        row = self._read(lambda session: find_port(session, name), named(name), what, deadline, enough=bool)
        if row is None:
            return None
        return FoundPort(
            name, row.bridge, row.interface["type"], row.interface["options"].get(ovs_rows.SERVER_PATH, ""), row.marks
        )

    def look(self, look: Callable[[Session], T], chosen: Mapping[str, str], what: str, deadline: Deadline) -> T:
        """What `look` sees of the session, which has the ports with these external_ids; a resident driver's has all."""
        from userspace_cni.dataplane.ovsdb.session import with_marks

        return self._read(look, with_marks(dict(chosen)), what, deadline)

    def facts(self, deadline: Deadline) -> ovs_rows.SwitchFacts:
        """What the switch is set to, with the MTUs of all ports of a resident driver. Raises Unavailable."""
        from userspace_cni.dataplane.ovsdb.commands import switch_facts

        return self._read(switch_facts, frozenset(), "reading the switch's settings", deadline)

    def vhost_sock_dir(self, deadline: Deadline) -> str:
        """Open_vSwitch.other_config:vhost-sock-dir, relative to OVS's run directory; "" if unset."""

        from userspace_cni.dataplane.ovsdb.commands import other_config

        return self._read(other_config, frozenset(), "reading vhost-sock-dir", deadline).get("vhost-sock-dir", "")

    def serving(self, bridge: str, deadline: Deadline) -> None:
        """NotServing if a port could not be added to `bridge` now: 50, or 51 when running pods suffer too. Writes nothing."""
        try:
            dpdk, datapath_type = self._facts(bridge, deadline.within(SERVING_SECONDS))
        except Unavailable as error:
            raise NotServing(error.message, error.details) from error
        liveness = self.glance() if self._resident else self._liveness(deadline.within(SERVING_SECONDS))
        if liveness.state in ("dead", "silent"):
            raise NotServing(f"ovs-vswitchd is {liveness.state}: {liveness.reason}", "see its log", code=_RUNNING_PODS_SUFFER)
        if not dpdk:
            hint = "ovs-vsctl get Open_vSwitch . dpdk_initialized other_config, and the log of ovs-vswitchd"
            raise NotServing("ovs-vswitchd runs without DPDK", hint, code=_RUNNING_PODS_SUFFER)
        if datapath_type not in (None, ovs_rows.DATAPATH_TYPE):
            raise NotServing(f"bridge {bridge} has datapath_type {datapath_type or 'system (the default)'}", "netdev is needed")

    def watch_liveness(self) -> vswitchd.Liveness:
        """Ask ovs-vswitchd whether it lives, for up to 500 ms, and remember it for `serving`. Another `pid` or `born` than before
        is another daemon."""
        seen = vswitchd.ask(self._ovsdb, self._ovs_rundir)
        self._seen, self._liveness_at = seen, time.monotonic()
        return seen

    def glance(self) -> vswitchd.Liveness:
        """What ovs-vswitchd says at once; when it is silent, what it said when it was last watched."""
        now = vswitchd.ask(self._ovsdb, self._ovs_rundir, GLANCE_SECONDS)
        return self._seen if now.state == "silent" and self._seen is not None else now

    def close(self) -> None:
        """End the session; who waits for the switch is told. The next call opens another; a resident driver's fails."""
        self._closed = self._resident
        if not self._lock.acquire(timeout=LAST_LOOK_SECONDS):
            return  # to one who is connecting still, and will see that it was closed
        session, self._session = self._session, None
        self._why_not = "it was closed"
        self._lock.release()
        if session is not None:
            session.close()

    def _facts(self, bridge: str, deadline: Deadline) -> tuple[bool, str | None]:
        """Whether DPDK runs, and the datapath type of the bridge (None: there is none); a resident driver waits for nobody."""
        if self._resident:
            replica = self._standing().replica
            return replica.dpdk, replica.datapaths.get(bridge)

        def look(session: Session) -> tuple[bool, str | None]:
            return session.replica.dpdk, session.replica.datapaths.get(bridge)

        return self._read(look, frozenset(), "asking OVSDB", deadline)

    def _standing(self) -> Session:
        """The session that stands."""
        session = self._session
        if session is None or session.lost:
            reason = session.lost if session is not None else self._why_not
            raise Unavailable(f"no session with OVSDB at {self._ovsdb}: {reason}", "is ovsdb-server running?")
        return session

    @property
    def _daemon(self) -> str:
        """Which ovs-vswitchd was seen last."""
        return f"{self._seen.pid} {self._seen.born}" if self._seen else ""

    def _liveness(self, deadline: Deadline) -> vswitchd.Liveness:
        left = max(deadline.remaining(), LAST_LOOK_SECONDS)
        return vswitchd.ask(self._ovsdb, self._ovs_rundir, min(left, vswitchd.ANSWER_SECONDS))

    def _names(self, step: Port) -> frozenset[Clause]:
        from userspace_cni.dataplane.ovsdb.session import named

        return named(step.name, step.bridge)

    def _recent_liveness(self, deadline: Deadline) -> vswitchd.Liveness:
        """The same, asked once for all who wonder at the same time."""
        with self._asking:
            if self._seen is None or time.monotonic() - self._liveness_at > PATIENCE_SECONDS / 2:
                self._seen = self._liveness(deadline)
                self._liveness_at = time.monotonic()
            return self._seen

    def _read(
        self,
        look: Callable[[Session], T],
        needs: frozenset[Clause],
        what: str,
        deadline: Deadline,
        *,
        enough: Callable[[T], bool] = lambda _: True,
    ) -> T:
        """What `look` sees, when the server has answered; a resident driver asks it only if what is known is not `enough`."""
        from userspace_cni.dataplane.ovsdb.commands import Read

        def read(session: Session) -> T:
            command = Read(session, needs, look)
            session.transact([command], deadline)
            result: T = command.result
            return result

        if self._resident:
            found = self._with_session(lambda session: session.look(look), needs, what, deadline)
            if enough(found):
                return found
        return self._with_session(read, needs, what, deadline)

    def _with_session(self, use: Callable[[Session], T], needs: frozenset[Clause], what: str, deadline: Deadline) -> T:
        """`use` with a session that stands. When that breaks, once more with a new one: every use looks before it acts."""
        from userspace_cni.dataplane.ovsdb.session import SessionLost

        with self._saying(what):
            session = self._open(needs, deadline)
            try:
                return use(session)
            except SessionLost:
                deadline.require(what)
                return use(self._open(needs, deadline))

    @contextmanager
    def _saying(self, what: str) -> Iterator[None]:
        """Errors say what was tried."""
        from userspace_cni.dataplane.ovsdb.session import Refused

        try:
            yield
        except Unavailable as error:
            raise type(error)(f"{what}: {error.message}", error.details) from None
        except Refused as error:
            raise SwitchRefused(f"{what}: ovsdb-server rejected it: {error.error}", error.details) from None

    def _open(self, needs: frozenset[Clause], deadline: Deadline) -> Session:
        if not self._lock.acquire(timeout=deadline.require("opening a session with OVSDB")):
            raise Unavailable("another thread is still connecting to OVSDB", f"does ovsdb-server at {self._ovsdb} answer?")
        try:
            if self._closed:
                raise Unavailable("the session with OVSDB was closed", "this process is about to end")
            if self._session is not None and self._session.lost:
                self._why_not = self._session.lost
                self._session.close()
                self._session = None
            if self._session is None:
                session = self._connected(needs, deadline)
                if self._closed:
                    session.close()
                    raise Unavailable("the session with OVSDB was closed", "this process is about to end")
                self._session = session
                self._sessions += 1
            return self._session
        finally:
            self._lock.release()

    def _connected(self, needs: frozenset[Clause], deadline: Deadline) -> Session:
        from userspace_cni.dataplane.ovsdb.session import Session

        try:
            return Session(self._ovsdb, needs, deadline, everything=self._resident, grouped=self._grouped, parted=self._parted)
        except Unavailable as error:
            self._why_not = error.message
            raise

    def _read_back(self, opened: Watch[tuple[bool, str]], step: Port, deadline: Deadline) -> None:
        """Wait until ovs-vswitchd says that the interface is open, or why not."""
        name = step.name
        remedy = when_opened(step)
        while (answer := opened.wait(deadline.within(PATIENCE_SECONDS).remaining())) is None:
            liveness = self._recent_liveness(deadline)
            if liveness.state == "dead":
                raise Unavailable(f"ovs-vswitchd is dead: {liveness.reason}", "see its log, and restart it")
            if not deadline.remaining():
                raise Unavailable(
                    f"ovs-vswitchd has not opened the interface in time; it is {liveness.state}: {liveness.reason}", "see its log"
                )
        is_open, reason = answer
        if not is_open:
            raise SwitchRefused(f"port {name}: {reason}", f"ovs-vsctl list Interface {name}, and the log of ovs-vswitchd{remedy}")
