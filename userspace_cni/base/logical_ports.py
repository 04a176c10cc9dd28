"""How OVN's logical ports are called: the plugin has one bound that the controller makes, and both derive its name. Pure."""

from __future__ import annotations

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


def logical_port_name(naming: str, namespace: str, owner: str, further: str = "") -> str:
    """The name of an interface's logical port. `owner`: the pod, or the VM whose launcher it is; `further`: what tells an
    interface beyond the first from it, "" for the first: the interface's name, and with kube-ovn's names its provider."""
    if naming == "kube-ovn":
        return f"{owner}.{namespace}{f'.{further}' if further else ''}"
    return f"{namespace}_{owner}{f'_{further}' if further else ''}"


def is_of_namespace(name: str, naming: str, namespace: str) -> bool:
    """Whether a logical port of that name can only be a pod's of this namespace: no name of Kubernetes has an underscore, and no
    namespace a dot."""
    return name.endswith(f".{namespace}") if naming == "kube-ovn" else name.startswith(f"{namespace}_")
