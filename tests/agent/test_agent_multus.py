"""Networks of Multus whose devices claims chose: the interface that the plugin is called for is the claim's port."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.agent.living import LiveNode, container
from tests.cni.spec import refused, succeeded, switch_of
from tests.cni.test_cli_node import cli, decoded
from tests.lab.dra.claiming_node import BRIDGE, ClaimingNode, claiming
from tests.lab.dra.container_frames import answer, ask
from tests.lab.dra.multus_calls import Definition, Delegate, delegates
from tests.lab.dra.scheduled_claims import Given
from tests.lab.kube.kubelet import Kubelet
from tests.lab.kube.pods import CONFIGURATION_DATA, Pod
from tests.lab.kube.resource_definitions import SLICES
from tests.lab.runtimes.runtime import netns
from tests.lab.switch.switch import wait_until
from userspace_cni.dra.device_names import DRIVER, device_name
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
    parameters = {"host": {"mtu": 2000, "bridge": {"vlanId": 7}}, "container": {"vhost": {"queues": 2}}}
    pod = with_claims(node, "app", {"one": ((BRIDGE,), parameters)})
    [port] = node.ports()
    before = node.port()
    [delegate] = delegates(node.api, node.live, pod, sandbox, [definition(node, capabilities=CAPABILITIES)])
    result = add(delegate, node)
    assert (switch_of(node.live).ports(BRIDGE), node.port()) == ([port], before)
    told = {"name": "net1", "sandbox": sandbox, "mac": mac_of(node, port)}
    [interface] = result["interfaces"]
    assert interface.items() >= told.items()
    [entry] = pod.entries(node.api)
    seen = Path(node.live.cdi, *node.cdi_files())
    [mount] = [each for each in mounts_in(seen) if each["options"][0] == "rw"]
    path = f"{mount['containerPath']}/{port}"
    assert f"/var/lib/cni/usrspcni/{entry['config']['vhost']['socketfile']}" == path
    assert (entry["config"]["vhost"]["mode"], entry["config"]["vhost"]["queues"]) == ("server", 2)
    assert [each["address"] for each in entry["ipResult"]["ips"]] == [each["address"] for each in result["ips"]]
    [file] = node.live.device_info.rglob("*net1")
    assert json.loads(file.read_text())["vhost-user"] == {"mode": "server", "path": path}
    assert succeeded(delegate.call("CHECK", node.live, prevResult=result)) == {}
    node.live.tick(2)
    [shown] = [each for each in records_of(node) if each["ifname"] == "net1"]
    assert (shown["port"], shown["bridge"], shown["mac"], shown["problems"]) == (port, BRIDGE, told["mac"], [])
    assert (shown["mtu"], shown["vlan"]["tag"], shown["socket"]["pod"]) == (2000, 7, path)
    assert "not made by us, and stays" in cli(node.live, "show", "default/app/net1").stdout
    assert "Nothing wrong was found" in cli(node.live, "why", "default/app/net1").stdout
    refused(delegate.call("ADD", node.live), 101, "attached already")
    succeeded(delegate.call("DEL", node.live))
    assert node.port() == before
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


def test_several_devices(node: ClaimingNode, sandbox: str) -> None:
    """Each network of a pod joins a port of its own, also when they are added at once, and one too many is refused. What a
    network asks decides between devices of one ID."""
    claims = {
        "a-two": ((BRIDGE, BRIDGE), None),
        "b-tagged": ((BRIDGE,), {"host": {"bridge": {"vlanId": 7}}}),
    }
    pod = with_claims(node, "app", claims)
    tagged: dict[str, Any] = {"host": {"bridge": {"vlanId": 7}}}
    networks = [definition(node, "tagged", **tagged), *(definition(node, f"plain-{number}") for number in range(2))]
    asked = delegates(node.api, node.live, pod, sandbox, networks)
    assert [each.network["deviceID"] for each in asked] == [BRIDGE] * 3
    with ThreadPoolExecutor(3) as threads:
        results = list(threads.map(lambda each: add(each, node), asked))
    rows = {mac_of(node, port): switch_of(node.live).vsctl("get", "Port", port, "tag").strip() for port in node.ports()}
    macs = [result["interfaces"][0]["mac"] for result in results]
    assert (sorted(macs), rows[macs[0]]) == (sorted(rows), "7")
    more = replace(asked[0], ifname="net4")
    refused(more.call("ADD", node.live), 7, "have joined all 3 devices of that name")
    succeeded(asked[1].call("DEL", node.live))
    network = {**more.network, "host": {}}
    assert add(replace(more, network=network), node)["interfaces"][0]["mac"] == macs[1]
    assert len(switch_of(node.live).ports(BRIDGE)) == 3
    for each in (asked[0], asked[2], replace(more, network=network)):
        succeeded(each.call("DEL", node.live))
    node.kubelet.end(pod)
    node.require_nothing_left()


DIFFERENT: list[tuple[dict[str, Any], int, tuple[str, ...]]] = [
    ({"host": {"bridge": {"bridgeName": "br-other"}}}, 7, ("'br-other'", "has 'br-dev'")),
    ({"host": {"bridge": {"vlanId": 8}}}, 7, ("'8'", "has '7'", "claim default/one")),
    ({"host": {"mtu": 9000}}, 7, ("9000", "has 2000")),
    ({"host": {"mac": "02:00:00:00:00:77"}}, 7, ("02:00:00:00:00:77",)),
    ({"host": {"vhost": {"mode": "server"}}}, 7, ("OVS is to be the server",)),
    ({"host": {"vhost": {"socketfile": "other"}}}, 7, ("'other'",)),
    ({"host": {"vhost": {"user": "1000"}}}, 7, ("'1000'", "has 'none'")),
    ({"bandwidth": {"egressRate": 8_000_000}}, 7, ("'bandwidth'",)),
    ({"mirrors": [{"name": "ids"}]}, 7, ("'mirrors'", "ids")),
    ({"host": {"iftype": "veth"}}, 2, ("a kernel link", "claim default/one")),
    ({"consumer": "kubevirt", "ipam": {}}, 2, ("'consumer' 'kubevirt'",)),
]
"""What a network asks, and code and words of the refusal."""


def test_what_the_port_has_not(node: ClaimingNode, sandbox: str) -> None:
    """A network that asks for something else than the claim's port has is refused with both values, and nothing changes; one that
    asks for the same is served."""
    pod = with_claims(node, "app", {"one": ((BRIDGE,), {"host": {"mtu": 2000, "bridge": {"vlanId": 7}}})})
    [port] = node.ports()
    before = switch_of(node.live).interface(port)
    for keys, code, words in DIFFERENT:
        [each] = delegates(node.api, node.live, pod, sandbox, [definition(node, **keys)])
        refused(each.call("ADD", node.live), code, *words)
    assert (switch_of(node.live).ports(BRIDGE), switch_of(node.live).interface(port)) == ([port], before)
    same: dict[str, Any] = {"host": {"mtu": 2000, "bridge": {"vlanId": 7, "bridgeName": BRIDGE}, "vhost": {"mode": "client"}}}
    [each] = delegates(node.api, node.live, pod, sandbox, [definition(node, **same)])
    add(each, node)
    succeeded(each.call("DEL", node.live))
    node.kubelet.end(pod)
    node.require_nothing_left()


def test_another_pods_claim(node: ClaimingNode, sandbox: str) -> None:
    """A `deviceID` leads to no claim of another pod, whatever its name; the pod is told what to look at."""
    with_claims(node, "owner", {"one": ((BRIDGE,), None)})
    for other in (Pod("other"), Pod("owner"), Pod("owner", "red")):
        network = {**definition(node).config, "deviceID": BRIDGE, "pciBusID": BRIDGE}
        call = Delegate(other, sandbox, "net1", network).call("ADD", node.live)
        refused(call, 7, f"no claim of pod {other.namespace}/{other.name} has a prepared device", "setting 'dra'")
    nameless = replace(Delegate(Pod("owner"), sandbox, "net1", network), pod=replace(Pod("owner"), uid=""))
    assert add(nameless, node)["interfaces"][0]["mac"] == mac_of(node, *node.ports())
    succeeded(nameless.call("DEL", node.live))
    assert len(switch_of(node.live).ports(BRIDGE)) == 1


def test_the_driver_is_off(live: LiveNode, sandbox: str) -> None:
    """On a node that serves no claims, the ID of a claim's device is refused instead of a port being made for it."""
    live.start()
    network = {**live.network(), "host": {"bridge": {"bridgeName": BRIDGE}}, "deviceID": BRIDGE}
    refused(live.run("ADD", network, sandbox, CNI_ARGS=Pod().args), 7, "has a prepared device", "setting 'dra'")
    assert live.leftovers() == {}


