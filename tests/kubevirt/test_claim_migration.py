"""A VM whose interface is a claim of devices: libvirt starts what the sidecar defined, and moves it to another node's claim."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import pytest

from tests.agent.conftest import node_with_shim
from tests.lab.dra.claiming_node import BRIDGE, ClaimingNode
from tests.lab.guests.guest import Nic, command_line
from tests.lab.guests.guest_peer import peer_at
from tests.lab.guests.hooks import HookManager, Sidecar
from tests.lab.guests.libvirt_compute import Compute
from tests.lab.guests.libvirt_domain import Vm
from tests.lab.guests.qemu_pods import GUEST, forwarded_to
from tests.lab.kube.apiserver import ApiServer
from tests.lab.node.forked_node import run_command
from tests.lab.switch.switch import Switch, wait_until
from userspace_cni.pod.launcher import QEMU_ID

pytestmark = pytest.mark.timeout(600)  # the first one may have to make libvirt's tree and the guest

OTHER = "br-dev2"
PARAMETERS = {"consumer": "kubevirt", "host": {"mtu": 1500}}
METADATA = "/var/run/kubernetes.io/dra-device-attributes"
MEETING = "/migration"
"""Where both pods see the sockets of libvirt and QEMU that are for the other, as virt-handler forwards them in KubeVirt."""
BOOT_S = 180.0
STREAM_EVERY_S = 0.005
MORE_ANSWERS = 50


@dataclass
class ClaimedLauncher:
    """A launcher pod of VM `vm` on a node. Its claim is made of a template, as the pod's claim `dpdk`, and prepared first."""

    node: ClaimingNode
    suffix: str
    tree: Path
    meeting: Path
    stack: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.pod = self.node.pod(f"virt-launcher-vm-{self.suffix}")
            claim = f"{self.pod.name}-dpdk-x1"
            uid = self.node.claim(claim, self.pod, parameters=PARAMETERS, pod_claim="dpdk")
            self.node.kubelet.admit(self.pod, claim)
            edits = [device["containerEdits"] for path in self.node.live.cdi.glob(f"*{uid}*") for device in _devices(path)]
            mounts = {mount["containerPath"]: mount["hostPath"] for each in edits for mount in each["mounts"]}
            self.directory = Path(stack.enter_context(TemporaryDirectory(prefix="uv-")))
            self.directory.chmod(0o755)
            runs = self.meeting / self.suffix
            runs.mkdir()
            binds = [f"{host}={inside}" for inside, host in mounts.items() if inside.startswith("/var/lib/")]
            binds += [f"{runs}=/run/libvirt", f"{self.meeting}={MEETING}"]
            public = self.directory / "public"
            public.mkdir()
            os.chown(public, QEMU_ID, QEMU_ID)
            self._give_metadata(mounts)
            self.compute = stack.enter_context(Compute(self.tree, self.directory / "compute", public, binds))
            hooks = self.directory / "hooks"
            hooks.mkdir()
            claims = {"USERSPACE_CNI_KUBEVIRT_CLAIMS": str(self.directory / "claims")}
            self.sidecar = stack.enter_context(Sidecar(hooks, **claims))
            self.manager = HookManager(hooks).collect()
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def _give_metadata(self, mounts: dict[str, str]) -> None:
        """The driver's file in the sidecar's container, where KubeVirt gives it the claim."""
        for inside, host in mounts.items():
            if inside.startswith(METADATA):
                path = self.directory / "claims" / Path(inside).relative_to(METADATA)
                path.parent.mkdir(parents=True)
                path.write_bytes(Path(host).read_bytes())

    def defined(self, vm: Vm) -> str:
        """The definition that its sidecar makes."""
        vmi = vm.vmi()
        vmi["spec"]["networks"] = [{"name": "blue", "resourceClaim": {"claimName": "dpdk", "requestName": "net"}}]
        vmi["spec"]["resourceClaims"] = [{"name": "dpdk", "resourceClaimTemplateName": "port"}]
        xml = self.manager.on_define_domain(vm.xml(), vmi)
        assert "sources=blue:dra" in self.sidecar.log
        return xml

    @property
    def mac(self) -> str:
        return str(self.node.port()["external_ids"]["attached-mac"])

    def await_ready(self, vm: Vm) -> None:
        wait_until(lambda: "GUEST ready" in self.compute.console(vm.domain), BOOT_S, "the guest")

    def move(self, vm: Vm, target: ClaimedLauncher) -> None:
        """Migrate from libvirt to libvirt, as virt-launcher has it done."""
        where = ["--desturi", f"qemu+unix:///system?socket={MEETING}/{target.suffix}/libvirt-sock"]
        where += ["--migrateuri", f"unix://{MEETING}/qemu"]
        self.compute.virsh("migrate", "--live", "--p2p", *where, vm.domain, seconds=BOOT_S)


