"""Which changes of OVSDB's rows are reported: possible losses, but neither new rows nor what ovs-vswitchd writes."""

from __future__ import annotations

from typing import Any

import pytest

from userspace_cni.switch.ovsdb.changes import read_changes

OURS = {"owner": "userspace-cni", "container-id": "c0ffee", "ifname": "net1"}
ROW = {"name": "p", "external_ids": OURS, "ofport": [3], "error": []}
CLOSED = {"ofport": [-1], "error": ["could not open network device"]}


def told(table: str, event: str, row: dict[str, Any], **former: Any) -> list[Any]:
    """The reports for a row that was that before and is this now."""
    return list(read_changes(table, event, row.__getitem__, former.keys(), former.__getitem__))


@pytest.mark.parametrize("table", ["Port", "Interface", "QoS", "Queue", "Mirror"])
def test_rows_of_a_port(table: str) -> None:
    """A deleted or changed row is reported by its marks, a new one is not."""
    assert told(table, "delete", ROW) == told(table, "update", ROW, type="") == [("", OURS)]
    assert told(table, "create", ROW) == []


def test_marks_that_were_taken_off() -> None:
    """A row that has lost its marks is reported by its former ones; one that never had any is not."""
    assert told("Port", "update", {**ROW, "external_ids": {}}, external_ids=OURS) == [("", OURS)]
    assert told("Port", "delete", {**ROW, "external_ids": {}}) == []


def test_what_ovs_vswitchd_writes() -> None:
    """An interface that was opened, its MTU and its peer are no loss; one that could not be opened is."""
    for column, value in {"ofport": [], "mtu": [], "link_state": ["up"], "status": {}, "error": ["failed"]}.items():
        assert told("Interface", "update", ROW, **{column: value}) == []
    opened: dict[str, Any] = {each: [] for each in ("ofport", "admin_state", "ifindex", "mac_in_use", "mtu", "link_state")}
    assert told("Interface", "update", ROW, **opened) == []  # all of it in one message, after each ADD
    for column, former in {"admin_state": ["up"], "ifindex": [7], "mac_in_use": ["02:00:00:00:00:01"]}.items():
        assert told("Interface", "update", ROW, **{column: former}) == [("", OURS)]
    for column, closed in CLOSED.items():
        assert told("Interface", "update", {**ROW, column: closed}, **{column: ROW[column]}) == [("", OURS)]
    assert told("Interface", "update", {**ROW, "ofport": []}, ofport=[3]) == []
    assert told("Interface", "update", {**ROW, **CLOSED}, link_state=["up"]) == []


def test_bridges() -> None:
    """A bridge that is new, deleted or changed is reported by its name; changes of its ports or mirrors are not."""
    bridge = {"name": "br0", "external_ids": {}}
    assert told("Bridge", "create", bridge) == told("Bridge", "delete", bridge) == [("br0", {})]
    assert told("Bridge", "update", bridge, ports=[], datapath_type="") == [("br0", {})]
    assert told("Bridge", "update", bridge, ports=[], mirrors=[]) == []


def test_other_tables() -> None:
    """The switch's own row changes with each transaction."""
    assert told("Open_vSwitch", "update", {}, cur_cfg=3) == []
