"""Frames go from a DPDK application in one pod through the switch to another pod's.

Both read their arguments from the plugin's notes.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.cni.spec import succeeded, switch_of
from tests.lab.frames.idle import THIS_RUN
from tests.lab.frames.testpmd import MEMORY_MIB, Testpmd, eal_arguments, run_testpmd
from tests.lab.kube.pods import MAPPED_DIR, Pod
from tests.lab.node.node import Node, clean
from tests.lab.switch.switch import Switch, wait_until

APPLICATIONS = 3
FIRST_ATTACH_SECONDS = 60
"""After its start the switch takes seconds to get the memory for its first connection."""


@pytest.fixture(scope="module")
def roomy_switch() -> Iterator[Switch]:
    """A switch that leaves hugepages for the applications."""
    with Switch(environment={"PRIVATE_SWITCH_APP_PAGES": str(APPLICATIONS * MEMORY_MIB // 2)}) as started:
        yield started


@pytest.fixture
def node(roomy_switch: Switch) -> Iterator[Node]:
    with TemporaryDirectory(prefix="uc-") as directory, clean(Node(Path(directory) / "n", roomy_switch)) as made:
        yield made


@dataclass(frozen=True)
class Attached:
    """A pod with its interface, as its application sees it."""

    node: Node
    pod: Pod
    container: str
    netns: str
    volume: Path

    @property
    def port(self) -> str:
        return f"{self.container[:12]}-net1"

    def eal(self) -> list[str]:
        """The EAL arguments from the pod's own document."""
        return eal_arguments(self.netns, self.volume, "--dir", MAPPED_DIR)

    def counted(self, way: str) -> int:
        """Packets that the datapath counts at the port while the application is connected: "RX" from it, "TX" to it."""
        shown = switch_of(self.node).appctl("dpctl/show", "--statistics")  # OVSDB's counters are up to 5 s old
        facts = shown.partition(f": {self.port} ")[2].partition("  port ")[0]
        found = re.search(rf"{way} packets:(\d+)", facts)
        return int(found[1]) if found else 0

    def is_up(self) -> bool:
        """Whether the application is connected."""
        return switch_of(self.node).interface(self.port).get("link_state") == "up"


def attach(node: Node, netns: str, number: int, network: dict[str, Any]) -> Attached:
    """A pod with an emptyDir, attached to the network."""
    pod, container = Pod(f"app-{number}"), f"{number:04x}{THIS_RUN}" + "f" * 52
    volume = node.empty_dir(pod.uid)
    succeeded(node.run("ADD", network, netns, container, CNI_ARGS=pod.args))
    return Attached(node, pod, container, netns, volume)


def detach(network: dict[str, Any], *pods: Attached) -> None:
    """DEL of all; nothing may be left."""
    for each in pods:
        succeeded(each.node.run("DEL", network, each.netns, each.container, CNI_ARGS=each.pod.args))
    assert pods[0].node.leftovers() == {}


def network_of(node: Node, mode: str = "client", vlan: int = 0) -> dict[str, Any]:
    network = node.network("1.0.0", ipam=node.host_local())
    network["host"]["vhost"]["mode"] = mode
    network["host"]["bridge"]["vlanId"] = vlan
    return network


def forwarded(node: Node) -> int:
    """Packets that the switch forwarded, by its flows: ports of type dpdkvhostuser have no counters (OVS 3.1)."""
    found = re.search(r"lookups: hit:(\d+)", switch_of(node).appctl("dpctl/show"))
    return int(found[1]) if found else 0


