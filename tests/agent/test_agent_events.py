"""Events about a pod's network: refused ADDs, ignored keys, ports that fail later; each is made once, whatever dies."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.living import LiveNode, container, port_of
from tests.cni.spec import refused, succeeded, switch_of
from tests.lab.kube.apiserver import ApiServer, Fault
from tests.lab.kube.pods import Pod
from tests.lab.switch.switch import wait_until

RETRIES = 100
FORBIDDEN = "create and patch on events"
"""In the line that says which right is missing."""


@pytest.fixture
def api(live: LiveNode) -> Iterator[ApiServer]:
    """An API server for which the node's agent has credentials of its own."""
    with ApiServer() as started:
        live.follow(started)
        yield started


def events(api: ApiServer, *reasons: str) -> dict[str, dict[str, Any]]:
    """The Events of pod `app`, as soon as each of these reasons has one."""
    wait_until(lambda: set(reasons) <= set(api.events.of("app")), what=f"{reasons}")
    return api.events.of("app")


def test_a_pod_without_a_place(live: LiveNode, sandbox: str, api: ApiServer) -> None:
    """A hundred retries of its ADD are refused, leave nothing, and are one Event, which the next agent continues."""
    pod = Pod()
    pod.create(api)
    live.start()
    for _ in range(RETRIES):
        error = refused(live.run("ADD", live.network(), sandbox, CNI_ARGS=pod.args), 106)
    assert "it has no volume 'shared-dir'" in error["msg"]
    assert "emptyDir" in error["details"]
    live.require_clean()
    event = events(api, "VolumeMissing")["VolumeMissing"]
    assert event["involvedObject"]["uid"] == pod.uid
    assert event["type"] == "Warning"
    assert event["source"] == {"component": "userspace-cni", "host": "n1"}
    assert event["message"].startswith("net1: pod default/app: the pod has no place")
    assert api.count("EVENT") <= 3
    live.kill()
    live.start()
    refused(live.run("ADD", live.network(), sandbox, CNI_ARGS=pod.args), 106)
    wait_until(lambda: events(api)["VolumeMissing"]["count"] > event["count"])


def test_places(live: LiveNode, sandbox: str, api: ApiServer) -> None:
    """A pod has a place by a volume, by the network's sharedDir or by a hostPath around the default directory."""
    live.start()
    shared = live.network(sharedDir=str(live.shared))
    above = {"name": "any", "hostPath": {"path": str(live.directory)}}
    beside = {"name": "any", "hostPath": {"path": f"{live.shared}-2"}}
    cases: list[tuple[dict[str, Any], list[dict[str, Any]], bool]] = [
        (live.network(), [], False),
        (live.network(), [above], True),
        (live.network(), [beside], False),
        (live.network(), [{"name": "shared-dir", "persistentVolumeClaim": {"claimName": "c"}}, beside], False),
        (shared, [], True),
    ]
    for number, (network, volumes, served) in enumerate(cases):
        pod = Pod(name=f"p{number}")
        api.add_pod({**pod.manifest(), "spec": {"volumes": volumes, "containers": [{"name": "app"}]}})
        added = live.run("ADD", network, sandbox, container(number), CNI_ARGS=pod.args)
        if served:
            succeeded(added)
            succeeded(live.run("DEL", network, sandbox, container(number), CNI_ARGS=pod.args))
        else:
            refused(added, 106)
    live.require_clean()
    wait_until(lambda: api.events.of("p3"))
    assert "'persistentVolumeClaim'" in api.events.of("p3")["VolumeMissing"]["message"]
    assert not set(api.events.of("p4")) & {"VolumeMissing"}


