"""Gateways of a node that tests ask for, and what pods and the node's own network show of them."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, Final

from tests.lab.frames.taps import SECONDS, socket_in
from tests.lab.network.outside import Wire, wired
from tests.lab.node.links import inside
from tests.lab.node.node import Node
from userspace_cni.attachment.specs import UNKNOWN, Spec, Specs
from userspace_cni.base.gateways import Gateway
from userspace_cni.base.provider_networks import ProviderNetwork
from userspace_cni.base.settings import load
from userspace_cni.network.gateway_specs import specs
from userspace_cni.network.provider_specs import ProviderSite as Uplinked
from userspace_cni.network.provider_specs import plan
from userspace_cni.network.spec_list import PROVIDER_NETWORK, SETTINGS
from userspace_cni.node.local_node import LocalNode

GATEWAY: Final = Gateway("br-test-gw", "br-test", ("10.56.0.1/24", "fd00:56::1/64"), masquerade=True)
OUTSIDE: Final = ("192.0.2.1", "2001:db8:2::1")
NODE: Final = ("192.0.2.11", "2001:db8:2::11")
BOTH_HOLD: Final = {GATEWAY.port: "", "all": ""}
"""What `Site.keep` says when gateway and address translation are as desired."""
_FORWARDING: Final = ("net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding")


@contextmanager
def routed(place: str) -> Iterator[Wire]:
    """A NIC of the node in that namespace, which forwards, and a network beyond it."""
    lengths = ("24", "64")
    nodes, others = (tuple(map("/".join, zip(each, lengths, strict=True))) for each in (NODE, OUTSIDE))
    with wired(place, nodes, others) as made, forwarding(place):
        yield made


@contextmanager
def forwarding(netns: str) -> Iterator[None]:
    before = {key: inside(netns, "cat", f"/proc/sys/{key}").strip() for key in _FORWARDING}
    for key in _FORWARDING:
        inside(netns, "sh", "-c", f"echo 1 > /proc/sys/{key}")
    yield
    for key, value in before.items():
        inside(netns, "sh", "-c", f"echo {value} > /proc/sys/{key}")


class Site:
    """A node that keeps gateways as a test asks for them."""

    def __init__(self, local: LocalNode, place: str) -> None:
        self.local = local
        self.place = place
        self._specs = Specs(local)

    def keep(self, *gateways: Gateway, complete: bool = True, uplink: ProviderNetwork | None = None) -> dict[str, str]:
        """Reconcile these gateways and a provider network; the problem of each spec by name, "" for none."""
        sources = frozenset({SETTINGS, UNKNOWN} if complete else ())
        wanted = specs([(SETTINGS, each) for each in gateways], sources, self.local)
        plans = {each.name: plan(each, Uplinked(self.local)) for each in [uplink] if each}
        before = [Spec(PROVIDER_NETWORK, name, SETTINGS, "", each) for name, each in plans.items()]
        found = self._specs.reconcile([*before, *wanted], sources, now=True)
        return {each.name: each.problem for each in found if each.desired or each.problem}


@contextmanager
def kept(node: Node, place: str) -> Iterator[Site]:
    """The node's own network, which has nothing of the test left afterwards."""
    with closing(LocalNode(load(node.environ), {}, resident=True)) as local:
        made = Site(local, place)
        try:
            yield made
        finally:
            left = made.keep()
        assert left == {}


def podnet(node: Node) -> dict[str, Any]:
    """A network of ordinary pods whose default routes lead to the gateway."""
    block = {"engine": "ovs-dpdk", "iftype": "veth", "bridge": {"bridgeName": "br-test"}}
    ranges = [[{"subnet": "10.56.0.0/24", "gateway": "10.56.0.1"}], [{"subnet": "fd00:56::/64", "gateway": "fd00:56::1"}]]
    ipam = {
        "type": "host-local",
        "dataDir": str(node.ipam_dir),
        "ranges": ranges,
        "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
    }
    return {"cniVersion": "1.0.0", "name": "podnet", "type": "userspace", "host": block, "ipam": ipam}


def peer_of(netns: str, server: str, address: str) -> tuple[str, int]:
    """The source address of a connection from `netns`, as `server` sees it, and the largest segment that it may be sent."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with closing(socket_in(server, family)) as listener, closing(socket_in(netns, family)) as client:
        listener.bind((address, 0))
        listener.listen(1)
        listener.settimeout(SECONDS)
        client.settimeout(SECONDS)
        client.connect(listener.getsockname()[:2])
        accepted, peer = listener.accept()
        with closing(accepted):
            return str(peer[0]), accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)


def everything(netns: str) -> dict[str, list[str]]:
    """Addresses, routes, rules and nftables' rules of the namespace, without indices of links.

    Link-local addresses are left out: they come and go by themselves.
    """
    asked = {
        "addresses": ("ip", "-o", "address"),
        "routes": ("ip", "route", "show", "table", "all"),
        "routes of IPv6": ("ip", "-6", "route", "show", "table", "all"),
        "rules": ("ip", "-o", "rule"),
        "rules of IPv6": ("ip", "-o", "-6", "rule"),
        "nftables": ("nft", "list", "ruleset"),
    }
    found = {name: re.sub("(?m)^[0-9]+: +", "", inside(netns, *argv)).splitlines() for name, argv in asked.items()}
    return {name: sorted(line for line in lines if not re.search("fe80:|ff00:", line)) for name, lines in found.items()}
