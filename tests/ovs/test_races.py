"""Two sessions at once: the tests cause a change between the reading and the writing of a transaction."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.switch.switch import Switch
from tests.ovs.conftest import STORE, adding, attach
from userspace_cni.attachment.steps import OvsPort
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import SwitchRefused
from userspace_cni.ovsdb.client import Session
from userspace_cni.ovsdb.database import Clause, named
from userspace_cni.ovsdb.groups import Command
from userspace_cni.switch.ovsdb.delete import Delete
from userspace_cni.switch.ovsdb.put import Put
from userspace_cni.switch.ovsdb.rows.marks import marks_of
from userspace_cni.switch.ovsdb.rows.port_row import marked_port
from userspace_cni.switch.ovsdb.switch_database import SwitchSession, open_vswitch, switch_client
from userspace_cni.switch.ports import PortDriver

MakePort = Callable[..., OvsPort]
ROOT = Path(__file__).resolve().parents[2]
WORKER = """
import sys
from userspace_cni.switch.ovsdb import delete, put
from userspace_cni.switch.ovsdb.switch_database import switch_client
from userspace_cni.switch.ports import PortDriver
from userspace_cni.base.deadline import Deadline
from userspace_cni.attachment.steps import OvsPort, VhostUserClient
ovsdb, rundir, number = sys.argv[1:]
container = number.zfill(12) + "c" * 52
step = OvsPort(
    bridge="br-many", name=f"{container[:12]}-net1", interface=VhostUserClient(f"{rundir}/{number}"),
    marks={"container-id": container, "network": "n", "ifname": "net1"},
)
driver = PortDriver(switch_client(ovsdb), rundir, lambda: "store")
print("ready", flush=True)
for line in sys.stdin:
    rest = getattr(driver, line.strip())(step, Deadline.after(60))
    rest and rest()
    print("done", flush=True)
driver.close()
"""


def soon() -> Deadline:
    """A deadline that leaves enough time for one call."""
    return Deadline.after(60)


@pytest.fixture
def session(switch: Switch) -> Iterator[SwitchSession]:
    """A second session, beside the driver's."""
    opened = Session(switch.ovsdb, open_vswitch(), frozenset(), soon())
    yield opened
    opened.close()


class Meanwhile(Command[SwitchSession]):
    """A command with something happening between its reading and the commit of its first run."""

    def __init__(self, command: Command[SwitchSession], happens: Callable[[], object]) -> None:
        super().__init__(command.api)
        self.command = command
        self.runs = 0
        self._happens = happens

    def needs(self) -> frozenset[Clause]:
        return self.command.needs()

    def should_retry(self, refused: Any) -> bool:
        return self.command.should_retry(refused)

    def post_commit(self, txn: Any) -> None:
        self.command.post_commit(txn)

    def run_idl(self, txn: Any) -> None:
        """Run the other command, and then make it happen."""
        self.command.run_idl(txn)
        self.runs += 1
        if self.runs == 1:
            self._happens()


class NaiveAdd(Command[SwitchSession]):
    """Adds a port to a bridge that it has seen, without verify."""

    def needs(self) -> frozenset[Clause]:
        return named("naive", "br-test")

    def run_idl(self, txn: Any) -> None:
        """Insert port and interface, and mutate the bridge."""
        port, interface = txn.insert(self.api.tables["Port"]), txn.insert(self.api.tables["Interface"])
        port.name = interface.name = "naive"
        port.interfaces = [interface.uuid]
        self.api.row("Bridge", "br-test").addvalue("ports", port.uuid)


def add(session: SwitchSession, step: OvsPort) -> Put:
    """The command of apply."""
    return adding(session, step, marks_of(step, STORE))


def test_a_mutation_of_a_vanished_bridge_succeeds_without_a_port(switch: Switch, session: SwitchSession) -> None:
    """The fact that makes `verify` necessary: the commit succeeds, and there is no port."""
    switch.vsctl("--no-wait", "add-br", "br-test")
    session.transact([Meanwhile(NaiveAdd(session), lambda: switch.vsctl("--no-wait", "del-br", "br-test"))], soon())
    assert switch.port("naive") == {}


def test_a_bridge_that_vanishes_before_the_commit_is_made_again(
    switch: Switch, session: SwitchSession, driver: PortDriver, port: MakePort
) -> None:
    """An ADD notices that a DEL removed the bridge with its last port, and makes the bridge anew."""
    attach(driver, port(1), soon())
    command = Meanwhile(add(session, port(2)), lambda: driver.undo(port(1), soon()))
    session.transact([command], soon())
    assert command.runs == 2
    assert switch.ports("br-test") == [port(2).name]


