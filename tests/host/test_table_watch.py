"""Changes by others in our nftables tables are reported at once, and changes in their own are not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.host.places import eventually, soon
from tests.lab.node.links import inside
from tests.lab.runtimes.runtime import netns
from userspace_cni.attachment.steps import Guard
from userspace_cni.host.node_net.table_watch import TableWatch
from userspace_cni.host.pod_net.guards import GuardDriver, table_of

STORE = "0123456789abcdef"
LINK = "uc0123456789ab"
TABLE = table_of(STORE)


class Told:
    """The reports of a namespace's watch."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.changed: list[int] = []
        self.ended: list[str] = []
        self.watch = TableWatch(lambda: STORE, lambda: self.changed.append(1), self.ended.append, place)
        self.watch.start()

    def nft(self, *words: str) -> None:
        inside(self.place, "nft", *words)


@pytest.fixture
def told() -> Iterator[Told]:
    """A watch that listens, in a namespace with one guarded link."""
    with netns() as place:
        inside(place, "ip", "link", "add", LINK, "type", "veth", "peer", "name", "pod")
        found = Told(place)
        eventually(lambda: bool(found.changed))
        GuardDriver().apply(Guard(LINK, STORE, place), soon())
        for verb in ("add", "delete"):  # when this is told, the guard was looked at
            found.changed.clear()
            found.nft(verb, "table", "inet", TABLE)
            eventually(lambda: bool(found.changed))
        found.changed.clear()
        yield found
        found.watch.stop()
        assert not found.watch.alive


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (("delete", "chain", "netdev", TABLE, LINK), LINK),
        (("delete", "table", "netdev", TABLE), LINK),
        (("flush", "ruleset"), LINK),
        (("add", "rule", "netdev", TABLE, LINK, "accept"), LINK),
        (("add", "table", "netdev", TABLE, "{ flags dormant; }"), ""),
    ],
)
def test_guards(told: Told, command: tuple[str, ...], name: str) -> None:
    """A guard that is deleted, gets a rule or becomes dormant is reported, by its link or as any."""
    told.nft(*command)
    eventually(lambda: name in told.ended)
    assert told.changed == []


def test_a_guard_that_goes_again_before_it_was_seen(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is made again and removed again between two looks is reported twice."""
    again = iter(("once",))

    def made_and_gone(name: str) -> None:
        told.ended.append(name)
        for _ in again:
            GuardDriver().apply(Guard(LINK, STORE, told.place), soon())
            told.nft("flush", "ruleset")

    monkeypatch.setattr(told.watch, "_ended", made_and_gone)
    told.nft("flush", "ruleset")
    eventually(lambda: told.ended == [LINK, LINK])


def test_the_nodes_own_tables(told: Told) -> None:
    """For address translation any change is reported only as a change."""
    for words in (("add", "table", "inet", TABLE), ("delete", "table", "inet", TABLE)):
        told.changed.clear()
        told.nft(*words)
        eventually(lambda: bool(told.changed))
    assert told.ended == []


def test_our_own_guards_and_tables_of_others(told: Told) -> None:
    """Making a guard is no loss; another program's table, and another installation's, are not reported."""
    GuardDriver().apply(Guard(LINK, STORE, told.place), soon())
    for table in ("theirs", table_of("fedcba9876543210")):
        told.nft("add", "table", "inet", table)
        told.nft("add", "chain", "inet", table, "c")
        told.nft("add", "rule", "inet", table, "c", "accept")
        told.nft("delete", "table", "inet", table)
    told.nft("add", "table", "inet", TABLE)
    eventually(lambda: bool(told.changed))
    assert told.ended == []