def test_unprepared_before_del(node: ClaimingNode, sandbox: str) -> None:
    """Where the claim is unprepared first its port is gone, CHECK says so, nothing is made again, and DEL succeeds."""
    pod = with_claims(node, "app", {"one": ((BRIDGE,), None)})
    [each] = delegates(node.api, node.live, pod, sandbox, [definition(node)])
    result = add(each, node)
    node.kubelet.unprepare(pod)
    assert switch_of(node.live).ports(BRIDGE) == []
    refused(each.call("CHECK", node.live, prevResult=result), 103, "claim default/one")
    node.live.tick(2)
    assert switch_of(node.live).ports(BRIDGE) == []
    succeeded(each.call("DEL", node.live))
    node.require_nothing_left()


def test_a_lost_port(node: ClaimingNode, sandbox: str) -> None:
    """A port that is lost is made again for the claim, and the interface has it again; meanwhile CHECK says what is missing."""
    pod = with_claims(node, "app", {"one": ((BRIDGE,), None)})
    [port] = node.ports()
    [each] = delegates(node.api, node.live, pod, sandbox, [definition(node)])
    result = add(each, node)
    node.live.kill()
    switch_of(node.live).vsctl("del-port", BRIDGE, port)
    refused(replace(each, alone=True).call("CHECK", node.live, prevResult=result), 103, port)
    node.start()
    node.await_prepared(1)
    assert switch_of(node.live).ports(BRIDGE) == [port]
    succeeded(each.call("CHECK", node.live, prevResult=result))
    succeeded(each.call("DEL", node.live))
    node.kubelet.end(pod)
    node.require_nothing_left()


