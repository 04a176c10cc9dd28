"""A logical port of OVN in the rows of its port, and what is said of one that OVN has not installed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.switch.test_ovs_rows import STEP, row_of
from userspace_cni.attachment.drift import Absent
from userspace_cni.attachment.steps import LogicalPort, OvsPort
from userspace_cni.ovsdb.columns import find_changed_columns
from userspace_cni.switch.ovn_controller import ControllerWord
from userspace_cni.switch.ovn_installation import ChassisLook, find_missing
from userspace_cni.switch.ovsdb.rows.logical_ids import is_installed
from userspace_cni.switch.ovsdb.rows.port_row import desired_port, find_differences, find_written_differences

LOGICAL = LogicalPort("blue_web-0", "uid-1")
PORT = replace(STEP, bridge="br-int", logical=LOGICAL)
SAID = {"ovn-installed": "true", "ovn-installed-ts": "17"}
CHASSIS = {"system-id": "n1", "ovn-remote": "tcp:192.0.2.1:6642"}
ALONE = ChassisLook("br-int", ids=CHASSIS, word=ControllerWord("connected"))


def interface_ids(step: OvsPort) -> dict[str, Any]:
    """What is written into external_ids of the interface."""
    rows = desired_port(step, {}).port
    assert rows
    found: dict[str, Any] = rows.interfaces[0].columns["external_ids"]
    return found


def after(step: OvsPort, found: dict[str, str]) -> dict[str, str]:
    """external_ids of a row that had `found`, when the step was written over it."""
    rows = desired_port(step, {}).port
    assert rows
    row = {"type": "", "external_ids": found}
    columns = {"external_ids": rows.interfaces[0].choose_columns(row)["external_ids"]}
    ids: dict[str, str] = {**row, **find_changed_columns(columns, row)}["external_ids"]
    return ids


def test_what_is_written() -> None:
    """Name and version of the logical port, and what another control plane looks for; a port that is not OVN's has none of it."""
    assert interface_ids(PORT) == {"attached-mac": None, "iface-id": "blue_web-0", "iface-id-ver": "uid-1"}
    theirs = LogicalPort("web-0.blue", ids={"pod_name": "web-0", "ip": "10.0.0.7"})
    assert interface_ids(replace(PORT, logical=theirs)) == {
        "attached-mac": None, "iface-id": "web-0.blue", "iface-id-ver": None, "pod_name": "web-0", "ip": "10.0.0.7"
    }  # fmt: skip
    assert interface_ids(STEP) == {"attached-mac": None}


def test_another_programs_name_stays() -> None:
    """Of a port that is not OVN's for us an iface-id is no change, and is left as it is."""
    row = row_of(STEP)
    row.interface["external_ids"].update({"iface-id": "by-hand", **SAID})
    assert find_written_differences(STEP, row) == []
    assert after(STEP, {"iface-id": "by-hand", **SAID}) == {"iface-id": "by-hand", **SAID}


@pytest.mark.parametrize(
    "former", [{"iface-id": "other", "iface-id-ver": "uid-1"}, {"iface-id": "blue_web-0", "iface-id-ver": "uid-0"}, {}]
)
def test_what_ovn_said_of_another_binding_goes_with_it(former: dict[str, str]) -> None:
    """With another name or version ovn-controller's word is not of this port: it goes in the transaction that changes them."""
    assert after(PORT, {**former, **SAID}) == {"iface-id": "blue_web-0", "iface-id-ver": "uid-1"}


def test_what_ovn_said_of_this_binding_stays() -> None:
    """Writing the same once more takes nothing from the port."""
    same = {"iface-id": "blue_web-0", "iface-id-ver": "uid-1", **SAID}
    assert after(PORT, same) == same
    unversioned = replace(PORT, logical=LogicalPort("blue_web-0"))
    assert after(unversioned, {"iface-id": "blue_web-0", **SAID}) == {"iface-id": "blue_web-0", **SAID}


def test_check_compares_name_version_and_word() -> None:
    """CHECK reports each; of a port that does not wait for OVN no word is missed."""
    row = row_of(PORT)
    [lacking] = find_differences(PORT, row)
    assert (lacking.field, lacking.expected, lacking.found) == ("external_ids:ovn-installed", "true", Absent())
    assert "ovn-controller writes it" in lacking.details
    row.interface["external_ids"].update(SAID)
    assert find_differences(PORT, row) == []
    row.interface["external_ids"]["iface-id"] = "other"
    assert [each.field for each in find_differences(PORT, row)] == ["external_ids:iface-id", "external_ids:ovn-installed"]
    quick = replace(PORT, logical=replace(LOGICAL, waits=False))
    assert find_differences(quick, row_of(quick)) == []


def test_a_word_counts_for_its_own_port() -> None:
    """ovn-installed of a row with another iface-id is another port's."""
    assert is_installed(LOGICAL, {"iface-id": "blue_web-0", **SAID})
    assert not is_installed(LOGICAL, {"iface-id": "other", **SAID})
    assert not is_installed(LOGICAL, {"iface-id": "blue_web-0", "ovn-installed": "false"})


def test_ovns_bridge_is_never_made() -> None:
    """The rows of a logical port ask for a bridge that is there, and say whose it is."""
    bridge = desired_port(PORT, {}).bridge
    assert bridge.missing
    assert "bridge br-int, OVN's integration bridge, is not there: ovn-controller makes it" in bridge.missing[0]
    assert "br-int" not in desired_port(PORT, {}).new_names


@pytest.mark.parametrize(
    ("look", "words"),
    [
        (ALONE, ["chassis n1 knows no such logical port for this interface: it is not made, or its options:iface-id-ver"]),
        (replace(ALONE, is_there=False), ["bridge br-int, OVN's integration bridge, is not there", "knows no such"]),
        (
            replace(ALONE, ids={}, word=ControllerWord(silence="there is no control socket")),
            ["external_ids:system-id", "external_ids:ovn-remote", "ovn-controller does not answer: there is no control socket"],
        ),
        (
            replace(ALONE, word=ControllerWord("not connected")),
            ["ovn-controller says of the southbound database tcp:192.0.2.1:6642: not connected"],
        ),
        (
            replace(ALONE, word=ControllerWord("connected", knows_port=True)),
            ["chassis n1 knows the logical port, but its options:requested-chassis names another one"],
        ),
        (replace(ALONE, others=("port a", "port b")), ["port a, port b on this node has the logical port, too", "knows no such"]),
        (replace(ALONE, ids=CHASSIS | {"ovn-bridge": "br-x"}), ["integration bridge is br-x", "knows no such"]),
        (replace(ALONE, bridge="br-x", ids=CHASSIS | {"ovn-bridge-n1": "br-x", "ovn-bridge": "br-y"}), ["knows no such"]),
        (replace(ALONE, bridge="br-x"), ["integration bridge is br-int", "knows no such"]),
    ],
)  # fmt: skip
def test_what_was_missing(look: ChassisLook, words: list[str]) -> None:
    """Each thing that the node shows as missing is named, and nothing else."""
    found = list(find_missing(LOGICAL, look))
    assert [word in each.message for word, each in zip(words, found, strict=True)] == [True] * len(found)
    assert all(each.remedy for each in found)


def test_a_port_without_a_version() -> None:
    """Where the UID was not known, that is said: OVN may want one."""
    [found] = find_missing(LogicalPort("blue_web-0"), ALONE)
    assert "no iface-id-ver, as the UID is not known" in found.message
    [found] = find_missing(LOGICAL, ALONE)
    assert "iface-id-ver uid-1" in found.message
