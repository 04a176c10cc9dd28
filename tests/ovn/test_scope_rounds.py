"""The loop that keeps the rows of many objects, with a database served without OVN; the objects are a dict."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping

import pytest

from tests.lab.ovn.database import NorthboundDatabase
from tests.lab.switch.switch import wait_until
from userspace_cni.base.back_off import BackOff
from userspace_cni.base.deadline import Deadline
from userspace_cni.controller.northbound_hold import NorthboundHold
from userspace_cni.controller.scope_rounds import BATCH, ScopeRounds, ScopeTimes
from userspace_cni.ovn.desired_rows import DesiredRow, RowKey, Within
from userspace_cni.ovn.northbound import NorthboundSession
from userspace_cni.ovn.northbound_tables import ACL, LOAD_BALANCER, LOAD_BALANCER_GROUP, PORT_GROUP
from userspace_cni.ovn.scope_writing import DesiredScope

GROUP = RowKey(LOAD_BALANCER_GROUP, "all")


class Kept(ScopeRounds):
    """Keeps a load balancer and a port group with a rule for each thing: its name, and the addresses that serve it."""

    def __init__(self, remote: str, write_s: float = 30.0) -> None:
        self.things: dict[str, str] = {}
        self.changed: set[str] = set()
        self.certain = True
        self.leads = True
        self.wrote: list[str] = []
        self.hold = NorthboundHold(remote, None, lambda: self.leads)
        super().__init__(self.hold, "thing ", "keeps things", ScopeTimes(write_s=write_s, back_off=BackOff(0.05, 0.2)))
        self.on_write = self.wrote.append

    def put(self, **things: str) -> None:
        self.things.update(things)
        self.changed |= set(things)
        self.ask()

    def drop(self, name: str) -> None:
        del self.things[name]
        self.changed.add(name)
        self.ask()

    def _listed(self) -> bool:
        return True

    def _are_certain(self) -> bool:
        return self.certain

    def _take(self, session: NorthboundSession, *, everything: bool) -> Collection[str]:
        names, self.changed = self.changed | (set(self.things) if everything else set()), set()
        return [f"thing {name}" for name in names]

    def _desired(self, scope: str) -> DesiredScope:
        name = scope.removeprefix("thing ")
        if name not in self.things:
            return ()
        group = RowKey(PORT_GROUP, f"pg_{name}")
        rule = {"priority": 1000, "direction": "to-lport", "match": "ip4", "action": self.things[name] or "drop", "log": False}
        return (
            DesiredRow(RowKey(LOAD_BALANCER, name), {"vips": {"10.0.0.1:80": self.things[name]}}, Within(GROUP, "load_balancer")),
            DesiredRow(group, {}),
            DesiredRow(RowKey(ACL, f"{name}/in"), rule, Within(group, "acls")),
        )


@pytest.fixture
def kept(database: NorthboundDatabase) -> Iterator[Kept]:
    database.nbctl("create", LOAD_BALANCER_GROUP, "name=all")
    made = Kept(database.remote("unix"))
    made.start()
    yield made
    made.stop()
    made.hold.close()


def balancers(database: NorthboundDatabase) -> Mapping[str, str]:
    """The load balancers' addresses by name, of those in the group."""
    listed = database.nbctl("--bare", "--columns=load_balancer", "list", LOAD_BALANCER_GROUP, "all").split()
    told = json.loads(database.nbctl("--format=json", "--columns=_uuid,name,vips", "list", LOAD_BALANCER))["data"]
    return {name: dict(vips[1])["10.0.0.1:80"] for (_, row), name, vips in told if row in listed}


def rules(database: NorthboundDatabase) -> int:
    return len(database.nbctl("--bare", "--columns=_uuid", "list", ACL).split())


def test_rows_follow_their_objects(database: NorthboundDatabase, kept: Kept) -> None:
    """They come, change and go with them, those of other objects stay unread, and what others change is put back."""
    kept.put(a="allow", b="drop")
    wait_until(lambda: balancers(database) == {"a": "allow", "b": "drop"} and rules(database) == 2)
    kept.wrote.clear()
    kept.put(a="reject")
    wait_until(lambda: balancers(database)["a"] == "reject")
    assert kept.wrote == ["update", "update"]
    database.nbctl("destroy", LOAD_BALANCER, "b")
    database.nbctl("pg-del", "pg_a")
    wait_until(lambda: balancers(database) == {"a": "reject", "b": "drop"} and rules(database) == 2)
    kept.drop("a")
    wait_until(lambda: balancers(database) == {"b": "drop"} and rules(database) == 1)
    assert kept.scopes == 1


def test_a_row_of_others_keeps_one_object_alone_from_its_rows(database: NorthboundDatabase, kept: Kept) -> None:
    """So does a value that the server refuses; each is told, and made when it can be."""
    database.nbctl("lb-add", "b", "10.9.9.9:80", "10.0.0.9:80")
    kept.put(a="allow", b="drop", c="no such action")
    wait_until(lambda: balancers(database) == {"a": "allow"} and set(kept.refused) == {"thing b", "thing c"})
    assert "is not ours" in kept.refused["thing b"]
    assert "rejected it" in kept.refused["thing c"]
    kept.put(c="allow")
    wait_until(lambda: balancers(database) == {"a": "allow", "c": "allow"})
    database.nbctl("lb-del", "b")
    wait_until(lambda: balancers(database) == {"a": "allow", "b": "drop", "c": "allow"} and not kept.refused, seconds=30)


def test_nothing_is_removed_while_it_is_not_certain_what_there_is(database: NorthboundDatabase, kept: Kept) -> None:
    """A controller removes the rows of objects that are gone, after two lists; one that does not lead does nothing."""
    kept.put(a="allow")
    wait_until(lambda: balancers(database) == {"a": "allow"})
    kept.certain = False
    kept.drop("a")
    kept.put(b="drop")
    wait_until(lambda: balancers(database) == {"a": "allow", "b": "drop"})
    kept.certain = True
    kept.ask()
    wait_until(lambda: balancers(database) == {"b": "drop"})
    kept.leads = False
    kept.put(b="reject")
    wait_until(lambda: not kept.hold.has_lock)
    second = Kept(database.remote("unix"))
    second.start()
    wait_until(lambda: balancers(database) == {})
    second.stop()
    second.hold.close()


def test_an_emptied_database_gets_its_rows_again(database: NorthboundDatabase, kept: Kept) -> None:
    """From the objects, as soon as it serves and has what the rows are to be in."""
    kept.put(a="allow")
    wait_until(lambda: balancers(database) == {"a": "allow"})
    database.renew()
    database.nbctl("create", LOAD_BALANCER_GROUP, "name=all")
    wait_until(lambda: balancers(database) == {"a": "allow"} and rules(database) == 1, seconds=30)


def test_a_round_may_take_longer_than_a_transaction_may(database: NorthboundDatabase, kept: Kept) -> None:
    """Of many objects: each transaction has the whole time, and none fails because of those before it."""
    kept.leads = False
    write_s = 4.0
    problems: list[str] = []
    late = Kept(database.remote("unix"), write_s)

    def wait(_: str) -> None:
        if not problems:
            passed = Deadline.after(write_s)
            wait_until(lambda: passed.remaining() <= 0)
        problems.append(late.problem)

    late.on_write = wait
    late.things = {f"t{number}": "allow" for number in range(2 * BATCH)}
    late.start()
    try:
        wait_until(lambda: len(balancers(database)) == 2 * BATCH)
        assert {*problems, late.problem} == {""}
    finally:
        late.stop()
        late.hold.close()
