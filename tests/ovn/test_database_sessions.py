"""A session with a database other than the switch's: OVN's northbound, over each kind of connection."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.ovn.database import Authority, Kind, NorthboundDatabase
from tests.lab.switch.switch import wait_until
from tests.ovn.conftest import soon
from userspace_cni.base.errors import RowsRefused, Unavailable
from userspace_cni.ovsdb.client import Client, Session
from userspace_cni.ovsdb.column_values import Json, as_json, value_of
from userspace_cni.ovsdb.database import MAP, REFERENCES, STRING, STRINGS, Clause, Database, Tls, named
from userspace_cni.ovsdb.draft import Draft
from userspace_cni.ovsdb.groups import Command
from userspace_cni.ovsdb.reads import Select

SWITCHES, SETS = "Logical_Switch", "Address_Set"


class Told:
    """The changes that an index was told."""

    def __init__(self, everything: bool) -> None:
        self.everything = everything
        self.names: dict[tuple[str, str], Any] = {}
        self.changes: list[tuple[str, str]] = []

    def show(self, table: str, name: str, row: Any) -> None:
        self.names[table, name] = row

    def change(self, table: str, event: str, row: Any, former: Any) -> None:
        self.changes.append((table, event))

    def lose(self) -> None:
        """Nothing to note: the session says so."""


NORTHBOUND: Database[Told] = Database(
    name="OVN_Northbound",
    root="NB_Global",
    tables={
        "NB_Global": {"nb_cfg": "integer", "sb_cfg": "integer"},
        SWITCHES: {"name": STRING, "ports": REFERENCES, "external_ids": MAP},
        SETS: {"name": STRING, "addresses": STRINGS},
    },
    index=Told,
    named=frozenset({SWITCHES, SETS}),
    chosen=frozenset({SWITCHES, SETS}),
    setting="northbound",
    initialise="ovn-nbctl init",
)
Connect = Callable[..., Client[Told]]


class MakeSwitch(Command[Session[Told]]):
    """Makes a logical switch unless it exists; `meanwhile` is called once, between the decision and the sending."""

    def __init__(self, session: Session[Told], name: str, meanwhile: Callable[[], object] = lambda: None) -> None:
        super().__init__(session)
        self.target = name
        self._meanwhile = meanwhile
        self.runs = 0

    def needs(self) -> frozenset[Clause]:
        return named(self.target)

    def run_idl(self, txn: Draft) -> None:
        """Insert it, if there is none at that moment."""
        self.runs += 1
        if self.api.row(SWITCHES, self.target) is None:
            txn.expect(SWITCHES, [["name", "==", self.target]], [])
            txn.write(SWITCHES, {"name": self.target, "external_ids": {"made-by": "test"}})
        self._meanwhile()
        self._meanwhile = lambda: None


class MakeSet(Command[Session[Told]]):
    """Makes an address set; the server has one of each name."""

    def __init__(self, session: Session[Told], name: str) -> None:
        super().__init__(session)
        self.target = f"{name} of {id(self)}"
        self._name = name

    def run_idl(self, txn: Draft) -> None:
        txn.write(SETS, {"name": self._name})


class Ports:
    """The ports that a group gives a logical switch, written as one change."""

    def __init__(self, row: Any) -> None:
        self._row = row
        self.added: list[Json] = []

    def write(self, draft: Draft) -> None:
        draft.verify(self._row, "ports")
        draft.update(self._row, {"ports": [*map(as_json, value_of(self._row, "ports")), *self.added]})


class AddPort(Command[Session[Told]]):
    """Adds a port to a logical switch."""

    def __init__(self, session: Session[Told], switch: str, port: str) -> None:
        super().__init__(session)
        self.target = port
        self._switch = switch

    def needs(self) -> frozenset[Clause]:
        return named(self._switch)

    def run_idl(self, txn: Draft) -> None:
        row = self.api.row(SWITCHES, self._switch)
        txn.share_part(Ports, self._switch, lambda: Ports(row)).added.append(
            txn.write("Logical_Switch_Port", {"name": self.target})
        )


class Hold(Command[Session[Told]]):
    """Keeps the session's thread busy until it is released, so that others queue."""

    def __init__(self, session: Session[Told]) -> None:
        super().__init__(session)
        self.held, self.go_on = threading.Event(), threading.Event()

    def run_idl(self, txn: Draft) -> None:
        self.held.set()
        assert self.go_on.wait(60)


