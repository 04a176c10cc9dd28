"""Claims of devices: the kubelet has an agent make their ports before there is a container, and undo them."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kubevirt.dra import read_metadata
from tests.agent.living import LiveNode
from tests.cni.spec import switch_of
from tests.cni.test_cli_node import cli, decoded
from tests.lab.dra.claiming_node import BRIDGE, ClaimingNode, claiming
from tests.lab.dra.plugin_registry import KubeletError
from tests.lab.kube.objectstore import Write
from tests.lab.kube.pods import Pod
from tests.lab.kube.resource_definitions import CLAIMS
from tests.lab.switch.switch import wait_until


@pytest.fixture
def node(live: LiveNode) -> Iterator[ClaimingNode]:
    with claiming(live) as made:
        yield made


def cdi_files(node: ClaimingNode) -> dict[str, dict[str, Any]]:
    return {path.name: json.loads(path.read_text()) for path in Path(node.live.environ["USERSPACE_CNI_CDI_DIR"]).glob("*.json")}


def test_prepared_and_unprepared(node: ClaimingNode) -> None:
    """A claim is a port whose socket's directory a CDI file gives to containers; when it is unprepared nothing is left."""
    node.start()
    pod = node.pod()
    uid = node.claim("one", pod)
    node.kubelet.prepare(pod, "one")
    [port] = node.ports()
    row = switch_of(node.live).interface(port)
    assert row["external_ids"]["container-id"] == f"_{uid}"
    assert row["external_ids"]["pod-name"] == "app"
    [spec] = cdi_files(node).values()
    [device] = spec["devices"]
    assert node.kubelet.cdi_devices(pod) == [f"{spec['kind']}={device['name']}"]
    mount = device["containerEdits"]["mounts"][0]
    assert Path(mount["hostPath"]).is_mount()
    assert row["options"]["vhost-server-path"].endswith(f"/{port}")
    node.kubelet.unprepare(pod)
    assert node.ports() == []
    node.require_nothing_left()


def test_two_consumers(node: ClaimingNode) -> None:
    """A vhost-user socket has one peer: a claim of two pods is refused, with what to do, and nothing is made."""
    node.start()
    pod, other = node.pod(), node.pod("other")
    node.claim("one", pod)
    node.scheduler.reserve("one", pod, other)
    with pytest.raises(KubeletError, match=r"is for 2 pods .*ResourceClaimTemplate"):
        node.kubelet.prepare(pod, "one")
    assert node.ports() == []


def test_admin_access(node: ClaimingNode) -> None:
    """Access to a device that others have is refused: a port has one user. It takes nothing, and is unprepared at once."""
    node.start()
    pod = node.pod()
    node.claim("one", pod)
    [given] = node.scheduler.read("default", "one")["status"]["allocation"]["devices"]["results"]
    allocation = {"devices": {"results": [{**given, "adminAccess": True}]}}
    node.api.objects(CLAIMS).patch("default", "one", {"status": {"allocation": allocation}}, Write("kube-scheduler", "status"))
    with pytest.raises(KubeletError, match=r"request net of claim default/one has adminAccess to device br-dev.*mirrorOutput"):
        node.kubelet.prepare(pod, "one")
    assert node.ports() == []
    node.kubelet.unprepare(pod)
    node.require_nothing_left()


def status_of(node: ClaimingNode, name: str) -> list[dict[str, Any]]:
    """What the claim's status says of its devices."""
    listed: list[dict[str, Any]] = (node.scheduler.read("default", name).get("status") or {}).get("devices") or []
    return listed


def conditions_of(node: ClaimingNode, name: str) -> list[dict[str, str]]:
    return [{each["type"]: each["status"] for each in device["conditions"]} for device in status_of(node, name)]


