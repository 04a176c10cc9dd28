"""Reconciliation on a node in memory: each line of the crash table; in doubt an attachment is kept."""

from __future__ import annotations

import gc
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest

from tests.lab.node.calls import call_plugin
from tests.lab.node.world import MemoryPods, World, name_of, no_fault
from userspace_cni.attachment import cleanup
from userspace_cni.attachment.deviations import Deviation, findings, sandbox_is_gone
from userspace_cni.attachment.facts import ChangeableOptions, SocketPlace
from userspace_cni.attachment.reconcile import Reconciliation
from userspace_cni.attachment.records import Record, record_key, run_container
from userspace_cni.attachment.run_ids import RunId
from userspace_cni.attachment.runs import Run
from userspace_cni.attachment.shared_holders import SharedHolders
from userspace_cni.attachment.steps import OvsPort, PlacedSocket, PortRef, SocketDirectory, SocketFile, Step, run_marks
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import InvalidConfig, SwitchRefused, Unavailable, UserspaceError
from userspace_cni.base.notices import PORT_DEGRADED, PORT_RESTORED

CONTAINER = "c0ffee0123456789"
NETNS = "/run/netns/x"
STDIN = b'{"cniVersion":"1.1.0","name":"n","type":"userspace"}'


class Agent:
    """A node with one attachment and its reconciliation; `actions` is what was reported."""

    def __init__(self, directory: Path) -> None:
        self.world = World(directory, resident=True)
        self.actions: list[str] = []
        self.reconciliation = Reconciliation(self.world, self.actions.append, 0.0)
        environ = {"CNI_COMMAND": "ADD", "CNI_CONTAINERID": CONTAINER, "CNI_NETNS": NETNS, "CNI_IFNAME": "net1"}
        assert call_plugin(environ, lambda: STDIN, lambda: self.world).code == 0

    @property
    def record(self) -> Record:
        [record] = self.world.journal.records()
        return record

    @property
    def port(self) -> OvsPort:
        return self.port_of(CONTAINER)

    def port_of(self, container: str) -> OvsPort:
        record = self.world.journal.read(container, "net1")
        assert record
        [port] = (step for step in record.steps if isinstance(step, OvsPort))
        return port

    def rewrite(self, **changes: object) -> None:
        """The record with other values."""
        self.world.journal.write(replace(self.record, **changes))  # type: ignore[arg-type]

    def lose_record(self) -> PortRef:
        port = self.port.ref
        self.world.journal.drop(self.record)
        self.world.marked = [port]
        return port

    def passes(self, count: int = 1) -> list[str]:
        self.actions.clear()
        for _ in range(count):
            self.reconciliation.run()
        return list(self.actions)

    @property
    def is_whole(self) -> bool:
        """Whether the attachment is as ADD left it."""
        return self.record.state == "ready" and name_of(self.port) in self.world.true


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    return Agent(tmp_path)


def test_complete_attachments_are_left_alone(agent: Agent) -> None:
    """A complete attachment is not touched, however often it is looked at."""
    before = set(agent.world.true)
    assert agent.passes(3) == []
    assert agent.world.true == before
    assert agent.is_whole


@pytest.mark.parametrize("state", ["pending", "applying", "deleting"])
def test_unfinished(agent: Agent, state: str) -> None:
    """An attachment whose ADD or DEL died is undone in one pass."""
    agent.rewrite(state=state)
    assert agent.passes() == ["removed-unfinished"]
    assert agent.world.true == set()
    assert agent.world.journal.records() == []


def test_reboot(agent: Agent) -> None:
    """What an earlier boot left is undone in one pass."""
    agent.world.boot = "boot-2"
    assert agent.passes() == ["removed-rebooted"]
    assert agent.world.true == set()


def test_a_busy_attachment_is_left_alone(agent: Agent) -> None:
    """An attachment on which another call works is left alone."""
    agent.rewrite(state="applying")
    with agent.world.journal.turn_lock(record_key(CONTAINER, "net1"), Deadline.after(60)):
        assert agent.passes(2) == []
    assert agent.passes() == ["removed-unfinished"]


