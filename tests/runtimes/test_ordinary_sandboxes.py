"""Ordinary pods on our network alone, made by real runtimes, beside pods with vhost-user ports and Debian's plugins.

The runtime is where ovs-vswitchd opens its ports, as on a node: there Debian's plugins find the host ends, and the node has an
address on the bridge, its local port, which is the pods' gateway.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.cni.spec import succeeded, switch_of
from tests.lab.frames.exchanges import PORT, datagrams, transfer
from tests.lab.frames.taps import SECONDS, TapProcess, echoes
from tests.lab.frames.testpmd import MEMORY_MIB, eal_arguments, run_testpmd
from tests.lab.kube.pods import MAPPED_DIR, Pod
from tests.lab.node.agent import running
from tests.lab.node.links import addresses, guards, host_ends, inside, links, routes
from tests.lab.node.node import CONTAINER, Node
from tests.lab.runtimes.containerd import Containerd
from tests.lab.runtimes.containerd_host import RuntimeHost, runtime_host, shared_mounts
from tests.lab.runtimes.podman import Podman
from tests.lab.runtimes.runtime import Runtime, netns
from tests.lab.switch.switch import Switch, wait_until
from tests.lab.switch.veths import give, veth
from tests.runtimes.seen import conflist

BRIDGE = "br-test"
SUBNET, GATEWAY = "10.56.0.0/24", "10.56.0.1"
SUBNET6, GATEWAY6 = "fd00:56::/64", "fd00:56::1"
AT_ONCE = 20
FOREVER = ("/bin/sleep", "1000")
MIB = 1 << 20


@pytest.fixture(scope="module")
def switch() -> Iterator[Switch]:
    """A switch whose network namespace is the node's in these tests, with hugepages left for an application."""
    with Switch(environment={"PRIVATE_SWITCH_APP_PAGES": str(MEMORY_MIB // 2)}) as started:
        yield started


@pytest.fixture
def runtime_node(node: Node) -> Iterator[Node]:
    """The node with an agent in that namespace, too."""
    with shared_mounts(node.directory.parent), running(node, "nsenter", f"--net={switch_of(node).netns}"):
        yield node


@pytest.fixture
def host(runtime_node: Node) -> Iterator[RuntimeHost]:
    """The runtimes' directories and settings on a node with an administrator's bridge, on which it has the gateway's address."""
    switch = switch_of(runtime_node)
    switch.vsctl("add-br", BRIDGE, "--", "set", "Bridge", BRIDGE, "datapath_type=netdev")
    give(switch.netns, BRIDGE, f"{GATEWAY}/24")
    with runtime_host(runtime_node, switch.netns) as made:
        yield made


def ordinary(node: Node, **keys: Any) -> dict[str, Any]:
    """Our plugin with kernel links, addresses and a default route."""
    block = {"iftype": "veth", "bridge": {"bridgeName": BRIDGE}}
    ipam = {**node.host_local(), "routes": [{"dst": "0.0.0.0/0"}]}
    ipam["ranges"] = [[{"subnet": SUBNET, "gateway": GATEWAY}], [{"subnet": SUBNET6, "gateway": GATEWAY6}]]
    return {"type": "userspace", "host": block, "ipam": ipam, **keys}


def namespaces(node: Node) -> dict[str, str]:
    """The pods' network namespaces by container ID, as the marks in the switch name them."""
    rows = (switch_of(node).interface(name) for name in switch_of(node).ports(BRIDGE))
    return {row["external_ids"]["container-id"]: row["external_ids"]["netns"] for row in rows}


def both_of(namespace: str) -> tuple[str, ...]:
    """The pod's IPv4 address, and its IPv6 address."""
    return tuple(each.partition("/")[0] for each in addresses(namespace, "eth0"))


def address_of(namespace: str) -> str:
    return both_of(namespace)[0]


def require_clean(node: Node) -> None:
    """Only the administrator's bridge is left."""
    switch = switch_of(node)
    assert node.leftovers() == {"bridges": [BRIDGE]}
    assert (switch.ports(BRIDGE), host_ends(switch.netns), guards(switch.netns)) == ([], {}, [])


def add_vhost(node: Node, namespace: str, number: int) -> tuple[Path, str]:
    """Attach a pod with a vhost-user port on the same network; its volume and its address."""
    pod = Pod(f"dpdk-{number}")
    volume = node.empty_dir(pod.uid)
    network = {**node.network("1.0.0"), "ipam": ordinary(node)["ipam"]}
    result = succeeded(node.run("ADD", network, namespace, f"{number:x}" * 64, CNI_ARGS=pod.args))
    return volume, result["ips"][0]["address"].partition("/")[0]


def test_pods_of_all_kinds_talk(runtime_node: Node, containerd: Containerd, podman: Podman) -> None:
    """containerd's pod, podman's container, a vhost-user pod with a kernel tap and one with DPDK reach each other."""
    node = runtime_node
    cri = containerd.start(conflist(ordinary(node)))
    with ThreadPoolExecutor(2) as pool:
        of_podman = pool.submit(podman.run, *FOREVER, networks="net")
        sandbox = cri.run(Pod())
        container = of_podman.result()
    found = namespaces(node)
    one, other = found[sandbox], found[container]
    assert cri.status(sandbox).addresses == both_of(one)
    assert podman.networks(container)["net"]["IPAddress"] == address_of(other)
    for left, right in ((one, other), (other, one)):
        for address in both_of(right):
            transfer(left, right, address, 4 * MIB)
            datagrams(left, right, address, range(1, 9000, 1501))
    with ExitStack() as stack:
        tapped, polled = (stack.enter_context(netns()) for _ in range(2))
        volume, address = add_vhost(node, tapped, 0xA)
        tap = stack.enter_context(TapProcess(tapped, "--dir", str(volume)))
        tap.until("ready")
        wait_until(lambda: echoes(one, address), SECONDS, "an echo of the tap")
        transfer(one, tapped, address, 4 * MIB)
        transfer(tapped, other, address_of(other), 4 * MIB)
        datagrams(tapped, one, address_of(one), range(1, 9000, 1501))
        volume, address = add_vhost(node, polled, 0xB)
        eal = eal_arguments(polled, volume, "--dir", MAPPED_DIR)
        with run_testpmd(polled, volume, eal, "icmpecho") as application:
            for pod in (one, other, tapped):
                wait_until(lambda: echoes(pod, address), SECONDS, "an echo of testpmd")  # noqa: B023 -- at once
            assert application.finish()["RX-packets"] >= 3
        assert tap.end(signal.SIGTERM) == 0  # it would make its socket again, which DEL has removed
        for number in (0xA, 0xB):
            succeeded(node.run("DEL", {**node.network("1.0.0"), "ipam": ordinary(node)["ipam"]}, "", f"{number:x}" * 64))
    podman.remove(container)
    cri.stop(sandbox)
    cri.remove(sandbox)
    require_clean(node)


def chained(node: Node) -> dict[str, Any]:
    """Our plugin and those of Debian's that come after one."""
    return conflist(
        ordinary(node),
        {"type": "tuning", "sysctl": {"net.ipv4.conf.eth0.arp_filter": "1"}},
        {"type": "portmap", "capabilities": {"portMappings": True}},
        {"type": "firewall", "backend": "iptables"},
        {"type": "bandwidth", "egressRate": 80_000_000, "egressBurst": 8_000_000},
    )


def test_debians_plugins_check_our_result(runtime_node: Node, host: RuntimeHost, sandbox: str) -> None:
    """CHECK of a whole chain with the last plugin's result: each plugin finds what it made, and so do we.

    Without a port: portmap 1.1.1 looks for an IPv4 address among the IPv6 rules, and never finds it.
    """
    node = runtime_node
    host.write_networks(chained(node))
    runtime = Runtime(host.networks_dir, [host.bin], node.directory / "cache", host.environ, host.netns)
    runtime.add("net", CONTAINER, sandbox, "eth0")
    runtime.check("net", CONTAINER, sandbox, "eth0")
    runtime.delete("net", CONTAINER, sandbox, "eth0")
    require_clean(node)


def test_through_debians_plugins(runtime_node: Node, containerd: Containerd) -> None:
    """Debian's plugins after ours use our result: a port of the node leads to the pod, and DEL undoes all."""
    node, namespace = runtime_node, switch_of(runtime_node).netns
    cri = containerd.start(chained(node))
    sandbox = cri.run(Pod(host_ports={8080: PORT}))
    [pod] = namespaces(node).values()
    address, [host_end] = address_of(pod), host_ends(namespace)
    with netns() as outside:
        veth(namespace, "up0", outside, "net0", "192.0.2.2/24")
        give(namespace, "up0", "192.0.2.1/24")
        inside(namespace, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        transfer(outside, pod, address, 2 * MIB, dialled=("192.0.2.1", 8080))
        inside(namespace, "ip", "link", "del", "up0")
    assert inside(pod, "cat", "/proc/sys/net/ipv4/conf/eth0/arp_filter") == "1\n"
    assert f"{address}/32" in inside(namespace, "iptables", "--list-rules", "CNI-FORWARD")
    [limiting] = set(links(namespace)) - {host_end, BRIDGE}
    assert "qdisc tbf" in inside(namespace, "tc", "qdisc", "show", "dev", limiting)
    cri.stop(sandbox)
    left = inside(namespace, "iptables-save")
    assert (address in left, "8080" in left, set(links(namespace))) == (False, False, {BRIDGE})
    cri.remove(sandbox)
    require_clean(node)


def test_beside_debians_macvlan(runtime_node: Node, containerd: Containerd) -> None:
    """A pod whose default route is a macvlan's on the node's NIC reaches
    neighbours there, and services and the node through ours.
    """
    node, namespace = runtime_node, switch_of(runtime_node).netns
    ours = ordinary(node, serviceCIDRs=["10.96.0.0/12"], nodeRoutes=True)
    del ours["ipam"]["routes"]
    ipam = {**node.host_local(), "routes": [{"dst": "0.0.0.0/0", "gw": "192.0.2.254"}]}
    ipam["ranges"] = [[{"subnet": "192.0.2.0/24", "rangeStart": "192.0.2.10"}]]
    theirs = {"type": "macvlan", "master": "up0", "mode": "bridge", "ipam": ipam}
    with netns() as outside:
        veth(namespace, "up0", outside, "net0", "192.0.2.254/24")
        give(namespace, "up0", "192.0.2.1/24")
        give(namespace, "lo", "10.96.0.10/32")
        cri = containerd.start(conflist(ours), conflist(theirs, name="macvlan"))
        sandbox = cri.run(Pod())
        [pod] = namespaces(node).values()
        assert set(links(pod)) == {"eth0", "eth1"}
        via = {each["dst"]: each["gateway"] for each in routes(pod)}
        assert via == {"default": "192.0.2.254", **dict.fromkeys(("10.96.0.0/12", "10.96.0.10", "192.0.2.1"), GATEWAY)}
        for address in ("192.0.2.254", "10.96.0.10", "192.0.2.1"):
            wait_until(lambda: echoes(pod, address), SECONDS, f"an echo of {address}")  # noqa: B023 -- at once
        cri.stop(sandbox)
        cri.remove(sandbox)
        inside(namespace, "ip", "address", "del", "10.96.0.10/32", "dev", "lo")
        inside(namespace, "ip", "link", "del", "up0")
    require_clean(node)


def test_many_at_once(runtime_node: Node, containerd: Containerd) -> None:
    """Twenty sandboxes set up at once reach each other in a ring; they are removed at once, and nothing is left."""
    node = runtime_node
    cri = containerd.start(conflist(ordinary(node)))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        sandboxes = list(pool.map(cri.run, [Pod(f"app-{number}") for number in range(AT_ONCE)]))
        pods = list(namespaces(node).values())
        assert len(pods) == len(set(map(address_of, pods))) == AT_ONCE
        for pod, following in zip(pods, pods[1:] + pods[:1], strict=True):
            datagrams(pod, following, address_of(following), range(1400, 1401))
        assert guards(switch_of(node).netns) == sorted(host_ends(switch_of(node).netns))
        list(pool.map(cri.stop, sandboxes))
        require_clean(node)
        list(pool.map(cri.remove, sandboxes))
    require_clean(node)
