"""Desired rows and ovsdbapp's commands in OVN's northbound database, served without OVN."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.lab.ovn.central import SCHEMAS
from tests.lab.ovn.database import Authority, NorthboundDatabase
from tests.ovn.conftest import soon
from userspace_cni.base.errors import NameTaken, RowsRefused, Unavailable, UserspaceError
from userspace_cni.ovn.desired_rows import DesiredRow, Members, RowKey, Within
from userspace_cni.ovn.northbound import NorthboundClient, NorthboundSession, northbound, northbound_client
from userspace_cni.ovn.northbound_api import NorthboundApi
from userspace_cni.ovn.northbound_tables import (
    CONNECTION,
    GLOBAL,
    LOAD_BALANCER_GROUP,
    ROUTER,
    ROUTER_PORT,
    STATIC_ROUTE,
    SWITCH,
    SWITCH_PORT,
)
from userspace_cni.ovn.port_rows import PortChange
from userspace_cni.ovn.port_writing import WritePorts
from userspace_cni.ovn.row_writing import RowPlan, WriteRows, preview, write_rows
from userspace_cni.ovsdb.client import Client
from userspace_cni.ovsdb.groups import RefusedCommand
from userspace_cni.ovsdb.idl_commands import IdlCommands

JOIN, CLUSTER, GROUP = RowKey(SWITCH, "join"), RowKey(ROUTER, "cluster"), RowKey(LOAD_BALANCER_GROUP, "all")
ROUTED = RowKey(ROUTER_PORT, "rtoj-cluster")
DESIRED = (
    DesiredRow(GROUP, {}),
    DesiredRow(CLUSTER, {"load_balancer_group": Members((GROUP,))}),
    DesiredRow(ROUTED, {"mac": "0a:00:00:00:00:01", "networks": ["100.64.0.1/16"]}, Within(CLUSTER, "ports")),
    DesiredRow(JOIN, {"other_config": {"subnet": "100.64.0.0/16"}}),
    DesiredRow(
        RowKey(SWITCH_PORT, "jtor-cluster"),
        {"type": "router", "addresses": ["router"], "options": {"router-port": ROUTED.name}},
        Within(JOIN, "ports"),
    ),
    DesiredRow(
        RowKey(STATIC_ROUTE, "default"), {"ip_prefix": "0.0.0.0/0", "nexthop": "100.64.0.2"}, Within(CLUSTER, "static_routes")
    ),
    DesiredRow(RowKey(CONNECTION, "ptcp:6641"), {"target": "ptcp:6641"}, Within(RowKey(GLOBAL, ""), "connections")),
)


@pytest.fixture
def connect(database: NorthboundDatabase) -> Iterator[Callable[[], NorthboundClient]]:
    made: list[NorthboundClient] = []

    def make() -> NorthboundClient:
        made.append(northbound_client(database.remote("unix")))
        return made[-1]

    yield make
    for each in made:
        each.close()


def session_of(client: NorthboundClient) -> NorthboundSession:
    client.connect(soon())
    return client.require_session()


def test_rows_are_made_in_one_transaction(database: NorthboundDatabase, connect: Callable[[], NorthboundClient]) -> None:
    """With what refers to them; the second time nothing is written, and a changed argument changes its column alone."""
    changed: list[str] = []
    watcher = northbound_client(database.remote("unix"), on_change=lambda table, *_: changed.append(table))
    watcher.connect(soon())
    client = connect()
    assert len(preview(client, RowPlan(DESIRED, "cluster"), soon()).rows) == len(DESIRED)
    write_rows(client, RowPlan(DESIRED, "cluster"), soon())
    shown = database.nbctl("show")
    assert "router-port: rtoj-cluster" in shown
    assert 'networks: ["100.64.0.1/16"]' in shown
    assert "100.64.0.2" in database.nbctl("lr-route-list", "cluster")
    assert database.nbctl("get-connection") == "ptcp:6641"
    before = database.nbctl("list", SWITCH, "--", "list", ROUTER, "--", "list", GLOBAL)
    assert write_rows(connect(), RowPlan(DESIRED, "cluster"), soon()).rows == ()
    assert database.nbctl("list", SWITCH, "--", "list", ROUTER, "--", "list", GLOBAL) == before
    assert watcher.read(lambda _: changed.count(ROUTER_PORT), frozenset(), "waiting", soon(), enough=lambda _: False) == 1
    watcher.close()
    moved = [
        replace(each, columns={**each.columns, "networks": ["100.65.0.1/16"]}) if each.key == ROUTED else each for each in DESIRED
    ]
    (change,) = write_rows(client, RowPlan(moved, "cluster"), soon()).rows
    assert (change.kind, change.key, change.columns) == ("update", ROUTED, {"networks": ["100.65.0.1/16"]})
    assert 'networks: ["100.65.0.1/16"]' in database.nbctl("show")


def test_what_is_not_desired_any_more_goes(database: NorthboundDatabase, connect: Callable[[], NorthboundClient]) -> None:
    """Ports, routes and the rows that nothing has to refer to; what was made by hand stays."""
    client = connect()
    write_rows(client, RowPlan(DESIRED, "cluster"), soon())
    database.nbctl("lsp-add", "join", "theirs", "--", "ls-add", "by-hand")
    write_rows(client, RowPlan([each for each in DESIRED if each.key in (JOIN, CLUSTER)], "cluster"), soon())
    assert database.nbctl("lsp-list", "join").split()[1] == "(theirs)"
    assert database.nbctl("lrp-list", "cluster") == database.nbctl("lr-route-list", "cluster").replace("\n", "") == ""
    with pytest.raises(NameTaken, match="Logical_Switch join would be removed with theirs"):
        write_rows(client, RowPlan([], "cluster"), soon())
    database.nbctl("lsp-del", "theirs")
    write_rows(client, RowPlan([], "cluster"), soon())
    assert database.nbctl("--bare", "--columns=name", "list", SWITCH) == "by-hand"


def test_two_writers_at_once_make_one_row_of_each(database: NorthboundDatabase, connect: Callable[[], NorthboundClient]) -> None:
    """Names of switches and routers are not unique in the database: without UUIDs that follow from them there would be two."""
    clients = [connect() for _ in range(4)]
    for each in clients:
        each.connect(soon())
    errors: list[UserspaceError] = []

    def run(client: NorthboundClient, barrier: threading.Barrier, scope: str) -> None:
        rows = [
            replace(each, key=RowKey(each.key.table, f"{scope}-{each.key.name}"))
            for each in DESIRED
            if each.key in (JOIN, CLUSTER)
        ]
        rows = [replace(each, columns={}) for each in rows]
        barrier.wait(60)
        try:
            write_rows(client, RowPlan(rows, scope), soon())
        except UserspaceError as error:
            errors.append(error)

    for attempt in range(10):
        barrier = threading.Barrier(len(clients))
        threads = [threading.Thread(target=run, args=(each, barrier, f"scope{attempt}")) for each in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert not errors
    for table in (SWITCH, ROUTER):
        names = database.nbctl("--bare", "--columns=name", "list", table).split()
        assert len(names) == len(set(names)) == 10


def test_rows_of_others_are_left_alone(database: NorthboundDatabase, connect: Callable[[], NorthboundClient]) -> None:
    """Nothing at all is written then; adopted, the row keeps what it has."""
    database.nbctl("ls-add", "join", "--", "set", SWITCH, "join", "external_ids:by=hand")
    with pytest.raises(NameTaken, match=r"Logical_Switch join .* is not ours; its external_ids: by=hand"):
        write_rows(connect(), RowPlan(DESIRED, "cluster"), soon())
    assert database.nbctl("lr-list") == ""
    write_rows(connect(), RowPlan(DESIRED, "cluster", adopt=True), soon())
    assert "by=hand" in database.nbctl("get", SWITCH, "join", "external_ids")
    assert len(database.nbctl("ls-list").splitlines()) == 1


def test_a_server_with_an_older_schema(authority: Authority) -> None:
    """A column that may be lacking is left out; without one that is needed the remote and the column are named."""
    with TemporaryDirectory(prefix="nb-") as text:
        directory = Path(text)
        schema = json.loads((SCHEMAS / "ovn-nb.ovsschema").read_text())
        for table in (SWITCH, ROUTER):
            del schema["tables"][table]["columns"]["load_balancer_group"]
        del schema["tables"][LOAD_BALANCER_GROUP], schema["cksum"]
        with older(directory, schema, authority) as served:
            client = northbound_client(served.remote("unix"))
            write_rows(client, RowPlan([each for each in DESIRED if each.key != GROUP], "cluster"), soon())
            assert not client.require_session().replica.has(LOAD_BALANCER_GROUP, "name")
            client.close()
            assert "join" in served.nbctl("ls-list")
        del schema["tables"][SWITCH_PORT]["columns"]["port_security"]
        (directory / "nb.db").unlink()
        with older(directory, schema, authority) as served:
            client = northbound_client(served.remote("unix"))
            with pytest.raises(
                Unavailable, match=r"nb\.sock .*its schema lacks column port_security of table Logical_Switch_Port"
            ):
                client.connect(soon())


def older(directory: Path, schema: dict[str, Any], authority: Authority) -> NorthboundDatabase:
    """A database of this schema."""
    (directory / "schema").write_text(json.dumps(schema))
    return NorthboundDatabase(directory, authority, directory / "schema")


def test_commands_of_ovsdbapp(database: NorthboundDatabase, connect: Callable[[], NorthboundClient]) -> None:
    """A block is one transaction, in which a command sees what those before it wrote; results are those of ovsdbapp."""
    api = NorthboundApi(session_of(connect()), seconds=60)
    with api.transaction() as transaction:
        switch = transaction.add(api.ls_add("s1", other_config={"subnet": "10.0.0.0/24"}))
        transaction.add(api.lsp_add("s1", "p1", addresses=["dynamic"], external_ids={"pod": "true"}))
        transaction.add(api.lr_add("r1", static_routes=[]))
        transaction.add(api.lr_route_add("r1", "0.0.0.0/0", "192.0.2.1"))
    assert str(switch.result.uuid) in database.nbctl("ls-list")
    assert [port.name for port in api.lsp_list("s1").execute(check_error=True)] == ["p1"]
    assert api.lookup(SWITCH_PORT, "p1").external_ids == {"pod": "true"}
    assert "192.0.2.1" in database.nbctl("lr-route-list", "r1")
    api.run(api.db_set(SWITCH, "s1", ("other_config", {"exclude_ips": "10.0.0.2"})), api.lsp_del("p1"))
    assert database.nbctl("get", SWITCH, "s1", "other_config") == '{exclude_ips="10.0.0.2", subnet="10.0.0.0/24"}'
    assert database.nbctl("lsp-list", "s1") == ""
    assert api.run(api.ls_del("absent", if_exists=True)) == [None]


def test_a_command_that_fails_writes_nothing(database: NorthboundDatabase, connect: Callable[[], NorthboundClient]) -> None:
    """Nor do those before it in its block; its error is raised in our words, and the session serves the next one."""
    api = NorthboundApi(session_of(connect()), seconds=60)
    with pytest.raises(RowsRefused, match="LsDelCommand: Logical Switch absent does not exist"):
        api.run(api.ls_add("s1"), api.ls_del("absent"))
    assert database.nbctl("ls-list") == ""
    with pytest.raises(RowsRefused, match="static_routes"):
        api.run(api.lr_add("r1"), api.lr_route_add("r1", "0.0.0.0/0", "192.0.2.1"))
    api.run(api.ls_add("s1"))
    assert "s1" in database.nbctl("ls-list")


def test_commands_and_rows_in_one_transaction(database: NorthboundDatabase, connect: Callable[[], NorthboundClient]) -> None:
    """What a person asks for once, beside desired rows; when the one fails or is refused, the other is not there either."""
    session = session_of(connect())
    api = NorthboundApi(session, seconds=60)
    rows = WriteRows(session, RowPlan(DESIRED, "cluster"))
    with pytest.raises(RowsRefused, match="LsDelCommand"):
        session.transact([rows, IdlCommands(session, [api.ls_del("absent")], target="api")], soon())
    assert database.nbctl("ls-list") == ""
    session.transact([rows, IdlCommands(session, [api.ls_add("s1")], target="api")], soon())
    assert len(database.nbctl("ls-list").splitlines()) == 2
    wrong = api.db_create("Load_Balancer", name="b", protocol="icmp")
    with pytest.raises(RefusedCommand, match="constraint violation"):
        session.transact([WriteRows(session, RowPlan([], "cluster")), IdlCommands(session, [wrong], target="api")], soon())
    assert len(database.nbctl("ls-list").splitlines()) == 2


def test_two_apis_are_of_two_databases(
    database: NorthboundDatabase, connect: Callable[[], NorthboundClient], authority: Authority
) -> None:
    """ovsdbapp's own objects would share the first one's connection."""
    with TemporaryDirectory(prefix="nb-") as directory, NorthboundDatabase(Path(directory), authority) as second:
        other: Client[Any] = Client(second.remote("unix"), northbound(), resident=True)
        first_api, other_api = (NorthboundApi(session_of(each), seconds=60) for each in (connect(), other))
        other_api.run(other_api.ls_add("s2"))
        first_api.run(first_api.ls_add("s1"))
        other.close()
        assert "s2" in second.nbctl("ls-list")
        assert "s2" not in database.nbctl("ls-list")


def test_a_port_that_another_pod_had_leaves_its_groups_at_once(
    database: NorthboundDatabase, connect: Callable[[], NorthboundClient]
) -> None:
    """In the transaction that gives it to the next one; groups of others keep it."""
    database.nbctl("ls-add", "n1", "--", "lsp-add", "n1", "default_web")
    database.nbctl("set", "Logical_Switch_Port", "default_web", "options:iface-id-ver=first")
    for name, mark, ports in (
        ("open", "policies open", ["default_web"]),
        ("closed", "policies closed", []),
        ("other", "", ["default_web"]),
    ):
        database.nbctl("pg-add", name, *ports)
        if mark:
            database.nbctl("set", "Port_Group", name, "external_ids:owner=userspace-cni", f'external_ids:scope="{mark}"')

    def members() -> dict[str, bool]:
        names = ("open", "closed", "other")
        return {name: database.nbctl("--bare", "get", "Port_Group", name, "ports").strip() not in ("", "[]") for name in names}

    def write(version: str) -> None:
        change = PortChange("update", "default_web", "n1", {"options": {"iface-id-ver": version}})
        connect().use(
            lambda session: session.transact([WritePorts(session, [change], lambda _: ["closed"])], soon()),
            frozenset(),
            "it",
            soon(),
        )

    write("first")
    assert members() == {"open": True, "closed": True, "other": True}
    write("second")
    assert members() == {"open": False, "closed": True, "other": True}
