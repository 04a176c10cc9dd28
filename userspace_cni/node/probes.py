"""Probes: vhost-user ports for a moment, through which `probe`, `ping` and `load` see whether a bridge moves frames, and through
which `capture` sees those of another port.

Part of the composition root: it uses the switch and the host. A probe is no attachment: it has no record, and an owner mark of
its own, so that no verb and no reconciliation of attachments touches it. Its marks hold the name of its run
(`host.probe_directories`), by which any later run, `gc` and the agent remove what a killed one left. This module must never
connect to an attachment's own socket, touch a flow that is not ours, or leave a flow when its port is deleted: a pod's port might
get the same number, and the flow would take its frames. So a run deletes its flows, then its ports, then the directory by which
later runs find it; where one deletion is not confirmed, the later ones are not done. Should flows remain all the same, each ends
after a time that no frame extends; a living run renews its flows.

Order: `reserve` a port, listen on its socket, `plug` it in (the switch connects at once if a process listens), accept, then
`reflect` or `join`. A restart of ovs-vswitchd loses the flows. The mirror into a port (`plug`) is the port's own: it comes
and goes in its transactions.
"""

from __future__ import annotations

import atexit
import re
import secrets
import signal
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Final, Self

from userspace_cni.attachment.node import DeadProbe
from userspace_cni.attachment.steps import OWNER, OvsPort, PortRef, SocketFile, VhostUserClient, run_marks
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import BadRequest, Unavailable, UserspaceError
from userspace_cni.base.log import say
from userspace_cni.base.root import HostRoot
from userspace_cni.base.settings import Settings
from userspace_cni.base.signals import Signals
from userspace_cni.base.threads import start
from userspace_cni.base.vlans import Vlan
from userspace_cni.host.files import borrowed_sockets, probe_directories
from userspace_cni.host.files.probe_directories import PREFIX, Run
from userspace_cni.linux import boot
from userspace_cni.switch import counters
from userspace_cni.switch.openflow import flows, messages
from userspace_cni.switch.openflow.flows import Flows
from userspace_cni.switch.openflow.messages import Flow
from userspace_cni.switch.ovsdb.bridges import Bridge, known_bridges
from userspace_cni.switch.ovsdb.probes import PortState, ProbeRow, is_mirrored, probe_rows, state_of
from userspace_cni.switch.ports import PortDriver

if TYPE_CHECKING:
    from collections.abc import Mapping

    from userspace_cni.node.installation import Installation

CAPTURE: Final = "capture"
"""The purpose of a run whose port is the output of a mirror."""
TIMEOUT_S: Final = 15.0
"""Seconds for one call: the first port after a start of ovs-vswitchd has been seen to take 8 s."""
FLOW_S: Final = 2.0
"""Seconds for a bridge to confirm whether flows are gone."""
CLOSE_S: Final = 5.0
IDLE_S: Final = 60
"""Seconds without frames after which a flow ends, in case this process is killed and another program deletes the port."""
HARD_S: Final = 900
"""Seconds after which a flow ends that has frames, which may be those of another port with the same number."""
RENEW_S: Final = 300.0
"""Seconds between renewals of a run's flows; nearly all runs are shorter, and never disturbed by one."""
_PORTS_MAX: Final = 16
_NO_VLAN: Final = Vlan()
_TEMPORARY: Final = re.compile(PREFIX + "[0-9a-f]{9}")
_HINT: Final = "userspace-cni gc removes it when the switch answers, and so do the next probe and the agent"


@dataclass(frozen=True)
class ProbePort:
    """A port that is, or will be, on `bridge`. `socket`: the path to listen on before it is plugged in, as this process sees it;
    `server_path`: the same socket as the switch sees it. `mac`: a locally administered address of its own."""

    name: str
    bridge: str
    socket: str
    server_path: str
    mac: str
    number: int


