"""A cluster on two chassis that the commands made, with pods, and a network outside that its gateways lead to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.lab.ovn.outside import BRIDGE, ROUTER4, ROUTER6, answers, connect, outside_of, run_on, run_program_on
from tests.lab.ovn.shared_gateway import SERVED
from tests.lab.ovn.two_chassis import NODES, TwoChassis
from tests.lab.switch.switch import wait_until
from tests.lab.switch.veths import inside
from tests.unit.cli.test_cli_streams import environ
from userspace_cni.cli.former_tools import overlay

OWN: Final = {
    "n1": ("192.0.2.10", "2001:db8::10"),
    "n2": ("192.0.2.20", "2001:db8::20"),
    "distributed": ("192.0.2.30", "2001:db8::30"),
}
"""Addresses outside, by gateway."""


@dataclass(frozen=True)
class OutsidePod:
    """A pod: its network namespace and its addresses."""

    netns: str
    node: str
    addresses: tuple[str, str]


class GatewayWorld:
    """Two nodes of a cluster, made by the commands, with pods, and what is outside."""

    def __init__(self, ovn: TwoChassis, outside: str, directory: Path) -> None:
        self.ovn = ovn
        self.outside = outside
        self.pods: list[OutsidePod] = []
        self._directory = directory

    def run(self, node: str, *arguments: str, code: int = 0) -> str:
        """The output of a command of `ovn` as on the node, of JSON without what is said beside it; it has to end with `code`."""
        done = run_on(self.ovn, node, self._environment(node), *arguments, code=code)
        return done.stdout if "--json" in arguments else done.output

    def run_former(self, node: str, *arguments: str) -> None:
        """Run `ovn-k8s-overlay` as on the node."""
        run_program_on(self.ovn, node, self._environment(node), overlay, *arguments)

    def _environment(self, node: str) -> dict[str, str]:
        settings = self._directory / f"{node}.toml"
        settings.touch()
        return {**environ(self._directory / node), "USERSPACE_CNI_CONFIG": str(settings)}

    def make(self, node: str, *options: str) -> None:
        """A gateway of the node."""
        own = OWN["distributed" if "--distributed" in options else node]
        named = () if "--distributed" in options else ("--node", node)
        outside = ("--bridge", BRIDGE, "--ip", f"{own[0]}/24,{own[1]}/64", "--next-hop", f"{ROUTER4},{ROUTER6}")
        self.run(node, "init-gateway", *named, *outside, *options)

    def seen_as(self, pod: OutsidePod, address: str) -> str:
        """As whom the machine outside sees the pod, when the way is there."""
        wait_until(lambda: answers(pod.netns, address), what=f"{pod} reaches {address}")
        return connect(pod.netns, self.outside, address)

    def leaves_by(self, pod: OutsidePod, address: str, node: str) -> bool:
        """Whether the machine outside sees the pod as this node, while its way may change.

        A connection that was begun on the former way is lost with the address to which that translated it.
        """
        try:
            return connect(pod.netns, self.outside, address, seconds=3) in OWN[node]
        except OSError:
            return False

    def balance(self, own: str, port: int, address: str) -> None:
        """Have this port of a gateway lead to a pod's, by a load balancer of all gateways."""
        shown, target = (f"[{own}]", f"[{address}]") if ":" in own else (own, address)
        name = f"{own}-{port}"
        self.ovn.nbctl("lb-add", name, f"{shown}:{port}", f"{target}:{SERVED}")
        self.ovn.nbctl("set", "Load_Balancer", name, "options:neighbor_responder=none")  # each gateway has it
        row = self.ovn.nbctl("--bare", "--columns=_uuid", "find", "Load_Balancer", f'name="{name}"')
        self.ovn.nbctl("add", "Load_Balancer_Group", "gateway-load-balancers", "load_balancer", row)

    def of_node(self, node: str) -> OutsidePod:
        """Its pod with a vhost-user port."""
        return next(each for each in self.pods if each.node == node)

    def end(self) -> None:
        """Without gateways; nothing of them is left on the nodes."""
        for node in NODES:
            self.run(node, "remove-gateway", "--node", node)
            self.run(node, "remove-gateway", "--distributed")
            ids = self.ovn.switches[node].rows("Open_vSwitch")[0]["external_ids"]
            assert not [each for each in ids if "mappings" in each]


@contextmanager
def gateway_world(kinds: Sequence[tuple[str, bool]]) -> Iterator[GatewayWorld]:
    """With these pods: of each its node, and whether its port is a vhost-user port. Nodes beside the first two are added."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="ovn-")))
        ovn = stack.enter_context(TwoChassis(directory))
        made = GatewayWorld(ovn, stack.enter_context(outside_of(ovn)), directory)
        made.run("n1", "init-cluster", "--cluster-subnet", "10.244.0.0/16,fd00:10:244::/56")
        nodes = list(dict.fromkeys([*NODES, *(node for node, _ in kinds)]))
        for number, node in enumerate(nodes, 1):
            if node not in NODES:
                ovn.add(node)
            subnet = f"10.244.{number}.0/24,fd00:10:244:{number}::/64"
            made.run(node, "init-node", "--no-chassis", "--node", node, "--subnet", subnet)
        for number, (node, vhost) in enumerate(kinds):
            part, mac = 1 + nodes.index(node), f"0a:58:00:00:00:1{number}"
            own = (f"10.244.{part}.1{number}", f"fd00:10:244:{part}::1{number}")
            ovn.nbctl("lsp-add", node, f"ns_p{number}", "--", "lsp-set-addresses", f"ns_p{number}", f"{mac} {' '.join(own)}")
            pod = stack.enter_context(ovn.pod(node, f"ns_p{number}", "uid", f"{own[0]}/24", mac, vhost=vhost))
            inside(pod, "ip", "address", "add", f"{own[1]}/64", "dev", "eth0", "nodad")
            inside(pod, "ip", "route", "add", "default", "via", f"10.244.{part}.1")
            inside(pod, "ip", "-6", "route", "add", "default", "via", f"fd00:10:244:{part}::1")
            made.pods.append(OutsidePod(pod, node, own))
        yield made
