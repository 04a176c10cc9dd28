"""The node's side of a gateway that shares MAC and addresses with OVN's router: by the agent, and by the command."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.conftest import node_with_shim
from tests.agent.living import LiveNode
from tests.lab.kube.apiserver import ApiServer
from tests.lab.kube.cluster_objects import node as node_object
from tests.lab.node.forked_node import run_command
from tests.lab.ovn.central import CHASSIS, INTEGRATION, Ovn
from tests.lab.ovn.shared_gateway import (
    BRIDGE,
    EXTERNAL,
    NIC,
    NODE,
    NODE_PORT,
    OUTSIDE,
    SERVED,
    SharedWorld,
    asks,
    pings,
    serving,
    shared_world,
)
from tests.lab.switch.switch import Switch, wait_until

THEIRS = "cookie=0x77,table=0,priority=7,udp,tp_dst=9999,actions=drop"
COMMAND = ("-m", "userspace_cni", "ovn", "gateway-helper", "--bridge", BRIDGE, "--interface", NIC)
FORMER = (
    "-c",
    "import sys; from userspace_cni.cli.former_tools import run_gateway_helper; sys.exit(run_gateway_helper())",
    f"--physical-bridge={BRIDGE}",
    f"--physical-interface={NIC}",
    "--pidfile",
    "--detach",
)
PAIR = {f"k8s-patch-{BRIDGE}-{INTEGRATION}", f"k8s-patch-{INTEGRATION}-{BRIDGE}"}


def service(name: str, *ports: tuple[str, int, int], kind: str = "NodePort", **spec: Any) -> dict[str, Any]:
    """A Service with protocol, port and NodePort of each of its ports."""
    said = [{"name": f"p{each[1]}", "protocol": each[0], "port": each[1], "nodePort": each[2]} for each in ports]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"type": kind, "clusterIP": "10.96.0.9", "ports": said, **spec},
    }


@pytest.fixture
def api() -> Iterator[ApiServer]:
    with ApiServer() as started:
        started.add(node_object(CHASSIS))
        yield started


@pytest.fixture
def world(switch: Switch, ovn: Ovn) -> Iterator[SharedWorld]:
    with shared_world(switch, ovn) as made:
        yield made


@pytest.fixture
def live(switch: Switch, api: ApiServer, tmp_path: Path) -> Iterator[LiveNode]:
    """A node with the shim, whose agent is not started yet."""
    with node_with_shim(switch) as made:
        made.settings |= {
            "USERSPACE_CNI_NODE_NAME": CHASSIS,
            "USERSPACE_CNI_KUBECONFIG": api.kubeconfig(tmp_path),
        }
        yield made
        made.close()
        assert run_command(made.environ, "uninstall", "--force", f"--bin-dir={Path(made.plugin).parent}").returncode == 0


def share(live: LiveNode) -> LiveNode:
    """Start the agent with the setting."""
    live.settings["USERSPACE_CNI_OVN_GATEWAY_BRIDGE"] = BRIDGE
    return live.start()


def served_ports(world: SharedWorld) -> set[str]:
    """What the flows of Services ask for, as `tcp6 * 80`: protocol and family, address and port."""
    found = set()
    for each in (each for each in world.ours() if "priority=20130" in each):
        match = re.search(r"priority=20130,(\w+),.*dl_dst=[^, ]+(?:,(?:nw|ipv6)_dst=([^, ]+))?,tp_dst=([0-9]+) ", each)
        assert match, each
        found.add(f"{match[1]} {match[2] or '*'} {match[3]}")
    return found


def is_shared(world: SharedWorld) -> bool:
    """Whether the bridge has the flows that it needs without Services."""
    return len([each for each in world.ours() if "priority=20130" not in each]) == 14


def require_reached(world: SharedWorld) -> None:
    """Pod and node reach outside, and are reached where they are to be, in both families."""
    for family in (0, 1):
        wait_until(lambda family=family: pings(world.pod, OUTSIDE[family]), what=f"the pod reaches {OUTSIDE[family]}")  # type: ignore[misc]
        wait_until(lambda family=family: pings(world.node, OUTSIDE[family]), what=f"the node reaches {OUTSIDE[family]}")  # type: ignore[misc]
        assert pings(world.outside, NODE[family])
    with serving(world.outside, 7000) as clients:
        for family in (0, 1):
            for source in (world.pod, world.node):
                assert asks(source, OUTSIDE[family], 7000)
        assert clients == [NODE[0], NODE[0], NODE[1], NODE[1]]
    with serving(world.node, 7001):
        assert [asks(world.outside, address, 7001) for address in NODE] == [True, True]


def both(*said: str) -> set[str]:
    """Of both families."""
    return {each for word in said for protocol, _, rest in (word.partition(" "),) for each in (word, f"{protocol}6 {rest}")}


def test_the_node_and_ovn_share_a_bridge(world: SharedWorld, live: LiveNode, api: ApiServer) -> None:
    """Pod and node both reach outside by one address of each family, the node is reached, and NodePorts lead to the pod."""
    api.add(service("web", ("TCP", 80, NODE_PORT), ("UDP", 80, NODE_PORT)), "default")
    share(live)
    wait_until(lambda: is_shared(world), what="the flows")
    require_reached(world)
    wait_until(lambda: served_ports(world) == both(f"tcp * {NODE_PORT}", f"udp * {NODE_PORT}"), what="the flows of the Service")
    with serving(world.pod, SERVED), serving(world.pod, SERVED, udp=True):
        for address in NODE:
            assert asks(world.outside, address, NODE_PORT)
            assert asks(world.outside, address, NODE_PORT, udp=True)


def test_flows_are_put_back(world: SharedWorld, live: LiveNode, api: ApiServer) -> None:
    """After a restart of ovs-vswitchd, and after someone deleted or changed flows; flows of others stay as they are."""
    api.add(service("web", ("TCP", 80, NODE_PORT)), "default")
    share(live)
    wait_until(lambda: is_shared(world) and served_ports(world), what="the flows")
    whole = {re.sub("cookie=[^,]*", "", each) for each in world.ours()}

    def is_whole() -> bool:
        return {re.sub("cookie=[^,]*", "", each) for each in world.ours()} == whole

    world.ofctl("add-flow", THEIRS)
    world.ofctl("del-flows", "table=64")
    wait_until(is_whole, what="the deleted flows")
    [last] = [each for each in world.ours() if "priority=100 " in each]
    [cookie] = re.findall("cookie=(0x[0-9a-f]+)", last)
    world.ofctl("mod-flows", "--strict", f"cookie={cookie},table=64,priority=100,actions=drop")
    wait_until(is_whole, what="the changed flow")
    assert [each for each in world.flows() if "cookie=0x77" in each]
    world.switch.restart_vswitchd()
    wait_until(is_whole, what="the flows after a restart")
    require_reached(world)


def test_every_change_of_a_service(world: SharedWorld, live: LiveNode, api: ApiServer) -> None:
    """Ports that come, change and go; TCP, UDP and SCTP; external addresses, but none of the node's own."""
    share(live)
    api.add(service("web", ("TCP", 80, NODE_PORT), ("SCTP", 81, 30081)), "default")
    wait_until(lambda: served_ports(world) == both(f"tcp * {NODE_PORT}", "sctp * 30081"), what="the first Service")
    api.add(service("web", ("UDP", 80, 30082)), "default")
    wait_until(lambda: served_ports(world) == both("udp * 30082"), what="its change")
    outside = service("out", ("TCP", 80, 0), kind="ClusterIP", externalIPs=[EXTERNAL, "2001:db8:7::7", NODE[0]])
    api.add(outside, "default")
    expected = both("udp * 30082") | {f"tcp {EXTERNAL} 80", "tcp6 2001:db8:7::7 80"}
    wait_until(lambda: served_ports(world) == expected, what="external addresses")
    with serving(world.pod, SERVED):
        wait_until(lambda: asks(world.outside, EXTERNAL, 80), what="the external address leads to the pod")
    api.objects("services").remove("default", "out")
    api.objects("services").remove("default", "web")
    wait_until(lambda: not served_ports(world), what="no Service")
    assert is_shared(world)