def test_parameters(node: ClaimingNode) -> None:
    """Parameters are keys of a network: they are in the port's rows, and the claim's status tells the interface."""
    node.start()
    pod = node.pod()
    host = {"mtu": 9000, "mac": "02:00:00:00:00:09", "bridge": {"vlanId": 7}, "vhost": {"user": "1000", "dirmode": "0750"}}
    node.claim("one", pod, parameters={"host": host, "bandwidth": {"egressRate": 8_000_000}})
    node.kubelet.prepare(pod, "one")
    [port] = node.ports()
    row = switch_of(node.live).interface(port)
    assert (row["mtu_request"], row["ingress_policing_rate"]) == (9000, 8000)
    assert switch_of(node.live).vsctl("get", "Port", port, "tag").strip() == "7"
    [spec] = cdi_files(node).values()
    facts = Path(spec["devices"][0]["containerEdits"]["mounts"][0]["hostPath"]).stat()
    assert (facts.st_uid, stat.S_IMODE(facts.st_mode)) == (1000, 0o750)
    wait_until(lambda: bool(status_of(node, "one")), what="the status of the claim")
    [device] = status_of(node, "one")
    assert device["networkData"] == {"interfaceName": "net0", "hardwareAddress": "02:00:00:00:00:09"}
    assert conditions_of(node, "one") == [{"Ready": "True", "Exclusive": "True"}]
    node.kubelet.unprepare(pod)
    node.require_nothing_left()


def nested(depth: int) -> dict[str, Any]:
    return {"a": nested(depth - 1)} if depth else {}


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"host": {"bridge": {"vlanId": 8}}}, r"VLAN 8 .*namespace 'default'"),
    ({"host": {"bridge": {"bridgeName": "br-other"}}}, r"bridgeName.*br-other"),
    ({"host": {"vhost": {"sockettfile": "a"}}}, r"'host.vhost.sockettfile' is unknown"),
    ({"kubeconfig": "/etc/x"}, r"'kubeconfig' cannot be in the parameters of a claim"),
    ({"host": {"bridge": {"vlanId": 7}, "vhost": {"mode": "server"}}}, r"OVS is to be the server"),
    ({"host": {"iftype": "veth", "bridge": {"vlanId": 7}}}, r"a vhost-user interface"),
    ({"container": {"bridge": nested(200)}}, r"the claim's parameters cannot be those of a network; .*(deep|nest)"),
]
"""Parameters, and what the kubelet is told of them."""


def test_what_a_namespace_may_not_have(node: ClaimingNode) -> None:
    """A claim's author is a tenant: the administrator's rules and the reader of networks hold for its parameters."""
    rule = f'[[rule]]\nnamespaces = ["*"]\nbridges = ["{BRIDGE}"]\nvlans = ["7"]\n'
    Path(node.live.environ["USERSPACE_CNI_CONFIG"]).write_text(rule)
    node.start()
    pod = node.pod()
    for number, (said, words) in enumerate(REFUSED):
        node.claim(f"c{number}", pod, parameters=said)
        with pytest.raises(KubeletError, match=words):
            node.kubelet.prepare(pod, f"c{number}")
        assert (node.ports(), cdi_files(node)) == ([], {})


def test_several_devices(node: ClaimingNode) -> None:
    """The same bridge twice in one request is two ports with directories and MACs of their own; the container's variable names
    both directories, and its file both sockets."""
    node.start()
    pod = node.pod()
    uid = node.claim("two", pod, BRIDGE, BRIDGE)
    node.kubelet.prepare(pod, "two")
    assert len(node.ports()) == 2
    rows = [switch_of(node.live).interface(port) for port in node.ports()]
    assert len({row["external_ids"]["attached-mac"] for row in rows}) == 2
    assert len({row["options"]["vhost-server-path"] for row in rows}) == 2
    edits = [spec["devices"][0]["containerEdits"] for spec in cdi_files(node).values()]
    targets = [each["mounts"][0]["containerPath"] for each in edits]
    assert {each["env"][0] for each in edits} == {f"USERSPACE_CNI_DIRS_TWO_NET={':'.join(sorted(targets))}"}
    [told] = [mount for each in edits for mount in each["mounts"] if mount["containerPath"].endswith("-metadata.json")]
    assert told["containerPath"] == (
        "/var/run/kubernetes.io/dra-device-attributes/resourceclaims/two/net/userspace-cni.io-metadata.json"
    )
    port_of_request = read_metadata(Path(told["hostPath"]).read_text().partition("\n")[0], "other", "the file")
    assert port_of_request is None
    first = json.loads(Path(told["hostPath"]).read_text().splitlines()[0])
    assert first["metadata"]["uid"] == uid
    assert [each["networkData"]["interfaceName"] for each in first["requests"][0]["devices"]] == ["net0", "net1"]
    wait_until(lambda: len(status_of(node, "two")) == 2, what="the status of both")
    node.kubelet.unprepare(pod)
    node.require_nothing_left()