def test_lost_port(agent: Agent) -> None:
    """A port that the switch lost is made again, and its lease and files are not touched."""
    agent.world.true.discard(name_of(agent.port))
    assert agent.passes() == ["again-port"]
    assert agent.is_whole
    assert agent.passes() == []
    [(recipient, notice)] = agent.world.told
    assert recipient == agent.record.recipient
    assert (notice.name, agent.port.name in notice.message) == (PORT_RESTORED.name, True)


def test_lost_port_that_cannot_be_made_again(agent: Agent) -> None:
    """The pod is told in each pass that its port is degraded; other failures are not reported to it."""

    def refuse(when: str, step: Step) -> None:
        raise SwitchRefused(f"port {agent.port.name}: no memory")

    agent.world.true.discard(name_of(agent.port))
    agent.world.fault = refuse
    agent.passes(2)
    agent.rewrite(state="deleting")
    agent.passes()
    texts = [f"lost parts of this interface cannot be made again: port {agent.port.name}: no memory"] * 2
    assert [(notice.name, notice.message) for _, notice in agent.world.told] == [(PORT_DEGRADED.name, text) for text in texts]


def test_lost_mount(agent: Agent) -> None:
    """A mount that another program removed is made again."""
    [mount] = (name for name in agent.world.true if name.startswith("mount:"))
    agent.world.true.discard(mount)
    assert agent.passes() == ["again-pod-mount"]
    assert mount in agent.world.true


def test_lost_mount_whose_holders_are_lost_too(agent: Agent) -> None:
    """A thing that is made again is entered in its list of holders: DEL finds it there, and removes it."""
    [mount] = (name for name in agent.world.true if name.startswith("mount:"))
    agent.world.true.discard(mount)
    [(place, _)] = agent.world.journal.places()
    agent.world.journal.write_shared(place, SharedHolders())
    assert agent.passes() == ["again-pod-mount"]
    environ = {"CNI_COMMAND": "DEL", "CNI_CONTAINERID": CONTAINER, "CNI_NETNS": NETNS, "CNI_IFNAME": "net1"}
    assert call_plugin(environ, lambda: STDIN, lambda: agent.world).code == 0
    assert mount not in agent.world.true
    assert agent.world.journal.places() == []