def test_what_is_unknown_stays(world: SharedWorld, live: LiveNode, api: ApiServer) -> None:
    """An agent that cannot list Services leaves the NodePorts of the agent before it; one without the setting removes all."""
    api.add(service("web", ("TCP", 80, NODE_PORT)), "default")
    share(live)
    wait_until(lambda: is_shared(world) and served_ports(world), what="the flows")
    live.kill()
    assert (is_shared(world), served_ports(world)) == (True, both(f"tcp * {NODE_PORT}"))
    live.settings["USERSPACE_CNI_KUBECONFIG"] = "/nonexistent"
    live.start()
    world.ofctl("del-flows", "table=0,arp")
    wait_until(lambda: is_shared(world), what="the flows of the next agent")
    assert served_ports(world) == both(f"tcp * {NODE_PORT}")
    live.end()
    live.settings["USERSPACE_CNI_OVN_GATEWAY_BRIDGE"] = ""
    live.start()
    wait_until(lambda: not world.ours(), what="the end of the flows")
    wait_until(lambda: not PAIR & {*world.switch.ports(BRIDGE), *world.switch.ports(INTEGRATION)}, what="the end of the pair")


def test_a_lost_record(world: SharedWorld, live: LiveNode) -> None:
    """What it named is found by the rows of the pair, and goes with them where it is no longer asked for."""
    share(live)
    wait_until(lambda: is_shared(world), what="the flows")
    live.kill()
    shutil.rmtree(live.state / "node")
    live.settings["USERSPACE_CNI_OVN_GATEWAY_BRIDGE"] = ""
    live.start()
    wait_until(lambda: not world.ours(), what="the end of the flows")
    wait_until(lambda: not PAIR & {*world.switch.ports(BRIDGE), *world.switch.ports(INTEGRATION)}, what="the end of the pair")