def _devices(path: Path) -> list[dict[str, dict[str, list[dict[str, str]]]]]:
    found: list[dict[str, dict[str, list[dict[str, str]]]]] = json.loads(path.read_text())["devices"]
    return found


def await_well(node: ClaimingNode) -> None:
    """Wait until `kubevirt doctor` finds the node's only VM, and nothing wrong with it: the switch tells later who connected."""
    told: dict[str, Any] = {}

    def good() -> bool:
        told.update(json.loads(run_command(node.live.environ, "kubevirt", "doctor", "--json").stdout))
        return [(each["vm"], each["verdict"]) for each in told["interfaces"]] == [("default/vm", "good")]

    try:
        wait_until(good, what="a good verdict of doctor")
    except AssertionError as error:
        error.add_note(str(told))
        raise


@pytest.fixture
def nodes(switch: Switch) -> Iterator[tuple[ClaimingNode, ClaimingNode]]:
    """Two nodes with agents and kubelets of their own. A patch between their bridges stands for the wire."""
    with ExitStack() as stack:
        api = stack.enter_context(ApiServer())
        lives = [stack.enter_context(node_with_shim(switch)) for _ in range(2)]
        one, other = (ClaimingNode(live, api, *of) for live, of in zip(lives, (("n1", BRIDGE), ("n2", OTHER)), strict=True))
        for bridge, end, peer in ((BRIDGE, "wire1", "wire2"), (OTHER, "wire2", "wire1")):
            switch.vsctl("add-port", bridge, end, "--", "set", "Interface", end, "type=patch", f"options:peer={peer}")
            stack.callback(switch.vsctl, "del-port", end)
        for node in (one, other):
            stack.enter_context(node.kubelet)
            node.start()
        yield one, other


def test_a_vm_moves_to_the_claim_of_its_other_pod(
    nodes: tuple[ClaimingNode, ClaimingNode], tree: Path, switch: Switch, tmp_path: Path
) -> None:
    """The VM answers at the target's port as before at the source's, with its MAC, and is not started anew. Then the source's
    claim is unprepared, and its node has nothing of it; in the end neither has the target's."""
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    os.chown(meeting, QEMU_ID, QEMU_ID)
    with ExitStack() as stack:
        source, target = (
            stack.enter_context(ClaimedLauncher(node, suffix, tree, meeting))
            for node, suffix in zip(nodes, ("aaaaa", "bbbbb"), strict=True)
        )
        mac = source.mac
        assert target.mac == mac
        vm = Vm(boot=command_line(Nic(mac, f"{GUEST}/24")))
        definition = source.defined(vm)
        assert target.defined(vm) == definition  # KubeVirt drops it, and libvirt takes the source's
        source.compute.define(definition)
        source.compute.start(vm.domain)
        source.await_ready(vm)
        with peer_at(switch, BRIDGE, tmp_path) as peer, peer.stream(mac, GUEST, STREAM_EVERY_S) as stream:

            def goes_on() -> None:
                last = len(stream.sent)
                wait_until(lambda: sum(number > last for number in list(stream.answered)) >= MORE_ANSWERS, what="answers")

            wait_until(lambda: forwarded_to(switch, mac, BRIDGE) == source.node.port()["ofport"], what="the MAC at the source")
            await_well(source.node)
            source.move(vm, target)
            goes_on()
            wait_until(lambda: source.compute.virsh("list", "--name").split() == [], what="the source's domain to end")
            wait_until(lambda: target.compute.state(vm.domain) == "running", what="the target's domain to run")
            wire = switch.interface("wire1")["ofport"]
            wait_until(lambda: forwarded_to(switch, mac, BRIDGE) == wire, what="the MAC at the wire to the target's node")
            wait_until(lambda: forwarded_to(switch, mac, OTHER) == target.node.port()["ofport"], what="the MAC at the target")
            source.compute.stop()
            source.node.kubelet.end(source.pod)
            assert (source.node.ports(), source.node.cdi_files()) == ([], [])
            goes_on()
            assert "GUEST ready" not in target.compute.console(vm.domain)
        target.compute.destroy(vm.domain)
        target.node.kubelet.end(target.pod)
    assert switch.ports(BRIDGE) == ["wire1"]
    assert switch.ports(OTHER) == ["wire2"]
    shared = switch.held()
    for node in nodes:
        assert {kind: found for kind, found in node.live.leftovers().items() if kind not in shared} == {}
        assert node.kubelet.remembers() == []