def test_a_former_sandbox(node: ClaimingNode, sandbox: str) -> None:
    """While the pod's former sandbox is there it keeps the port; one that went without DEL gives it to the next sandbox."""
    pod = with_claims(node, "app", {"one": ((BRIDGE,), None)})
    former = Path(sandbox).parent / "cni-former"
    former.touch()
    subprocess.run(["unshare", f"--net={former}", "true"], check=True)
    [lost] = delegates(node.api, node.live, pod, str(former), [definition(node)], container(1))
    [each] = delegates(node.api, node.live, pod, sandbox, [definition(node)], container(2))
    try:
        add(lost, node)
        refused(each.call("ADD", node.live), 105, container(1))
    finally:
        subprocess.run(["umount", "--lazy", str(former)], check=True)
        former.unlink()
    add(each, node)
    assert [shown["container"] for shown in records_of(node) if shown["network"] == "net"] == [each.container]
    succeeded(lost.call("DEL", node.live))
    succeeded(each.call("DEL", node.live))
    node.kubelet.end(pod)
    node.require_nothing_left()


def test_without_an_agent(node: ClaimingNode, sandbox: str) -> None:
    """A claim that is prepared can be joined and left while no agent runs; a GC for the network leaves the claim's port."""
    pod = with_claims(node, "app", {"one": ((BRIDGE,), None)})
    [port] = node.ports()
    [each] = delegates(node.api, node.live, pod, sandbox, [definition(node)])
    node.live.kill()
    add(replace(each, alone=True), node)
    assert switch_of(node.live).ports(BRIDGE) == [port]
    succeeded(replace(each, alone=True).call("DEL", node.live))
    add(replace(each, alone=True), node)
    node.live.start()
    network = {**each.network, "cniVersion": "1.1.0", "cni.dev/valid-attachments": []}
    succeeded(node.live.run("GC", network))
    assert switch_of(node.live).ports(BRIDGE) == [port]
    assert [shown["ifname"] for shown in records_of(node)] == ["net0"]
    node.kubelet.await_driver(DRIVER)
    node.kubelet.end(pod)
    node.require_nothing_left()


