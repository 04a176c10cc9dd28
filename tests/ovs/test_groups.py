"""Group commit: calls at the same time share a transaction, but not their errors and deadlines."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.lab.switch.proxy import Proxy
from tests.lab.switch.switch import FOR_EVER_S, Switch, wait_until
from tests.ovs.conftest import STORE, adding, attach
from userspace_cni.attachment.steps import OvsPort
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import NameTaken, SwitchRefused, Unavailable
from userspace_cni.base.mirrors import MirrorSource
from userspace_cni.ovsdb.client import Session
from userspace_cni.ovsdb.groups import Command
from userspace_cni.switch.ovsdb.delete import Delete
from userspace_cni.switch.ovsdb.rows.marks import marks_of
from userspace_cni.switch.ovsdb.rows.port_row import marked_port
from userspace_cni.switch.ovsdb.switch_database import SwitchSession, open_vswitch
from userspace_cni.switch.ports import PortDriver

MakePort = Callable[..., OvsPort]
Connect = Callable[..., PortDriver]


def soon() -> Deadline:
    """A deadline that leaves enough time for one call."""
    return Deadline.after(60)


class Hold(Command[SwitchSession]):
    """Blocks the session's thread until it is released."""

    def __init__(self, session: SwitchSession) -> None:
        super().__init__(session)
        self.held = threading.Event()
        self.let_go = threading.Event()

    def run_idl(self, txn: Any) -> None:
        self.held.set()
        assert self.let_go.wait(60)


class Pause(Command[SwitchSession]):
    """Stops ovsdb-server when the group is about to be sent."""

    def __init__(self, session: SwitchSession, switch: Switch) -> None:
        super().__init__(session)
        self._switch = switch

    def run_idl(self, txn: Any) -> None:
        self._switch.pause_ovsdb()


class Buggy(Command[SwitchSession]):
    """A command that raises an exception that no command should."""

    def run_idl(self, txn: Any) -> None:
        raise ZeroDivisionError


@dataclass
class Caller:
    """One thread with one call; `error` is what it raised."""

    thread: threading.Thread
    error: BaseException | None = None


@dataclass
class Callers:
    """Threads that call at the same time, and how their calls ended."""

    all: list[Caller] = field(default_factory=list)

    def call(self, what: Callable[[], object]) -> Caller:
        def run() -> None:
            try:
                what()
            except BaseException as error:
                caller.error = error

        caller = Caller(threading.Thread(target=run))
        self.all.append(caller)
        caller.thread.start()
        return caller

    def join(self) -> list[BaseException | None]:
        """Wait for all; their errors in the order of the calls."""
        for each in self.all:
            each.thread.join(60)
            assert not each.thread.is_alive()
        return [each.error for each in self.all]


@contextmanager
def queued(driver: PortDriver, session: SwitchSession | None = None) -> Iterator[Callers]:
    """All calls made in this block are queued before the session's thread takes its next group."""
    driver.connect(soon())
    session = session or driver.client.require_session()
    callers, hold = Callers(), Hold(session)
    keeper = threading.Thread(target=lambda: session.transact([hold], soon()))
    keeper.start()
    assert hold.held.wait(60)
    try:
        yield callers
        waiting = session._queue
        wait_until(lambda: len(waiting) >= sum(each.thread.is_alive() for each in callers.all), what="all are in the queue")
    finally:
        hold.let_go.set()
        keeper.join(60)


@pytest.fixture
def sizes() -> list[int]:
    """How many callers' ports each transaction had."""
    return []


@pytest.fixture(params=[True, False], ids=["resident", "for one verb"])
def grouping(request: pytest.FixtureRequest, switch: Switch, connect: Connect, sizes: list[int]) -> PortDriver:
    return connect(switch, resident=request.param, on_group=sizes.append)


def test_what_queues_meanwhile_is_one_transaction(switch: Switch, grouping: PortDriver, port: MakePort, sizes: list[int]) -> None:
    """Five ADDs at once on a missing bridge are one transaction: one bridge with our mark, five open ports."""
    with queued(grouping) as callers:
        for number in range(5):
            callers.call(lambda number=number: attach(grouping, port(number), soon()))  # type: ignore[misc]
    assert callers.join() == [None] * 5
    assert sizes == [5]
    assert switch.ports("br-test") == [port(number).name for number in range(5)]
    assert switch.bridge("br-test")["external_ids"] == {"owner": "userspace-cni", "owner-kind": "pod"}
    assert [grouping.check(port(number), soon()) for number in range(5)] == [[]] * 5


