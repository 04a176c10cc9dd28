"""Which claim's device an interface joins: the pod's own, that is prepared in this boot, and that no other interface has."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.lab.node.ports import port_with
from userspace_cni.attachment.facts import JoinableDevice, Pod, SocketFacts
from userspace_cni.attachment.joined_plan import as_claimed, find_differences, require_same
from userspace_cni.attachment.journal import Journal
from userspace_cni.attachment.records import Record, claim_container
from userspace_cni.attachment.shared_holders import SharedHolders
from userspace_cni.attachment.steps import ClaimDirectory, ClaimFile, ConfigFile, JoinedPort
from userspace_cni.base.errors import InvalidConfig, Unavailable
from userspace_cni.base.vlans import Vlan
from userspace_cni.cni.options import Application, Options, read_options
from userspace_cni.cni.request import Environment, Request, read_network
from userspace_cni.consumers.pod import PodConsumer
from userspace_cni.node.joined_ports import find_joinable

POD = {"K8S_POD_NAMESPACE": "blue", "K8S_POD_NAME": "app", "K8S_POD_UID": "uid-app"}
NAMELESS = {key: value for key, value in POD.items() if key != "K8S_POD_UID"}


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(f"{tmp_path}/state", str(tmp_path), print, lambda: "boot-1")


def device(claim: str, number: int = 0, *, pod_uid: str = "uid-app", boot: str = "boot-1") -> Record:
    """A device of br0 that is prepared for a pod called app."""
    container, path = claim_container(f"uid-{claim}"), f"/run/claims/uid-{claim}-{number}"
    mounts = [{"hostPath": path, "containerPath": f"/var/lib/cni/usrspcni/uid-{claim}-{number}"}]
    content = json.dumps({"devices": [{"containerEdits": {"mounts": mounts}}]})
    steps = (
        ClaimDirectory(path, "/run/claims"),
        port_with(
            bridge="br0", name=f"{claim}-{number}", interface_type="dpdkvhostuserclient", server_path=f"/s/{claim}{number}/sock"
        ),
        ClaimFile("/cdi", f"{claim}-{number}.json", content, flushed=True),
    )
    return Record(
        "ready", claim, container, f"net{number}", boot_id=boot, pod_namespace="blue", pod_name="app", pod_uid=pod_uid,
        steps=steps, result={"device": "br0"},
    )  # fmt: skip


def asked(args: dict[str, str], device_id: str = "br0") -> tuple[Environment, Options]:
    """An ADD of the pod's container c1, as a network of Multus has it."""
    stdin = json.dumps({"cniVersion": "1.0.0", "name": "net", "type": "userspace", "deviceID": device_id}).encode()
    environment = Environment("ADD", "c1", "/netns", "net1", args, (), netns_override=False, variables={})
    request = Request(environment, read_network(stdin, "ADD"), stdin)
    return environment, read_options(request, {"pod": PodConsumer()}, print)


def found(journal: Journal, args: dict[str, str] = POD, *, plugin: bool = False) -> JoinableDevice | None:
    return find_joinable(*asked(args), journal, "boot-1", plugin_has_devices=plugin)


def join(journal: Journal, record: Record, ifname: str) -> None:
    """Let an interface of c1 hold the device's port."""
    port, directory = record.port, record.directory
    assert port
    assert directory
    step = JoinedPort(record.container_id, record.ifname, record.network, directory.path, "", port.name, "br0", port.server_path)
    journal.write_shared(directory.path, SharedHolders(holders={f"c1@{ifname}": (step,)}))


def test_in_order(journal: Journal) -> None:
    """By name of the claim and number, each once; then none is left, unless a device plugin may have called one of its own so."""
    records = [device("a"), *(device("b", number) for number in (0, 1))]
    for each in reversed(records):
        journal.write(each)
    for number, record in enumerate(records):
        joinable = found(journal)
        assert joinable
        assert (joinable.holder, joinable.ifname) == (record.container_id, record.ifname)
        assert joinable.place.subdirectory == f"uid-{record.network}-{record.ifname[3:]}/"
        join(journal, record, f"net{number}")
    with pytest.raises(InvalidConfig, match="have joined all 3 devices"):
        found(journal)
    assert found(journal, plugin=True) is None


def test_pods_of_one_name(journal: Journal) -> None:
    """The UID decides; without one, claims of two pods that are called the same are given to neither."""
    journal.write(device("former", pod_uid="uid-former"))
    assert found(journal) is None
    journal.write(device("own"))
    own = found(journal)
    assert own
    assert own.claim == "blue/own"
    with pytest.raises(InvalidConfig, match="claims of several pods"):
        found(journal, NAMELESS)
    assert found(journal, {**POD, "K8S_POD_NAMESPACE": "red"}) is None
    assert found(journal, {}) is None


def test_not_ready(journal: Journal) -> None:
    """A device of another boot, or that is being made, is worth another try; one that is being removed is none."""
    journal.write(device("c", boot="boot-0"))
    with pytest.raises(Unavailable, match=r"device br0 of claim blue/c is not ready"):
        found(journal)
    journal.write(replace(device("c"), state="applying"))
    with pytest.raises(Unavailable, match="is not ready"):
        found(journal)
    journal.write(replace(device("c"), state="deleting"))
    assert found(journal) is None


def test_a_vlan_that_the_pod_chose(journal: Journal) -> None:
    """A pod's annotation may choose a VLAN on a port that carries all. A claim's port has what the claim says, and no other."""
    journal.write(device("own"))
    own = found(journal)
    assert own
    _, options = asked(POD)
    facts = SocketFacts(
        boot_id="boot-1", store="5707e", netns_inode=1, pod=Pod("blue", "app", "uid-app"), place=own.place, mapped_dir="/m/",
        short_dir="/s", mount_always=True, ovs_sockdir="/o", noted=True, joined=own,
    )  # fmt: skip
    require_same(options, facts, own)
    with pytest.raises(InvalidConfig, match=r"'vlan_id' is asked for as '8', .* has 'none'"):
        require_same(options, replace(facts, vlan=Vlan(8)), own)


def test_what_a_claim_has_its_application_told(journal: Journal) -> None:
    """Queues that the claim says hold for the interface; a network says those that the claim leaves open, and no others."""
    record = device("own")
    told = {"containerId": "c", "ifName": "net0", "config": {"vhost": {"queues": 4}}}
    journal.write(replace(record, steps=(*record.steps, ConfigFile("/run/claims", "/run", "configData.json", json.dumps(told)))))
    own = found(journal)
    assert own
    _, options = asked(POD)
    assert as_claimed(options, own).application.block["vhost"] == {"queues": 4}
    same, more, other = (
        replace(options, application=Application({"vhost": vhost}, vhost.get("queues"), vhost.get("queueSize")))
        for vhost in ({"queues": 4}, {"queueSize": 512}, {"queues": 2})
    )
    assert as_claimed(more, own).application.block["vhost"] == {"queues": 4, "queueSize": 512}
    differences = [list(find_differences(each, own)) for each in (same, more, other)]
    assert differences == [[], [], [("container.vhost.queues", 2, 4)]]
