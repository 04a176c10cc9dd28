"""Port steps as columns of OVSDB, and back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from userspace_cni.attachment.drift import Absent, Drift, Value
from userspace_cni.attachment.steps import Port
from userspace_cni.dataplane.ovsdb.rows import port as rows
from userspace_cni.dataplane.ovsdb.rows.port import PortRow

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
STEP = Port(
    bridge="br0",
    name="0123456789ab-net1",
    interface_type="dpdkvhostuserclient",
    server_path="/run/pod/net1",
    marks={"container-id": "0123456789abcdef", "network": "n", "ifname": "net1", "store": "s1"},
)


def row_of(step: Port, store: str = "s1", **interface: Any) -> PortRow:
    """The row as OVSDB would show it when ovs-vswitchd has opened the interface."""
    marks = rows.marks_of(step, store)
    state: dict[str, Any] = {"ofport": [1], "error": [], "mtu": [0]}
    columns = rows.interface_columns(step, marks)
    return PortRow(step.bridge, rows.port_columns(step, marks), columns | state | interface)


def differing(field: str, expected: Value, found: Value) -> Drift:
    """A drift of STEP's port as `check` joins and explains it."""
    return Drift(f"port {STEP.name}", field, expected, found, f"ovs-vsctl list Interface {STEP.name}", joint=", ")


@st.composite
def steps(draw: st.DrawFn) -> Port:
    """Any step that can be written."""
    client = draw(st.booleans())
    return Port(
        bridge=draw(TEXT),
        name=draw(TEXT),
        interface_type="dpdkvhostuserclient" if client else "dpdkvhostuser",
        server_path=draw(TEXT) if client else "",
        tag=draw(st.none() | st.integers(0, 4095)),
        trunks=tuple(sorted(draw(st.sets(st.integers(0, 4095), max_size=5)))),
        vlan_mode=draw(st.sampled_from(["", "access", "trunk", "native-tagged", "native-untagged", "dot1q-tunnel"])),
        mtu=draw(st.none() | st.integers(68, 65535)),
        mac=draw(st.sampled_from(["", "02:00:00:00:00:01"])),
        marks=draw(st.dictionaries(st.sampled_from(rows.MARKS), TEXT)),
    )


@given(steps(), TEXT)
def test_a_step_survives_the_way_to_ovsdb_and_back(step: Port, store: str) -> None:
    """The step rebuilt from its row is the step, with its marks completed."""
    assert rows.port_from_row(row_of(step, store)) == replace(step, marks=rows.marks_of(step, store))


@given(steps(), TEXT)
def test_what_was_written_differs_in_nothing(step: Port, store: str) -> None:
    """CHECK finds no difference in rows that are as they were made."""
    wanted = replace(step, marks={key: value for key, value in step.marks.items() if key != "owner"})
    assert rows.differences(wanted, row_of(wanted, store)) == []


@given(steps(), steps())
def test_columns_are_brought_up_to_date(old: Port, new: Port) -> None:
    """Writing the changed columns over the old ones shows the new step; keys that are not ours stay."""
    found = rows.interface_columns(old, rows.marks_of(old, "s"))
    found["external_ids"]["iface-id"] = "lsp"
    wanted = rows.interface_columns(new, rows.marks_of(new, "s"))
    after = found | rows.changed_columns(wanted, found)
    assert after["external_ids"]["iface-id"] == "lsp"
    assert wanted["external_ids"].items() <= after["external_ids"].items()
    assert {key: after[key] for key in ("name", "type", "mtu_request")} == {
        key: wanted[key] for key in ("name", "type", "mtu_request")
    }
    assert rows.changed_columns(wanted, after) == {}


def test_no_queue_count_is_written() -> None:
    """OVS takes the number of queues from the peer: n_rxq must not be set on vhost-user ports."""
    assert set(rows.interface_columns(STEP, {})["options"]) == {"vhost-server-path"}


@pytest.mark.parametrize(
    ("changes", "field", "expected", "found"),
    [
        ({"tag": 1}, "tag", 1, Absent()),
        ({"tag": 0}, "tag", 0, Absent()),
        ({"trunks": (2, 1)}, "trunks", (1, 2), Absent()),
        ({"vlan_mode": "access"}, "vlan_mode", "access", Absent()),
        ({"mtu": 9000}, "mtu_request", 9000, Absent()),
        ({"mac": "02:00:00:00:00:01"}, "external_ids:attached-mac", "02:00:00:00:00:01", Absent()),
        ({"bridge": "br1"}, "bridge", "br1", "br0"),
        ({"server_path": "/else"}, "options:vhost-server-path", "/else", "/run/pod/net1"),
        ({"interface_type": "dpdkvhostuser"}, "Interface.type", "dpdkvhostuser", "dpdkvhostuserclient"),
    ],
)
def test_each_difference_has_expected_and_found(changes: dict[str, Any], field: str, expected: Value, found: Value) -> None:
    """One Drift per property that is not as the step says."""
    drifts = rows.differences(replace(STEP, **changes), row_of(STEP))
    assert drifts == [differing(field, expected, found)]


