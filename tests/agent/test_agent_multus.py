"""Networks of Multus whose devices claims chose: the interface that the plugin is called for is the claim's port."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.agent.living import LiveNode, container
from tests.cni.spec import refused, succeeded, switch_of
from tests.cni.test_cli_node import decoded
from tests.lab.dra.claiming_node import BRIDGE, ClaimingNode, claiming
from tests.lab.dra.container_frames import answer, ask
from tests.lab.dra.multus_calls import Definition, Delegate, delegates
from tests.lab.kube.pods import CONFIGURATION_DATA, Pod
from tests.lab.kube.resource_definitions import SLICES
from tests.lab.runtimes.runtime import netns
from tests.lab.switch.switch import wait_until
from userspace_cni.fastpath import FrontEndListener

RESOURCE = f"userspace-cni.io/{BRIDGE}"
CAPABILITIES = {"deviceID": True, "CNIDeviceInfoFile": True}


@pytest.fixture
def node(live: LiveNode) -> Iterator[ClaimingNode]:
    """The node, whose agent runs and has published its slice."""
    with claiming(live) as made:
        made.api.add({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
        made.start()
        await_slice(made)
        yield made


def await_slice(node: ClaimingNode) -> None:
    store = node.api.objects(SLICES)
    wait_until(lambda: any(store.read(*name)["spec"].get("devices") for name in store.names()), what="a slice with devices")


def definition(node: ClaimingNode, name: str = "net", resource: str = RESOURCE, **keys: Any) -> Definition:
    """A network that says no more than its type, with addresses."""
    config = {"cniVersion": "1.0.0", "name": name, "type": "userspace", "ipam": node.live.host_local(), **keys}
    return Definition(config, resource)


def with_claims(node: ClaimingNode, name: str, claims: Mapping[str, Any], pod: Pod | None = None) -> Pod:
    """A pod whose claims, each with its bridges and parameters, are prepared, as the kubelet does it before the sandbox."""
    pod = pod or node.pod(name)
    for each, (bridges, parameters) in claims.items():
        node.claim(each, pod, *bridges, parameters=parameters)
    statuses = [{"name": f"of-{each}", "resourceClaimName": each} for each in claims]
    node.api.change(pod.namespace, pod.name, {"status": {"resourceClaimStatuses": statuses}})
    node.kubelet.admit(pod, *claims)
    return pod


def add(delegate: Delegate, node: ClaimingNode) -> dict[str, Any]:
    return succeeded(delegate.call("ADD", node.live))


def mac_of(node: ClaimingNode, port: str) -> str:
    return str(switch_of(node.live).interface(port)["external_ids"]["attached-mac"])


def records_of(node: ClaimingNode) -> list[Any]:
    return list(decoded(node.live, "list"))


def test_one_port(node: ClaimingNode, sandbox: str) -> None:
    """Claim and network name one port: the network adds addresses, annotations and device-info, and DEL leaves the port."""
    pod = with_claims(node, "app", {"one": ((BRIDGE,), {"host": {"mtu": 2000, "bridge": {"vlanId": 7}}})})
    [port] = node.ports()
    before = switch_of(node.live).interface(port)
    [delegate] = delegates(node.api, node.live, pod, sandbox, [definition(node, capabilities=CAPABILITIES)])
    result = add(delegate, node)
    assert (switch_of(node.live).ports(BRIDGE), switch_of(node.live).interface(port)) == ([port], before)
    told = {"name": "net1", "sandbox": sandbox, "mac": mac_of(node, port)}
    [interface] = result["interfaces"]
    assert interface.items() >= told.items()
    [entry] = pod.entries(node.api)
    seen = Path(node.live.cdi, *node.cdi_files())
    [mount] = [each for each in mounts_in(seen) if each["options"][0] == "rw"]
    path = f"{mount['containerPath']}/{port}"
    assert f"/var/lib/cni/usrspcni/{entry['config']['vhost']['socketfile']}" == path
    assert entry["config"]["vhost"]["mode"] == "server"
    assert [each["address"] for each in entry["ipResult"]["ips"]] == [each["address"] for each in result["ips"]]
    [file] = node.live.device_info.rglob("*net1")
    assert json.loads(file.read_text())["vhost-user"] == {"mode": "server", "path": path}
    assert succeeded(delegate.call("CHECK", node.live, prevResult=result)) == {}
    node.live.tick(2)
    [shown] = [each for each in records_of(node) if each["ifname"] == "net1"]
    assert (shown["port"], shown["bridge"], shown["mac"], shown["problems"]) == (port, BRIDGE, told["mac"], [])
    refused(delegate.call("ADD", node.live), 101, "attached already")
    succeeded(delegate.call("DEL", node.live))
    assert switch_of(node.live).interface(port) == before
    assert CONFIGURATION_DATA not in pod.annotations(node.api)
    again = add(delegate, node)
    assert again["interfaces"] == result["interfaces"]
    succeeded(delegate.call("DEL", node.live))
    node.kubelet.end(pod)
    node.require_nothing_left()


def mounts_in(cdi: Path) -> list[dict[str, Any]]:
    """What the runtime mounts for the devices of the file."""
    devices = json.loads(cdi.read_text())["devices"]
    return [mount for device in devices for mount in device["containerEdits"]["mounts"]]


def test_frames(node: ClaimingNode) -> None:
    """Applications of two pods exchange frames at the ports that their networks have joined."""
    with ExitStack() as stack:
        ports = []
        for number, name in enumerate(("asks", "answers")):
            pod = with_claims(node, name, {f"of-{name}": ((BRIDGE,), None)})
            path = stack.enter_context(netns())
            [each] = delegates(node.api, node.live, pod, path, [definition(node)], container(number))
            [interface] = add(each, node)["interfaces"]
            listener = stack.enter_context(FrontEndListener(interface["socketPath"]))
            ports.append((stack.enter_context(listener.accept(60)), each, pod))
        with ThreadPoolExecutor(2) as threads:
            acts = ((ask, ports[0][0]), (answer, ports[1][0]))
            assert list(threads.map(lambda each: each[0](each[1]), acts)) == [True, True]
        for _, each, pod in ports:
            succeeded(each.call("DEL", node.live))
            node.kubelet.end(pod)
    node.require_nothing_left()
