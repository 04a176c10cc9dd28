"""What `ping` and `load` refuse, on a node in memory: ports in use, and paths that lead nowhere."""

from __future__ import annotations

import json
import os
import signal
import socket
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self, cast

import pytest

from tests.lab.node.memory_switch import Alive, MemoryPorts, Seen
from tests.lab.node.ports import changed
from tests.unit.cli.test_cli_commands import CONTAINER, OTHER, Town
from userspace_cni.attachment.records import Record, record_key, run_container
from userspace_cni.attachment.run_ids import RunId
from userspace_cni.attachment.steps import BorrowedName, HostEnd, OvsPort, PlacedSocket, SocketFile, VhostUserServer
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import Unavailable
from userspace_cni.base.vlans import Vlan
from userspace_cni.fastpath.fastpath_errors import SocketRefused, TimedOut
from userspace_cni.fastpath.vhost.front_end import FrontEndOptions
from userspace_cni.fastpath.vhost.socket_paths import SocketAccess
from userspace_cni.host.files.run_sockets import BorrowedNameDriver
from userspace_cni.probe import endpoints, opening
from userspace_cni.probe.borrowed_socket import BorrowedSocket
from userspace_cni.probe.ending import EndingSignals, MeasurementEnded
from userspace_cni.probe.endpoints import Endpoint, Pair, Unusable, mac_bytes, untagged_vlan
from userspace_cni.probe.remote import Remote

A, B = f"{CONTAINER[:12]}-net1", f"{OTHER[:12]}-net1"


@dataclass
class IdlePorts(MemoryPorts):
    """A switch whose ports have no application connected, unless the test says so."""

    seen: dict[str, dict[str, Any]] = field(default_factory=dict)

    def list_ports(self) -> list[Seen]:
        idle = {"link_state": "down", "status": {"mode": "client", "status": "disconnected"}}
        return [replace(port, **{**idle, **self.seen.get(port.name, {})}) for port in super().list_ports()]


@dataclass(eq=False)
class Queue:
    """One end's queues: what is sent arrives at the `other`, unless the way is `cut`."""

    cut: bool = False
    other: Queue | None = None
    inbox: list[bytes] = field(default_factory=list)
    order: list[Queue] = field(default_factory=list)
    """The senders, one after the other."""

    def send_frames(self, frames: list[bytes]) -> int:
        self.order.append(self)
        if self.other and not self.cut:
            self.other.inbox += frames
        return len(frames)

    def receive_frames(self, limit: int = 32) -> list[bytes]:
        frames, self.inbox = self.inbox[:limit], self.inbox[limit:]
        return frames

    def wait(self, timeout_s: float | None = None) -> bool:
        return bool(self.inbox)


@dataclass
class Front:
    """A connection with the switch."""

    pairs: tuple[Queue, ...] = field(default_factory=lambda: (Queue(),))
    up: bool = True

    def is_alive(self) -> bool:
        return self.up


@dataclass
class MemoryBorrowed:
    """In the place of an application, without files."""

    lab: Lab
    container_id: str

    @property
    def place(self) -> SocketFile:
        return SocketFile("/pods/x", "/pods", self.container_id)

    def __enter__(self) -> Self:
        self.lab.entered += 1
        return self

    def __exit__(self, *error: object) -> None:
        self.lab.entered -= 1

    @contextmanager
    def _named(self) -> Iterator[None]:
        self.lab.named += 1
        yield
        self.lab.named -= 1

    def listen(self) -> AbstractContextManager[object]:
        """Remember it, unless a process listens there."""
        if self.container_id in self.lab.taken:
            raise SocketRefused("listening at /pods/x", "another process has a socket there")
        assert self.lab.notes() == [[CONTAINER, OTHER]]
        self.lab.touched.append(self.container_id)
        return self._named()

    def await_switch(self) -> None:
        """It comes while names and a note are there."""
        assert (self.lab.named, self.lab.notes()) == (2, [[CONTAINER, OTHER]])

    def attach(self, timeout_s: float) -> Front:
        assert (self.lab.named, self.lab.notes()) == (0, [])
        if self.lab.refusing:
            raise self.lab.refusing
        return self.lab.fronts[self.container_id == OTHER]