def test_a_bridge_that_appears_before_the_commit_is_used(switch: Switch, session: SwitchSession, port: MakePort) -> None:
    """Another process makes the missing bridge first: after the name conflict it is read again, and stays the other's."""
    make = ["--no-wait", "add-br", "br-test", "--", "set", "Bridge", "br-test", "datapath_type=netdev"]
    command = Meanwhile(add(session, port()), lambda: switch.vsctl(*make))
    session.transact([command], soon())
    assert command.runs == 2
    assert switch.ports("br-test") == [port().name]
    assert switch.bridge("br-test")["external_ids"] == {}


def test_a_kernel_bridge_that_appears_before_the_commit_is_refused(
    switch: Switch, session: SwitchSession, port: MakePort
) -> None:
    """A bridge with the wrong datapath type that another process makes first is refused like an old one."""
    command = Meanwhile(add(session, port()), lambda: switch.vsctl("--no-wait", "add-br", "br-test"))
    with pytest.raises(SwitchRefused, match="datapath_type"):
        session.transact([command], soon())
    assert switch.ports("br-test") == []


def test_two_deletions_do_not_leave_an_empty_bridge(
    switch: Switch, session: SwitchSession, driver: PortDriver, port: MakePort
) -> None:
    """Of two sessions, neither sees that it deletes the last port; the second commit notices, and the bridge is deleted."""
    for step in (port(1), port(2)):
        attach(driver, step, soon())
    command = Meanwhile(Delete(session, marked_port(port(1).ref)), lambda: driver.undo(port(2), soon()))
    session.transact([command], soon())
    assert command.runs == 2
    assert switch.bridges() == []


def test_a_bridge_is_not_deleted_under_a_new_port(
    switch: Switch, session: SwitchSession, driver: PortDriver, port: MakePort
) -> None:
    """A DEL that is about to delete the bridge with its last port notices a new port."""
    attach(driver, port(1), soon())
    adder = PortDriver(switch_client(switch.ovsdb), switch.rundir, lambda: STORE)
    command = Meanwhile(Delete(session, marked_port(port(1).ref)), lambda: attach(adder, port(2), soon()))
    session.transact([command], soon())
    adder.close()
    assert command.runs == 2
    assert switch.ports("br-test") == [port(2).name]


def test_a_port_that_changes_hands_before_the_commit_is_left_alone(
    switch: Switch, session: SwitchSession, driver: PortDriver, port: MakePort
) -> None:
    """The marks are verified at the commit: a row that was marked for another container in between is not deleted."""
    attach(driver, port(), soon())
    mark = ["--no-wait", "set", "Port", port().name, "external_ids:container-id=other"]
    command = Delete(session, marked_port(port().ref))
    session.transact([Meanwhile(command, lambda: switch.vsctl(*mark))], soon())
    assert "container-id other" in command.left_alone
    assert switch.ports("br-test") == [port().name]


def test_eight_processes_make_and_delete_the_same_bridge(switch: Switch) -> None:
    """Eight applies at once on a missing bridge all succeed, and eight undos leave neither port nor bridge."""
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, switch.ovsdb, switch.rundir, str(number)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(8)
    ]
    try:
        assert [worker.stdout.readline() for worker in workers if worker.stdout] == ["ready\n"] * 8
        for verb, ports in (("apply", 8), ("undo", 0)):
            for worker in workers:
                assert worker.stdin
                worker.stdin.write(f"{verb}\n")
                worker.stdin.flush()
            assert [worker.stdout.readline() for worker in workers if worker.stdout] == ["done\n"] * 8
            assert len([row for row in switch.rows("Port") if row["name"] != "br-many"]) == ports
    finally:
        said = [worker.communicate(timeout=60) for worker in workers]
    assert said == [("", "")] * 8
    assert switch.bridges() == []


def test_one_driver_serves_several_threads(switch: Switch, driver: PortDriver, port: MakePort) -> None:
    """Sixteen threads apply and undo through one session, and nothing is lost or left."""
    failures: list[BaseException] = []

    def run(number: int) -> None:
        try:
            attach(driver, port(number), Deadline.after(60))
            assert driver.check(port(number), Deadline.after(60)) == []
            driver.undo(port(number), Deadline.after(60))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert switch.bridges() == []
