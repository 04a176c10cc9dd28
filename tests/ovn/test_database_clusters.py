"""A database with several servers: their addresses are tried in turn, and the leader of a cluster is followed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.lab.ovn.cluster import DATABASE, Cluster
from tests.lab.switch.switch import wait_until
from tests.ovs.conftest import soon
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import RowsRefused, Unavailable
from userspace_cni.ovsdb.client import Client, Session
from userspace_cni.ovsdb.database import MAP, STRING, Database, named
from userspace_cni.ovsdb.draft import Draft
from userspace_cni.ovsdb.groups import Command


class Nothing:
    """Keeps nothing of the rows."""

    def show(self, table: str, name: str, row: Any) -> None:
        """Keep nothing."""

    def change(self, table: str, event: str, row: Any, former: Any) -> None:
        """Tell nothing."""

    def lose(self) -> None:
        """Tell nothing."""


NORTHBOUND = Database(
    name=DATABASE,
    root="NB_Global",
    tables={"NB_Global": {"name": STRING}, "Logical_Switch": {"name": STRING, "external_ids": MAP}},
    index=lambda _: Nothing(),
    named=frozenset({"Logical_Switch"}),
    chosen=frozenset({"Logical_Switch"}),
)


class AddSwitch(Command[Session[Nothing]]):
    """Adds a logical switch; with `columns` that the schema may lack."""

    def __init__(self, session: Session[Nothing], name: str, **columns: Any) -> None:
        super().__init__(session)
        self.target = name
        self._columns = columns

    def run_idl(self, txn: Draft) -> None:
        """Insert the row."""
        txn.write("Logical_Switch", {"name": self.target, **self._columns})


def add(client: Client[Nothing], name: str, **columns: Any) -> None:
    """Add the switch by a session of the client."""
    client.use(
        lambda session: session.transact([AddSwitch(session, name, **columns)], soon()), named(name), f"adding {name}", soon()
    )


def switches(client: Client[Nothing]) -> set[str]:
    """The names of the switches that start so that the tests have made them."""
    names = ("s1", "s2", "s3")
    return client.read(
        lambda session: {name for name in names if session.row("Logical_Switch", name)}, named(*names), "reading", soon()
    )


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A cluster of the test's own."""
    with TemporaryDirectory(prefix="uc-") as directory, Cluster(Path(directory)) as started:
        yield started


@pytest.mark.parametrize("resident", [False, True])
def test_the_leader_is_written_to_and_followed(cluster: Cluster, resident: bool) -> None:
    """Whichever server leads gets the writes; when it dies, its successor does, once it is elected, and all rows are there."""
    client = Client(cluster.remote, NORTHBOUND, resident=resident)
    try:
        add(client, "s1")
        former = cluster.leader
        assert client.require_session().remote == cluster.address(former)
        cluster.kill(former)
        add(client, "s2")
        assert client.require_session().remote == cluster.address(cluster.leader)
        assert switches(client) == {"s1", "s2"}
    finally:
        client.close()


def test_a_leader_that_says_nothing_any_more(cluster: Cluster) -> None:
    """As when its machine dies: a transaction that waits for it is given up before its caller's time is over, and the next one
    goes to the successor, though nothing refuses a connection to the former leader."""
    client = Client(cluster.remote, NORTHBOUND, resident=True)
    try:
        add(client, "s1")
        former = cluster.leader
        cluster.silence(former)
        deadline = Deadline.after(15.0)
        client.use(lambda session: session.transact([AddSwitch(session, "s2")], deadline), named("s2"), "adding s2", deadline)
        assert client.require_session().remote == cluster.address(cluster.leader) != cluster.address(former)
        assert switches(client) == {"s1", "s2"}
    finally:
        client.close()


def test_a_member_that_says_nothing_from_the_start(cluster: Cluster) -> None:
    """It is passed over, and asked last from then on."""
    cluster.silence(former := cluster.leader)
    client = Client(",".join((cluster.address(former), *map(cluster.address, "abc"))), NORTHBOUND)
    try:
        client.connect(Deadline.after(15.0))
        assert client.require_session().remote != cluster.address(former)
    finally:
        client.close()


def test_a_follower_alone_is_no_server(cluster: Cluster) -> None:
    """If neither of two addresses is the leader's, they are asked until the deadline, and the error names both."""
    followers = tuple(map(cluster.address, cluster.followers))
    client = Client(",".join(followers), NORTHBOUND)

    def names_both() -> bool:
        """On a busy machine a server may not answer in what is left of the time: then that is told."""
        with pytest.raises(Unavailable) as refused:
            client.connect(Deadline.after(1.0))
        why = "is not reachable: it does not lead its cluster"
        return all(f"OVSDB at {each} {why}" in refused.value.message for each in followers)

    wait_until(names_both, what="both are named")


def test_an_address_without_a_server_is_passed_over(cluster: Cluster, tmp_path: Path) -> None:
    """The next addresses are tried."""
    client = Client(f"unix:{tmp_path}/none,{cluster.remote}", NORTHBOUND)
    try:
        add(client, "s3")
        assert client.require_session().remote == cluster.address(cluster.leader)
    finally:
        client.close()


def test_what_another_database_rejects_does_not_speak_of_a_switch(cluster: Cluster) -> None:
    """The error is one of OVSDB, with the server's words, and no SwitchRefused."""
    client = Client(cluster.remote, NORTHBOUND)
    try:
        with pytest.raises(RowsRefused, match="adding s1: ovsdb-server rejected it") as refused:
            add(client, "s1", colour="blue")
        assert type(refused.value) is RowsRefused
    finally:
        client.close()