def test_bridges_of_one_group_are_each_made_once(switch: Switch, grouping: PortDriver, port: MakePort, sizes: list[int]) -> None:
    """ADDs on two missing bridges share a transaction, and each port is on its own bridge."""
    with queued(grouping) as callers:
        for number in range(4):
            step = port(number, bridge=f"br-{number % 2}")
            callers.call(lambda step=step: attach(grouping, step, soon()))  # type: ignore[misc]
    assert callers.join() == [None] * 4
    assert sizes == [4]
    assert switch.ports("br-0") == [port(0).name, port(2).name]
    assert switch.ports("br-1") == [port(1).name, port(3).name]


def test_a_bad_member_fails_alone(switch: Switch, grouping: PortDriver, port: MakePort, sizes: list[int]) -> None:
    """A bridge of another type and a name that is taken are their callers' errors; the others share one transaction."""
    switch.vsctl("--no-wait", "add-br", "br-kernel")
    attach(grouping, port(9, marks={"container-id": "other", "network": "n", "ifname": "net1"}), soon())
    sizes.clear()
    with queued(grouping) as callers:
        callers.call(lambda: attach(grouping, port(1), soon()))
        callers.call(lambda: attach(grouping, port(2, bridge="br-kernel"), soon()))
        callers.call(lambda: attach(grouping, port(9), soon()))
        callers.call(lambda: attach(grouping, port(3), soon()))
    good, kernel, taken, also_good = callers.join()
    assert (good, also_good) == (None, None)
    assert isinstance(kernel, SwitchRefused)
    assert isinstance(taken, NameTaken)
    assert sizes == [2]
    assert switch.ports("br-test") == [port(1).name, port(3).name, port(9).name]


def test_what_the_server_refuses_is_run_one_by_one(
    switch: Switch, grouping: PortDriver, port: MakePort, sizes: list[int]
) -> None:
    """A value that only ovsdb-server knows to be wrong: its caller alone gets the server's error, the others get their ports."""
    with queued(grouping) as callers:
        for number, tag in ((1, 5), (2, 4097), (3, 6)):
            callers.call(lambda number=number, tag=tag: attach(grouping, port(number, tag=tag), soon()))  # type: ignore[misc]
    first, refused, last = callers.join()
    assert (first, last) == (None, None)
    assert isinstance(refused, SwitchRefused)
    assert "4097" in str(refused)
    assert sizes == [1, 1]
    assert switch.ports("br-test") == [port(1).name, port(3).name]


def test_members_that_are_in_each_others_way_are_run_one_by_one(
    switch: Switch, grouping: PortDriver, port: MakePort, sizes: list[int]
) -> None:
    """Mirrors of one name on two bridges: an output verifies which ports of any bridge ask to be sources, while the source on the
    other bridge begins to ask. No update of another session ever comes for that."""
    source = replace(port(1, bridge="br-0"), mirrors=(MirrorSource("m"),))
    output = replace(port(2, bridge="br-1"), mirror_outputs=("m",))
    with queued(grouping) as callers:
        for step in (source, output):
            callers.call(lambda step=step: attach(grouping, step, soon()))  # type: ignore[misc]
    assert callers.join() == [None, None]
    assert sizes == [1, 1]
    assert (switch.ports("br-0"), switch.ports("br-1")) == ([source.name], [output.name])
    assert (switch.row("Mirror", "m")["output_port"], switch.row("Mirror", "m")["select_src_port"]) == (
        switch.port(output.name)["_uuid"],
        [],
    )


