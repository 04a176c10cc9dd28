"""What the switch has of a port instead of what its record says: which values, in which table, and what to do."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

from userspace_cni.attachment.port_now import (
    DropCauses,
    PortNow,
    change_finding,
    count_frames,
    find_changes,
    read_causes,
)
from userspace_cni.attachment.steps import OvsPort, PortTerms, VhostUserClient
from userspace_cni.base.limits import UNLIMITED, Limits, Rate
from userspace_cni.base.vlans import Vlan

LIMITS = Limits(Rate(10_000_000, 1_000_000), Rate(5_000_000, 500_000))
PORT = OvsPort("br0", "p", VhostUserClient("/run/s", 9000), Vlan(100, (1, 2), "native-tagged"), limits=LIMITS)
SAME = PortNow(PORT.vlan, 9000, 9000, LIMITS, "egress-policer")
PUT_BACK = "a running agent puts it back, and so does userspace-cni gc; by hand: ovs-vsctl "


def test_what_is_as_the_record_says_is_no_change() -> None:
    """Nor is what ovs-vswitchd has not said yet."""
    assert find_changes(PORT, SAME) == []
    assert find_changes(PORT, replace(SAME, mtu=0)) == []
    assert find_changes(PORT, replace(SAME, vlan=replace(PORT.vlan, trunks=(2, 1)))) == []


@pytest.mark.parametrize(
    ("now", "place", "expected", "found", "remedy"),
    [
        (replace(SAME, vlan=replace(PORT.vlan, tag=200)), "Port.tag", "100", "200", f"{PUT_BACK}set Port p tag=100"),
        (replace(SAME, vlan=replace(PORT.vlan, tag=None)), "Port.tag", "100", "none", f"{PUT_BACK}set Port p tag=100"),
        (
            replace(SAME, vlan=replace(PORT.vlan, trunks=(1,))),
            "Port.trunks",
            "1, 2",
            "1",
            f"{PUT_BACK}set Port p trunks=1,2",
        ),
        (
            replace(SAME, vlan=replace(PORT.vlan, mode="")),
            "Port.vlan_mode",
            "native-tagged",
            "none",
            f"{PUT_BACK}set Port p vlan_mode=native-tagged",
        ),
        (
            replace(SAME, mtu_request=1500, mtu=1500),
            "Interface.mtu_request",
            "9000",
            "1500",
            f"{PUT_BACK}set Interface p mtu_request=9000",
        ),
    ],
)
def test_a_change_names_the_column_and_the_command(now: PortNow, place: str, expected: str, found: str, remedy: str) -> None:
    """The finding has both values, the table that has the column, and the command that sets it back."""
    [change] = find_changes(PORT, now)
    told = change_finding(change, "default/web/net1")
    assert (told.name, told.severity, told.subject) == ("port-changed", "error", "default/web/net1")
    assert (told.path, told.expected, told.found) == (f"{place} of port p", expected, found)
    assert told.remedy == remedy
    assert told.message.startswith("port p: the record has ")
    assert told.message.endswith(f" {expected}, the switch has {found}")


def test_a_ports_name_is_one_word_of_a_command() -> None:
    """A pod's annotation names its interface, and so a part of its port: a person may paste the command into a shell."""
    port = replace(PORT, name="c0ffee-$(reboot);a")
    now = PortNow(Vlan(200), 1500, 1500, UNLIMITED)
    changes = [*find_changes(port, now), *find_changes(replace(port, limits=UNLIMITED), replace(SAME, mtu=0))]
    told = [change_finding(each, "a").remedy for each in changes]
    commands = [each.partition("ovs-vsctl ")[2] for each in told]
    assert len(commands) >= 8
    for command in commands:
        words = shlex.shlex(command, posix=True, punctuation_chars=True)
        words.whitespace_split = True
        assert port.name in words, command


def test_an_mtu_that_the_switch_has_not_set() -> None:
    """The row is as it was written: the log of ovs-vswitchd says why the open interface has another MTU."""
    [change] = find_changes(PORT, replace(SAME, mtu=1500))
    told = change_finding(change, "a")
    assert (told.path, told.expected, told.found) == ("Interface.mtu of port p", "9000", "1500")
    assert "its log says why" in told.remedy
    assert "agent" not in told.remedy


def test_limits_that_another_program_changed() -> None:
    """A rate that differs is put back. A limit of which the record has none is a note: an administrator may have set it."""
    changed = find_changes(PORT, replace(SAME, limits=Limits(Rate(1_000_000, 1_000_000), None)))
    findings = [change_finding(each, "a") for each in changed]
    assert [each.path for each in findings] == ["Port.qos of port p", "Interface.ingress_policing_rate of port p"]
    assert [each.severity for each in findings] == ["error", "error"]
    assert (findings[0].expected, findings[1].found) == ("10000000 bit/s (burst 1000000 bit)", "none")
    assert all(each.remedy.startswith("a running agent puts it back") for each in findings)
    free = replace(PORT, limits=Limits())
    added = [change_finding(each, "a") for each in find_changes(free, SAME)]
    assert [each.severity for each in added] == ["note", "note"]
    assert "ovs-vsctl clear Port p qos" in added[0].remedy
    assert "ovs-vsctl set Interface p ingress_policing_rate=0" in added[1].remedy
    [unknown] = find_changes(free, replace(SAME, limits=Limits(), qos="linux-hfsc"))
    assert unknown.found == "linux-hfsc"


def test_limits_of_ovn_are_its_own() -> None:
    """What OVN sets at a port of its own is no change."""
    logical = replace(PORT, limits=Limits(), terms=PortTerms(by_ovn=True))
    assert find_changes(logical, SAME) == []


def test_frames_and_the_causes_of_drops() -> None:
    """rx is what the switch received from the pod. What is not counted is unknown, not 0."""
    assert count_frames(None) == (None, None)
    assert count_frames({}) == (None, None)
    counted = {"rx_packets": 5, "tx_packets": 7, "rx_dropped": 1, "tx_dropped": 4}
    assert count_frames(counted) == ({"from_pod": 5, "to_pod": 7}, {"from_pod": 1, "to_pod": 4})
    assert read_causes({}) == DropCauses()
    assert read_causes({"ovs_tx_failure_drops": 3, "ovs_tx_qos_drops": 1}) == DropCauses(unread=3, limit_to_pod=1)
