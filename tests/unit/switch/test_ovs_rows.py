"""Ports as columns of OVSDB, and their differences from steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from userspace_cni.attachment.drift import Absent, Drift, Value
from userspace_cni.attachment.steps import OvsPort, VhostUserClient, VhostUserServer
from userspace_cni.base.limits import Limits, Rate
from userspace_cni.base.mirrors import MirrorSource
from userspace_cni.base.vlans import Vlan
from userspace_cni.ovsdb import columns
from userspace_cni.switch.ovsdb.rows import marks, port_row
from userspace_cni.switch.ovsdb.rows.port_row import PortRow

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
STEP = OvsPort(
    bridge="br0",
    name="0123456789ab-net1",
    interface=VhostUserClient("/run/pod/net1"),
    marks={"container-id": "0123456789abcdef", "network": "n", "ifname": "net1", "store": "s1"},
)


def row_of(step: OvsPort, store: str = "s1", **interface: Any) -> PortRow:
    """The row as OVSDB would show it when ovs-vswitchd has opened the interface."""
    written = marks.marks_of(step, store)
    state: dict[str, Any] = {"ofport": [1], "error": [], "mtu": [0]}
    made = columns.make_columns(port_row.interface_columns(step, written))
    return PortRow(step.bridge, port_row.port_columns(step, written), made | state | interface)


def differing(field: str, expected: Value, found: Value, look: str = f"ovs-vsctl list Interface {STEP.name}") -> Drift:
    """A drift of STEP's port as `check` joins it; `look`: the command that shows what was found."""
    return Drift(f"port {STEP.name}", field, expected, found, look, joint=", ")


LIST_PORT = f"ovs-vsctl list Port {STEP.name}"
"""Shows what a port's row of table Port has: VLANs, marks, specs of mirrors."""


@st.composite
def steps(draw: st.DrawFn) -> OvsPort:
    mtu = draw(st.none() | st.integers(68, 65535))
    path = draw(TEXT)
    return OvsPort(
        bridge=draw(TEXT),
        name=draw(TEXT),
        interface=VhostUserClient(path, mtu) if path else VhostUserServer(mtu),
        vlan=Vlan(
            tag=draw(st.none() | st.integers(0, 4095)),
            trunks=tuple(sorted(draw(st.sets(st.integers(0, 4095), max_size=5)))),
            mode=draw(st.sampled_from(["", "access", "trunk", "native-tagged", "native-untagged", "dot1q-tunnel"])),
        ),
        mac=draw(st.sampled_from(["", "02:00:00:00:00:01"])),
        marks=draw(st.dictionaries(st.sampled_from(marks.MARKS), TEXT)),
    )


@given(steps(), TEXT)
def test_a_row_says_by_what_its_port_is_deleted(step: OvsPort, store: str) -> None:
    """The reference that is read from a row is that of the step, with its marks completed."""
    assert port_row.ref_of(row_of(step, store)) == replace(step.ref, marks=marks.marks_of(step, store))


@given(steps(), TEXT)
def test_what_was_written_differs_in_nothing(step: OvsPort, store: str) -> None:
    """CHECK finds no difference in unchanged rows."""
    wanted = replace(step, marks={key: value for key, value in step.marks.items() if key != "owner"})
    assert port_row.find_differences(wanted, row_of(wanted, store)) == []


@given(steps(), steps())
def test_columns_are_brought_up_to_date(old: OvsPort, new: OvsPort) -> None:
    """Writing the changed columns over the old ones shows the new step; keys that are not ours stay."""
    found = columns.make_columns(port_row.interface_columns(old, marks.marks_of(old, "s")))
    found["external_ids"]["iface-id"] = "lsp"
    wanted = port_row.interface_columns(new, marks.marks_of(new, "s"))
    after = found | columns.find_changed_columns(wanted, found)
    assert after["external_ids"]["iface-id"] == "lsp"
    assert {key: value for key, value in wanted["external_ids"].items() if value}.items() <= after["external_ids"].items()
    assert after["options"] == columns.make_columns(wanted)["options"]
    assert {key: after[key] for key in ("name", "type", "mtu_request")} == {
        key: wanted[key] for key in ("name", "type", "mtu_request")
    }
    assert columns.find_changed_columns(wanted, after) == {}


def test_no_queue_count_is_written() -> None:
    """OVS takes the number of queues from the peer: n_rxq must not be set on vhost-user ports."""
    assert set(port_row.interface_columns(STEP, {})["options"]) == {"vhost-server-path"}


@pytest.mark.parametrize(
    ("changes", "field", "expected", "found"),
    [
        ({"vlan": Vlan(1)}, "tag", 1, Absent()),
        ({"vlan": Vlan(0)}, "tag", 0, Absent()),
        ({"vlan": Vlan(None, (2, 1))}, "trunks", (1, 2), Absent()),
        ({"vlan": Vlan(mode="access")}, "vlan_mode", "access", Absent()),
        ({"interface": VhostUserClient("/run/pod/net1", 9000)}, "mtu_request", 9000, Absent()),
        ({"mac": "02:00:00:00:00:01"}, "external_ids:attached-mac", "02:00:00:00:00:01", Absent()),
        ({"bridge": "br1"}, "bridge", "br1", "br0"),
        ({"interface": VhostUserClient("/else")}, "options:vhost-server-path", "/else", "/run/pod/net1"),
    ],
)
def test_each_difference_has_expected_and_found(changes: dict[str, Any], field: str, expected: Value, found: Value) -> None:
    """One Drift per property that is not as the step says."""
    drifts = port_row.find_differences(replace(STEP, **changes), row_of(STEP))
    of_port = field in ("tag", "trunks", "vlan_mode")
    look = f"ovs-vsctl list {'Port' if of_port else 'Interface'} {STEP.name}"
    if of_port or field == "mtu_request":
        value = ",".join(map(str, expected)) if isinstance(expected, tuple) else expected
        look += f"; a running agent puts it back, as ovs-vsctl set{look.removeprefix('ovs-vsctl list')} {field}={value} does"
    if field == "bridge":
        look = f"ovs-vsctl port-to-br {STEP.name}"
    assert drifts == [differing(field, expected, found, look)]


