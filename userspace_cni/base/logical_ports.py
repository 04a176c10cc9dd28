"""How OVN's logical ports are called: the plugin has one bound that the controller makes, and both derive its name. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import product
from typing import Final, Literal

Naming = Literal["ovn-kubernetes", "kube-ovn"]
"""Whose names the logical ports have: those of ovn-kubernetes' tools, or kube-ovn's."""
NAMINGS: Final[tuple[Naming, ...]] = ("ovn-kubernetes", "kube-ovn")
NODE_SWITCH: Final = "node"
"""The word of a network for the logical switch of the node on which the pod runs."""
SWITCH_NAME: Final = r"[A-Za-z0-9_][A-Za-z0-9_.:/\-]{0,252}"
"""What a logical switch can be called here."""
PORT_NAME_MAX: Final = 512
"""Characters of a logical port's name: more than those that we derive have."""
INFRASTRUCTURE: Final = (
    *("k8s-", "stor-", "rtos-", "jtor-", "rtoj-", "etor-", "rtoe-", "tstor-", "trtos-"),
    *("node-", "ovn-cluster-", "localnet."),
)
"""How the names of ports begin that nodes, switches and routers have: ours and those of ovn-kubernetes, and kube-ovn's."""
_POD: Final = r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?"
_FURTHER: Final = re.compile(r".+\..+\..+\..+\.ovn")
"""What kube-ovn calls an interface beyond its pod's first: pod, namespace, network, its namespace, and a word."""
_FURTHER_OF_ONE: Final = re.compile(r".+\.([^.]+)\..+\.\1\.ovn")
"""The same, with one namespace."""


def logical_port_name(naming: str, namespace: str, owner: str, further: str = "") -> str:
    """The name of an interface's logical port. `owner`: the pod, or the VM whose launcher it is; `further`: what tells an
    interface beyond the first from it, "" for the first: the interface's name, and with kube-ovn's names its provider."""
    if naming == "kube-ovn":
        return f"{owner}.{namespace}{f'.{further}' if further else ''}"
    return f"{namespace}_{owner}{f'_{further}' if further else ''}"


def may_name(name: str, naming: str, namespace: str) -> bool:
    """Whether a pod of this namespace may name that logical port by itself: it is called as one of its namespace's pods, which no
    other namespace's can be (no name of Kubernetes has an underscore, and no namespace a dot), and not as one of a node or a
    router, whichever nodes and routers there are."""
    form = rf"{_POD}\.{re.escape(namespace)}" if naming == "kube-ovn" else rf"{re.escape(namespace)}_{_POD}(_[\w.\-]{{1,15}})?"
    if naming == "kube-ovn" and _FURTHER.fullmatch(name):  # in a namespace "ovn" it would be one of its pods' names, too
        return False
    return re.fullmatch(form, name, re.ASCII) is not None and not name.startswith(INFRASTRUCTURE)


def is_called_as_a_nodes(name: str, node: str) -> bool:
    """Whether a pod's logical port is called as the own port of a node could be that is of the same domain as this one.

    With kube-ovn's names pod k8s-n1.example of namespace com is called as node n1.example.com's port.
    """
    _, _, domain = name.rpartition(".")
    return bool(domain) and name.startswith(INFRASTRUCTURE) and node.lower().endswith(f".{domain}")


def is_called_as_a_further(name: str) -> bool:
    """Whether a pod's first logical port is called as a further one of another pod: with kube-ovn's names that of pod a.b.c.b in
    namespace ovn is as that of pod a in namespace b for network c."""
    return _FURTHER_OF_ONE.fullmatch(name) is not None


def names_of_nodes(nodes: Iterable[str]) -> Iterator[str]:
    """How the logical ports of nodes and of their switches can be called."""
    for prefix, name in product(INFRASTRUCTURE, {form for node in nodes for form in (node, node.lower())}):
        yield prefix + name


def is_further_name(name: str, ifname: str) -> bool:
    """Whether a logical port's name is that of an interface beyond its pod's first, as ovn-kubernetes' names have it."""
    return name.count("_") > 1 and name.endswith(f"_{ifname}")