def test_an_allocated_device_is_a_place(live: LiveNode, sandbox: str, api: ApiServer) -> None:
    """A pod for which a device plugin has allocated a socket needs no volume: that plugin mounts its directory."""
    pod = Pod()
    pod.create(api)
    info = live.device_info / "cni" / "one"
    info.parent.mkdir(parents=True)
    allocated = {"type": "vhost-user", "version": "1.1.0", "vhost-user": {"mode": "server", "path": "/run/sockets/one"}}
    info.write_text(json.dumps(allocated))
    live.start()
    network = live.network(runtimeConfig={"CNIDeviceInfoFile": str(info)})
    succeeded(live.run("ADD", network, sandbox, CNI_ARGS=pod.args))
    succeeded(live.run("DEL", network, sandbox, CNI_ARGS=pod.args))
    assert set(events(api, "HugepagesMissing")) == {"HugepagesMissing"}


def test_not_required(live: LiveNode, sandbox: str, api: ApiServer) -> None:
    """With `require_volume` false the pod is attached in the default directory, and an Event says that it does not see that."""
    live.settings["USERSPACE_CNI_REQUIRE_VOLUME"] = "false"
    pod = Pod()
    pod.create(api)
    live.start()
    succeeded(live.run("ADD", live.network(), sandbox, CNI_ARGS=pod.args))
    assert "using the default directory" in events(api, "VolumeMissing", "HugepagesMissing")["VolumeMissing"]["message"]
    succeeded(live.run("DEL", live.network(), sandbox, CNI_ARGS=pod.args))
    live.await_clean()


def test_a_call_without_a_pod(live: LiveNode, sandbox: str, api: ApiServer) -> None:
    """It is never refused for its place, and makes no Event; neither is a VM's pod, whose place is the launcher's volume."""
    live.start()
    succeeded(live.run("ADD", live.network(), sandbox))
    succeeded(live.run("DEL", live.network(), sandbox))
    pod = Pod()
    live.empty_dir(pod.uid, "public")
    pod.create(api)
    network = live.network(consumer="kubevirt")
    succeeded(live.run("ADD", network, sandbox, ifname="pod1", CNI_ARGS=pod.args))
    succeeded(live.run("DEL", network, sandbox, ifname="pod1", CNI_ARGS=pod.args))
    live.await_clean()
    assert api.count("EVENT") == 0


def test_reasons_of_an_add(live: LiveNode, sandbox: str, api: ApiServer) -> None:
    """Each fault of pod or network has its own Event; other causes have none."""
    rules = '[[rule]]\nnamespaces = ["default"]\nbridges = ["br-test"]\n'
    Path(live.environ["USERSPACE_CNI_CONFIG"]).write_text(rules)
    pod = Pod(volume={"emptyDir": {}})
    live.empty_dir(pod.uid)
    manifest = pod.manifest()
    manifest["spec"]["containers"][0]["resources"] = {"limits": {"hugepages-2Mi": "64Mi"}}
    api.add_pod(manifest)
    live.start()
    elsewhere = live.network()
    elsewhere["host"]["bridge"]["bridgeName"] = "br-other"
    refused(live.run("ADD", elsewhere, sandbox, CNI_ARGS=pod.args), 7)
    refused(live.run("ADD", live.network(host={"engine": "vpp"}), sandbox, CNI_ARGS=pod.args), 2)
    taken = live.network()
    taken["host"]["vhost"]["socketfile"] = "taken"
    (live.empty_dir(pod.uid) / "taken").mkdir()
    refused(live.run("ADD", taken, sandbox, CNI_ARGS=pod.args), 106)
    network = live.network(frobnicate=1)
    succeeded(live.run("ADD", network, sandbox, CNI_ARGS=pod.args))
    refused(live.run("ADD", network, sandbox, CNI_ARGS=pod.args), 101)
    found = events(api, "BridgeRefused", "NetworkRefused", "DirectoryRefused", "KeyIgnored")
    assert set(found) == {"BridgeRefused", "NetworkRefused", "DirectoryRefused", "KeyIgnored"}
    assert "br-other" in found["BridgeRefused"]["message"]
    assert "frobnicate" in found["KeyIgnored"]["message"]
    succeeded(live.run("DEL", network, sandbox, CNI_ARGS=pod.args))
    (live.empty_dir(pod.uid) / "taken").rmdir()
    live.await_clean()


