"""A VM migrates from one chassis to another, with the plugin on both: source and target exist at once, as one logical port."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.cni.spec import succeeded
from tests.lab.frames.taps import TapProcess, echoes, socket_in
from tests.lab.kube.apiserver import ApiServer
from tests.lab.kube.cluster_objects import node
from tests.lab.kube.pods import Pod
from tests.lab.node.node import Node, clean
from tests.lab.ovn.central import INTEGRATION
from tests.lab.ovn.two_chassis import LONGEST_GAP, MTU, NODES, Pinging, TwoChassis
from tests.lab.runtimes.runtime import netns
from tests.lab.switch.switch import wait_until
from userspace_cni.base.back_off import BackOff
from userspace_cni.base.root import HERE
from userspace_cni.base.settings import Settings
from userspace_cni.controller.controller_metrics import ControllerMetrics
from userspace_cni.controller.port_service import PodPortKeeper, read_task
from userspace_cni.kube.kubeconfig import KubeconfigBounds
from userspace_cni.kube.list_watch import WatchTimes
from userspace_cni.kube.pod_requests import Clients

WATCHED = WatchTimes(page=100, back_off=BackOff(0.005, 0.02), confirm_s=0)
NETWORK = {
    "cniVersion": "1.1.0",
    "name": "vms",
    "type": "userspace",
    "consumer": "kubevirt",
    "host": {"iftype": "vhostuser", "vhost": {"mode": "client"}},
    "ovn": {},
}
CONTAINERS = {name: f"{number:012x}" + "e" * 52 for number, name in enumerate(NODES, 1)}
CLIENT = ("client", "c1", "192.168.1.200/24", "0a:58:c0:a8:01:c8")
VM = "blue_vm"


@dataclass(frozen=True)
class Guest:
    """A guest that runs: its link `eth0` is in a namespace."""

    tap: TapProcess
    netns: str
    mac: str
    address: str

    def announce(self) -> None:
        """Send a gratuitous ARP request (RFC 5227), as a guest does several times after its migration.

        OVN from 25.09 on lets nothing else of the target through before.
        """
        mac, address = bytes.fromhex(self.mac.replace(":", "")), socket.inet_aton(self.address)
        frame = b"\xff" * 6 + mac + bytes.fromhex("0806 0001 0800 0604 0001") + mac + address + bytes(6) + address
        with socket_in(self.netns, socket.AF_PACKET, socket.SOCK_RAW) as raw:
            raw.bind(("eth0", 0))
            raw.send(frame)


@dataclass
class World:
    """Two chassis with the plugin, an API server, and the controller's part that keeps the ports."""

    ovn: TwoChassis
    api: ApiServer
    nodes: dict[str, Node]
    stack: ExitStack
    launchers: dict[str, Pod] = field(default_factory=dict)
    sandboxes: dict[str, str] = field(default_factory=dict)

    def add_launcher(self, name: str) -> None:
        """A launcher pod of the VM on this node, as KubeVirt makes it."""
        number = NODES.index(name) + 1
        pod = self.launchers[name] = Pod(f"virt-launcher-vm-abcd{number}", "blue")
        self.nodes[name].empty_dir(pod.uid, "public")
        manifest = pod.manifest()
        owner = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": "vm", "uid": "vmi"}
        more: dict[str, Any] = {"creationTimestamp": f"2026-01-01T00:00:0{number}Z", "ownerReferences": [owner]}
        more |= {"labels": {"kubevirt.io/created-by": "vmi"}, "annotations": {"kubevirt.io/domain": "vm"}}
        manifest["metadata"] |= more
        manifest["spec"]["nodeName"] = name
        self.api.add_pod(manifest)

    def call(self, verb: str, name: str) -> dict[str, Any]:
        """One call of the plugin about the launcher of this node; the answer."""
        if name not in self.sandboxes:
            self.sandboxes[name] = self.stack.enter_context(netns())
        args = {"container": CONTAINERS[name], "ifname": "eth0", "CNI_ARGS": self.launchers[name].args}
        done = self.nodes[name].run(verb, NETWORK, self.sandboxes[name], **args)
        if verb == "ADD":
            return succeeded(done)
        assert done.status == 0
        return {}

    def start_guest(self, name: str) -> Guest:
        """The guest runs on this node."""
        said = json.loads(self.api.annotations("blue", self.launchers[name].name)["ovn"])
        namespace = self.stack.enter_context(netns())
        path = self.interface(name)["options"]["vhost-server-path"]
        where = ["--address", said["ip_address"], "--mac", said["mac_address"], "--mtu", str(MTU)]
        tap = self.stack.enter_context(TapProcess(namespace, path, "--mode", "server", "--name", "eth0", *where))
        tap.until("ready")
        return Guest(tap, namespace, said["mac_address"], said["ip_address"].partition("/")[0])

    def interface(self, name: str) -> dict[str, Any]:
        row: dict[str, Any] = self.ovn.switches[name].interface(f"{CONTAINERS[name][:12]}-eth0")
        return row

    def is_installed(self, name: str) -> bool:
        return bool(self.interface(name)["external_ids"].get("ovn-installed") == "true")

    def requested(self) -> str:
        return self.ovn.nbctl("get", "Logical_Switch_Port", VM, "options:requested-chassis").strip('"')

    def bound_to(self) -> str:
        """The chassis that has the VM's port, by its name."""
        chassis = self.ovn.sbctl("--bare", "--columns=chassis", "find", "Port_Binding", f"logical_port={VM}")
        return self.ovn.sbctl("--bare", "--columns=name", "list", "Chassis", chassis) if chassis else ""

    def end_launcher(self, name: str) -> None:
        self.api.change("blue", self.launchers[name].name, {"status": {"phase": "Succeeded"}})