def test_metadata(node: ClaimingNode) -> None:
    """The sidecar of VMs reads socket and MAC of a claim in the file that the container gets."""
    node.start()
    pod = node.pod()
    node.claim("one", pod, parameters={"host": {"mtu": 2000}})
    node.kubelet.prepare(pod, "one")
    [spec] = cdi_files(node).values()
    directory, file = spec["devices"][0]["containerEdits"]["mounts"]
    [port] = node.ports()
    found = read_metadata(Path(file["hostPath"]).read_bytes(), "net", "the file")
    assert found
    mac = switch_of(node.live).interface(port)["external_ids"]["attached-mac"]
    assert (found.path, found.mtu, found.mac) == (f"{directory['containerPath']}/{port}", 2000, mac)


def test_second_consumer(node: ClaimingNode) -> None:
    """A pod that names a claim whose devices another pod has is told by an event, and the claim by a condition."""
    node.start()
    pod = node.pod()
    node.claim("one", pod)
    node.kubelet.prepare(pod, "one")
    wait_until(lambda: conditions_of(node, "one") == [{"Ready": "True", "Exclusive": "True"}], what="the status of the claim")
    other = Pod("other")
    node.scheduler.reserve("one", pod, other)
    manifest = other.manifest()
    named = {"nodeName": "n1", "resourceClaims": [{"name": "net", "resourceClaimName": "one"}]}
    node.api.add_pod({**manifest, "spec": {**manifest["spec"], **named}})
    wait_until(lambda: conditions_of(node, "one") == [{"Ready": "True", "Exclusive": "False"}], what="the condition")
    wait_until(lambda: "ClaimInUse" in node.api.events.of("other"), what="the event on the other pod")
    node.scheduler.reserve("one", pod)
    node.kubelet.unprepare(pod)


def test_changed_claim(node: ClaimingNode) -> None:
    """A claim that was allocated anew meanwhile gets the port that it asks for now, in the former one's place."""
    node.start()
    pod = node.pod()
    node.add_bridge("br-dev2")
    uid = node.claim("one", pod)
    node.kubelet.prepare(pod, "one")
    status = node.scheduler.read("default", "one")["status"]
    status["allocation"]["devices"]["results"][0]["device"] = "br-dev2"
    node.api.objects(CLAIMS).patch("default", "one", {"status": status}, Write("kube-scheduler", "status"))
    node.kubelet.restart()
    node.kubelet.await_driver("userspace-cni.io")
    node.kubelet.prepare(pod, "one")
    assert (len(node.ports()), len(node.ports("br-dev2"))) == (0, 1)
    assert uid in next(iter(cdi_files(node)))
    node.kubelet.unprepare(pod)


def test_unknown_claim(node: ClaimingNode) -> None:
    """Unprepare of what nothing records succeeds, and removes what marks and names say is the claim's; another's stays."""
    node.start()
    pod, other = node.pod(), node.pod("other")
    uid = node.claim("one", pod, BRIDGE, BRIDGE)
    node.claim("two", other)
    node.kubelet.prepare(pod, "one")
    node.kubelet.prepare(other, "two")
    [kept] = [name for name in node.ports() if switch_of(node.live).interface(name)["external_ids"]["network"] == "two"]
    node.live.kill()
    for path in (node.live.state / "attachments").glob("*"):
        if uid in path.read_text():
            path.unlink()
    node.start()
    node.kubelet.unprepare(pod)
    assert node.ports() == [kept]
    assert len(cdi_files(node)) == 1
    node.kubelet.unprepare(other)
    node.require_nothing_left()


def test_people_see_it(node: ClaimingNode) -> None:
    """A claim's device is listed, checked and explained as an interface of a pod is, under the claim's name."""
    node.start()
    pod = node.pod()
    uid = node.claim("one", pod)
    node.kubelet.prepare(pod, "one")
    [listed] = decoded(node.live, "list")
    assert (listed["name"], listed["pod"]["name"], listed["network"]) == ("default/one/net0", "app", "one")
    assert listed["container"] == f"_{uid}"
    assert cli(node.live, "check").stderr.endswith("1 attachment checked, no differences\n")
    assert decoded(node.live, "status")["unfinished"] == 0
    assert cli(node.live, "why", "default/one/net0", code=1).stdout.startswith("default/one/net0: No application is connected")
    node.kubelet.unprepare(pod)
    node.require_nothing_left()
