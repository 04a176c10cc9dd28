"""Pods of both kinds and both families on two nodes, with logical ports that are written by hand: what OVN itself does is
measured with them, without a controller."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.lab.ovn.attempts import PodServers
from tests.lab.ovn.two_chassis import NODES, TwoChassis
from tests.lab.switch.veths import give, inside

ROUTER = "router"
"""The router that joins the nodes' switches."""


@dataclass(frozen=True)
class LogicalPod:
    """A pod: its name is its logical port's, too."""

    name: str
    netns: str
    node: str
    vhost: bool
    ipv4: str
    ipv6: str

    def address(self, family: int) -> str:
        """Of family 4 or 6."""
        return self.ipv4 if family == 4 else self.ipv6


@dataclass(frozen=True)
class LogicalWorld:
    """The chassis, the pods by name, and the servers that answer in them."""

    ovn: TwoChassis
    pods: Mapping[str, LogicalPod]
    servers: PodServers

    def write(self, *args: str) -> None:
        """One ovn-nbctl; it returns when each chassis has followed, and no switch forwards by what was before."""
        self.ovn.nbctl("--wait=hv", *args)
        self.ovn.revalidate()


@contextmanager
def logical_world(pods: Mapping[str, tuple[str, bool]]) -> Iterator[LogicalWorld]:
    """With these pods: of each its node, and whether its port is a vhost-user port."""
    with ExitStack() as stack:
        ovn = stack.enter_context(TwoChassis(Path(stack.enter_context(TemporaryDirectory(prefix="ovn-")))))
        ovn.nbctl("lr-add", ROUTER)
        for number, node in enumerate(NODES, 1):
            join_switch(ovn, node, number)
        made = {}
        for number, (name, (node, vhost)) in enumerate(pods.items(), 11):
            made[name] = stack.enter_context(logical_pod(ovn, name, node, number, vhost=vhost))
        servers = stack.enter_context(PodServers())
        yield LogicalWorld(ovn, made, servers)


def join_switch(ovn: TwoChassis, node: str, number: int) -> None:
    """A node's logical switch of both families, and its way to the router."""
    ovn.nbctl("ls-add", node)
    ovn.nbctl("lrp-add", ROUTER, f"rtos-{node}", f"0a:58:c0:a8:0{number}:01", f"192.168.{number}.1/24", f"fd00:{number}::1/64")
    kind = ("--", "lsp-set-type", f"stor-{node}", "router", "--", "lsp-set-addresses", f"stor-{node}", "router")
    ovn.nbctl("lsp-add", node, f"stor-{node}", *kind, "--", "lsp-set-options", f"stor-{node}", f"router-port=rtos-{node}")


@contextmanager
def logical_pod(ovn: TwoChassis, name: str, node: str, number: int, *, vhost: bool) -> Iterator[LogicalPod]:
    """A pod with an address of each family that ends with `number`."""
    subnet = NODES.index(node) + 1
    mac, ipv4, ipv6 = f"0a:00:00:00:00:{number:02x}", f"192.168.{subnet}.{number}", f"fd00:{subnet}::{number}"
    addresses = f"{mac} {ipv4} {ipv6}"
    secured = ("--", "lsp-set-addresses", name, addresses, "--", "lsp-set-port-security", name, addresses)
    ovn.nbctl("lsp-add", node, name, *secured)
    with ovn.pod(node, name, f"uid-{name}", f"{ipv4}/24", mac, vhost=vhost) as pod:
        give(pod, "eth0", f"{ipv6}/64")
        for family, gateway in (("-4", f"192.168.{subnet}.1"), ("-6", f"fd00:{subnet}::1")):
            inside(pod, "ip", family, "route", "add", "default", "via", gateway)
        yield LogicalPod(name, pod, node, vhost, ipv4, ipv6)