@dataclass
class Lab:
    """A node with two unused attachments, and their endpoints."""

    town: Town
    ports: IdlePorts
    fronts: tuple[Front, Front]
    taken: set[str] = field(default_factory=set)
    touched: list[str] = field(default_factory=list)
    refusing: Exception | None = None
    entered: int = 0
    named: int = 0
    """Sockets of ours in pods' directories."""

    def notes(self) -> list[list[str]]:
        """Names of sockets in the records of runs."""
        return [[Path(step.thing).name for step in record.steps] for record in self.town.journal.run_records()]

    def port(self, container: str, **changes: Any) -> None:
        """Another port step in the attachment's record."""
        steps = self.town.record(container).steps
        self.town.rewrite(container, steps=tuple(changed(s, **changes) if isinstance(s, OvsPort) else s for s in steps))

    def pair(self) -> Pair:
        """Both ends, attached."""
        named = (Endpoint("a", "p1", "br0", "02:00:00:00:00:01"), Endpoint("b", "p2", "br0", "02:00:00:00:00:02"))
        return Pair(named, cast(Any, self.fronts), Remote("unix:/run/o v s/db.sock", "/run/o v s"))

    def refusal(self, code: int, *arguments: str) -> str:
        """The command's refusal, which has touched nothing."""
        result = self.town.cli("ping", *arguments)
        assert (result.exit_code, result.stdout, self.touched) == (code, "", []), (result.output, result.exception)
        assert (self.entered, self.named, self.notes()) == (0, 0, [])
        return result.stderr


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """Two pods' attachments on one bridge; frames go from one to the other."""
    town = Town(tmp_path)
    for container, pod in ((CONTAINER, "a"), (OTHER, "b")):
        town.call("ADD", container)
        town.rewrite(container, pod_namespace="default", pod_name=pod, pod_uid=pod)
    town.ports = ports = IdlePorts(town)
    one, other = Queue(), Queue()
    one.other, other.other = other, one
    lab = Lab(town, ports, (Front((one,)), Front((other,))))
    monkeypatch.setattr(opening, "_borrowed", lambda site, record, options: MemoryBorrowed(lab, record.container_id))
    monkeypatch.setattr(opening, "_options", lambda endpoints, frames: None)
    return lab


NAMES = ("a/net1", "default/b/net1")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--bridge", "", *NAMES), "--bridge is for temporary ports"),
        (("--interval", "nan"), "nan is not a number"),
        (("a/net1",), "two attachments are needed"),
        (("a/net1", "b/net1", "c/net1"), "two attachments are needed"),
        (("--bridge", "br0", *NAMES), "--bridge is for temporary ports"),
        (("a/net1", "a"), "a/net1 is both ends"),
        ((*NAMES, "--size", "1515"), "at most 1514"),
        ((*NAMES, "--size", "14"), "60<=x<=9018"),
    ],
)
def test_mistakes_in_the_call(lab: Lab, arguments: tuple[str, ...], words: str) -> None:
    """What can only be a mistake ends with 2."""
    assert words in lab.refusal(2, *arguments)


def test_a_name_of_several_interfaces(lab: Lab) -> None:
    """A pod with two interfaces is ambiguous: both are named."""
    lab.town.call("ADD", CONTAINER, "net2")
    lab.town.journal.write(replace(lab.town.record(ifname="net2"), pod_namespace="default", pod_name="a"))
    assert "default/a/net1, default/a/net2" in lab.refusal(2, "a", "b/net1")


def test_a_name_of_nobody(lab: Lab) -> None:
    """It ends with 1, and near names are suggested."""
    assert "default/a/net1" in lab.refusal(1, "a/net", "b/net1")


@pytest.mark.parametrize(
    "seen", [{"link_state": "up"}, {"status": {"mode": "client", "status": "connected"}}, {"link_state": "up", "status": {}}]
)
def test_a_port_in_use(lab: Lab, seen: dict[str, Any]) -> None:
    """A connected pod keeps its port, by whichever sign it is recognised; temporary ports are suggested."""
    lab.ports.seen[B] = seen
    told = lab.refusal(1, *NAMES)
    assert "default/b/net1 is in use: its pod is connected" in told
    assert "--bridge br0" in told


@pytest.mark.parametrize("command", ["ping", "load"])
def test_a_link_of_the_kernel(lab: Lab, command: str) -> None:
    """A pod with a veth is never asked to stop its application: it is told what its port is, and which programs do the same."""
    lab.ports.seen[B] = {"link_state": "up", "status": {"driver_name": "veth"}}
    steps = tuple(replace(s, interface=HostEnd("system")) if isinstance(s, OvsPort) else s for s in lab.town.record(OTHER).steps)
    lab.town.rewrite(OTHER, steps=steps)
    result = lab.town.cli(command, *NAMES)
    assert (result.exit_code, result.stdout, lab.touched) == (1, "", [])
    assert "default/b/net1 is a kernel link (veth)" in result.stderr
    assert "userspace-cni enter default/b -- ping ADDRESS" in result.stderr
    lab.town.rewrite(OTHER, pod_namespace="", pod_name="")
    assert f"nsenter --net={lab.town.record(OTHER).netns} ping" in lab.refusal(1, "a/net1", OTHER)