def test_a_bridge_is_made_with_one_datapath(switch: Switch, grouping: PortDriver, port: MakePort) -> None:
    """Two ports at once on a missing bridge, of networks with another datapath each: one makes it, and the other is refused."""
    other = replace(port(2), datapath="system")
    with queued(grouping) as callers:
        callers.call(lambda: attach(grouping, port(1), soon()))
        wait_until(lambda: len(grouping.client.require_session()._queue) == 1, what="the first one waits")
        callers.call(lambda: attach(grouping, other, soon()))
    made, refused = callers.join()
    assert made is None
    assert "bridge br-test has datapath_type netdev" in str(refused)
    assert (switch.bridge("br-test")["datapath_type"], switch.ports("br-test")) == ("netdev", [port(1).name])


def test_a_bug_in_one_command_is_its_callers_alone(switch: Switch, driver: PortDriver, port: MakePort) -> None:
    """An unexpected exception reaches only the caller whose command raised it; the others' ports are made."""
    with queued(driver) as callers:
        session = driver.client.require_session()
        callers.call(lambda: attach(driver, port(1), soon()))
        callers.call(lambda: session.transact([Buggy(session)], soon()))
        callers.call(lambda: attach(driver, port(2), soon()))
    first, bug, last = callers.join()
    assert (first, last) == (None, None)
    assert isinstance(bug, ZeroDivisionError)
    assert switch.ports("br-test") == [port(1).name, port(2).name]
    driver.undo(port(1), soon())
    assert driver.sessions == 1


def test_one_port_is_never_written_twice_in_a_transaction(
    switch: Switch, grouping: PortDriver, port: MakePort, sizes: list[int]
) -> None:
    """Two calls for the same port run after each other, in the order in which they came."""
    with queued(grouping) as callers:
        callers.call(lambda: attach(grouping, port(tag=5), soon()))
        session = grouping.client.require_session()
        wait_until(lambda: len(session._queue) == 1, what="the first one waits")
        callers.call(lambda: attach(grouping, port(tag=6), soon()))
    assert callers.join() == [None, None]
    assert sizes == [1, 1]
    assert switch.port(port().name)["tag"] == 6


def test_a_bridge_that_loses_its_last_port_and_gains_one_stays(
    switch: Switch, grouping: PortDriver, port: MakePort, sizes: list[int]
) -> None:
    """DEL of our bridge's last port and ADD of another in one transaction: the bridge stays the same."""
    attach(grouping, port(1), soon())
    before = switch.bridge("br-test")["_uuid"]
    sizes.clear()
    with queued(grouping) as callers:
        callers.call(lambda: grouping.undo(port(1), soon()))
        callers.call(lambda: attach(grouping, port(2), soon()))
    assert callers.join() == [None, None]
    assert sizes == [2]
    assert switch.ports("br-test") == [port(2).name]
    assert switch.bridge("br-test")["_uuid"] == before


def test_the_last_two_ports_take_the_bridge_with_them(
    switch: Switch, grouping: PortDriver, port: MakePort, sizes: list[int]
) -> None:
    """Two DELs of the last two ports in one transaction delete the bridge; nothing is left."""
    for step in (port(1), port(2)):
        attach(grouping, step, soon())
    sizes.clear()
    with queued(grouping) as callers:
        for number in (1, 2):
            callers.call(lambda number=number: grouping.undo(port(number), soon()))  # type: ignore[misc]
    assert callers.join() == [None, None]
    assert sizes == [2]
    assert (switch.bridges(), switch.rows("Port"), switch.rows("Interface")) == ([], [], [])


def test_an_administrators_bridge_survives_a_group_of_deletions(
    switch: Switch, grouping: PortDriver, port: MakePort, sizes: list[int]
) -> None:
    """All ports of a bridge that is not ours go in one transaction, with one that is absent: the bridge stays."""
    switch.vsctl("add-br", "br-test", "--", "set", "Bridge", "br-test", "datapath_type=netdev")
    for step in (port(1), port(2)):
        attach(grouping, step, soon())
    sizes.clear()
    with queued(grouping) as callers:
        for number in (1, 2, 3):
            callers.call(lambda number=number: grouping.undo(port(number), soon()))  # type: ignore[misc]
    assert callers.join() == [None] * 3
    assert sizes == [3]
    assert switch.ports("br-test") == []