def test_after_a_reboot(node: ClaimingNode, sandbox: str) -> None:
    """The claim's port is made anew, the interface of the former boot goes, and the pod's next sandbox joins the new port."""
    pod = with_claims(node, "app", {"one": ((BRIDGE,), None)})
    [each] = delegates(node.api, node.live, pod, sandbox, [definition(node)])
    first = add(each, node)
    node.reboot()
    node.kubelet.start()
    node.start()
    node.kubelet.admit(pod, "one")
    node.await_prepared(1)
    again = replace(each, container=container(3))
    assert add(again, node)["interfaces"][0]["mac"] == first["interfaces"][0]["mac"]
    assert sorted(shown["container"] for shown in records_of(node) if shown["network"] == "net") == [again.container]
    succeeded(again.call("DEL", node.live))
    node.kubelet.end(pod)
    node.require_nothing_left()


def test_a_lost_record(node: ClaimingNode, sandbox: str) -> None:
    """DEL of an interface whose record is lost takes it off the claim's port, which the next ADD joins."""
    pod = with_claims(node, "app", {"one": ((BRIDGE,), None)})
    [each] = delegates(node.api, node.live, pod, sandbox, [definition(node)])
    add(each, node)
    for file in node.live.state.rglob(f"*{each.container}*"):
        file.unlink()
    succeeded(each.call("DEL", node.live))
    assert [shown["ifname"] for shown in records_of(node)] == ["net0"]
    add(replace(each, container=container(3)), node)
    succeeded(replace(each, container=container(3)).call("DEL", node.live))
    node.kubelet.end(pod)
    node.require_nothing_left()


def test_rules_and_volumes(node: ClaimingNode, sandbox: str) -> None:
    """The rules of the namespace judged the claim, and a network that says no VLAN adds nothing to it. A pod whose volume for
    sockets is elsewhere is refused, because its annotations could not say both places."""
    node.live.kill()
    rule = f'[[rule]]\nnamespaces = ["*"]\nbridges = ["{BRIDGE}"]\nvlans = ["7"]\n'
    Path(node.live.environ["USERSPACE_CNI_CONFIG"]).write_text(rule)
    node.start()
    parameters = {"host": {"bridge": {"vlanId": 7}}}
    pod = Pod("elsewhere", volume={"emptyDir": {}}, mount_path="/sockets")
    pod.create(node.api)
    with_claims(node, pod.name, {"one": ((BRIDGE,), parameters)}, pod)
    [each] = delegates(node.api, node.live, pod, sandbox, [definition(node)])
    refused(each.call("ADD", node.live), 7, "/sockets/", "claim default/one")
    plain = with_claims(node, "plain", {"two": ((BRIDGE,), parameters)})
    [each] = delegates(node.api, node.live, plain, sandbox, [definition(node)])
    add(each, node)
    succeeded(each.call("DEL", node.live))
    for ended in (pod, plain):
        node.kubelet.end(ended)
    node.require_nothing_left()


def test_beside_the_device_plugin(node: ClaimingNode, sandbox: str) -> None:
    """A claim's device comes before one of the device plugin that is called the same, which the next interface takes."""
    node.live.kill()
    node.live.settings |= {"USERSPACE_CNI_DEVICES_PER_BRIDGE": "3", "USERSPACE_CNI_PORTS_PER_BRIDGE": "3"}
    device = device_name(BRIDGE, 0)
    with Kubelet(node.live.kubelet) as plugins:
        node.start()
        plugins.await_health(RESOURCE, "Healthy")
        plugins.give("default/app", RESOURCE, device)
        pod = node.pod()
        node.scheduler.claim("one", pod, Given([device]))
        node.kubelet.admit(pod, "one")
        network = {**definition(node).config, "host": {"bridge": {"bridgeName": BRIDGE}}, "deviceID": device}
        joined, own = (Delegate(pod, sandbox, f"net{number}", network) for number in (1, 2))
        assert add(joined, node)["interfaces"][0]["mac"] == mac_of(node, *node.ports())
        add(own, node)
        assert len(switch_of(node.live).ports(BRIDGE)) == 2
        for each in (joined, own):
            succeeded(each.call("DEL", node.live))
        node.kubelet.end(pod)
