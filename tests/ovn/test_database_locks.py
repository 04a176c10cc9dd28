"""The lock of a database server: of several programs that name it, one writes, and the server itself refuses the others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.lab.ovn.database import NorthboundDatabase
from tests.lab.switch.switch import wait_until
from tests.ovn.conftest import soon
from userspace_cni.ovn.northbound import NorthboundClient, NorthboundSession, northbound
from userspace_cni.ovn.northbound_tables import SWITCH
from userspace_cni.ovsdb.client import Client
from userspace_cni.ovsdb.database import DatabaseLock
from userspace_cni.ovsdb.draft import Draft
from userspace_cni.ovsdb.groups import Command
from userspace_cni.ovsdb.replica import LockNotHeld

Connect = Callable[..., NorthboundClient]


class AddSwitch(Command[NorthboundSession]):
    """Adds a logical switch."""

    def __init__(self, session: NorthboundSession, name: str) -> None:
        super().__init__(session)
        self.target = name

    def run_idl(self, txn: Draft) -> None:
        """Insert the row."""
        txn.write(SWITCH, {"name": self.target})


@pytest.fixture
def connect(database: NorthboundDatabase) -> Iterator[Connect]:
    """Makes clients that need the lock, and closes them."""
    made: list[NorthboundClient] = []

    def make(on_change: Callable[[bool], None] = lambda _: None, name: str = "mine") -> NorthboundClient:
        described = replace(northbound(), lock=DatabaseLock(name, on_change))
        made.append(Client(database.remote("unix"), described, resident=True))
        made[-1].connect(soon())
        return made[-1]

    yield make
    for each in made:
        each.close()


def add(client: NorthboundClient, name: str) -> None:
    client.require_session().transact([AddSwitch(client.require_session(), name)], soon())


def test_one_of_two_writes(database: NorthboundDatabase, connect: Connect) -> None:
    """The other reads, is told when the lock is its own because the first has gone, and writes from then on."""
    told: list[bool] = []
    got = threading.Event()
    first = connect()
    wait_until(lambda: first.require_session().holds_lock)

    def hear(held: bool) -> None:
        told.append(held)
        if held:
            got.set()

    second = connect(hear)
    add(first, "a")
    with pytest.raises(LockNotHeld, match="another session has lock 'mine'"):
        add(second, "b")
    wait_until(lambda: second.require_session().look(lambda session: session.row(SWITCH, "a")))
    first.close()
    assert got.wait(60)
    add(second, "c")
    assert told == [True]
    assert [line.split("(")[1].rstrip(")") for line in database.nbctl("ls-list").splitlines()] == ["a", "c"]


def test_a_lock_that_is_given_up_passes_on(connect: Connect) -> None:
    """Another session has it then; the first waits for it when it asks again."""
    first = connect()
    wait_until(lambda: first.require_session().holds_lock)
    second = connect()
    assert first.require_session().ask_lock(wanted=False)
    assert not first.require_session().holds_lock
    wait_until(lambda: second.require_session().holds_lock)
    assert first.require_session().ask_lock(wanted=True)
    second.close()
    wait_until(lambda: first.require_session().holds_lock)


def test_the_server_refuses_a_session_that_only_believes(database: NorthboundDatabase, connect: Connect) -> None:
    """A deposed leader that has not heard of it yet writes nothing."""
    first = connect()
    wait_until(lambda: first.require_session().holds_lock)
    second = connect()
    second.require_session().replica.has_lock = True
    with pytest.raises(LockNotHeld):
        add(second, "b")
    assert database.nbctl("ls-list") == ""


def test_a_new_session_asks_for_the_lock_again(database: NorthboundDatabase, connect: Connect) -> None:
    """After the server was started again; the loss is told, too."""
    told: list[bool] = []
    client = connect(told.append)
    wait_until(lambda: client.require_session().holds_lock)
    database.stop()
    wait_until(lambda: not client.connected)
    database.start()
    client.connect(soon())
    wait_until(lambda: client.require_session().holds_lock)
    add(client, "a")
    assert told == [True, False, True]


def test_locks_of_other_names_are_others(connect: Connect) -> None:
    """Programs that name another one do not wait for each other."""
    first, second = connect(), connect(name="other")
    wait_until(lambda: first.require_session().holds_lock and second.require_session().holds_lock)


@pytest.mark.parametrize("name", ["userspace-cni", "", "1st", "a b"])
def test_a_name_that_a_server_never_gives_is_refused(name: str) -> None:
    """The server takes identifiers alone, and says nothing of other names."""
    with pytest.raises(ValueError, match="cannot be the name of a lock"):
        DatabaseLock(name)


def test_without_a_lock_all_write(database: NorthboundDatabase) -> None:
    """Sessions of a database that names no lock do not wait for one."""
    clients: list[Any] = [Client(database.remote("unix"), northbound(), resident=True) for _ in range(2)]
    try:
        for number, client in enumerate(clients):
            client.connect(soon())
            assert client.require_session().holds_lock
            add(client, f"s{number}")
    finally:
        for client in clients:
            client.close()
    assert len(database.nbctl("ls-list").splitlines()) == 2