def test_an_absent_port_is_no_reason_to_delete_a_bridge_in_use(switch: Switch, grouping: PortDriver, port: MakePort) -> None:
    """DEL of a missing port of our bridge deletes neither that bridge, to
    which an ADD adds a port, nor one that is still empty.
    """
    switch.vsctl("--no-wait", "add-br", "br-test", "--", "set", "Bridge", "br-test", "datapath_type=netdev")
    switch.vsctl("--no-wait", "set", "Bridge", "br-test", "external_ids:owner=userspace-cni")
    with queued(grouping) as callers:
        callers.call(lambda: grouping.undo(port(1), soon()))
        callers.call(lambda: attach(grouping, port(2), soon()))
    assert callers.join() == [None, None]
    assert switch.ports("br-test") == [port(2).name]
    switch.vsctl("--no-wait", "del-port", port(2).name)
    grouping.undo(port(2), soon())
    assert switch.bridges() == []


def test_a_group_notices_that_another_session_took_the_last_port(
    switch: Switch, connect: Connect, driver: PortDriver, port: MakePort
) -> None:
    """Two deletions see a third port, which another session deletes before they commit: the bridge goes too."""
    for number in (1, 2, 3):
        attach(driver, port(number), soon())
    other = connect(switch)
    session = Session(switch.ovsdb, open_vswitch(), frozenset(), soon(), everything=True)

    class Late(Delete):
        """Reads first, and then the other session deletes."""

        runs = 0

        def run_idl(self, txn: Any) -> None:
            super().run_idl(txn)
            Late.runs += 1
            if Late.runs == 1:
                other.undo(port(3), soon())

    with queued(driver, session) as callers:
        callers.call(lambda: session.transact([Delete(session, marked_port(port(1).ref))], soon()))
        callers.call(lambda: session.transact([Late(session, marked_port(port(2).ref))], soon()))
    assert callers.join() == [None, None]
    session.close()
    assert Late.runs == 2
    assert switch.bridges() == []


def test_no_call_waits_for_the_deadline_of_another(own_switch: Switch, connect: Connect, port: MakePort) -> None:
    """The server hangs during a group: a caller with three seconds fails then, and one with more time gets its port."""
    driver, patient = connect(own_switch), Deadline.after(FOR_EVER_S)
    with queued(driver) as callers:
        hasty = callers.call(lambda: driver.apply(port(1), Deadline.after(3)))
        callers.call(lambda: attach(driver, port(2), patient))
        callers.call(
            lambda: driver.client.require_session().transact([Pause(driver.client.require_session(), own_switch)], patient)
        )
    try:
        hasty.thread.join(60)
        assert isinstance(hasty.error, Unavailable)
        assert "unknown" in str(hasty.error)
        assert callers.all[1].thread.is_alive()
    finally:
        own_switch.resume_ovsdb()
    assert callers.join()[1:] == [None, None]
    assert driver.sessions == 1
    assert driver.check(port(2), soon()) == []


def test_a_call_out_of_time_before_the_group_begins_is_left_out(
    switch: Switch, grouping: PortDriver, port: MakePort, sizes: list[int]
) -> None:
    """A call whose time ended in the queue is not committed; the next one is."""
    with queued(grouping) as callers:
        late = callers.call(lambda: grouping.apply(port(1), Deadline.after(0.2)))
        callers.call(lambda: attach(grouping, port(2), soon()))
        late.thread.join(60)
        assert not late.thread.is_alive()
    assert callers.join()[1] is None
    assert isinstance(late.error, Unavailable)
    assert "unknown" not in str(late.error)
    assert sizes == [1]
    assert switch.ports("br-test") == [port(2).name]


def test_a_server_that_hangs_for_all_ends_the_session(own_switch: Switch, connect: Connect, port: MakePort) -> None:
    """When no caller has time left, all fail, the session is closed, and the next call opens another."""
    driver = connect(own_switch, resident=True)
    with queued(driver) as callers:
        for number in (1, 2, 3):
            callers.call(lambda number=number: driver.apply(port(number), Deadline.after(3)))  # type: ignore[misc]
        callers.call(
            lambda: driver.client.require_session().transact(
                [Pause(driver.client.require_session(), own_switch)], Deadline.after(3)
            )
        )
    try:
        errors = callers.join()
        assert [type(error) for error in errors] == [Unavailable] * 4
        assert not driver.connected
    finally:
        own_switch.resume_ovsdb()
    for number in (1, 2, 3):
        driver.undo(port(number), soon())
    assert driver.sessions == 2
    assert own_switch.bridges() == []


