"""Rows of every kind of step: Put makes them, Delete removes them, and one rule decides whose they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.lab.switch.switch import Switch
from tests.ovs.conftest import STORE, soon
from userspace_cni.attachment.steps import (
    Internal,
    MirrorOutput,
    NodeBridge,
    OvsPort,
    UplinkInterface,
    UplinkPort,
    node_marks,
    owner_marks,
)
from userspace_cni.base.errors import NameTaken
from userspace_cni.base.limits import Limits, Rate
from userspace_cni.ovsdb.client import Session
from userspace_cni.switch.ovsdb.delete import Delete
from userspace_cni.switch.ovsdb.put import Put
from userspace_cni.switch.ovsdb.rows.bridge_row import desired_node_bridge
from userspace_cni.switch.ovsdb.rows.desired import DesiredRows, MarkedRows
from userspace_cni.switch.ovsdb.rows.marks import marks_of
from userspace_cni.switch.ovsdb.rows.mirror_row import desired_mirror
from userspace_cni.switch.ovsdb.rows.port_row import desired_port, marked_port
from userspace_cni.switch.ovsdb.rows.uplink_row import desired_uplink
from userspace_cni.switch.ovsdb.switch_database import SwitchSession, open_vswitch

MakePort = Callable[..., OvsPort]
MARKS = node_marks("provider-network", "net1", STORE)
MIRROR = MirrorOutput("br-admin", "monitor", "all", shows="*", marks=node_marks("mirror", "all", STORE))
BRIDGE = NodeBridge("br-net1", mac="02:00:00:00:00:01", mtu=1400, marks=MARKS)
UPLINK = UplinkPort("br-net1", "null", (UplinkInterface("null", "dpdk", "net_null0"),), trunks=(5,), marks=MARKS)
RATE = Rate(10_000_000, 1_000_000)
WRITTEN = (
    *(
        "_uuid",
        "name",
        "external_ids",
        "other_config",
        "ports",
        "mirrors",
        "interfaces",
        "tag",
        "trunks",
        "qos",
        "queues",
        "type",
    ),
    *("options", "mtu_request", "ingress_policing_rate", "output_port", "select_all", "select_src_port"),
)
KINDS = ("port", "bridge", "uplink", "mirror")


def rows_of(kind: str, step: OvsPort) -> tuple[DesiredRows, MarkedRows]:
    """The rows that a step of this kind desires, with their companions. `step`: the port."""
    if kind == "port":
        limited = replace(step, limits=Limits(to_pod=RATE, from_pod=RATE), mirror_outputs=("m",))
        return desired_port(limited, marks_of(limited, STORE)), marked_port(limited.ref)
    if kind == "bridge":
        return desired_node_bridge(BRIDGE, MARKS), MarkedRows(MARKS, bridge=BRIDGE.name, own=True)
    if kind == "uplink":
        return desired_uplink(UPLINK, MARKS, {}), MarkedRows(MARKS, UPLINK.name, UPLINK.bridge)
    return desired_mirror(MIRROR, dict(MIRROR.marks)), MarkedRows(MIRROR.marks, bridge=MIRROR.bridge)


@pytest.fixture
def session(switch: Switch) -> Iterator[SwitchSession]:
    """A session with a switch that has an administrator's bridge with a port."""
    switch.vsctl("add-br", "br-admin", "--", "set", "Bridge", "br-admin", "datapath_type=netdev")
    switch.vsctl("add-port", "br-admin", "monitor", "--", "set", "Interface", "monitor", "type=internal")
    opened = Session(switch.ovsdb, open_vswitch(), frozenset(), soon())
    yield opened
    opened.close()


def put(session: SwitchSession, rows: DesiredRows) -> Put:
    """Put the rows; their names are free."""
    command = Put(session, rows, held=frozenset(rows.new_names))
    session.transact([command], soon())
    return command


def delete(session: SwitchSession, rows: MarkedRows) -> Delete:
    """Delete the rows."""
    command = Delete(session, rows)
    session.transact([command], soon())
    return command