class DeadRuns:
    """Finds and removes what dead runs left. `store`: the id of our state directory."""

    def __init__(self, ports: PortDriver, settings: Settings, store: Callable[[], str]) -> None:
        self._ports = ports
        self._settings = settings
        self._root = HostRoot(settings.host_root)
        self._store = store

    def find(self, deadline: Deadline) -> list[DeadProbe]:
        """Find everything that dead runs left, except ports of other installations. Raises Unavailable."""
        rows = self._ports.look(probe_rows, {"owner": OWNER}, "looking for probes", deadline)
        notes = borrowed_sockets.notes(self._settings.run_dir, self._root)
        directories = probe_directories.runs_with_directory(self._settings.short_dir, self._root)
        found: dict[Run, list[ProbeRow]] = {run: [] for run in (*directories, *notes)}
        for row in rows:
            run = Run.parse(row.marks.get("run", ""))
            if run and row.marks.get("store") == self._store():
                found.setdefault(run, []).append(row)
        return [_probe(run, found[run], notes.get(run, ())) for run in sorted(found, key=lambda run: run.name) if run.is_dead]

    def remove(self, probe: DeadProbe, deadline: Deadline) -> list[str]:
        """Remove what is still there of a probe; returns the names of what was removed."""
        return next((self.clear(dead, deadline) for dead in self.find(deadline) if dead.run == probe.run), [])

    def clear(self, probe: DeadProbe, deadline: Deadline) -> list[str]:
        """Remove a probe's flows, ports and directory; returns their names. Raises the first error; what was to follow stays.

        Its flows may be on any bridge, because another program may have deleted its ports. So every bridge is asked.
        """
        run = Run.parse(probe.run)
        if run is None:
            return []
        sockets = borrowed_sockets.clear(run, probe.sockets, self._settings.run_dir, self._root)
        cookie = messages.cookie_of(int(run.number, 16))
        found = self._ports.look(known_bridges, {"owner": OWNER}, "listing the bridges", deadline)
        for name in sorted({bridge.name for bridge in found if bridge.has_vhost} | {port.bridge for port in probe.ports} - {""}):
            flows.forget(_management(self._settings, name), [cookie], deadline.within(FLOW_S), messages.RUN_BITS)
        errors: list[UserspaceError] = []
        for port in probe.ports:
            try:
                self._ports.undo(port, deadline)
            except UserspaceError as error:
                errors.append(error)
        if errors:
            raise errors[0]
        self._ports.let_go([_temporary_bridge(run, number) for number in range(_PORTS_MAX)], deadline)
        probe_directories.remove_directory(run, self._settings.short_dir, self._root)
        return [*(port.name for port in probe.ports), *sockets] or [f"{PREFIX}{run.name}"]


def _probe(run: Run, rows: Sequence[ProbeRow], sockets: tuple[SocketFile, ...]) -> DeadProbe:
    purpose = rows[0].marks.get("purpose", "") if rows else ""
    ports = tuple(_ref(row.name, row.bridge, row.marks["store"], run) for row in rows)
    return DeadProbe(purpose, run.name, run.pid, run.number, ports, sockets)


@dataclass(frozen=True)
class _LiveFlow:
    """A flow of this run, from one of its ports to another; a `target` of None is the source itself."""

    source: ProbePort
    target: ProbePort | None
    flow: Flow


