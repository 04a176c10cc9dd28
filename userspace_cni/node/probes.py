"""Probes: vhost-user ports for a moment, through which `probe`, `ping` and `load` see whether a bridge moves frames, and through
which `capture` sees those of another port.

Part of the composition root: it uses the switch and the host. A probe is a step of its command's run (`attachment.runs`), whose
record names all that the run makes: directory, ports, flows. No verb and no reconciliation of attachments touches them. This
module must never connect to an attachment's own socket, or leave a flow when its port is deleted: a pod's port might get the same
number, and the flow would take its frames. So a flow is a step after its port: while it cannot be deleted, the port stays.

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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Final, Self

from userspace_cni.attachment import runs
from userspace_cni.attachment.run_ids import PREFIX
from userspace_cni.attachment.steps import OvsPort, PortFlow, SocketDirectory, Step, Steps, VhostUserClient, run_marks
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import BadRequest, Unavailable, UserspaceError
from userspace_cni.base.log import say
from userspace_cni.base.signals import Signals
from userspace_cni.base.threads import start
from userspace_cni.base.vlans import Vlan
from userspace_cni.switch import counters
from userspace_cni.switch.openflow.openflow_messages import cookie_of
from userspace_cni.switch.ovsdb.bridges import Bridge, list_bridges
from userspace_cni.switch.ovsdb.port_states import PortState, is_mirrored, state_of
from userspace_cni.switch.port_flows import FLOW_S

if TYPE_CHECKING:
    from collections.abc import Mapping

    from userspace_cni.attachment.node import Node
    from userspace_cni.attachment.records import Record
    from userspace_cni.node.installation import Installation
    from userspace_cni.switch.ports import PortDriver

CAPTURE: Final = "capture"
"""The purpose of a run whose port is the output of a mirror."""
TIMEOUT_S: Final = 15.0
"""Seconds for one call: the first port after a start of ovs-vswitchd has been seen to take 8 s."""
RENEW_S: Final = 300.0
"""Seconds between renewals of a run's flows; nearly all runs are shorter, and never disturbed by one."""
_PORTS_MAX: Final = 16
_NO_VLAN: Final = Vlan()
_TEMPORARY: Final = re.compile(PREFIX + "[0-9a-f]{9}")


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


