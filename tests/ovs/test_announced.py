"""Transactions that are announced: those that have queued wait for them, so that ovs-vswitchd goes through its rows once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.lab.switch.switch import FOR_EVER_S, Switch, wait_until
from tests.ovs.conftest import attach
from tests.ovs.test_groups import Callers, Connect, MakePort, soon
from userspace_cni.ovsdb import client
from userspace_cni.ovsdb.draft import Draft
from userspace_cni.ovsdb.groups import Command
from userspace_cni.switch.ovsdb.switch_database import SwitchSession
from userspace_cni.switch.ports import PortDriver


@pytest.fixture
def sizes() -> list[int]:
    """How many callers' ports each transaction had."""
    return []


@pytest.fixture
def grouping(switch: Switch, connect: Connect, sizes: list[int]) -> PortDriver:
    """A driver with a session, as an agent has it."""
    made = connect(switch, resident=True, on_group=sizes.append)
    made.connect(soon())
    return made


@pytest.fixture
def for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for an announced transaction does so for ever."""
    for name in ("_HELD_S", "_ALONE_S"):
        monkeypatch.setattr(client, name, FOR_EVER_S)


class _Nothing(Command[SwitchSession]):
    """A command that counts as a writer."""

    target = "nothing"

    def run_idl(self, txn: Draft) -> None:
        """Write nothing."""


def is_queued(driver: PortDriver, count: int) -> Callable[[], bool]:
    session = driver.client.require_session()
    return lambda: len(session._queue) == count


@pytest.mark.usefixtures("for_ever")
def test_what_queues_waits_for_it(switch: Switch, grouping: PortDriver, port: MakePort, sizes: list[int]) -> None:
    """Two ports wait for a third one that is announced: all are one transaction, and nothing is held afterwards."""
    callers = Callers()
    with grouping.announce(port(3).name):
        for number in (1, 2):
            callers.call(lambda number=number: attach(grouping, port(number), soon()))  # type: ignore[misc]
        wait_until(is_queued(grouping, 2), what="two ports in the queue")
        attach(grouping, port(3), soon())
        attach(grouping, port(4), soon())
    assert callers.join() == [None, None]
    assert sizes == [3, 1]
    assert switch.ports("br-test") == [port(number).name for number in range(1, 5)]


@pytest.mark.usefixtures("for_ever")
def test_one_that_does_not_come(grouping: PortDriver, port: MakePort, sizes: list[int]) -> None:
    """A port that waits is made when the announced one turns out not to come, as after an error."""
    callers = Callers()
    with grouping.announce(port(2).name):
        callers.call(lambda: attach(grouping, port(1), soon()))
        wait_until(is_queued(grouping, 1), what="the port in the queue")
    assert callers.join() == [None]
    assert sizes == [1]


def test_it_is_not_awaited_for_long(grouping: PortDriver, port: MakePort, sizes: list[int]) -> None:
    """A port is made while one that was announced is held up elsewhere."""
    with grouping.announce(port(2).name):
        attach(grouping, port(1), soon())
    assert sizes == [1]


@pytest.mark.usefixtures("for_ever")
def test_reads_do_not_wait(grouping: PortDriver, port: MakePort) -> None:
    """What only reads asks the server at once."""
    with grouping.announce(port(1).name):
        [missing] = grouping.check(port(1), soon())
    assert "port" in missing.subject


def test_announced_before_the_session(switch: Switch, connect: Connect, port: MakePort, sizes: list[int]) -> None:
    """A port that is announced before there is a session is made by the one that its own call opens."""
    driver = connect(switch, on_group=sizes.append)
    with driver.announce(port(1).name):
        attach(driver, port(1), soon())
    assert sizes == [1]


@pytest.mark.usefixtures("for_ever")
def test_closed_while_something_is_held(grouping: PortDriver, port: MakePort) -> None:
    """What waits for an announced transaction is answered when the session is closed."""
    callers = Callers()
    with grouping.announce(port(2).name):
        callers.call(lambda: grouping.client.require_session().transact([_Nothing(grouping.client.require_session())], soon()))
        wait_until(is_queued(grouping, 1), what="the call in the queue")
        grouping.client.close()
        [error] = callers.join()
    assert "closed" in str(error)