def written(switch: Switch) -> dict[str, list[dict[str, Any]]]:
    """All that programs other than ovs-vswitchd have written, with the rows' UUIDs."""
    tables = ("Bridge", "Port", "Interface", "QoS", "Queue", "Mirror")
    shown = {table: [{key: row[key] for key in WRITTEN if key in row} for row in switch.rows(table)] for table in tables}
    return {table: sorted(rows, key=str) for table, rows in shown.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_put_once_and_deleted_by_their_marks(switch: Switch, session: SwitchSession, port: MakePort, kind: str) -> None:
    """The second Put changes nothing.

    A Delete with other marks leaves every row, and one with the same marks restores the former state.
    """
    if kind == "uplink":
        put(session, desired_node_bridge(BRIDGE, MARKS))
    before = written(switch)
    desired, marked = rows_of(kind, port())
    put(session, desired)
    there = written(switch)
    assert there != before
    assert not put(session, desired).stale
    assert written(switch) == there
    for other in (owner_marks("0" * 64, "n", "i"), node_marks("provider-network", "net2", STORE), MARKS | {"store": "another"}):
        done = delete(session, replace(marked, marks=other))
        assert bool(done.left_alone) == (kind != "mirror")
        assert written(switch) == there
    delete(session, marked)
    assert written(switch) == before


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_another_owner_are_refused_as_they_are(switch: Switch, session: SwitchSession, port: MakePort, kind: str) -> None:
    """A row of any kind is changed only for the owner in its marks, and for no other store."""
    if kind == "uplink":
        put(session, desired_node_bridge(BRIDGE, MARKS))
    desired, _ = rows_of(kind, port())
    put(session, desired)
    there = written(switch)
    with pytest.raises(NameTaken, match=r"belongs to userspace-cni: .*store store-of-the-test"):
        put(session, replace(desired, marks={**desired.marks, "store": "another"}))
    assert written(switch) == there


def test_what_others_have_done_to_the_interfaces_of_a_port_is_undone(
    switch: Switch, session: SwitchSession, port: MakePort
) -> None:
    """A port has exactly its step's interfaces: an added one is removed, and a removed one comes back."""
    desired = desired_port(port(), marks_of(port(), STORE))
    put(session, desired)
    create = ["--", "--id=@other", "create", "Interface", "name=other", "type=internal"]
    switch.vsctl("--no-wait", *create, "--", "set", "Port", port().name, "interfaces=@other")
    put(session, desired)
    assert switch.vsctl("list-ifaces", port().bridge).split() == [port().name]


def test_limits_of_another_installation_stay(switch: Switch, session: SwitchSession) -> None:
    """Rows of QoS and Queue are deleted for the store that their marks name, also where both have a spec of that name."""
    mine, theirs = (
        OvsPort(
            "br-admin",
            f"gw{number}",
            Internal(),
            marks=node_marks("gateway", "gw", store),
            foreign_bridge=True,
            limits=Limits(to_pod=RATE),
        )
        for number, store in enumerate((STORE, "another"))
    )
    put(session, desired_port(theirs, theirs.marks))
    before = written(switch)
    put(session, desired_port(mine, mine.marks))
    put(session, desired_port(replace(mine, limits=Limits()), mine.marks))
    assert (written(switch)["QoS"], written(switch)["Queue"]) == (before["QoS"], before["Queue"])
    put(session, desired_port(mine, mine.marks))
    delete(session, marked_port(mine.ref))
    assert written(switch) == before


def test_no_name_is_written_that_was_not_taken(switch: Switch, session: SwitchSession) -> None:
    """A bridge of the node's, too, is made only by a call that has reserved its
    name, whatever the call saw before the transaction.
    """
    command = Put(session, desired_node_bridge(BRIDGE, MARKS))
    session.transact([command], soon())
    assert command.unheld == {BRIDGE.name}
    assert BRIDGE.name not in switch.bridges()