class ProbePorts:
    """The probes of one run; a context manager that leaves nothing behind, however it ends, except by SIGKILL.

    On the main thread SIGTERM and SIGHUP end the block as Ctrl-C does, with KeyboardInterrupt, and do not interrupt the
    clean-up; loops in the block call `heed`. The session of `ports` is used, and stays open. `purpose` is a mark of the ports.
    `timeout_s` bounds each call. All methods raise errors of `userspace_cni.base.errors`: Unavailable for a switch that does
    not answer, SwitchRefused with its error.
    """

    def __init__(
        self, here: Installation, node: Node, ports: PortDriver, purpose: str = "probe", *, timeout_s: float = TIMEOUT_S
    ) -> None:
        self._settings = here.settings
        self._root = here.root
        self._node = node
        self._ports = ports
        self._purpose = purpose
        self._timeout_s = timeout_s
        self._run = runs.Run(purpose, node.store, node.driver)
        self._count = 0
        self._plugged: dict[str, OvsPort] = {}
        self._lock = threading.Lock()
        """Of the run's steps, which the renewal of flows reads."""
        self._renewing: threading.Thread | None = None
        self._over = threading.Event()
        self._stop_signal = ""
        self.is_silent = False
        """Whether ovs-vswitchd gave no answer when it was last asked: what OVSDB says of applications is out of date then."""
        self._temporary: set[str] = set()
        self._adopted = False
        self._closed = False
        self._signals = Signals(self._stop)

    def __enter__(self) -> Self:
        import userspace_cni.ovsdb.client  # noqa: F401 - it takes long, and a signal during an import may get lost

        self._catch_signals()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def connect(self) -> None:
        """Open the session with OVSDB. Raises Unavailable, also for an ovs-vswitchd that is known to be dead.

        Raises RecordRefused for a state directory that has no id and cannot be given one: nothing could be marked as ours.
        """
        self._node.store.journal.identity()
        self._ports.connect(self._deadline())
        self._require_life()

    def bridges(self) -> tuple[Bridge, ...]:
        """All bridges by name, without the temporary ones of probes."""
        found = self._ports.look(list_bridges, {}, "listing the bridges", self._deadline())
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
        removed: list[str] = []
        deadline = self._deadline()
        for record in runs.list_ended_runs(self._node.store, self._node.switch, deadline):
            try:
                done = runs.undo_ended(record, self._node.store, self._node.driver, deadline)
            except UserspaceError as error:
                say("warning", "what a dead run left could not be removed now", error=error, **record.subject)
            else:
                removed += names_of(record) if done else []
        return removed

    def reserve(self, bridge: str | None = None) -> ProbePort:
        """Reserve name and socket of a port on `bridge`, or on a temporary bridge that is deleted with it. Asks no switch, but
        what dead runs have left goes first.

        For a second port on a temporary bridge, name the bridge of the first.
        """
        if not self._adopted:
            self.adopt()
        if self._count >= _PORTS_MAX:
            raise ValueError(f"a run has at most {_PORTS_MAX} ports")
        number, self._count = self._count, self._count + 1
        run, settings = self._run.id, self._settings
        if bridge is None:
            bridge = f"{PREFIX}{run.number}{number:x}"
            self._temporary.add(bridge)
        directory = f"{settings.short_dir}/{PREFIX}{run.name}"
        if not self._run.steps:
            self._add(SocketDirectory(directory, settings.short_dir, settings.ovs_rundir))
        server_path = f"{directory}/{number:x}"
        mac = bytes([0x02, *secrets.token_bytes(4), number]).hex(":")
        return ProbePort(f"{PREFIX}{run.number}-{number:x}", bridge, self._root.path(server_path), server_path, mac, number)

    def plug(self, port: ProbePort, *, mtu: int | None = None, vlan: Vlan = _NO_VLAN, mirrored: str = "") -> None:
        """Add the port and wait until the switch has opened it; a bridge that is not temporary is never made.

        `mirrored`: the port whose frames it is to get, from it and to it, by a mirror that comes with it, and goes. Raises
        BadRequest when that port has gone.
        """
        deadline = self._deadline()
        self._require_life()
        self._ports.connect(deadline)
        run = self._run.id
        step = OvsPort(
            port.bridge,
            port.name,
            VhostUserClient(port.server_path, mtu),
            vlan=vlan,
            mac=port.mac,
            marks=run_marks(run.name, self._node.store.journal.identity()) | {"purpose": self._purpose, "pid": str(run.pid)},
            foreign_bridge=port.bridge not in self._temporary,
        )
        if mirrored:
            step = replace(step, mirror_outputs=(port.name,), shows=mirrored)
        self._plugged[port.name] = step  # before it is made: after a failure the port may exist
        self._add(step)

    def mirrors(self, port: ProbePort) -> bool:
        """Whether the mirror into the port is there, with its source and its output."""
        what = f"port {port.name}: looking at its mirror"
        return self._ports.look(lambda session: is_mirrored(session, port.bridge, port.name), {}, what, self._deadline())

    def read_counters(self, port: ProbePort) -> Mapping[str, int]:
        """The switch's counters of the port, by the names of Interface.statistics (tx is what it sent to us)."""
        ports: dict[int, tuple[str, Mapping[str, str]]] = {self._ofport(port): (port.name, {})}
        found = counters.ask_bridge(self._ports.locate_management(port.bridge), ports, self._deadline().within(FLOW_S))
        return found[0].statistics if found else {}

    def reflect(self, port: ProbePort) -> None:
        """Have the switch send every frame from the port back to it."""
        self._add_flows((port, ""))

    def join(self, a: ProbePort, b: ProbePort) -> None:
        """Have the switch send every frame from `a` to `b`, and from `b` to `a`; both are on one bridge."""
        if a.bridge != b.bridge:
            raise ValueError(f"{a.name} is on {a.bridge}, {b.name} on {b.bridge}")
        self._add_flows((a, b.name), (b, a.name))

    def state(self, port: ProbePort | str) -> PortState:
        """What the switch says of any port, also of an attachment's."""
        name = port if isinstance(port, str) else port.name
        what, deadline = f"port {name}: looking at it", self._deadline()
        found = self._ports.look(lambda session: state_of(session, name), {}, what, deadline)
        return found or PortState("", {}, 0, "there is no such port")

    def unplug(self, port: ProbePort) -> None:
        """Remove the flows to and from the port, then the port; its bridge too, if we made that and this was its last port.

        Raises an error when the flows may still exist: the port is kept then, so that no other port gets its number.
        """
        step = self._plugged.get(port.name)
        if step is None:
            return
        flows = [each for each in self._flows if port.name in (each.source, each.target)]
        deadline = self._deadline().within(runs.CLOSE_S)
        with self._steps(deadline):
            self._run.drop((step, *flows), deadline)
        del self._plugged[port.name]

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
            if self._renewing:
                self._renewing.join(2 * FLOW_S)  # first: a flow that it adds must not come after its deletion
            self._run.close()
        finally:
            self._signals.restore()
            atexit.unregister(self.close)

    def _deadline(self) -> Deadline:
        return Deadline.after(self._timeout_s)

    def _require_life(self) -> None:
        liveness = self._ports.watch_liveness()
        self.is_silent = liveness.state == "silent"
        if liveness.state == "dead":
            raise Unavailable(f"ovs-vswitchd is dead: {liveness.reason}", "see its log, and restart it")

    @property
    def _flows(self) -> tuple[PortFlow, ...]:
        return Steps(self._run.steps).flows

    @contextmanager
    def _steps(self, deadline: Deadline) -> Iterator[None]:
        """Keep the flows from being renewed meanwhile. Raises Unavailable at the deadline."""
        what = "changing what this run has"
        if not self._lock.acquire(timeout=deadline.require(what)):
            raise Unavailable(f"{what}: its flows are being renewed, and the switch does not answer", "does ovs-vswitchd hang?")
        try:
            yield
        finally:
            self._lock.release()

    def _add(self, *steps: Step) -> None:
        deadline = self._deadline()
        with self._steps(deadline):
            self._run.add(steps, deadline)

    def _add_flows(self, *pairs: tuple[ProbePort, str]) -> None:
        number = int(self._run.id.number, 16)
        self._add(
            *(
                PortFlow(source.bridge, source.name, target, cookie_of(number, source.number), source.bridge in self._temporary)
                for source, target in pairs
            )
        )
        if self._renewing is None:
            renewing = threading.Thread(target=self._renew, name="renewing flows", daemon=True)
            start(renewing, "keeping the flows of this run")
            self._renewing = renewing

    def _renew(self) -> None:
        """Apply this run's flows again at intervals, as long as their ports are there."""
        while not self._over.wait(RENEW_S):
            with self._lock:
                for each in self._flows:
                    if self._over.is_set():
                        return
                    try:
                        self._node.driver(each).apply(each, Deadline.after(FLOW_S))
                    except UserspaceError as error:
                        say("debug", "a flow was not renewed", port=each.source, error=error)

    def _ofport(self, port: ProbePort) -> int:
        state = self.state(port)
        if not state.ofport:
            raise Unavailable(
                f"port {port.name} is not open: {state.error or 'the switch has not said why'}", "was it plugged in?"
            )
        return state.ofport

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


def names_of(record: Record) -> list[str]:
    """What a run has made, as people are told: its ports and the sockets that it borrowed, else its directory."""
    ports = record.ports or filter(None, (record.bare_ref,))
    named = [*(port.name for port in ports), *(socket.thing for socket in record.borrowed)]
    return named or [f"{PREFIX}{record.run.name}" if record.run else record.key]
