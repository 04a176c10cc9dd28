"""One VM's launcher pod with all that KubeVirt puts together in it: the plugin's port, the sidecar, libvirt.

ADD comes first; its result goes into network-info, as virt-controller and the kubelet do it; then libvirt and the sidecar start,
and what libvirt defines is what the sidecar answered to the hook manager.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from types import TracebackType
from typing import Any, Self

from tests.lab.guests.hooks import HookManager, Sidecar
from tests.lab.guests.libvirt_compute import Compute
from tests.lab.guests.libvirt_domain import Vm
from tests.lab.guests.vm_pods import LauncherPod, vm_network
from tests.lab.node.node import Node, clean
from tests.lab.runtimes.runtime import Call, netns
from tests.lab.switch.switch import Switch, wait_until
from userspace_cni.pod.launcher import interface_name

BOOT_SECONDS = 180.0
"""Seconds to wait for a guest that is usable after 4 s on a quiet machine."""
PING_SECONDS = 120.0
"""The same, when the switch has just come back."""
ANSWERS = 2
"""How many pings to wait for: the first one may have been sent before."""


@dataclass
class Launched:
    """The pod of VM `name` on a node, attached to `networks`, with the programs in `tree`. `mtu`: of the ports.

    `sidecar`: how its sidecar is configured besides what KubeVirt does.
    """

    node: Node
    tree: Path
    name: str = "vm"
    networks: Sequence[str] = ("blue",)
    mtu: int = 1500
    sidecar: Mapping[str, str] = field(default_factory=dict)
    attached: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The interface in ADD's result, by network."""

    def __post_init__(self) -> None:
        self.directory = self.node.directory.parent / f"launcher-{self.name}"
        self.pod = LauncherPod(self.name)

    def __enter__(self) -> Self:
        self.directory.mkdir()
        public = self.pod.public(self.node)
        with ExitStack() as stack:
            self._netns = stack.enter_context(netns())
            self.attach()
            self.tell(*({"network": name, **_network_info(made)} for name, made in self.attached.items()))
            self.compute = stack.enter_context(Compute(self.tree, self.directory / "compute", public))
            self.manager = stack.enter_context(self.hooks(**self.sidecar))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.__exit__(kind, error, trace)

    @contextmanager
    def hooks(self, **environment: str) -> Iterator[HookManager]:
        """A sidecar in this pod, configured so, and a hook manager that has found it."""
        directory = Path(mkdtemp(prefix="hooks-", dir=self.directory))
        environment |= {"USERSPACE_CNI_KUBEVIRT_PODINFO": str(self._podinfo)}
        with Sidecar(directory, **environment) as sidecar:
            try:
                yield HookManager(directory).collect()
            except BaseException as error:
                error.add_note(sidecar.log)
                raise

    def tell(self, *interfaces: dict[str, Any]) -> None:
        """Write these interfaces into network-info."""
        self._podinfo.write_text(json.dumps({"interfaces": list(interfaces)}))

    def attach(self) -> None:
        for network in self.networks:
            done = self._call("ADD", network)
            assert done.status == 0, (done.stdout, done.stderr)
            self.attached[network] = done.document["interfaces"][0]

    def detach(self) -> None:
        for network in reversed(self.networks):
            done = self._call("DEL", network)
            assert (done.status, done.stdout) == (0, b""), done.stderr

    def mac(self, network: str = "blue") -> str:
        return str(self.attached[network]["mac"])

    def port(self, network: str = "blue") -> dict[str, Any]:
        """The switch's row Interface, {} if there is none."""
        assert self.node.switch
        found = self.node.switch.rows(
            "Interface", f"external_ids:pod-uid={self.pod.uid}", f"external_ids:ifname={interface_name(network)}"
        )
        return found[0] if found else {}

    def connected(self, network: str = "blue") -> bool:
        """Whether the switch has the guest's rings."""
        return bool(self.port(network)["status"].get("status") == "connected")

    def define(self, vm: Vm, manager: HookManager | None = None) -> str:
        """Have libvirt define what the sidecar makes of the VM, checked by its schema; the XML. Raises HookError, VirshFailed."""
        xml = (manager or self.manager).on_define_domain(vm.xml(), vm.vmi())
        self.compute.define(xml)
        return xml

    def boot(self, vm: Vm) -> str:
        """Start it and wait until its guest is usable; the guest's console so far. Raises VirshFailed."""
        self.compute.start(vm.domain)
        try:
            wait_until(lambda: "GUEST ready" in self.console(vm), BOOT_SECONDS, f"the guest of {vm.domain}")
        except AssertionError as error:
            error.add_note(self.console(vm) + self.compute.log())
            raise
        return self.console(vm)

    def console(self, vm: Vm) -> str:
        """What the VM's guest wrote to its serial line."""
        return self.compute.console(vm.domain)

    def pings(self, vm: Vm, *kinds: str) -> None:
        """Wait until pings that the guest sends from now on are answered: PING, or those of these kinds (guest)."""
        wanted = {kind: self._answers(vm, kind) + ANSWERS for kind in kinds or ("PING",)}
        wait_until(lambda: all(self._answers(vm, kind) >= count for kind, count in wanted.items()), PING_SECONDS, f"{wanted}")

    def _answers(self, vm: Vm, kind: str) -> int:
        return sum(line.startswith(f"{kind} seq=") and " ok " in line for line in self.console(vm).splitlines())

    @property
    def _podinfo(self) -> Path:
        return self.directory / "network-info"

    def _call(self, command: str, network: str) -> Call:
        config = vm_network(self.node, mtu=self.mtu, name=network)
        container = self.pod.uid.replace("-", "") * 2
        return self.node.run(command, config, self._netns, container, interface_name(network), CNI_ARGS=self.pod.args)


@contextmanager
def node_for_vms(switch: Switch) -> Iterator[Node]:
    """A node of its own, in a directory whose path is short enough for sockets; the pods of its VMs are beside it."""
    with TemporaryDirectory(prefix="uc-") as directory, clean(Node(Path(directory) / "n", switch)) as node:
        yield node


def _network_info(made: dict[str, Any]) -> dict[str, Any]:
    """The entry of network-info for an interface in a CNI result."""
    return {key: made[key] for key in ("mac", "mtu") if key in made}