@pytest.mark.parametrize(("mark", "other", "own"), [("network", "m", "n"), ("store", "s2", "s1")])
def test_marks_are_compared_in_both_rows(mark: str, other: str, own: str) -> None:
    """A mark that is not as the step says is a Drift in the Port row and one in the Interface row."""
    drifts = rows.differences(replace(STEP, marks={**STEP.marks, mark: other}), row_of(STEP))
    assert drifts == [differing(f"{table} external_ids:{mark}", other, own) for table in ("Port", "Interface")]


@pytest.mark.parametrize(
    ("state", "field", "expected", "found"),
    [
        ({"ofport": []}, "state", "an open interface", "not opened by ovs-vswitchd"),
        ({"ofport": [-1], "error": ["could not open"]}, "state", "an open interface", "could not open"),
        ({"mtu": [1500]}, "MTU", 9000, 1500),
    ],
)
def test_the_state_that_ovs_reports_counts(state: dict[str, Any], field: str, expected: Value, found: Value) -> None:
    """An interface that is not open, and an MTU that the peer did not get, are differences."""
    step = replace(STEP, mtu=9000)
    drifts = rows.differences(step, row_of(step, **state))
    assert drifts == [differing(field, expected, found)]


def test_what_opens_a_socket_that_ovs_failed_to_make() -> None:
    """Of a closed server-mode port only an administrator can do something, and the difference says what."""
    server = replace(STEP, interface_type="dpdkvhostuser", server_path="")
    closed: dict[str, Any] = {"ofport": [-1], "error": ["could not open"]}
    assert "after a restart" in rows.differences(server, row_of(server, **closed))[0].details
    assert "after a restart" not in rows.differences(STEP, row_of(STEP, **closed))[0].details


def test_a_peer_that_is_not_connected_is_no_difference() -> None:
    """ovs-vswitchd shows MTU 0 until the peer of a vhost-user port has come."""
    step = replace(STEP, mtu=9000)
    assert rows.differences(step, row_of(step, mtu=[0])) == []


def test_a_missing_port_is_one_difference() -> None:
    """No row: one Drift that says so, instead of one for each column."""
    assert rows.differences(STEP, None) == [differing("", "a port on bridge br0", Absent("none"))]


def test_a_legacy_port_has_no_marks_to_compare() -> None:
    """Rows of the plugin that we replace are compared without marks."""
    legacy = replace(STEP, marks={}, legacy=True)
    bare = row_of(STEP)
    bare = PortRow(bare.bridge, {**bare.port, "external_ids": {}}, {**bare.interface, "external_ids": {}})
    assert rows.differences(legacy, bare) == []


@pytest.mark.parametrize("key", ["owner", "container-id", "network", "ifname"])
def test_whose_port_it_is_needs_every_mark(key: str) -> None:
    """One mark that differs or is missing makes it somebody else's; other marks do not matter."""
    marks = rows.marks_of(STEP, "s1")
    assert rows.same_attachment(STEP, {**marks, "boot-id": "other", "pod-uid": "u"})
    assert not rows.same_attachment(STEP, {**marks, key: "other"})
    assert not rows.same_attachment(STEP, {name: value for name, value in marks.items() if name != key})


def test_a_store_differs_only_when_both_are_known() -> None:
    """Rows and steps without the mark are taken for ours."""
    assert rows.other_store(STEP, {"store": "s2"})
    assert not rows.other_store(STEP, {"store": "s1"})
    assert not rows.other_store(STEP, {})
    assert not rows.other_store(replace(STEP, marks={}), {"store": "s2"})


def test_messages_name_the_owner() -> None:
    """Whose row it is, in words."""
    assert rows.whose({}) == "nobody that marks its rows"
    assert rows.whose({"owner": "neutron"}) == "owner 'neutron'"
    assert rows.whose({"owner": "userspace-cni", "container-id": "c"}) == "userspace-cni: container-id c"
