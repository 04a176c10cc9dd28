"""Test ports: vhost-user ports for a moment, through which a person's command sees whether a bridge moves frames.

The second composition root beside `drivers`: it sees the switch and the host. A test port is nobody's attachment: it has no
record, and an owner mark of its own, so that no verb and no reconciliation of attachments touches it. It carries the name of its
run (`host.runs`), by which any later run, `gc` and the agent remove what a killed one left. Never may anything here connect to an
attachment's own socket, touch a flow that is not ours, or leave a flow behind when its port goes: the next port might be given
the same number.

Order: `reserve` a port, listen on its socket, `plug` it in (the switch connects at once to what listens already), accept, then
`reflect` or `join`. A restart of ovs-vswitchd loses the flows.
"""

from __future__ import annotations

import atexit
import re
import secrets
import signal
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Final, Self

from localdb import Store
from userspace_cni.dataplane import openflow, probe_ports
from userspace_cni.dataplane.flows import Flows
from userspace_cni.dataplane.openflow import Flow
from userspace_cni.dataplane.ovs import PortDriver
from userspace_cni.dataplane.probe_ports import OWNER, Bridge, PortState, ProbeRow
from userspace_cni.deadline import Deadline
from userspace_cni.errors import Unavailable, UserspaceError
from userspace_cni.host import link, runs
from userspace_cni.host.root import HostRoot
from userspace_cni.host.runs import PREFIX, Run
from userspace_cni.journal import Journal
from userspace_cni.log import say
from userspace_cni.records import Record
from userspace_cni.settings import Settings
from userspace_cni.steps import Port

__all__ = ["Bridge", "DeadRun", "DeadRuns", "PortState", "TestPort", "TestPorts"]

TIMEOUT_S: Final = 15.0
"""What one call may take: the first port after a start of ovs-vswitchd has been seen to take 8 s."""
FLOW_S: Final = 1.0
"""What deleting flows may take; ovs-vswitchd forgets them by itself a minute later."""
CLOSE_S: Final = 5.0
IDLE_S: Final = 60
"""A flow without frames for so long goes by itself, should we be killed and its port be deleted by somebody else."""
_PORTS_MAX: Final = 16
_TEMPORARY: Final = re.compile(PREFIX + "[0-9a-f]{9}")
_STOPPING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_HINT: Final = "userspace-cni gc removes it, and so does the next probe"


@dataclass(frozen=True)
class TestPort:
    """A port that is, or will be, on `bridge`. `socket`: where to listen before it is plugged in, as this process sees it;
    `server_path` is the same as the switch is told. `mac`: a locally administered address of its own."""

    __test__ = False

    name: str
    bridge: str
    socket: str
    server_path: str
    mac: str
    number: int


@dataclass(frozen=True)
class DeadRun:
    """What a run left whose process has ended: its ports, and a directory for sockets."""

    run: Run
    ports: tuple[ProbeRow, ...]

    @property
    def record(self) -> Record:
        """It, as records and findings are told: the run in place of a container."""
        steps = tuple(_step(port.name, port.bridge, port.marks["store"]) for port in self.ports)
        purpose = self.ports[0].marks.get("purpose", "") if self.ports else ""
        return Record("deleting", purpose, f"run-{self.run.pid}", self.run.number, steps=steps)