@pytest.mark.parametrize(
    ("changes", "field", "look"),
    [
        ({"limits": Limits(to_pod=Rate(1_000_000, 10_000))}, "qos", f"{LIST_PORT}; ovs-vsctl list QoS"),
        ({"mirrors": (MirrorSource("tap"),)}, "frames for mirror tap", LIST_PORT),
        ({"mirror_outputs": ("tap",)}, "output of mirror", f"ovs-vsctl list Mirror; ovs-vsctl get Port {STEP.name} _uuid"),
    ],
)
def test_limits_and_mirrors_are_looked_for_in_their_own_tables(changes: dict[str, Any], field: str, look: str) -> None:
    """None of them is in the port's row of table Interface."""
    [drift] = port_row.find_differences(replace(STEP, **changes), row_of(STEP))
    assert (drift.field, drift.details) == (field, look)


def test_another_kind_of_port_differs_in_all_that_makes_it() -> None:
    """A server port's step and a client port's row differ in type and path."""
    assert port_row.find_differences(replace(STEP, interface=VhostUserServer()), row_of(STEP)) == [
        differing("Interface.type", "dpdkvhostuser", "dpdkvhostuserclient"),
        differing("options:vhost-server-path", Absent(), "/run/pod/net1"),
    ]


@pytest.mark.parametrize(("mark", "other", "own"), [("network", "m", "n"), ("store", "s2", "s1")])
def test_marks_are_compared_in_both_rows(mark: str, other: str, own: str) -> None:
    """A mark that is not as the step says is a Drift in the Port row and one in the Interface row."""
    drifts = port_row.find_differences(replace(STEP, marks={**STEP.marks, mark: other}), row_of(STEP))
    marked = f"external_ids:{mark}"
    assert drifts == [differing(f"Port {marked}", other, own, LIST_PORT), differing(f"Interface {marked}", other, own)]


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
    step = replace(STEP, interface=VhostUserClient("/run/pod/net1", 9000))
    drifts = port_row.find_differences(step, row_of(step, **state))
    assert drifts == [differing(field, expected, found)]


def test_what_opens_a_socket_that_ovs_failed_to_make() -> None:
    """The difference of a closed server-mode port says what an administrator has to do."""
    server = replace(STEP, interface=VhostUserServer())
    closed: dict[str, Any] = {"ofport": [-1], "error": ["could not open"]}
    assert "after a restart" in port_row.find_differences(server, row_of(server, **closed))[0].details
    assert "after a restart" not in port_row.find_differences(STEP, row_of(STEP, **closed))[0].details


def test_a_peer_that_is_not_connected_is_no_difference() -> None:
    """ovs-vswitchd shows MTU 0 until the peer of a vhost-user port has come."""
    step = replace(STEP, interface=VhostUserClient("/run/pod/net1", 9000))
    assert port_row.find_differences(step, row_of(step, mtu=[0])) == []


def test_a_missing_port_is_one_difference() -> None:
    """No row: one Drift that says so, instead of one for each column."""
    assert port_row.find_differences(STEP, None) == [
        Drift(f"port {STEP.name}", "", "a port on bridge br0", Absent("none"), "ovs-vsctl list-ports br0")
    ]


@pytest.mark.parametrize("key", ["owner", "container-id", "network", "ifname"])
def test_whose_port_it_is_needs_every_mark(key: str) -> None:
    """One identity mark that differs or is missing makes the port another owner's; other marks do not matter."""
    row = marks.marks_of(STEP, "s1")
    for step in (STEP, STEP.ref):
        assert marks.owns(step.marks, {**row, "boot-id": "other", "pod-uid": "u"})
        assert not marks.owns(step.marks, {**row, key: "other"})
        assert not marks.owns(step.marks, {name: value for name, value in row.items() if name != key})


def test_a_store_differs_only_when_both_are_known() -> None:
    """A row of another store is not ours; rows and steps without the mark are taken for ours."""
    row = marks.marks_of(STEP, "s1")
    without = {key: value for key, value in STEP.marks.items() if key != "store"}
    assert not marks.owns(STEP.marks, {**row, "store": "s2"})
    assert marks.owns(STEP.marks, {key: value for key, value in row.items() if key != "store"})
    assert marks.owns(without, {**row, "store": "s2"})


def test_messages_name_the_owner() -> None:
    """The owner of a row, in words."""
    assert marks.describe_owner({}) == "an owner that does not mark its rows"
    assert marks.describe_owner({"owner": "neutron"}) == "owner 'neutron'"
    assert marks.describe_owner({"owner": "userspace-cni", "container-id": "c"}) == "userspace-cni: container-id c"
