"""Diagnosis: facts become findings with what is wrong, why it matters and what to do; and how these are rendered."""

from __future__ import annotations

from typing import Any

import pytest

from userspace_cni.base.findings import Finding
from userspace_cni.diagnosis import node_status, rendering

NODE: dict[str, Any] = {
    "program": {"version": "0.1.0", "commit": ""},
    "agent": {
        "socket": "/run/a.sock",
        "reachable": False,
        "absent": True,
        "slow": False,
        "problems": [],
        "needed": True,
        "version": "",
        "commit": "",
        "ready": True,
    },
    "plugins": [
        {"path": "/opt/cni/bin/userspace", "kind": "binary", "socket": "/run/a.sock", "meant": True, "problem": "", "build": ""}
    ],
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


@pytest.mark.parametrize(
    ("own", "agent", "binary", "told"),
    [
        (("0.1.0", "aaa"), ("0.1.0", "aaa"), "0.1.0 (commit aaa of 2026-11-28)", []),
        (("0.1.0", ""), ("0.1.0", "bbb"), "0.1.0 (commit unknown)", []),
        (("0.1.0", "aaa"), ("", ""), "", []),
        (("0.1.0", "aaa"), ("0.1.0", "aaa-dirty"), "", ["restart the agent"]),
        (("0.2.0", ""), ("0.1.0", "bbb"), "", ["restart the agent"]),
        (("0.1.0", "aaa"), ("0.1.0", "aaa"), "0.1.0 (commit bbb of 2026-11-01)", ["install --bin-dir /opt/cni/bin`"]),
        (("0.1.0", "aaa"), ("0.0.9", ""), "0.0.9 (commit unknown)", ["restart the agent", "install --bin-dir /opt/cni/bin`"]),
    ],
)
def test_different_builds(own: tuple[str, str], agent: tuple[str, str], binary: str, told: list[str]) -> None:
    """An agent and a plugin of another build than the command are mentioned, as far as builds are known; it is no fault."""
    program, asked = ({"version": version, "commit": commit} for version, commit in (own, agent))
    node = {
        **NODE,
        "program": program,
        "agent": {**NODE["agent"], **asked, "reachable": True, "absent": False},
        "plugins": [{**NODE["plugins"][0], "build": binary}],
    }
    found = [each for each in node_status.findings_of(node, ()) if each.subject == "builds"]
    assert [each.severity for each in found] == ["note"] * len(told)
    assert all(part in each.remedy for part, each in zip(told, found, strict=True))


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