class DeadRuns:
    """Finds and removes what runs left that can not do it themselves any more. `store`: the id of our state directory."""

    def __init__(self, ports: PortDriver, settings: Settings, store: Callable[[], str]) -> None:
        self._ports = ports
        self._settings = settings
        self._root = HostRoot(settings.host_root)
        self._store = store

    def find(self, deadline: Deadline) -> list[DeadRun]:
        """Everything of dead runs; ports of other installations are left alone. Raises Unavailable."""
        rows = self._ports.look(probe_ports.probe_rows, {"owner": OWNER}, "looking for test ports", deadline)
        found: dict[Run, list[ProbeRow]] = {run: [] for run in runs.runs_with_directory(self._settings.short_dir, self._root)}
        for row in rows:
            run = Run.parse(row.marks.get("run", ""))
            if run and row.marks.get("store") == self._store():
                found.setdefault(run, []).append(row)
        dead = (DeadRun(run, tuple(ports)) for run, ports in found.items() if run.is_dead)
        return sorted(dead, key=lambda each: each.run.name)

    def records(self, deadline: Deadline) -> list[Record]:
        """The same, each as a record. Raises Unavailable."""
        return [dead.record for dead in self.find(deadline)]

    def remove(self, test: Record, deadline: Deadline) -> list[str]:
        """Remove what `test` (DeadRun.record) stands for, if that is still there; the names of it."""
        return next((self.clear(dead, deadline) for dead in self.find(deadline) if dead.record.key == test.key), [])

    def clear(self, dead: DeadRun, deadline: Deadline) -> list[str]:
        """Remove its flows, ports and directory; their names. Raises the first error when all was tried."""
        for bridge in sorted({port.bridge for port in dead.ports}):
            forget_flows(self._settings, bridge, [openflow.cookie_of(int(dead.run.number, 16))], deadline, openflow.RUN_BITS)
        errors: list[UserspaceError] = []
        for port in dead.ports:
            try:
                self._ports.undo(_step(port.name, port.bridge, port.marks["store"]), deadline)
            except UserspaceError as error:
                errors.append(error)
        if errors:
            raise errors[0]
        runs.remove_directory(dead.run, self._settings.short_dir, self._root)
        return [port.name for port in dead.ports] or [f"{PREFIX}{dead.run.name}"]


