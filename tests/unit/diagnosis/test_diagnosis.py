"""Diagnosis: facts become findings with what is wrong, why it matters and what to do; and how these are rendered."""

from __future__ import annotations

from typing import Any

from userspace_cni.base.findings import Finding
from userspace_cni.diagnosis import node_status, rendering

NODE: dict[str, Any] = {
    "agent": {"socket": "/run/a.sock", "reachable": False, "absent": True, "slow": False, "problems": [], "needed": True},
    "plugins": [{"path": "/opt/cni/bin/userspace", "kind": "binary", "socket": "/run/a.sock", "meant": True, "problem": ""}],
    "switch": {"ovsdb": "unix:/db", "reachable": True, "vswitchd": "alive", "version": "ovs-vswitchd 3.1", "problem": ""},
    "applications": {"connected": 1, "waiting": 0, "broken": 2},
    "guards": {"there": 0, "needed": 0, "problem": ""},
    "network": {"all": 0},
    "directories": [{"setting": "state_dir", "path": "/var/lib/x", "problem": ""}],
    "records": {"pending": 0, "applying": 0, "ready": 1, "deleting": 0},
    "unfinished": 0,
    "spool": 1,
    "quarantine": 0,
    "hugepages": {"pools": [], "reserved": {}, "mounts": []},
    "rules": [],
}


def test_a_node() -> None:
    """Each thing has a finding, and what is wrong says what to do, apart from what is so; what is well has no remedy."""
    found = node_status.findings_of(NODE, ("/opt/cni/bin",))
    wrong = {each.subject: each for each in found if each.severity == "error"}
    assert list(wrong) == ["agent", "applications", "spool"]
    assert wrong["agent"].message == "none on this node (no socket /run/a.sock)"
    assert wrong["agent"].why.endswith("no pod is attached until it answers")
    assert wrong["agent"].remedy.startswith("start it")
    assert rendering.in_words(wrong["applications"]) == (
        "1 connected, 0 not, 2 ports that ovs-vswitchd cannot open; see userspace-cni list"
    )
    assert rendering.in_words(wrong["spool"]) == "1: DELs that no agent received; userspace-cni gc carries them out"
    assert {each.subject for each in found if each.severity == "good"} >= {"switch", "datapath", "state_dir", "unfinished"}
    assert not any(each.remedy for each in found if each.severity == "good")


def test_rendering() -> None:
    """Findings stand below their subjects; JSON has the keys that are asked for, in their order."""
    first = Finding("short-mount", "error", "VM a", "no way", "set it", "spec.x")
    second, third = Finding("iommu", "note", "switch", "not set"), Finding("mac-conflict", "warning", "VM a", "twice")
    assert rendering.by_subject([first, second, third]) == {"VM a": [first, third], "switch": [second]}
    assert rendering.lines(first) == [("error", "short-mount: no way"), ("  at", "spec.x"), ("  do", "set it")]
    assert rendering.counts_text([first, second, second]) == "1 error, 2 notes"
    assert list(rendering.as_json(first, rendering.OF_TRAPS).items()) == [
        ("name", "short-mount"),
        ("severity", "error"),
        ("where", "VM a"),
        ("message", "no way"),
        ("remedy", "set it"),
        ("path", "spec.x"),
    ]