def measured(node: Node, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run one of the commands for people on this node."""
    argv = [sys.executable, "-m", "userspace_cni", *arguments]
    return subprocess.run(argv, env=node.environ, capture_output=True, text=True, timeout=FIRST_ATTACH_SECONDS, check=False)


@contextmanager
def applications(**forward: tuple[Attached, str]) -> Iterator[dict[str, Testpmd]]:
    """testpmd in each pod, one after the other, each connected before the next one starts."""
    started = {}
    with ExitStack() as stack:
        for name, (pod, how) in forward.items():
            started[name] = stack.enter_context(run_testpmd(pod.netns, pod.volume, pod.eal(), how))
            wait_until(pod.is_up, FIRST_ATTACH_SECONDS, f"{pod.port} up")
        yield started


def test_ports_in_use_are_not_measured(node: Node, sandbox: str) -> None:
    """`ping` and `load` refuse both pods while they are connected, and frames between these go on; temporary ports work."""
    network = network_of(node, "server")
    sender, receiver = (attach(node, sandbox, number, network) for number in (1, 2))
    with applications(receiver=(receiver, "rxonly"), sender=(sender, "txonly")) as running:
        for command in ("ping", "load"):
            refused = measured(node, command, "app-1/net1", "app-2/net1")
            assert (refused.returncode, refused.stdout) == (1, ""), refused
            assert "default/app-1/net1 is in use: its pod is connected" in refused.stderr
        done = measured(node, "ping", "--bridge", "br-test", "--count", "10", "--json")
        assert done.returncode == 0, done
        told = json.loads(done.stdout)
        assert told["received"] + told["lost"] == 10, done  # the flood may take the place of one of ours in a ring
        before = forwarded(node)
        wait_until(lambda: forwarded(node) > before + 1000, what="frames in the switch")
        assert sender.is_up()
        assert receiver.is_up()
        running["sender"].finish()
        assert running["receiver"].finish()["RX-packets"] > 0
    detach(network, sender, receiver)


@pytest.mark.parametrize("mode", ["client", "server"])
def test_frames_from_pod_to_pod(node: Node, sandbox: str, mode: str) -> None:
    """Frames from one pod's application arrive at the other's, and the switch counts them at both ports."""
    network = network_of(node, mode)
    sender, receiver = (attach(node, sandbox, number, network) for number in (1, 2))
    assert any("server=1" in argument for argument in sender.eal()) == (mode == "client")
    before = forwarded(node)
    with applications(receiver=(receiver, "rxonly"), sender=(sender, "txonly")) as running:
        wait_until(lambda: forwarded(node) > before, what="frames in the switch")
        if mode == "client":
            wait_until(lambda: sender.counted("RX") and receiver.counted("TX"), what="frames at both ports")
        sent, got = running["sender"].finish(), running["receiver"].finish()
    assert sent["TX-packets"] >= got["RX-packets"] > 0
    detach(network, sender, receiver)


def test_frames_through_a_socket_on_another_device(node: Node, sandbox: str) -> None:
    """In server mode, with emptyDirs in memory: each application connects through the mount of OVS's socket in its volume."""
    network = network_of(node, "server")
    pods = []
    with ExitStack() as stack:
        for number in (1, 2):
            pod = Pod(f"app-{number}")
            volume = node.empty_dir(pod.uid)
            subprocess.run(["mount", "-t", "tmpfs", "none", str(volume)], check=True)
            stack.callback(subprocess.run, ["umount", "--lazy", str(volume)], check=True)
            container = f"{number:012x}" + "a" * 52
            succeeded(node.run("ADD", network, sandbox, container, CNI_ARGS=pod.args))
            pods.append(Attached(node, pod, container, sandbox, volume))
        sender, receiver = pods
        before = forwarded(node)
        with applications(receiver=(receiver, "rxonly"), sender=(sender, "txonly")) as running:
            wait_until(lambda: forwarded(node) > before, what="frames in the switch")
            running["sender"].finish()
            assert running["receiver"].finish()["RX-packets"] > 0
        for each in pods:
            succeeded(node.run("DEL", network, sandbox, each.container, CNI_ARGS=each.pod.args))
    assert node.leftovers() == {}


def test_vlans_are_apart(node: Node, sandbox: str) -> None:
    """Of three pods, the two in VLAN 100 reach each other, and the one in VLAN 200 receives nothing of theirs."""
    same, other = network_of(node, vlan=100), network_of(node, vlan=200)
    sender, receiver = (attach(node, sandbox, number, same) for number in (1, 2))
    stranger = attach(node, sandbox, 3, other)
    forward = {"stranger": (stranger, "rxonly"), "receiver": (receiver, "rxonly"), "sender": (sender, "txonly")}
    with applications(**forward) as running:
        wait_until(lambda: receiver.counted("TX"), what="frames at the receiver's port")
        assert stranger.counted("TX") == 0
        counters = {name: running[name].finish() for name in ("sender", "receiver", "stranger")}
    assert counters["receiver"]["RX-packets"] > 0
    assert counters["stranger"]["RX-packets"] == 0
    detach(same, sender, receiver, stranger)