class TestPorts:
    """The test ports of one run; a context manager that leaves nothing behind however it ends, but by SIGKILL.

    On the main thread, SIGTERM and SIGHUP end what is inside as Ctrl-C does, with KeyboardInterrupt, and what cleans up is not
    interrupted again. `purpose` is told to who finds the ports. `ports`: a resident driver to use instead of a session of its
    own. `timeout_s` bounds each call. All raise errors of `userspace_cni.errors`: Unavailable for a switch that does not answer,
    SwitchRefused with what it says.
    """

    __test__ = False

    def __init__(
        self, settings: Settings, purpose: str = "probe", *, ports: PortDriver | None = None, timeout_s: float = TIMEOUT_S
    ) -> None:
        self._settings = settings
        self._purpose = purpose
        self._timeout_s = timeout_s
        self._root = HostRoot(settings.host_root)
        state, run = map(self._root.path, (settings.state_dir, settings.run_dir))
        journal = Journal(Store(state, f"{run}/locks", warn=lambda text: say("warning", text)))
        self._store = journal.identity
        self._ports = ports or self._driver()
        self._own_session = ports is None
        self.run = Run.new()
        self._count = 0
        self._reserved: dict[str, TestPort] = {}
        self._plugged: set[str] = set()
        self._cookies: dict[str, set[int]] = {}
        self._temporary: set[str] = set()
        self._has_directory = False
        self._adopted = False
        self._closed = False
        self._handlers: dict[int, object] = {}

    def __enter__(self) -> Self:
        self._catch_signals()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def connect(self) -> None:
        """Open the session with OVSDB. Raises Unavailable, also for an ovs-vswitchd that is known to be dead."""
        self._ports.connect(self._deadline())
        self._require_life()

    def bridges(self) -> tuple[Bridge, ...]:
        """All bridges by name, without the temporary ones of test runs."""
        found = self._ports.look(probe_ports.bridges, {"owner": OWNER}, "listing the bridges", self._deadline())
        return tuple(bridge for bridge in found if not (bridge.ours and _TEMPORARY.fullmatch(bridge.name)))

    def adopt(self) -> list[str]:
        """Remove what dead runs left; the names of it. What can not be removed is said, and stays for the next one."""
        self._adopted = True
        dead = DeadRuns(self._ports, self._settings, self._store)
        removed: list[str] = []
        for each in dead.find(self._deadline()):
            try:
                removed += dead.clear(each, self._deadline())
            except UserspaceError as error:
                say("warning", "what a dead run left stays for now", run=each.run.name, error=error)
        return removed

    def reserve(self, bridge: str | None = None) -> TestPort:
        """A name and a place for a port on `bridge`, or on a temporary bridge that goes with it; nothing is in the switch yet.

        For a second port on a temporary bridge, name the bridge of the first.
        """
        if not self._adopted:
            self.adopt()
        if self._count >= _PORTS_MAX:
            raise ValueError(f"a run has at most {_PORTS_MAX} ports")
        number, self._count = self._count, self._count + 1
        if bridge is None:
            bridge = f"{PREFIX}{self.run.number}{number:x}"
            self._temporary.add(bridge)
        if not self._has_directory:
            self._has_directory = True
            runs.make_directory(self.run, self._settings.short_dir, self._settings.ovs_rundir, self._root)
        server_path = f"{runs.directory_of(self.run, self._settings.short_dir)}/{number:x}"
        mac = bytes([0x02, *secrets.token_bytes(4), number]).hex(":")
        name = f"{PREFIX}{self.run.number}-{number:x}"
        port = TestPort(name, bridge, self._root.path(server_path), server_path, mac, number)
        self._reserved[name] = port
        return port

    def plug(self, port: TestPort, *, mtu: int | None = None) -> None:
        """Add the port and wait until the switch has opened it; a bridge that is not temporary is never made."""
        self._require_life()
        self._plugged.add(port.name)
        marks = {
            "owner": OWNER,
            "run": self.run.name,
            "purpose": self._purpose,
            "pid": str(self.run.pid),
            "start-time": str(self.run.started),
            "boot-id": link.boot_id(),
        }
        step = Port(
            port.bridge,
            port.name,
            "dpdkvhostuserclient",
            port.server_path,
            mtu=mtu,
            mac=port.mac,
            marks=marks,
            foreign_bridge=port.bridge not in self._temporary,
        )
        self._ports.apply(step, self._deadline())()

    def reflect(self, port: TestPort) -> None:
        """Have every frame that comes from the port sent back out of it."""
        self._add_flows(port.bridge, [(port, None)])

    def join(self, a: TestPort, b: TestPort) -> None:
        """Have every frame from `a` sent out of `b`, and the other way round; both are on one bridge."""
        if a.bridge != b.bridge:
            raise ValueError(f"{a.name} is on {a.bridge}, {b.name} on {b.bridge}")
        self._add_flows(a.bridge, [(a, b), (b, a)])

    def state(self, port: TestPort | str) -> PortState:
        """What the switch says of any port, also of an attachment's."""
        name = port if isinstance(port, str) else port.name

        def look(session: object) -> PortState | None:
            return probe_ports.state_of(session, name)  # type: ignore[arg-type]

        found = self._ports.look(look, {"owner": OWNER}, f"port {name}: looking at it", self._deadline())
        return found or PortState("", {}, 0, "there is no such port")

    def unplug(self, port: TestPort) -> None:
        """Remove the port and the flows to and from it; its bridge too, if we made that and this was its last port."""
        self._unplug(port, self._deadline())

    def close(self) -> None:
        """Remove everything of this run. What can not be removed is said, never raised."""
        if self._closed:
            return
        self._closed = True
        self._ignore_signals()
        try:
            deadline = Deadline.after(CLOSE_S)
            for name in sorted(self._plugged):
                self._say(f"port {name}", lambda name=name: self._unplug(self._reserved[name], deadline))  # type: ignore[misc]
            if self._has_directory:
                self._say("its directory", lambda: runs.remove_directory(self.run, self._settings.short_dir, self._root))
            if self._own_session:
                self._ports.close()
        finally:
            self._restore_signals()
            atexit.unregister(self.close)

    def _driver(self) -> PortDriver:
        kind, _, place = self._settings.ovsdb.partition(":")
        ovsdb = f"unix:{self._root.path(place)}" if kind == "unix" else self._settings.ovsdb
        return PortDriver(ovsdb, self._root.path(self._settings.ovs_rundir), self._store, resident=True)

    def _deadline(self) -> Deadline:
        return Deadline.after(self._timeout_s)

    def _require_life(self) -> None:
        liveness = self._ports.watch_liveness()
        if liveness.state == "dead":
            raise Unavailable(f"ovs-vswitchd is dead: {liveness.reason}", "see its log, and restart it")

    def _add_flows(self, bridge: str, pairs: Iterable[tuple[TestPort, TestPort | None]]) -> None:
        deadline = self._deadline()
        with Flows(_management(self._settings, bridge), deadline) as flows:
            for source, target in pairs:
                cookie = openflow.cookie_of(int(self.run.number, 16), source.number)
                for port in (source, target or source):
                    self._cookies.setdefault(port.name, set()).add(cookie)
                output = self._ofport(target) if target else None
                flows.add(Flow(self._ofport(source), output, cookie, IDLE_S), deadline)

    def _ofport(self, port: TestPort) -> int:
        state = self.state(port)
        if not state.ofport:
            raise Unavailable(
                f"port {port.name} is not open: {state.error or 'the switch has not said why'}", "was it plugged in?"
            )
        return state.ofport

    def _unplug(self, port: TestPort, deadline: Deadline) -> None:
        if port.name not in self._plugged:
            return
        forget_flows(self._settings, port.bridge, self._cookies.get(port.name, ()), deadline)
        self._ports.undo(_step(port.name, port.bridge, self._store()), deadline)
        self._plugged.discard(port.name)
        self._cookies.pop(port.name, None)

    def _say(self, what: str, act: Callable[[], None]) -> None:
        try:
            act()
        except UserspaceError as error:
            say("warning", f"{what} of this {self._purpose} stays", error=error, hint=_HINT)

    def _catch_signals(self) -> None:
        atexit.register(self.close)  # for a signal between the end of the block and the first line of `close`
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _STOPPING:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup(1) asks for that
                self._handlers[number] = signal.signal(number, self._stop)

    def _stop(self, number: int, _: FrameType | None) -> None:
        """The first one ends what runs; those after it must not end what cleans up."""
        self._ignore_signals()
        raise KeyboardInterrupt(signal.Signals(number).name)

    def _ignore_signals(self) -> None:
        for number in self._handlers:  # not SIG_IGN: the interpreter complains of one that is on its way
            signal.signal(number, lambda *_: None)

    def _restore_signals(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._handlers.clear()


def forget_flows(
    settings: Settings, bridge: str, cookies: Iterable[int], deadline: Deadline, mask: int = openflow.ALL_BITS
) -> None:
    """Delete flows by cookie, best effort: a bridge or a switch that is gone has none, and a hung one forgets them by itself."""
    wanted = sorted(cookies)
    if not wanted:
        return
    left = deadline.within(FLOW_S)
    try:
        with Flows(_management(settings, bridge), left) as flows:
            for cookie in wanted:
                flows.delete(cookie, left, mask)
    except UserspaceError as error:
        say("debug", "flows of test ports were not deleted", bridge=bridge, error=error)


def _management(settings: Settings, bridge: str) -> str:
    """The bridge's management socket, as this process sees it."""
    return HostRoot(settings.host_root).path(f"{settings.ovs_rundir}/{bridge}.mgmt")


def _step(name: str, bridge: str, store: str) -> Port:
    """What is enough to delete a test port."""
    return Port(bridge, name, "dpdkvhostuserclient", marks={"owner": OWNER, "store": store})
