"""Mirrors on a real OVS-DPDK: rows of sources and outputs, in either order, and the frames that reach an output."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import pytest

from tests.lab.node.links import pings
from tests.lab.runtimes.runtime import netns
from tests.lab.switch.kernel_links import Veths
from tests.lab.switch.switch import Switch, wait_until
from tests.lab.switch.veths import inside, veth
from tests.ovs.conftest import STORE, adding, attach
from tests.ovs.test_races import Meanwhile
from userspace_cni.attachment.drift import Absent
from userspace_cni.attachment.steps import HostEnd, OvsPort, SharedReads
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import NameTaken
from userspace_cni.base.mirrors import MirrorSource
from userspace_cni.fastpath.vhost.front_end import FrontEnd, FrontEndListener
from userspace_cni.ovsdb.client import Session
from userspace_cni.switch.ovsdb.rows.marks import marks_of
from userspace_cni.switch.ovsdb.switch_database import open_vswitch, switch_client
from userspace_cni.switch.ports import PortDriver

MakePort = Callable[..., OvsPort]
IDS = (MirrorSource("ids"),)


def soon() -> Deadline:
    """A deadline that leaves enough time for one call."""
    return Deadline.after(60)


def source(step: OvsPort, *mirrors: MirrorSource) -> OvsPort:
    """The port as a source of the mirror `ids`."""
    return replace(step, mirrors=mirrors or IDS)


def output(step: OvsPort, *names: str) -> OvsPort:
    """The port as the output of the mirrors `ids`."""
    return replace(step, mirror_outputs=names or ("ids",))


def uuids(switch: Switch, *steps: OvsPort) -> list[str]:
    """The UUIDs in a column with references to these ports."""
    return sorted(switch.port(step.name)["_uuid"] for step in steps)


def sources(switch: Switch, name: str = "ids") -> tuple[list[str], list[str]]:
    """The references in select_src_port and select_dst_port of a mirror."""
    row = switch.row("Mirror", name)
    src, dst = row["select_src_port"], row["select_dst_port"]
    return sorted([src] if isinstance(src, str) else src), sorted([dst] if isinstance(dst, str) else dst)


@pytest.mark.parametrize("first", ["source", "output"])
def test_in_either_order_the_mirror_has_both(switch: Switch, driver: PortDriver, port: MakePort, first: str) -> None:
    """A source that comes before its output has no Mirror row yet, for which OVS would log an error; later the row has both."""
    steps = [source(port(1)), output(port(2))]
    for step in steps if first == "source" else steps[::-1]:
        attach(driver, step, soon())
        assert bool(switch.rows("Mirror")) == (step is steps[1] or first == "output")
    [mirror] = switch.rows("Mirror")
    assert mirror["output_port"] == switch.port(port(2).name)["_uuid"]
    assert switch.bridge("br-test")["mirrors"] == mirror["_uuid"]
    assert sources(switch) == (uuids(switch, port(1)), uuids(switch, port(1)))
    assert mirror["external_ids"]["container-id"] == port(2).marks["container-id"]
    for step in steps:
        assert driver.check(step, soon()) == []


def test_directions_are_the_pods(switch: Switch, driver: PortDriver, port: MakePort) -> None:
    """Frames from the pod are in select_src_port; a source may have several mirrors or one direction."""
    attach(driver, source(port(1), MirrorSource("ids", to_pod=False), MirrorSource("tap", from_pod=False)), soon())
    attach(driver, output(port(2)), soon())
    attach(driver, output(port(3), "tap"), soon())
    assert sources(switch) == (uuids(switch, port(1)), [])
    assert sources(switch, "tap") == ([], uuids(switch, port(1)))


def test_the_mirror_goes_with_its_output_and_the_spec_stays(switch: Switch, driver: PortDriver, port: MakePort) -> None:
    """The end of a source leaves the Mirror without it, the end of the output removes the Mirror.

    A next output finds all sources.
    """
    for step in (source(port(1)), source(port(2)), output(port(3))):
        attach(driver, step, soon())
    driver.undo(source(port(1)), soon())
    assert sources(switch)[0] == uuids(switch, port(2))
    driver.undo(output(port(3)), soon())
    assert switch.rows("Mirror") == []
    assert driver.check(source(port(2)), soon()) == []
    attach(driver, output(port(4)), soon())
    assert sources(switch)[0] == uuids(switch, port(2))
    for step in (port(2), port(4)):
        driver.undo(step, soon())
    assert (switch.bridges(), switch.rows("Mirror")) == ([], [])


def test_a_second_output_is_refused_with_the_holder(switch: Switch, driver: PortDriver, port: MakePort) -> None:
    """A mirror has one output; on another bridge the name is free."""
    attach(driver, output(port(1)), soon())
    with pytest.raises(NameTaken, match=f"mirror ids of bridge br-test has an output.*{port(1).marks['container-id']}"):
        attach(driver, output(port(2)), soon())
    assert switch.ports("br-test") == [port(1).name]
    attach(driver, output(port(3, bridge="br-two")), soon())
    assert len(switch.rows("Mirror")) == 2
    driver.undo(port(1), soon())
    assert switch.bridge("br-two")["mirrors"] == switch.rows("Mirror")[0]["_uuid"]


def test_one_output_of_several(switch: Switch, driver: PortDriver, port: MakePort) -> None:
    """An output of several mirrors gets the sources of each. If one mirror is another port's, nothing is written.

    A change releases one.
    """
    attach(driver, source(port(1)), soon())
    attach(driver, source(port(2), MirrorSource("tap")), soon())
    both = output(port(3), "ids", "tap")
    attach(driver, both, soon())
    assert (sources(switch)[0], sources(switch, "tap")[0]) == (uuids(switch, port(1)), uuids(switch, port(2)))
    assert {row["output_port"] for row in switch.rows("Mirror")} == set(uuids(switch, both))
    assert driver.check(both, soon()) == []
    with pytest.raises(NameTaken, match="mirror tap of bridge br-test has an output"):
        attach(driver, output(port(4), "new", "tap"), soon())
    assert port(4).name not in switch.ports("br-test")
    assert len(switch.rows("Mirror")) == 2
    switch.vsctl("clear", "Mirror", "tap", "output_port")
    [drift] = driver.check(both, soon())
    assert (drift.field, drift.expected) == ("output of mirror", "ids, tap")
    attach(driver, both, soon())
    assert driver.check(both, soon()) == []
    attach(driver, output(port(3), "tap"), soon())
    assert [row["name"] for row in switch.rows("Mirror")] == ["tap"]
    driver.undo(port(3), soon())
    assert switch.rows("Mirror") == []


@pytest.mark.parametrize("part", [source, output], ids=["source", "output"])
def test_a_mirror_of_an_administrator_is_not_changed(
    switch: Switch, driver: PortDriver, port: MakePort, part: Callable[[OvsPort], OvsPort]
) -> None:
    """An unmarked mirror of that name refuses source and output and stays; so do other mirrors of the bridge."""
    switch.vsctl("add-br", "br-test", "--", "set", "Bridge", "br-test", "datapath_type=netdev")
    switch.vsctl(
        "--", "--id=@m", "create", "Mirror", "name=ids", "select_all=true", "--", "set", "Bridge", "br-test", "mirrors=@m"
    )
    before = switch.rows("Mirror")
    with pytest.raises(NameTaken, match="does not mark its rows"):
        attach(driver, part(port(1)), soon())
    assert switch.rows("Mirror") == before
    assert switch.ports("br-test") == []
    attach(driver, output(port(2), "other"), soon())
    driver.undo(port(2), soon())
    assert switch.rows("Mirror") == before


def test_a_living_port_joins_and_leaves(switch: Switch, driver: PortDriver, port: MakePort) -> None:
    """Apply with another mirror part changes spec and row in one call each, and keeps the port."""
    attach(driver, port(1), soon())
    attach(driver, output(port(2)), soon())
    before = switch.port(port(1).name)["_uuid"]
    attach(driver, source(port(1)), soon())
    assert sources(switch) == ([before], [before])
    attach(driver, source(port(1), MirrorSource("ids", from_pod=False)), soon())
    assert sources(switch) == ([], [before])
    attach(driver, port(1), soon())
    assert sources(switch) == ([], [])
    assert [key for key in switch.port(port(1).name)["external_ids"] if "mirror" in key] == []
    attach(driver, port(2), soon())
    assert switch.rows("Mirror") == []


def test_a_group_of_source_and_output(switch: Switch, driver: PortDriver, port: MakePort) -> None:
    """Ports of one transaction, which do not see each other, still get into the Mirror; of two outputs one is refused."""
    with_session = Session(switch.ovsdb, open_vswitch(), frozenset(), soon())
    try:
        steps = [source(port(1)), output(port(2)), source(port(3))]
        with_session.transact([adding(with_session, step, marks_of(step, STORE)) for step in steps], soon())
        assert sources(switch)[0] == uuids(switch, port(1), port(3))
        twice = [adding(with_session, output(port(n), "two"), marks_of(port(n), STORE)) for n in (4, 5)]
        with pytest.raises(NameTaken):
            with_session.transact(twice, soon())
    finally:
        with_session.close()


@pytest.mark.parametrize("late", ["source", "output"])
def test_two_sessions_at_once(switch: Switch, driver: PortDriver, port: MakePort, late: str) -> None:
    """A source and an output decide without seeing each other: the later transaction notices, and runs again."""
    attach(driver, port(9), soon())
    steps = {"source": source(port(1)), "output": output(port(2))}
    [early] = steps.keys() - {late}
    session = Session(switch.ovsdb, open_vswitch(), frozenset(), soon())
    try:
        command = Meanwhile(
            adding(session, steps[late], marks_of(steps[late], STORE)), lambda: attach(driver, steps[early], soon())
        )
        session.transact([command], soon())
    finally:
        session.close()
    assert command.runs == 2
    assert sources(switch) == (uuids(switch, port(1)), uuids(switch, port(1)))


def test_an_output_that_others_deleted(switch: Switch, connect: Callable[..., PortDriver], port: MakePort) -> None:
    """When the output's port is deleted, or the mirror cleared from the
    bridge, apply makes it again; undo removes what is left.
    """
    driver = connect(switch, resident=True)
    driver.connect(soon())
    for step in (source(port(1)), output(port(2))):
        attach(driver, step, soon())
    assert not driver.is_lost(output(port(2)), SharedReads(driver.list_owned()), soon())
    switch.vsctl("clear", "Bridge", "br-test", "mirrors")
    wait_until(
        lambda: driver.is_lost(output(port(2)), SharedReads(driver.list_owned()), soon()), what="the mirror's loss is seen"
    )
    [drift] = driver.check(output(port(2)), soon())
    assert (drift.field, drift.expected, drift.found) == ("output of mirror", "ids", Absent())
    attach(driver, output(port(2)), soon())
    assert sources(switch)[0] == uuids(switch, port(1))
    switch.vsctl("del-port", port(2).name)
    assert len(switch.rows("Mirror")) == 1
    attach(driver, output(port(3)), soon())
    assert switch.rows("Mirror")[0]["output_port"] == switch.port(port(3).name)["_uuid"]
    switch.vsctl("del-port", port(3).name)
    connect(switch).undo(replace(port(3).ref, bridge=""), soon())
    assert switch.rows("Mirror") == []


def test_a_mirror_without_output_is_swept(switch: Switch, connect: Callable[..., PortDriver], port: MakePort) -> None:
    """The sweep removes a mirror of ours without a record, whose port was deleted by hand, and no other."""
    driver = connect(switch, resident=True)
    for number, name in ((1, "ids"), (2, "kept"), (3, "lives")):
        attach(driver, output(port(number), name), soon())
    for number in (1, 2):
        switch.vsctl("del-port", port(number).name)

    def keep(marks: Mapping[str, str]) -> bool:
        return marks["container-id"] == port(2).marks["container-id"]

    wait_until(lambda: driver.sweep_mirrors(keep, soon()) == 1, what="one is swept")
    assert sorted(row["name"] for row in switch.rows("Mirror")) == ["kept", "lives"]
    assert driver.sweep_mirrors(keep, soon()) == 0


def test_check_names_a_part_that_differs(switch: Switch, driver: PortDriver, port: MakePort) -> None:
    """A port that was taken out of its mirror or its spec is a drift with both values."""
    step = source(port(1))
    for each in (step, output(port(2))):
        attach(driver, each, soon())
    switch.vsctl("clear", "Mirror", "ids", "select_dst_port")
    switch.vsctl("remove", "Port", step.name, "external_ids", "mirror-from/ids")
    assert [(drift.field, drift.expected, drift.found) for drift in driver.check(step, soon())] == [
        ("frames for mirror ids", "from the pod and to the pod", "to the pod"),
        ("source of mirror ids", "from the pod and to the pod", "from the pod"),
    ]


# -- frames -----------------------------------------------------------------------------------------------------------------

A, B = bytes.fromhex("020000000001"), bytes.fromhex("020000000002")


class Pods:
    """Ports with front-ends on a learning bridge: `a` and `b` talk, others only listen."""

    def __init__(self, driver: PortDriver) -> None:
        self._driver = driver
        self._open: dict[str, tuple[FrontEndListener, FrontEnd]] = {}

    def attach(self, step: OvsPort) -> None:
        """Apply the step; its application is there."""
        listener = FrontEndListener(step.server_path)
        attach(self._driver, step, soon())
        self._open[step.name] = listener, listener.accept()

    def close(self) -> None:
        for listener, front_end in self._open.values():
            front_end.close()
            listener.close()

    def say(self, step: OvsPort, to: bytes, frm: bytes, numbers: range) -> None:
        pair = self._open[step.name][1].pairs[0]
        for number in numbers:
            assert pair.send_frames([to + frm + b"\x88\xb5" + number.to_bytes(4, "big") + bytes(46)]) == 1

    def heard(self, step: OvsPort, count: int) -> list[tuple[bytes, int]]:
        """Source and number of our frames that arrive, until there are `count` and no more are on their way."""
        frames = self._received(step, count, lambda frame: frame[12:14] == b"\x88\xb5")
        return [(frame[6:12], int.from_bytes(frame[14:18], "big")) for frame in frames]

    def pings(self, step: OvsPort, count: int) -> Counter[int]:
        """How many ICMP messages arrive, by type, until there are `count` and no more are on their way."""
        frames = self._received(step, count, lambda frame: frame[12:14] == b"\x08\x00" and frame[23] == 1)
        return Counter(frame[34] for frame in frames)

    def _received(self, step: OvsPort, count: int, wanted: Callable[[bytes], bool]) -> list[bytes]:
        pair, got = self._open[step.name][1].pairs[0], []
        end = time.monotonic() + 60
        while time.monotonic() < end:
            more = pair.receive_frames()
            got += [frame for frame in more if wanted(frame)]
            if not more and len(got) >= count and not pair.wait(0.1):
                break
        return got

    def meet(self, a: OvsPort, b: OvsPort) -> None:
        """Make the switch learn both MACs and use flows both ways; none of these frames remains to be received."""

        def arrives() -> bool:
            self.say(b, A, B, range(1))
            self.say(a, B, A, range(1))
            return bool(self.heard(a, 0)) and bool(self.heard(b, 0))

        wait_until(arrives, what="frames both ways")
        self.heard(a, 0), self.heard(b, 0)


@pytest.fixture
def pods(warm: None, driver: PortDriver) -> Iterator[Pods]:
    made = Pods(driver)
    yield made
    made.close()


def test_every_frame_is_mirrored_once(switch: Switch, pods: Pods, driver: PortDriver, port: MakePort) -> None:
    """A vhost-user port with flows in use becomes a source: the output gets each of its frames once, and none after it leaves."""
    a, b, ids = port(1), port(2), output(port(3))
    for step in (a, b, ids):
        pods.attach(step)
    pods.meet(a, b)
    pods.heard(ids, 0)

    def talk(count: int) -> list[tuple[bytes, int]]:
        for number in range(1, 101):
            pods.say(a, B, A, range(number, number + 1))
            pods.say(b, A, B, range(number, number + 1))
        assert pods.heard(b, 100) == [(A, number) for number in range(1, 101)]
        assert pods.heard(a, 100) == [(B, number) for number in range(1, 101)]
        return pods.heard(ids, count)

    all_a, all_b = ([(mac, number) for number in range(1, 101)] for mac in (A, B))
    assert talk(0) == []
    attach(driver, source(a), soon())
    assert sorted(talk(200)) == [*all_a, *all_b]
    attach(driver, source(a, MirrorSource("ids", to_pod=False)), soon())
    assert talk(100) == all_a
    attach(driver, a, soon())
    assert talk(0) == []


def test_an_output_that_comes_to_flows_in_use(pods: Pods, port: MakePort) -> None:
    """Sources with flows in use are mirrored from the moment at which the ADD of the output answers."""
    a, b, ids = source(port(1), MirrorSource("ids", to_pod=False)), port(2), output(port(3))
    for step in (a, b):
        pods.attach(step)
    pods.meet(a, b)
    pods.attach(ids)
    pods.meet(a, b)  # a port that is attached to anew takes a moment; the flows were made anew before
    pods.heard(ids, 0)
    pods.say(a, B, A, range(1, 101))
    assert pods.heard(ids, 100) == [(A, number) for number in range(1, 101)]


def test_one_purge_for_a_group(switch: Switch, connect: Callable[..., PortDriver], port: MakePort) -> None:
    """Ports that join together cost one purge of flows, not one each."""
    driver = connect(switch, resident=True)
    attach(driver, output(port(9)), soon())
    for number in range(1, 9):
        attach(driver, port(number), soon())
    asked: list[str] = []
    command = driver.daemon.run_command

    def counted(method: str, *params: str, deadline: Deadline) -> str:
        asked.append(method)
        return command(method, *params, deadline=deadline)

    driver.daemon.run_command = counted  # type: ignore[method-assign]
    rests = [driver.apply(source(port(number)), soon()) for number in range(1, 9)]
    for rest in reversed(rests):  # the last change is in force before any purge
        rest()
    assert asked == ["revalidator/purge"]
    assert sources(switch)[0] == uuids(switch, *map(port, range(1, 9)))


def test_a_kernel_port_is_mirrored_to_a_vhost_user_port(
    switch: Switch, pods: Pods, connect: Callable[..., PortDriver], port: MakePort
) -> None:
    """Ten pings of a veth are ten requests and ten replies at the output, with flows in use before it joined."""
    ids = output(port(3))
    kernel = connect(switch, links=Veths(switch))
    with netns() as a, netns() as b:
        steps = []
        for number, place in ((1, a), (2, b)):
            veth(switch.netns, f"ucm{number}", place, "eth0", f"10.7.7.{number}/24")
            steps.append(replace(port(number), name=f"ucm{number}", interface=HostEnd("system")))
            attach(kernel, steps[-1], soon())
        pods.attach(ids)
        pings(a, "10.7.7.2", 10)
        pods.heard(ids, 0)
        attach(kernel, source(steps[0]), soon())
        assert pings(a, "10.7.7.2", 10) == 10
        assert pods.pings(ids, 20) == {8: 10, 0: 10}
        for step in steps:
            kernel.undo(step, soon())
        for number in (1, 2):
            inside(switch.netns, "ip", "link", "delete", f"ucm{number}")


def test_a_process_that_died_before_the_purge(pods: Pods, driver: PortDriver, port: MakePort) -> None:
    """A change that was committed but not purged takes effect when the same step is applied again, though no row differs."""
    a, b, ids = port(1), port(2), output(port(3))
    for step in (a, b, ids):
        pods.attach(step)
    pods.meet(a, b)
    joins = source(a, MirrorSource("ids", to_pod=False))
    driver.apply(joins, soon())  # what remains is not awaited
    attach(driver, joins, soon())
    pods.heard(ids, 0)
    pods.say(a, B, A, range(1, 51))
    assert pods.heard(ids, 50) == [(A, number) for number in range(1, 51)]


def test_a_short_lived_process_replicates_only_its_mirrors(switch: Switch, driver: PortDriver, port: MakePort) -> None:
    """A process that adds a plain port beside mirrors does not fetch their rows."""
    for step in (source(port(1)), output(port(2))):
        attach(driver, step, soon())
    client = switch_client(switch.ovsdb)
    beside = PortDriver(client, switch.rundir, lambda: STORE)
    try:
        attach(beside, port(3), soon())
        assert client.require_session().look(lambda session: len(session.tables["Mirror"].rows)) == 0
    finally:
        beside.close()