def test_a_flow_of_others_in_the_place_of_ours(world: SharedWorld, live: LiveNode) -> None:
    """Nothing is written where it might replace a flow of others, and the log says which; then it is."""
    world.ofctl("add-flow", "cookie=0x77,table=0,priority=20120,ip,in_port=1,actions=drop")
    share(live)
    wait_until(lambda: "priority 20120" in (live.directory / "agent.log").read_text(), what="the reason in the log")
    assert "priority 20120" in run_command(live.environ, "network").stderr
    assert not world.ours()
    world.ofctl("del-flows", "cookie=0x77/-1")
    wait_until(lambda: is_shared(world), what="the flows")


def await_flows(world: SharedWorld, process: subprocess.Popen[str]) -> None:
    """Until the bridge has all flows; AssertionError has what the process said where it has ended."""

    def are_there() -> bool:
        assert process.poll() is None, process.stderr and process.stderr.read()
        return is_shared(world) and bool(served_ports(world))

    wait_until(are_there, what="the flows")


@pytest.fixture
def helper(live: LiveNode) -> Iterator[Any]:
    """Starts the command, and kills it at the end."""
    made: list[subprocess.Popen[str]] = []

    def start(*program: str) -> subprocess.Popen[str]:
        argv = [sys.executable, *program]
        made.append(subprocess.Popen(argv, env=os.environ | live.environ, stderr=subprocess.PIPE, text=True))
        return made[-1]

    yield start
    for each in made:
        each.kill()
        each.communicate()


@pytest.mark.parametrize("program", [COMMAND, FORMER], ids=["command", "former"])
def test_the_command(world: SharedWorld, live: LiveNode, api: ApiServer, helper: Any, program: tuple[str, ...]) -> None:
    """It does the same until SIGTERM, and removes flows and pair at its end; what a killed one left, `gc` removes."""
    api.add(service("web", ("TCP", 80, NODE_PORT)), "default")
    world.ofctl("add-flow", THEIRS)
    first = helper(*program)
    await_flows(world, first)
    wait_until(lambda: {*world.switch.ports(BRIDGE), *world.switch.ports(INTEGRATION)} >= PAIR, what="the pair")
    wait_until(lambda: pings(world.pod, OUTSIDE[0]), what="the pod reaches outside")
    first.send_signal(signal.SIGTERM)
    assert first.wait(60) == 0
    assert not world.ours()
    assert not PAIR & {*world.switch.ports(BRIDGE), *world.switch.ports(INTEGRATION)}
    second = helper(*program)
    await_flows(world, second)
    second.kill()
    second.wait(60)
    assert run_command(live.environ, "gc").returncode == 0
    assert not world.ours()
    assert not PAIR & {*world.switch.ports(BRIDGE), *world.switch.ports(INTEGRATION)}
    assert [each for each in world.flows() if "cookie=0x77" in each]