def test_del_while_the_switch_opens_a_port_again(agent: Agent) -> None:
    """After a DEL there is no wait for the switch, which could add the port again, and nothing comes back."""
    other = {"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "another", "CNI_NETNS": NETNS, "CNI_IFNAME": "net1"}
    assert call_plugin(other, lambda: STDIN, lambda: agent.world).code == 0
    delete = {"CNI_COMMAND": "DEL", "CNI_CONTAINERID": "another", "CNI_NETNS": NETNS, "CNI_IFNAME": "net1"}
    waited: list[Step] = []

    def meanwhile(when: str, step: Step) -> None:
        if when == "while waiting":
            waited.append(step)
        elif when == "after apply" and step == agent.port_of(CONTAINER):  # the other's port was begun before
            assert call_plugin(delete, lambda: STDIN, lambda: agent.world).code == 0

    agent.world.true -= {name_of(agent.port_of(container)) for container in (CONTAINER, "another")}
    agent.world.fault = meanwhile
    lost = agent.port_of(CONTAINER)
    assert agent.passes() == ["again-port", "again-port"]
    assert waited == [lost]


def test_placing_again_from_a_stale_listing(agent: Agent) -> None:
    """A pass that listed the records before a DEL places no socket after it, because nothing would remove that."""
    socket = PlacedSocket("/ovs/s", "/pod", "/", "s")
    stale = agent.record.to("ready", steps=(*agent.record.steps, socket))
    agent.world.journal.write(stale)
    agent.world.true.discard(name_of(socket))
    agent.world.journal.drop(stale)
    assert not cleanup.place_again(stale, agent.world.store, agent.world.driver)
    assert name_of(socket) not in agent.world.true
    agent.world.journal.write(stale)
    assert cleanup.place_again(stale, agent.world.store, agent.world.driver)
    assert name_of(socket) in agent.world.true


def test_switch_that_cannot_be_asked(agent: Agent) -> None:
    """While the switch is away, no port counts as lost and none is swept."""
    agent.world.true.discard(name_of(agent.port))
    agent.world.unreachable = Unavailable("away")
    assert agent.passes(3) == []
    assert agent.record.state == "ready"


def test_sandbox_gone_takes_two_passes(agent: Agent) -> None:
    """An attachment whose sandbox is gone is removed by the second pass that sees it so."""
    agent.world.gone = {NETNS}
    assert agent.passes() == []
    assert agent.passes() == ["removed-sandbox-gone"]
    assert agent.world.true == set()


def test_sandbox_that_comes_back(agent: Agent) -> None:
    """A sandbox that is seen again in between is alive: the count starts anew."""
    agent.world.gone = {NETNS}
    agent.passes()
    agent.world.gone = set()
    agent.passes()
    agent.world.gone = {NETNS}
    assert agent.passes() == []
    assert agent.is_whole


def test_two_passes_at_once_are_one_sighting(tmp_path: Path) -> None:
    """However often a pass is asked for, a sandbox counts as gone only if it was missing twice, at least `apart_s` apart."""
    agent = Agent(tmp_path)
    agent.reconciliation = Reconciliation(agent.world, agent.actions.append, 3600.0)
    agent.world.gone = {NETNS}
    assert agent.passes(5) == []
    assert agent.is_whole


@pytest.mark.parametrize(
    ("netns", "uid", "gone", "proven"),
    [
        ("/n", "", set(), False),
        ("/n", "", {"/n"}, True),
        ("/n", "u", {"/n"}, False),
        ("/n", "u", {"u"}, False),
        ("/n", "u", {"/n", "u"}, True),
        ("", "u", {"u"}, False),
    ],
)
def test_what_proves_a_sandbox_gone(tmp_path: Path, netns: str, uid: str, gone: set[str], proven: bool) -> None:
    """Namespace and, if it had one, pod must both be gone; an unknown namespace proves nothing."""
    world = World(tmp_path, gone=gone)
    assert sandbox_is_gone({"boot-id": "boot-1", "netns": netns, "pod-uid": uid}, world) is proven


def test_another_boot_proves_it(tmp_path: Path) -> None:
    """An attachment of another boot has no living sandbox."""
    assert sandbox_is_gone({"boot-id": "boot-0"}, World(tmp_path))
    assert not sandbox_is_gone({}, World(tmp_path))


def test_port_whose_record_is_lost(agent: Agent) -> None:
    """A port of ours without a record stays while its sandbox may live, and goes in two passes when that is gone."""
    port = agent.lose_record()
    assert agent.passes(3) == []
    assert name_of(port) in agent.world.true
    agent.world.gone = {NETNS}
    assert agent.passes() == []
    assert agent.passes() == ["removed-record-lost"]
    assert agent.world.true == set()


def test_port_of_another_store(agent: Agent, capsys: pytest.CaptureFixture[str]) -> None:
    """A port of another installation's store is logged once, and never removed."""
    agent.world.log_level = "info"
    port = agent.lose_record()
    agent.world.marked = [replace(port, marks={**port.marks, "store": "another"})]
    agent.world.gone = {NETNS}
    assert agent.passes(3) == []
    assert name_of(port) in agent.world.true
    assert capsys.readouterr().err.count("another installation") == 1


def test_a_failure_does_not_stop_the_pass(agent: Agent) -> None:
    """A record that cannot be undone is left for the next pass, and the others are finished."""
    agent.rewrite(state="applying")
    other = Record("deleting", "n", "another", "net1")
    agent.world.journal.write(other)

    def fault(when: str, step: object) -> None:
        if when == "before undo" and isinstance(step, OvsPort):
            raise Unavailable("the switch is away")

    agent.world.fault = fault
    assert agent.passes() == ["removed-unfinished"]
    assert [(record.container_id, record.state) for record in agent.world.journal.records()] == [(CONTAINER, "deleting")]
    agent.world.fault = lambda _when, _step: None
    assert agent.passes() == ["removed-unfinished"]
    assert agent.world.true == set()


def test_findings_change_nothing(agent: Agent) -> None:
    """Findings can be listed without acting on them."""
    agent.world.true.discard(name_of(agent.port))
    before = set(agent.world.true), agent.world.journal.records()
    [found] = findings(agent.world)
    assert isinstance(found, Deviation)
    assert (found.problem, [step.kind for step in found.steps]) == ("lost", ["port"])
    assert (set(agent.world.true), agent.world.journal.records()) == before


def killed_run(agent: Agent) -> OvsPort:
    """What a killed probe has left: a directory, a port, and its record."""
    run = RunId(0x7FFFFF, 1, "000000", "0000", "0badcafe")
    port = replace(agent.port, name="probe-0badcafe-0", marks=run_marks(run.name, agent.world.journal.identity()))
    directory = SocketDirectory("/short/probe-0badcafe", "/short", "/ovs")
    agent.world.journal.write(Record("ready", "probe", run_container(run), "probe", boot_id="boot-1", steps=(directory, port)))
    agent.world.true |= {name_of(directory), name_of(port)}
    return port


def test_what_a_killed_run_left(agent: Agent) -> None:
    """It is removed in one pass with its record; attachments, and a living run's things, stay."""
    before = set(agent.world.true)
    port = killed_run(agent)
    with Run("load", agent.world.store, agent.world.driver) as living:
        living.add([replace(port, name="probe-1-0")], Deadline.after(60))
        [found] = findings(agent.world)
        assert (found.problem, found.record.steps[1]) == ("dead-test", port)
        assert agent.passes(2) == ["removed-dead-test"]
        assert agent.world.true == before | {"port:probe-1-0"}
        assert agent.is_whole
        assert agent.passes() == []
    assert agent.world.true == before
    assert agent.world.journal.run_records() == []


def test_a_killed_run_that_cannot_be_removed(agent: Agent, capsys: pytest.CaptureFixture[str]) -> None:
    """It stops nothing else, and is tried again in the next pass, but not while the switch is away."""
    port = killed_run(agent)

    def away(when: str, step: Step) -> None:
        if step == port:
            raise Unavailable("away")

    agent.world.fault = away
    agent.world.true.discard(name_of(agent.port))
    agent.world.log_level = "info"
    assert agent.passes(3) == ["again-port"]
    assert capsys.readouterr().err.count("undoing step 'port' failed") == 1
    agent.world.fault = no_fault
    agent.world.unreachable = Unavailable("away")
    assert agent.passes() == []
    agent.world.unreachable = None
    assert agent.passes() == ["removed-dead-test"]


def test_a_port_that_is_closed(agent: Agent) -> None:
    """A port that the switch could not open counts as lost, once it is time to ask the switch again."""
    agent.world.closed = {agent.port.name}
    assert agent.passes() == ["again-port"]
    assert agent.passes() == []


def test_a_dead_application(agent: Agent, capsys: pytest.CaptureFixture[str]) -> None:
    """Its socket's name is freed in a pass, or at once when its connection ends; other ports are left alone."""
    [socket_file] = (step for step in agent.record.steps if isinstance(step, SocketFile))
    agent.world.dead = {socket_file.name}
    assert agent.passes() == ["again-socket-file"]
    agent.reconciliation.look_at(agent.port.name)
    agent.world.dead = {socket_file.name}
    agent.reconciliation.look_at("br0")
    agent.reconciliation.look_at("another")
    assert agent.world.dead
    agent.reconciliation.look_at(agent.port.name)
    assert not agent.world.dead
    agent.world.dead = {socket_file.name}
    agent.world.unreachable = Unavailable("away")
    agent.reconciliation.look_at(agent.port.name)
    agent.world.unreachable = None
    with agent.world.journal.turn_lock(record_key(CONTAINER, "net1"), Deadline.after(60)):
        agent.reconciliation.look_at(agent.port.name)
    agent.rewrite(state="deleting")
    agent.reconciliation.look_at(agent.port.name)
    assert agent.world.dead
    assert agent.actions == ["again-socket-file"] * 2
    assert agent.world.told == []


def test_a_dead_socket_that_stays_is_named(agent: Agent) -> None:
    """A port whose dead socket cannot be repaired is reported, by a pass or a look, until a pass has repaired it."""
    [socket_file] = (step for step in agent.record.steps if isinstance(step, SocketFile))

    def refuse(when: str, step: Step) -> None:
        if (when, step) == ("before apply", socket_file):
            raise Unavailable("the pod's directory cannot be written")

    agent.world.fault = refuse
    for look in (agent.passes, lambda: agent.reconciliation.look_at(agent.port.name)):
        agent.world.dead = {socket_file.name}
        look()
        assert [port.name for port in agent.reconciliation.dead_sockets] == [agent.port.name]
        agent.world.dead = set()
        agent.passes()
        assert not agent.reconciliation.dead_sockets
    agent.world.fault = no_fault
    agent.world.dead = {socket_file.name}
    agent.passes()
    assert not agent.reconciliation.dead_sockets


def test_what_has_changed_is_looked_at_alone(agent: Agent) -> None:
    """Only the named attachment, port or bridge is looked at, and only lost things are made again.

    What another call works on is reported; what is being deleted, or has no namespace any more, is left alone.
    """
    this, port = (CONTAINER, agent.record.ifname), agent.port

    def look(*things: object) -> set[tuple[str, str]]:
        agent.world.closed = {port.name}
        agent.actions.clear()
        return agent.reconciliation.look_at_changed(*things)  # type: ignore[arg-type]

    for things in (([this], [], []), ([], [port.name], []), ([], [], [port.bridge]), ([this], [port.name], [port.bridge])):
        assert look(*things) == set()
        assert (agent.actions, agent.world.closed) == (["again-port"], set())
    assert agent.reconciliation.look_at_changed([this], [], []) == set()
    assert agent.actions == ["again-port"]
    for things in (([(CONTAINER, "another")], [], []), ([], ["another"], []), ([], [], ["another"])):
        assert look(*things) == set()
        assert agent.actions == []
    with agent.world.journal.turn_lock(record_key(CONTAINER, "net1"), Deadline.after(60)):
        assert look([this], [], []) == {this}
    agent.world.unreachable = Unavailable("away")
    assert look([], [port.name], []) == set()
    agent.world.unreachable = None
    agent.world.gone = {NETNS}
    assert look([this], [], []) == set()
    agent.world.gone = set()
    agent.rewrite(state="deleting")
    assert look([this], [], []) == set()
    assert agent.actions == []
    assert agent.world.closed


def test_a_gone_namespace_makes_nothing_again(agent: Agent) -> None:
    """The mounts of a gone sandbox whose pod may exist are undone after two looks, once; nothing lost of it is made again."""
    agent.rewrite(pod_uid="uid")
    agent.world.gone = {NETNS}
    agent.world.closed = {agent.port.name}
    before = set(agent.world.true)
    [mount] = (name for name in before if name.startswith("mount:"))
    assert agent.passes() == []
    assert agent.passes() == ["removed-namespace-gone"]
    assert agent.world.true == before - {mount}
    assert agent.passes(3) == []
    assert agent.record.state == "ready"
    agent.world.gone.add("uid")
    assert agent.passes() == []
    assert agent.passes() == ["removed-sandbox-gone"]
    assert agent.world.true == set()


def add_another(agent: Agent, pod_uid: str = "uid", **changes: str) -> Record:
    """Attach another sandbox, and have its record say that."""
    environ = {"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "another", "CNI_NETNS": "/run/netns/y", "CNI_IFNAME": "net1"}
    assert call_plugin(environ, lambda: STDIN, lambda: agent.world).code == 0
    [other] = (record for record in agent.world.journal.records() if record.container_id == "another")
    agent.world.journal.write(changed := replace(other, pod_uid=pod_uid, **changes))  # type: ignore[arg-type]
    return changed


def test_the_next_sandbox_of_the_pod_proves_it(agent: Agent) -> None:
    """A runtime may never send DEL for a sandbox while its pod lives on in another one: that proves the first one gone."""
    agent.rewrite(pod_uid="uid")
    other = add_another(agent)
    assert agent.passes(2) == []
    agent.world.gone = {NETNS}
    assert agent.passes() == []
    assert agent.passes() == ["removed-sandbox-gone"]
    assert agent.world.journal.records() == [other]


@pytest.mark.parametrize(
    "other", [{"pod_uid": "another"}, {"pod_uid": ""}, {"network": "other"}, {"netns": NETNS}, {"netns": ""}]
)
def test_what_is_no_next_sandbox(agent: Agent, other: dict[str, str]) -> None:
    """Another pod, another network, and a sandbox that is itself gone or unknown, prove nothing."""
    agent.rewrite(pod_uid="uid")
    former = agent.record
    add_another(agent, **other)
    agent.world.gone = {NETNS}
    assert "removed-sandbox-gone" not in agent.passes(3)
    assert former in agent.world.journal.records()


def test_a_mount_that_another_sandbox_needs(agent: Agent) -> None:
    """The pod's other sandbox is in the same directory: its mount stays as long as that lives."""
    agent.rewrite(pod_uid="uid")
    agent.world.place = SocketPlace(f"/pods/{CONTAINER[:12]}", "/pods", create=True, own=True)
    other = add_another(agent, pod_uid="")
    agent.world.gone = {NETNS}
    assert agent.passes(3) == []
    agent.world.gone.add("/run/netns/y")
    agent.world.journal.write(replace(other, pod_uid="uid"))
    agent.passes()
    assert "removed-namespace-gone" in agent.passes()
    assert not any(name.startswith("mount:") for name in agent.world.true)


def test_a_failure_is_logged_once(agent: Agent, capsys: pytest.CaptureFixture[str]) -> None:
    """A failing repair is tried in every pass, and logged once, whatever its error says; a failure of another kind is another."""
    agent.world.log_level = "info"
    agent.world.true.discard(name_of(agent.port))

    for error in (Unavailable("it is away"), Unavailable("it is busy"), SwitchRefused("it is full")):

        def fault(when: str, step: object, error: UserspaceError = error) -> None:
            raise error

        agent.world.fault = fault
        agent.passes(5)
    told = capsys.readouterr().err
    assert [told.count(text) for text in ("it is away", "it is busy", "it is full")] == [1, 0, 1]


def test_hundreds_of_refused_annotations(
    agent: Agent, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is kept and logged of a pod that asks for a different impossible value each time does not grow.

    Its Event has the last value.
    """
    agent.world.log_level = "info"
    agent.rewrite(pod_namespace="blue", pod_name="web")
    asked = 0

    def refuse(record: Record) -> ChangeableOptions | None:
        nonlocal asked
        asked += 1
        raise InvalidConfig(f"annotation {asked} is " + "x" * 4000)

    monkeypatch.setattr(MemoryPods, "read_changeable_options", lambda _, record: refuse(record))

    def allocated_after(times: int) -> int:
        for _ in range(times):
            agent.reconciliation.follow({("blue", "web")})
            agent.world.told = agent.world.told[-1:]
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        grown = -allocated_after(50) + allocated_after(500)
    finally:
        tracemalloc.stop()
    assert asked == 550
    assert grown < 500_000  # the texts are 2,000,000; threads of other tests may allocate meanwhile
    log = capsys.readouterr().err
    assert 1 <= log.count("cannot be applied") <= 5  # one more after 10, 30 and 70 s, on a machine that takes so long
    assert len(log) < 10_000
    assert "annotation 550 is" in agent.world.told[-1][1].message