@pytest.fixture
def connect(database: NorthboundDatabase, authority: Authority) -> Iterator[Connect]:
    """Makes clients, and closes them."""
    made: list[Client[Told]] = []

    def make(kind: Kind = "unix", **options: Any) -> Client[Told]:
        files = Tls(*authority.sign("client"), authority.certificate) if kind == "ssl" else None
        made.append(Client(database.remote(kind), NORTHBOUND, **{"tls": files} | options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def run(client: Client[Told], *commands: Callable[[Session[Told]], Command[Any]]) -> None:
    """Run each command as a caller of its own; they share a transaction, because they queue while another is running."""
    session = client.use(lambda session: session, frozenset(), "connecting", soon())
    hold, errors = Hold(session), []

    def call(command: Command[Any]) -> None:
        try:
            client.use(lambda session: session.transact([command], soon()), frozenset(), "a test", soon())
        except (RowsRefused, Unavailable) as error:
            errors.append(error)

    threads = [threading.Thread(target=call, args=(each,)) for each in (hold, *(make(session) for make in commands))]
    threads[0].start()
    assert hold.held.wait(60)
    for thread in threads[1:]:
        thread.start()
    wait_until(lambda: len(session._queue) == len(commands), what="all have queued")
    hold.go_on.set()
    for thread in threads:
        thread.join(60)
    if errors:
        raise errors[0]


@pytest.mark.parametrize("resident", [True, False])
@pytest.mark.parametrize("kind", ["unix", "tcp", "ssl"])
def test_rows_over_each_kind_of_connection(database: NorthboundDatabase, connect: Connect, kind: Kind, *, resident: bool) -> None:
    """Callers at the same time share a transaction; the server has all rows, and so has another session that asks."""
    sizes: list[int] = []
    client = connect(kind, resident=resident, on_group=sizes.append)
    run(client, *(lambda session, name=f"s{number}": MakeSwitch(session, name) for number in range(5)))
    assert sizes == [5]
    found = database.nbctl("--bare", "--columns=name", "find", SWITCHES, "external_ids:made-by=test")
    assert sorted(found.split()) == ["s0", "s1", "s2", "s3", "s4"]
    other = connect(kind)
    mine = other.read(lambda session: [value_of(row, "name") for row in session.rows(SWITCHES)], named("s3"), "it", soon())
    assert mine == ["s3"]


def test_the_index_is_told(database: NorthboundDatabase, connect: Connect) -> None:
    """With full replication it is told all rows by their names, and each change; otherwise those of the chosen rows alone."""
    database.nbctl("ls-add", "before")
    all_rows, chosen = connect(resident=True), connect()
    all_rows.connect(soon())
    told = all_rows.require_session().index
    assert told.everything
    assert told.names[SWITCHES, "before"]
    assert not told.changes
    database.nbctl("ls-add", "since")
    assert all_rows.require_session().watch(SWITCHES, "since", lambda: told.names.get((SWITCHES, "since"))).wait(60) is not None
    assert told.changes == [(SWITCHES, "create")]
    database.nbctl("ls-del", "before")
    gone = all_rows.require_session().watch(SWITCHES, "before", lambda: True if told.names[SWITCHES, "before"] is None else None)
    assert gone.wait(60)
    assert told.changes[1:] == [(SWITCHES, "delete")]
    chosen.use(lambda session: session.transact([MakeSwitch(session, "mine")], soon()), named("mine"), "a test", soon())
    assert set(chosen.require_session().index.names) == {(SWITCHES, "mine"), ("NB_Global", "")}


def test_a_row_that_changes_meanwhile(database: NorthboundDatabase, connect: Connect) -> None:
    """The server verifies the rows of a decision, and the decision is repeated when they have changed."""
    client = connect()
    session = client.use(lambda session: session, frozenset(), "connecting", soon())
    command = MakeSwitch(session, "s", lambda: database.nbctl("ls-add", "s"))
    session.transact([command], soon())
    assert command.runs == 2
    assert len(database.nbctl("--bare", "--columns=_uuid", "find", SWITCHES, "name=s").split()) == 1


def test_a_refusal_is_of_its_caller_alone(database: NorthboundDatabase, connect: Connect) -> None:
    """The refused caller gets the server's words, and the others of the group are served."""
    database.nbctl("create", SETS, "name=taken")
    with pytest.raises(RowsRefused, match="constraint violation"):
        run(connect(), lambda session: MakeSet(session, "taken"), lambda session: MakeSet(session, "free"))
    assert sorted(database.nbctl("--bare", "--columns=name", "list", SETS).split()) == ["free", "taken"]


def test_commands_change_one_row_together(database: NorthboundDatabase, connect: Connect) -> None:
    """Two callers' changes of one row are one operation."""
    database.nbctl("ls-add", "s")
    run(connect(), lambda session: AddPort(session, "s", "p1"), lambda session: AddPort(session, "s", "p2"))
    assert len(database.nbctl("lsp-list", "s").splitlines()) == 2


def test_the_row_of_the_root_is_watched(database: NorthboundDatabase, connect: Connect) -> None:
    """So a caller can wait until a daemon reports that it is done; a column that is not replicated is requested."""
    client = connect()
    session = client.use(lambda session: session, frozenset(), "connecting", soon())
    done = session.watch("NB_Global", "", lambda: True if value_of(session.root(), "sb_cfg") == 7 else None)
    database.nbctl("set", "NB_Global", ".", "sb_cfg=7")
    assert done.wait(60)
    asked = Select(session, "NB_Global", [], ["name"])
    session.transact([asked], soon())
    assert asked.rows == [{"name": ""}]


@pytest.mark.parametrize("kind", ["unix", "tcp", "ssl"])
def test_a_server_that_is_started_again(database: NorthboundDatabase, connect: Connect, kind: Kind) -> None:
    """A call after its end fails with a message; one after its start uses a new session."""
    client = connect(kind)
    client.connect(soon())
    database.stop()
    with pytest.raises(Unavailable, match="asking: OVSDB at"):
        client.use(lambda session: session.transact([MakeSwitch(session, "s")], soon()), frozenset(), "asking", soon())
    database.start()
    again = connect(kind)
    again.use(lambda session: session.transact([MakeSwitch(session, "s")], soon()), frozenset(), "asking", soon())
    assert database.nbctl("ls-list")


def test_keys_of_another_authority(connect: Connect, tmp_path: Path) -> None:
    """Neither side trusts the other's, and a missing file is an error of its own."""
    other = Authority(tmp_path / "other")
    for files, reason in (
        (Tls(*other.sign("client"), other.certificate), "CERTIFICATE_VERIFY_FAILED|certificate verify failed"),
        (Tls(*other.sign("client"), str(tmp_path / "none")), "No such file"),
        (None, "there is no key and certificate for it"),
    ):
        with pytest.raises(Unavailable, match=reason):
            connect("ssl", tls=files).connect(soon())