@pytest.fixture
def world() -> Iterator[World]:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="ovn-")))
        ovn = stack.enter_context(TwoChassis(directory))
        api = stack.enter_context(ApiServer())
        nodes = {}
        for number, name in enumerate(NODES, 1):
            ovn.nbctl("ls-add", name, "--", "set", "Logical_Switch", name, f"other_config:subnet=192.168.{number}.0/24")
            api.add(node(name))
            wait_until(lambda name=name: INTEGRATION in ovn.switches[name].bridges(), what="the integration bridge")  # type: ignore[misc]
            made = nodes[name] = stack.enter_context(clean(Node(directory / name, ovn.switches[name])))
            made.settings |= {
                "USERSPACE_CNI_OVN_RUNDIR": ovn.rundir(name),
                "USERSPACE_CNI_KUBECONFIG": api.kubeconfig(made.directory),
                "USERSPACE_CNI_NODE_NAME": name,
            }
        session = Clients(KubeconfigBounds.of(Settings()), HERE, api.kubeconfig(directory)).of("").session
        task = read_task(Settings(ovn_nb=ovn.remote("nb")))
        kept = PodPortKeeper(session, task, lambda: True, ControllerMetrics(lambda: True, {}), watch_times=WATCHED)
        kept.start()
        stack.callback(kept.stop)
        yield World(ovn, api, nodes, stack)


@pytest.mark.parametrize("first", ["DEL", "controller"])
def test_traffic_follows_the_machine(world: World, first: str, record_property: Callable[[str, object], None]) -> None:
    """The target is attached while the source serves; the guest announces itself there, and is answered. Whether the source's DEL
    comes before the controller knows of its end or after it, the target stays bound."""
    ovn = world.ovn
    ovn.nbctl("lsp-add", "n1", CLIENT[0], "--", "lsp-set-addresses", CLIENT[0], f"{CLIENT[3]} {CLIENT[2].partition('/')[0]}")
    client = world.stack.enter_context(ovn.pod("n1", *CLIENT, vhost=False))
    world.add_launcher("n1")
    address = world.call("ADD", "n1")["ips"][0]["address"].partition("/")[0]
    source = world.start_guest("n1")
    wait_until(lambda: echoes(client, address), what="an answer of the guest on the source")

    world.add_launcher("n2")
    wait_until(lambda: world.requested() == "n1,n2", what="both nodes are asked for")
    world.call("ADD", "n2")
    assert world.is_installed("n1")
    assert world.is_installed("n2")
    assert world.bound_to() == "n1"
    assert echoes(client, address)

    with Pinging(client, address) as pinging:
        source.tap.end(signal.SIGTERM)
        target = world.start_guest("n2")

        def answers() -> bool:
            target.announce()
            return echoes(client, address)

        wait_until(answers, what="an answer of the guest on the target")
    record_property(f"switch-over of a VM: {LONGEST_GAP}", round(pinging.gap_s * 1000))

    with Pinging(client, address) as pinging:
        for step in ("DEL", "controller") if first == "DEL" else ("controller", "DEL"):
            if step == "DEL":
                world.call("DEL", "n1")
            else:
                world.end_launcher("n1")
                wait_until(lambda: world.requested() == "n2", what="the target alone is asked for")
        wait_until(lambda: world.bound_to() == "n2", what="the target has the port")
        ovn.nbctl("--wait=hv", "sync")
    record_property(f"the source's end, {first} first: {LONGEST_GAP}", round(pinging.gap_s * 1000))
    assert world.is_installed("n2")
    assert echoes(client, address)
    world.call("DEL", "n2")