class ProbePorts:
    """The probes of one run; a context manager that leaves nothing behind, however it ends, except by SIGKILL.

    On the main thread SIGTERM and SIGHUP end the block as Ctrl-C does, with KeyboardInterrupt, and do not interrupt the clean-up;
    loops in the block call `heed`. The session of `ports` is used, and stays open. `store`: the id of our state directory.
    `purpose` is a mark of the ports. `timeout_s` bounds each call. All methods raise errors of `userspace_cni.base.errors`:
    Unavailable for a switch that does not answer, SwitchRefused with what it says.
    """

    def __init__(
        self,
        here: Installation,
        store: Callable[[], str],
        ports: PortDriver,
        purpose: str = "probe",
        *,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._settings = here.settings
        self._purpose = purpose
        self._timeout_s = timeout_s
        self._root = here.root
        self._store = store
        self._ports = ports
        self.run = Run.new()
        self._count = 0
        self._reserved: dict[str, ProbePort] = {}
        self._plugged: set[str] = set()
        self._flows: list[_LiveFlow] = []
        self._flows_lock = threading.Lock()
        self._renewing: threading.Thread | None = None
        self._over = threading.Event()
        self._stop_signal = ""
        self._temporary: set[str] = set()
        self._has_directory = False
        self._adopted = False
        self._closed = False
        self._signals = Signals(self._stop)

    def __enter__(self) -> Self:
        import userspace_cni.ovsdb.session  # noqa: F401 - it takes long, and a signal during an import may get lost

        self._catch_signals()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def connect(self) -> None:
        """Open the session with OVSDB. Raises Unavailable, also for an ovs-vswitchd that is known to be dead.

        Raises RecordRefused for a state directory that has no id and cannot be given one: nothing could be marked as ours.
        """
        self._store()
        self._ports.connect(self._deadline())
        self._require_life()

    def bridges(self) -> tuple[Bridge, ...]:
        """All bridges by name, without the temporary ones of probes."""
        found = self._ports.look(known_bridges, {"owner": OWNER}, "listing the bridges", self._deadline())
        return tuple(bridge for bridge in found if not (bridge.ours and _TEMPORARY.fullmatch(bridge.name)))

    def require_bridge(self, name: str) -> Bridge:
        """The bridge of that name. Raises BadRequest for one that is not there, or can have no vhost-user port."""
        known = {bridge.name: bridge for bridge in self.bridges()}
        bridge = known.get(name)
        if bridge is None:
            raise BadRequest(f"there is no bridge {name or repr(name)}", f"there are: {', '.join(sorted(known)) or 'none'}")
        if not bridge.has_vhost:
            kind = bridge.datapath or "system (the default)"
            raise BadRequest(f"bridge {name} has datapath_type {kind}", "vhost-user ports need netdev")
        return bridge

    def adopt(self) -> list[str]:
        """Remove what dead runs left; returns the names. What cannot be removed is logged, and left for the next run."""
        self._adopted = True
        dead = DeadRuns(self._ports, self._settings, self._store)
        removed: list[str] = []
        deadline = self._deadline()
        for each in dead.find(deadline):
            try:
                removed += dead.clear(each, deadline)
            except UserspaceError as error:
                say("warning", "what a dead run left could not be removed now", run=each.run, error=error)
        return removed

    def reserve(self, bridge: str | None = None) -> ProbePort:
        """Reserve name and socket of a port on `bridge`, or on a temporary bridge that is deleted with it. Asks no switch.

        For a second port on a temporary bridge, name the bridge of the first.
        """
        if not self._adopted:
            self.adopt()
        if self._count >= _PORTS_MAX:
            raise ValueError(f"a run has at most {_PORTS_MAX} ports")
        number, self._count = self._count, self._count + 1
        if bridge is None:
            bridge = _temporary_bridge(self.run, number)
            self._temporary.add(bridge)
        if not self._has_directory:
            self._has_directory = True
            probe_directories.make_directory(self.run, self._settings.short_dir, self._settings.ovs_rundir, self._root)
        server_path = f"{probe_directories.directory_of(self.run, self._settings.short_dir)}/{number:x}"
        mac = bytes([0x02, *secrets.token_bytes(4), number]).hex(":")
        name = f"{PREFIX}{self.run.number}-{number:x}"
        port = ProbePort(name, bridge, self._root.path(server_path), server_path, mac, number)
        self._reserved[name] = port
        return port

    def plug(self, port: ProbePort, *, mtu: int | None = None, vlan: Vlan = _NO_VLAN, mirrored: str = "") -> None:
        """Add the port and wait until the switch has opened it; a bridge that is not temporary is never made.

        `mirrored`: the port whose frames it is to get, from it and to it, by a mirror that comes with it, and goes. Raises
        BadRequest when that port has gone.
        """
        deadline = self._deadline()
        self._require_life()
        self._ports.connect(deadline)
        marks = {
            **run_marks(self.run.name, self._store()),
            "purpose": self._purpose,
            "pid": str(self.run.pid),
            "start-time": str(self.run.started),
            "boot-id": boot.boot_id(),
        }
        step = OvsPort(
            port.bridge,
            port.name,
            VhostUserClient(port.server_path, mtu),
            vlan=vlan,
            mac=port.mac,
            marks=marks,
            foreign_bridge=port.bridge not in self._temporary,
        )
        self._plugged.add(port.name)  # before the transaction: after a failure the port may exist
        if mirrored:
            step = replace(step, mirror_outputs=(port.name,), shows=mirrored)
        self._ports.apply(step, deadline)()

    def mirrors(self, port: ProbePort) -> bool:
        """Whether the mirror into the port is there, with its source and its output."""
        what = f"port {port.name}: looking at its mirror"
        return self._ports.look(
            lambda session: is_mirrored(session, port.bridge, port.name), {"owner": OWNER}, what, self._deadline()
        )

    def counted(self, port: ProbePort) -> Mapping[str, int]:
        """The switch's counters of the port, by the names of Interface.statistics (tx is what it sent to us)."""
        ports: dict[int, tuple[str, Mapping[str, str]]] = {self._ofport(port): (port.name, {})}
        found = counters.ask_bridge(_management(self._settings, port.bridge), ports, self._deadline().within(FLOW_S))
        return found[0].statistics if found else {}

    def reflect(self, port: ProbePort) -> None:
        """Have the switch send every frame from the port back to it."""
        self._add_flows(port.bridge, [(port, None)])

    def join(self, a: ProbePort, b: ProbePort) -> None:
        """Have the switch send every frame from `a` to `b`, and from `b` to `a`; both are on one bridge."""
        if a.bridge != b.bridge:
            raise ValueError(f"{a.name} is on {a.bridge}, {b.name} on {b.bridge}")
        self._add_flows(a.bridge, [(a, b), (b, a)])

    def state(self, port: ProbePort | str) -> PortState:
        """What the switch says of any port, also of an attachment's."""
        name = port if isinstance(port, str) else port.name
        what, deadline = f"port {name}: looking at it", self._deadline()
        found = self._ports.look(lambda session: state_of(session, name), {"owner": OWNER}, what, deadline)
        return found or PortState("", {}, 0, "there is no such port")

    def unplug(self, port: ProbePort) -> None:
        """Remove the flows to and from the port, then the port; its bridge too, if we made that and this was its last port.

        Raises an error when the flows may still exist: the port is kept then, so that no other port gets its number.
        """
        self._unplug(port, self._deadline().within(CLOSE_S))

    def heed(self) -> None:
        """Raise KeyboardInterrupt if a signal came: the interpreter loses the exception of a signal during a callback."""
        if self._stop_signal:
            raise KeyboardInterrupt(self._stop_signal)

    def close(self) -> None:
        """Remove everything of this run. What cannot be removed is logged; no error is raised."""
        if self._closed:
            return
        self._closed = True
        self._signals.mute()
        try:
            self._over.set()
            deadline = Deadline.after(CLOSE_S)
            for name in sorted(self._plugged):
                self._attempt(f"port {name}", lambda name=name: self._unplug(self._reserved[name], deadline))  # type: ignore[misc]
            if self._has_directory and not self._plugged and not self._flows:
                self._attempt(
                    "its directory", lambda: probe_directories.remove_directory(self.run, self._settings.short_dir, self._root)
                )
            if self._renewing:
                self._renewing.join(FLOW_S)
        finally:
            self._signals.restore()
            atexit.unregister(self.close)

    def _deadline(self) -> Deadline:
        return Deadline.after(self._timeout_s)

    def _require_life(self) -> None:
        liveness = self._ports.watch_liveness()
        if liveness.state == "dead":
            raise Unavailable(f"ovs-vswitchd is dead: {liveness.reason}", "see its log, and restart it")

    def _add_flows(self, bridge: str, pairs: Iterable[tuple[ProbePort, ProbePort | None]]) -> None:
        deadline = self._deadline()
        added = []
        for source, target in pairs:
            cookie = messages.cookie_of(int(self.run.number, 16), source.number)
            output = self._ofport(target) if target else None
            added.append(_LiveFlow(source, target, Flow(self._ofport(source), output, cookie, IDLE_S, HARD_S)))
        with self._flows_lock, Flows(_management(self._settings, bridge), deadline) as connection:
            self._flows += added  # before they are sent: after a failure they may exist
            for each in added:
                connection.add(each.flow, deadline)
        if self._renewing is None:
            renewing = threading.Thread(target=self._renew, name="renewing flows", daemon=True)
            start(renewing, "keeping the flows of this run")
            self._renewing = renewing

    def _renew(self) -> None:
        """Renew this run's flows at intervals, as long as their ports have the same numbers."""
        while not self._over.wait(RENEW_S):
            with self._flows_lock:
                for each in self._flows:
                    try:
                        self._renew_flow(each, Deadline.after(FLOW_S))
                    except UserspaceError as error:
                        say("debug", "a flow was not renewed", port=each.source.name, error=error)

    def _renew_flow(self, live: _LiveFlow, deadline: Deadline) -> None:
        output = self._ofport(live.target) if live.target else None
        if not self._over.is_set() and (self._ofport(live.source), output) == (live.flow.in_port, live.flow.output):
            with Flows(_management(self._settings, live.source.bridge), deadline) as connection:
                connection.add(live.flow, deadline)

    def _ofport(self, port: ProbePort) -> int:
        state = self.state(port)
        if not state.ofport:
            raise Unavailable(
                f"port {port.name} is not open: {state.error or 'the switch has not said why'}", "was it plugged in?"
            )
        return state.ofport

    def _unplug(self, port: ProbePort, deadline: Deadline) -> None:
        if port.name not in self._plugged:
            return
        try:
            self._forget_flows(port, deadline.half())
        except UserspaceError as error:
            if port.bridge not in self._temporary:
                raise
            say("debug", "flows of a temporary bridge go with it", bridge=port.bridge, error=error)
        self._ports.undo(_ref(port.name, port.bridge, self._store(), self.run), deadline)
        self._plugged.discard(port.name)
        self._flows = [each for each in self._flows if port not in (each.source, each.target)]

    def _forget_flows(self, port: ProbePort, deadline: Deadline) -> None:
        """Delete the flows to and from the port, and wait until the switch confirms it."""
        what = f"port {port.name}: deleting its flows"
        if not self._flows_lock.acquire(timeout=deadline.require(what)):
            raise Unavailable(f"{what}: they are being renewed, and the switch does not answer", "does ovs-vswitchd hang?")
        try:
            mine = [each for each in self._flows if port in (each.source, each.target)]
            if mine:
                flows.forget(_management(self._settings, port.bridge), {each.flow.cookie for each in mine}, deadline)
                self._flows = [each for each in self._flows if each not in mine]  # under the lock, or one might be renewed
        finally:
            self._flows_lock.release()

    def _attempt(self, what: str, act: Callable[[], None]) -> None:
        try:
            act()
        except UserspaceError as error:
            say("warning", f"{what} of this {self._purpose} stays", error=error, hint=_HINT)

    def _catch_signals(self) -> None:
        atexit.register(self.close)  # for a signal between the end of the block and the first line of `close`
        if threading.current_thread() is not threading.main_thread():
            return
        self._signals.hear()

    def _stop(self, number: int, frame: FrameType | None) -> None:
        """Interrupt the main thread. An exception during a callback of the interpreter gets lost: `heed` raises it again."""
        self._stop_signal = signal.Signals(number).name
        former = self._signals.former.get(number)
        if callable(former):
            former(number, frame)
        raise KeyboardInterrupt(self._stop_signal)


def _temporary_bridge(run: Run, number: int) -> str:
    """The name of the bridge that is made for the run's port of that number, if it is not to be on one that there is."""
    return f"{PREFIX}{run.number}{number:x}"


def _management(settings: Settings, bridge: str) -> str:
    """The bridge's management socket, as this process sees it."""
    return HostRoot(settings.host_root).path(f"{settings.ovs_rundir}/{bridge}.mgmt")


def _ref(name: str, bridge: str, store: str, run: Run) -> PortRef:
    """The reference by which a probe's port is deleted, and with it the mirror that it is the output of."""
    return PortRef(name, bridge, run_marks(run.name, store))