def test_a_port_that_is_lost(live: LiveNode, sandbox: str, api: ApiServer) -> None:
    """An Event says that a lost port was made again, and another one that a port cannot be made again."""
    pod = Pod(volume={"emptyDir": {}})
    live.empty_dir(pod.uid)
    pod.create(api)
    live.start()
    network = live.network()
    succeeded(live.run("ADD", network, sandbox, CNI_ARGS=pod.args))
    switch_of(live).vsctl("del-port", "br-test", port_of())
    live.await_done("again-port", 1)
    assert events(api, "PortRestored")["PortRestored"]["type"] == "Normal"
    kernel, netdev = (
        ("--", "set", "Bridge", "br-test", "datapath_type=system"),
        ("set", "Bridge", "br-test", "datapath_type=netdev"),
    )
    switch_of(live).vsctl("--no-wait", "del-port", "br-test", port_of(), *kernel)
    degraded = events(api, "PortDegraded")["PortDegraded"]
    assert degraded["type"] == "Warning"
    assert "br-test has datapath_type system" in degraded["message"]
    switch_of(live).vsctl("--no-wait", *netdev)
    live.await_done("again-port", 2)
    succeeded(live.run("DEL", network, sandbox, CNI_ARGS=pod.args))
    live.await_clean()


def test_a_static_pod(live: LiveNode, sandbox: str, api: ApiServer) -> None:
    """The Event of a static pod has the UID that the node knows, by which `kubectl describe` looks for it."""
    pod = Pod(uid="0123456789abcdef0123456789abcdef")
    manifest = json.loads(json.dumps(pod.manifest()))
    manifest["metadata"] |= {"uid": "of-the-mirror", "annotations": {"kubernetes.io/config.mirror": pod.uid}}
    api.add_pod(manifest)
    live.start()
    refused(live.run("ADD", live.network(), sandbox, CNI_ARGS=pod.args), 106)
    assert events(api, "VolumeMissing")["VolumeMissing"]["involvedObject"]["uid"] == pod.uid


def test_a_runtime_that_sends_no_uid(live: LiveNode, sandbox: str, api: ApiServer) -> None:
    """The Event has the UID that the watch has for the pod of that name."""
    pod = Pod()
    api.add_pod({**pod.manifest(), "spec": {"nodeName": "n1", "containers": [{"name": "app"}]}})
    live.start()
    args = f"K8S_POD_NAMESPACE={pod.namespace};K8S_POD_NAME={pod.name}"
    refused(live.run("ADD", live.network(), sandbox, CNI_ARGS=args), 106)
    assert events(api, "VolumeMissing")["VolumeMissing"]["involvedObject"]["uid"] == pod.uid


@pytest.mark.parametrize("fault", [Fault("EVENT", status=403), Fault("EVENT", hang=60.0)], ids=["403", "hangs"])
def test_events_never_hold_up_a_verb(live: LiveNode, sandbox: str, api: ApiServer, fault: Fault) -> None:
    """While no Event can be made, verbs and the agent's end are not delayed; refused Events are counted, and logged once."""
    api.faults.append(dataclasses.replace(fault))
    pod = Pod()
    pod.create(api)
    live.start()
    for number in range(3):
        refused(live.run("ADD", live.network(), sandbox, container(number), CNI_ARGS=pod.args), 106)
    if fault.status:
        wait_until(lambda: live.metric("events_dropped_total") >= 1)
        wait_until(lambda: FORBIDDEN in live.log.read_text(), what="the line about it")
    else:
        wait_until(lambda: api.count("EVENT") == 1)
    assert live.end() == 0
    assert live.log.read_text().count(FORBIDDEN) == bool(fault.status)