@pytest.mark.parametrize("then", ["close", "mute"])
def test_a_session_lost_amid_a_group_is_lost_for_all(
    switch: Switch, connect: Connect, port: MakePort, sizes: list[int], tmp_path: Path, then: str
) -> None:
    """The group's answer never comes. If the connection closes, each member finds its rows in a new session.

    If it hangs, all fail.
    """
    seconds = FOR_EVER_S if then == "close" else 3
    with Proxy(tmp_path / "a.sock", switch.dir / "db.sock", lose_answer_to=b'"op":"insert"', then=then) as proxy:  # type: ignore[arg-type]
        driver = connect(switch, proxy.remote, on_group=sizes.append)
        with queued(driver) as callers:
            for number in range(4):
                callers.call(lambda number=number: attach(driver, port(number), Deadline.after(seconds)))  # type: ignore[misc]
        errors = callers.join()
        assert proxy.lost.is_set()
    if then == "close":
        assert errors == [None] * 4
        assert driver.sessions == 2
        assert sum(sizes) == 4
    else:
        assert [type(error) for error in errors] == [Unavailable] * 4
    assert switch.ports("br-test") == [port(number).name for number in range(4)]


def test_a_session_lost_before_the_read_back_is_opened_again(own_switch: Switch, connect: Connect, port: MakePort) -> None:
    """ovsdb-server restarts between the commit and ovs-vswitchd's answer: the caller reads again, and finds the port open."""
    driver = connect(own_switch)
    own_switch.pause_vswitchd()
    try:
        rest = driver.apply(port(), soon())
        own_switch.restart_ovsdb()
    finally:
        own_switch.resume_vswitchd()
    rest()
    assert driver.sessions == 2
    assert driver.check(port(), soon()) == []


def test_the_next_commit_does_not_wait_for_the_read_back(own_switch: Switch, connect: Connect, port: MakePort) -> None:
    """While ovs-vswitchd sleeps, commits go on; when it wakes, all waits end."""
    driver = connect(own_switch, resident=True)
    own_switch.pause_vswitchd()
    try:
        rests = [driver.apply(port(number), soon()) for number in (1, 2, 3)]
        assert own_switch.ports("br-test") == [port(number).name for number in (1, 2, 3)]
        driver.undo(port(2), soon())
    finally:
        own_switch.resume_vswitchd()
    rests[0]()
    rests[2]()
    with pytest.raises(SwitchRefused, match="another process deleted"):
        rests[1]()


def test_a_request_larger_than_a_socket_takes_at_once_is_sent_to_its_end(own_switch: Switch, port: MakePort) -> None:
    """Four hundred ports in one transaction are more bytes than the kernel buffers, and are all committed."""
    own_switch.pause_vswitchd()
    session = Session(own_switch.ovsdb, open_vswitch(), frozenset(), soon(), everything=True)
    try:
        steps = [port(number) for number in range(400)]
        session.transact([adding(session, step, marks_of(step, STORE)) for step in steps], soon())
        assert len(own_switch.ports("br-test")) == 400
        session.transact([Delete(session, marked_port(step.ref)) for step in steps], soon())
        assert own_switch.bridges() == []
    finally:
        session.close()
        own_switch.resume_vswitchd()


def test_forty_threads_lose_nothing(switch: Switch, connect: Connect, port: MakePort, sizes: list[int]) -> None:
    """Forty ADDs and then forty DELs at once, in any grouping: every port is made, and none is left."""
    driver = connect(switch, resident=True, on_group=sizes.append)
    adding, deleting = Callers(), Callers()
    for number in range(40):
        adding.call(lambda number=number: attach(driver, port(number), Deadline.after(60)))  # type: ignore[misc]
    assert adding.join() == [None] * 40
    assert len(switch.ports("br-test")) == 40
    for number in range(40):
        deleting.call(lambda number=number: driver.undo(port(number), Deadline.after(60)))  # type: ignore[misc]
    assert deleting.join() == [None] * 40
    assert sum(sizes) == 80
    assert switch.bridges() == []
