"""Claims of a VM's pods: what the two pods between which it migrates have in common, and what stays as it was recorded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kubevirt.claim_directory import find_in_directory
from kubevirt.dra import read_metadata
from kubevirt.vmi import NetworkClaim, VirtualMachine
from tests.agent.living import LiveNode
from tests.cni.spec import switch_of
from tests.lab.dra.claiming_node import ClaimingNode, claiming
from tests.lab.kube.pods import Pod
from tests.lab.switch.switch import wait_until
from userspace_cni.attachment.journal import Journal
from userspace_cni.attachment.steps import OvsPort
from userspace_cni.linux.boot import boot_id
from userspace_cni.pod.launcher import QEMU_ID

OF_VM = {"consumer": "kubevirt"}


@pytest.fixture
def node(live: LiveNode) -> Iterator[ClaimingNode]:
    with claiming(live) as made:
        made.start()
        yield made


def macs(node: ClaimingNode, uid: str) -> list[str]:
    """Those of the ports of a claim, in the order of its devices."""
    rows = [switch_of(node.live).interface(name)["external_ids"] for name in node.ports()]
    found = {row["ifname"]: row["attached-mac"] for row in rows if row["container-id"] == f"_{uid}"}
    return [found[ifname] for ifname in sorted(found)]


def edits(node: ClaimingNode, uid: str) -> list[dict[str, Any]]:
    """What the runtime adds to the containers of a claim's pod."""
    specs = [json.loads(path.read_text()) for path in node.live.cdi.glob(f"*{uid}*")]
    return [device["containerEdits"] for spec in specs for device in spec["devices"]]


def mounts(node: ClaimingNode, uid: str) -> dict[str, Path]:
    """Path in the container -> path on the host."""
    return {mount["containerPath"]: Path(mount["hostPath"]) for each in edits(node, uid) for mount in each["mounts"]}


def variables(node: ClaimingNode, uid: str) -> list[str]:
    return [variable for each in edits(node, uid) for variable in each["env"]]


def prepared(node: ClaimingNode, pod: str, name: str, **claim: Any) -> str:
    """Have a claim of this pod prepared; its UID."""
    made = node.pod(pod)
    uid = node.claim(name, made, **claim)
    node.kubelet.prepare(made, name)
    return uid


def test_both_pods_of_a_migration(node: ClaimingNode) -> None:
    """The claims that a template makes for two pods of a VM have MAC, directory and socket in common, and ports of their own,
    also on one node and one bridge. QEMU may make its socket there."""
    source, target = (
        prepared(node, f"virt-launcher-vm1-{suffix}", suffix, parameters=OF_VM, pod_claim="dpdk") for suffix in ("aaaaa", "bbbbb")
    )
    assert source != target
    assert macs(node, source) == macs(node, target) != []
    assert len(node.ports()) == 2
    assert mounts(node, source).keys() == mounts(node, target).keys()
    assert not set(mounts(node, source).values()) & set(mounts(node, target).values())
    told = []
    for uid in (source, target):
        [(path, file)] = [each for each in mounts(node, uid).items() if each[0].endswith(".json")]
        assert "/resourceclaimtemplates/dpdk/net/" in path
        told.append(read_metadata(file.read_bytes(), "net", "it"))
    assert told[0] is not None
    assert told[0] == told[1]
    directory, _, name = told[0].path.rpartition("/")
    made = mounts(node, source)[directory].stat()
    assert (name, made.st_uid, made.st_gid, told[0].mac) == ("vhost.sock", QEMU_ID, QEMU_ID, macs(node, source)[0])
    # without the metadata the sidecar finds the same by the variable, where the directory is in its container
    [(variable, value)] = {tuple(each.split("=")) for each in variables(node, source)}
    assert value == directory
    claim = NetworkClaim("dpdk", "net", "")
    found = find_in_directory({variable: str(mounts(node, source)[directory])}, VirtualMachine("default", "vm1"), claim)
    assert found is not None
    assert found.mac == told[0].mac


def test_decided_once(node: ClaimingNode) -> None:
    """A MAC that is asked for counts; one that an earlier version recorded stays when another agent prepares the claim again."""
    asked, former = "02:00:00:00:00:09", "02:00:00:00:00:0a"
    uid = prepared(node, "virt-launcher-vm1-aaaaa", "asked", parameters={**OF_VM, "host": {"mac": asked}})
    assert macs(node, uid) == [asked]
    node.live.kill()
    journal = Journal(str(node.live.state), f"{node.live.directory}/run", print, boot_id)
    [record] = journal.records()
    steps = tuple(replace(step, mac=former) if isinstance(step, OvsPort) else step for step in record.steps)
    journal.write(replace(record, steps=steps))
    node.kubelet.restart()
    node.start()
    node.kubelet.prepare(Pod(record.pod_name, record.pod_namespace, record.pod_uid), "asked")
    wait_until(lambda: macs(node, uid) == [former], what="the recorded MAC at the port")
    [kept] = journal.records()
    assert kept.steps == steps