def test_a_port_in_use_of_which_the_switch_has_not_said_so(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection to a port of type dpdkvhostuser is recognised before link_state shows it."""
    lab.ports.seen[B] = {"interface_type": "dpdkvhostuser"}
    monkeypatch.setattr(opening, "connections_anywhere", lambda name: int(name == B))
    assert "default/b/net1 is in use" in lab.refusal(1, *NAMES)


def test_a_socket_on_which_somebody_listens(lab: Lab) -> None:
    """An application that listens, and to which OVS has not connected yet, keeps its name."""
    lab.taken.add(CONTAINER)
    assert "default/a/net1 cannot be used: listening at /pods/x: another process has a socket there" in lab.refusal(1, *NAMES)


def test_ways_that_lead_nowhere(lab: Lab) -> None:
    """Other bridges, other VLANs, trunks without a place for untagged frames, and equal addresses have errors of their own."""
    lab.port(OTHER, tag=100)
    assert "default/a/net1 is in no VLAN, default/b/net1 is in VLAN 100" in lab.refusal(1, *NAMES)
    lab.port(OTHER, tag=None, trunks=(5, 6))
    assert "is a trunk of VLANs 5, 6" in lab.refusal(1, *NAMES)
    lab.port(OTHER, trunks=(), bridge="br1")
    assert "is on bridge br0, default/b/net1 on br1" in lab.refusal(1, *NAMES)
    [mac] = (step.mac for step in lab.town.record().steps if isinstance(step, OvsPort))
    lab.port(OTHER, bridge="br0", mac=mac)
    assert f"have the same MAC address {mac}" in lab.refusal(1, *NAMES)


def test_what_the_switch_has_not(lab: Lab) -> None:
    """A missing, moved or broken port is reported with the switch's words; without the switch the code is 3."""
    lab.ports.seen[A] = {"error": "could not open"}
    assert "the switch says of port c0ffee012345-net1: could not open" in lab.refusal(1, *NAMES)
    lab.ports.seen[A] = {"bridge": "br7"}
    assert "is on bridge br7" in lab.refusal(1, *NAMES)
    lab.town.lose()
    assert "the switch has no port c0ffee012345-net1" in lab.refusal(1, *NAMES)
    lab.town.unreachable = Unavailable("OVSDB is away")
    assert "OVSDB is away" in lab.refusal(3, *NAMES)


def test_an_attachment_that_is_being_worked_on(lab: Lab) -> None:
    """One that is not ready, or on which a call of the runtime works, is left alone."""
    with lab.town.journal.turn_lock(record_key(OTHER, "net1"), Deadline.after(60)):
        assert "a call of the runtime works on it" in lab.refusal(1, *NAMES)
    lab.town.rewrite(OTHER, state="applying")
    assert "its state is applying" in lab.refusal(1, *NAMES)


def test_an_attachment_that_changes_under_us(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that is another one when the lock is held was changed by a call of the runtime."""

    def changed(pair: object, size: int) -> None:
        lab.town.rewrite(OTHER, netns="/run/netns/other")

    monkeypatch.setattr(opening, "require_path", changed)
    assert "was changed a moment ago" in lab.refusal(1, *NAMES)


def test_a_switch_that_does_not_come(lab: Lab) -> None:
    """The error says why and what to look at, and nothing is left."""
    lab.refusing = TimedOut("listening", "no switch connected before the deadline", "the port")
    result = lab.town.cli("ping", *NAMES)
    assert (result.exit_code, result.stdout, lab.entered) == (1, "", 0)
    assert "listening: no switch connected before the deadline; the port" in result.stderr
    told = lab.town.cli("ping", *NAMES, "--json")
    assert (told.exit_code, list(json.loads(told.stdout))) == (1, ["error", "details", "code"])
    assert json.loads(told.stdout)["error"] in told.stderr


def test_no_frame_arrives(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """If not a single frame arrives, the command ends with 1 and says where to look."""
    lab.fronts[0].pairs[0].cut = True
    monkeypatch.setattr(endpoints, "MEET_S", 0.05)
    result = lab.town.cli("ping", *NAMES)
    assert (result.exit_code, result.stdout, lab.entered) == (1, "", 0)
    assert "no frame arrived at default/b/net1 within" in result.stderr
    assert "ovs-ofctl dump-flows unix:/var/run/openvswitch/br0.mgmt" in result.stderr
    assert "ovs-vsctl --db=unix:/var/run/openvswitch/db.sock list Bridge br0" in result.stderr


def test_the_first_frame_comes_from_the_second_end(lab: Lab) -> None:
    """So the bridge knows B before A sends, and never floods what A sends."""
    order: list[Queue] = []
    for front in lab.fronts:
        front.pairs[0].order = order
    pair = lab.pair()
    endpoints.meet(pair, 64)
    assert order == [lab.fronts[1].pairs[0], lab.fronts[0].pairs[0]]


def test_a_frame_between_two_ends(lab: Lab) -> None:
    """It has both addresses, a local experimental type, and the length asked for."""
    pair = lab.pair()
    to_b, to_a = mac_bytes("02:00:00:00:00:02"), mac_bytes("02:00:00:00:00:01")
    frame = pair.frame(64)
    assert (frame[:6], frame[6:12], frame[12:14], len(frame)) == (to_b, to_a, b"\x88\xb5", 64)
    assert pair.frame(64, back=True)[:12] == to_a + to_b


@pytest.mark.parametrize(
    ("tag", "trunks", "mode", "vlan"),
    [
        (None, (), "", 0),
        (7, (), "", 7),
        (7, (), "access", 7),
        (None, (0, 5), "", 0),
        (7, (5,), "native-untagged", 7),
        (7, (), "dot1q-tunnel", 7),
        (7, (), "trunk", 0),
        (7, (5,), "native-tagged", None),
        (None, (5,), "", None),
        (None, (5,), "trunk", None),
    ],
)
def test_where_untagged_frames_go(
    tag: int | None, trunks: tuple[int, ...], mode: Literal["", "access"], vlan: int | None
) -> None:
    """As ovs-vswitchd.conf.db(5) has it; None where they cannot come back untagged."""
    port = OvsPort("br0", "p", VhostUserServer(), Vlan(tag, trunks, mode))
    if vlan is None:
        with pytest.raises(Unusable):
            untagged_vlan(port)
    else:
        assert untagged_vlan(port) == vlan


@pytest.mark.parametrize("state", ["dead", "silent"])
def test_a_switch_that_does_not_answer(lab: Lab, monkeypatch: pytest.MonkeyPatch, state: str) -> None:
    """No socket is made for it, and none of its own is touched: an application may have connected before the switch hung."""
    monkeypatch.setattr(opening, "LIFE_S", 0.05)
    lab.ports.alive = Alive(state, "no answer")
    assert f"ovs-vswitchd is {state}: no answer" in lab.refusal(3, *NAMES)
    assert "error" in json.loads(lab.town.cli("ping", *NAMES, "--json").stdout)


def test_what_killed_runs_left_goes_first(lab: Lab) -> None:
    """A killed run's socket is removed before ours is made, and a message says so."""
    place, container = BorrowedName("/pods/x", "/pods", "sock"), run_container(RunId(7, 1, "000000", "0000", "12345678"))
    lab.town.journal.write(Record("ready", "measurement", container, "measurement", boot_id="b", steps=(place,)))
    lab.refusing = TimedOut("listening", "enough")
    assert "removed what a killed run had left: /pods/x/sock" in lab.town.cli("ping", *NAMES).stderr
    assert lab.notes() == []


def test_hints_work_as_they_are_pasted(lab: Lab) -> None:
    """They name the database and the bridge's socket, quoted for a shell."""
    told = lab.pair().cut("five frames were lost")
    assert "(ovs-ofctl dump-flows 'unix:/run/o v s/br0.mgmt')" in told
    assert "ovs-vsctl '--db=unix:/run/o v s/db.sock' get Interface p1 link_state -- get Interface p2 link_state" in told


def test_late_greetings_are_not_frames_of_others(lab: Lab) -> None:
    """A frame that was sent twice, because the first was late, is waited for twice."""
    a, b = (front.pairs[0] for front in lab.fronts)
    late: list[bytes] = []

    class Slow(Queue):
        """What is sent first arrives when the second has come."""

        def wait(self, timeout_s: float | None = None) -> bool:
            if a.order.count(a) > 1:
                self.inbox += late
                late.clear()
            return bool(self.inbox)

    b.__class__ = Slow

    def deliver(frames: list[bytes]) -> int:
        a.order.append(a)
        (late if a.order.count(a) == 1 else b.inbox).extend(frames)
        return len(frames)

    a.send_frames = deliver  # type: ignore[method-assign]
    endpoints.meet(lab.pair(), 64)
    assert (late, a.inbox, b.inbox) == ([], [], [])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_only_the_first_signal_counts(number: signal.Signals) -> None:
    """It ends the measurement; another one does not end the cleanup; afterwards signals have their former handlers."""
    before = signal.getsignal(number)
    reached = []

    def run() -> None:
        with EndingSignals():
            try:
                os.kill(os.getpid(), number)
            finally:
                os.kill(os.getpid(), number)
                reached.append("the end")

    with pytest.raises(KeyboardInterrupt):
        run()
    assert reached == ["the end"]
    assert signal.getsignal(number) == before


class Watched:
    """Something that a weak reference can be to."""


def swallow(number: int) -> None:
    """Have the signal's exception raised where the interpreter swallows it."""
    watched = Watched()
    reference = weakref.ref(watched, lambda _: os.kill(os.getpid(), number))
    del watched
    assert reference() is None


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_whose_exception_was_lost() -> None:
    """It is remembered, and later signals work like the first."""
    with EndingSignals() as ending:
        ending.check()
        swallow(signal.SIGTERM)
        assert ending.asked
        with pytest.raises(MeasurementEnded):
            ending.check()
        with pytest.raises(MeasurementEnded):
            os.kill(os.getpid(), signal.SIGINT)
        ending.settle()
        os.kill(os.getpid(), signal.SIGINT)


# -- sockets of ours in the places of others -------------------------------------------------------------------------------


def borrow(step: SocketFile | PlacedSocket, directory: Path) -> BorrowedSocket:
    """In that place, below the test's directory."""
    return BorrowedSocket(step, str(directory), FrontEndOptions(), SocketAccess())


def test_a_name_is_taken_until_the_switch_has_come(tmp_path: Path) -> None:
    """It is borrowed only until then, whatever becomes of the connection, and free again if the switch does not come."""
    step = SocketFile(str(tmp_path), str(tmp_path), "sock")
    with borrow(step, tmp_path) as borrowed, ExitStack() as names:
        names.enter_context(borrowed.listen())
        with socket.socket(socket.AF_UNIX) as switch:
            switch.connect(str(tmp_path / "sock"))
            borrowed.await_switch()
            assert list(tmp_path.iterdir()) == []
    with borrow(step, tmp_path) as borrowed, pytest.raises(TimedOut, match="the switch has not connected"), borrowed.listen():
        borrowed.await_switch(0.01)
    assert list(tmp_path.iterdir()) == []


def test_somebody_connects_a_moment_before_us(tmp_path: Path) -> None:
    """Of two connections to a port's socket, ours is closed before a byte is sent on it."""
    source = str(tmp_path / f"{os.getpid()}-net1")
    step = PlacedSocket(source, str(tmp_path), str(tmp_path), Path(source).name)
    with socket.socket(socket.AF_UNIX) as switch, socket.socket(socket.AF_UNIX) as application:
        switch.bind(source)
        switch.listen()
        application.connect(source)
        with borrow(step, tmp_path) as borrowed, pytest.raises(SocketRefused, match="1 connected a moment before us"):
            borrowed.attach(5.0)
        switch.accept()[0].close()
        ours = switch.accept()[0]
        with ours:
            assert ours.recv(1) == b""


def left_by(directory: Path, *names: str) -> None:
    """Sockets that no process has any more."""
    for name in names:
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(directory / name))


def test_what_a_killed_run_left_in_a_pods_directory(tmp_path: Path) -> None:
    """What is dead at the borrowed names goes; what lives, what is no socket, and what is elsewhere stays."""
    pods = tmp_path / "pods"
    pods.mkdir()
    left_by(pods, "dead", ".vhost-0123456789ab", "elsewhere")
    (pods / "file").touch()
    driver = BorrowedNameDriver()
    with socket.socket(socket.AF_UNIX) as alive:
        alive.bind(str(pods / "alive"))
        for name in ("dead", "file", "alive", "nothing"):
            driver.undo(BorrowedName(str(pods), str(tmp_path), name), Deadline.after(60))
        driver.undo(BorrowedName(str(tmp_path / "gone"), str(tmp_path), "dead"), Deadline.after(60))
        assert sorted(path.name for path in pods.iterdir()) == ["alive", "elsewhere", "file"]
