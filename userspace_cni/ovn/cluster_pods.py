"""What is kept of the cluster's pods, nodes and network definitions, as far as it decides about logical ports. Pure.

Pods are written by their authors: a text that is longer than any that can be meant counts as absent, and so does a field of
another type than its schema's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from sys import intern
from typing import Any, Final

from userspace_cni.base.errors import BadRequest
from userspace_cni.base.logical_ports import NODE_SWITCH
from userspace_cni.cni import former_network
from userspace_cni.cni.annotations import OVN, POD_NETWORKS, is_of_limits
from userspace_cni.cni.ovn_keys import ANNOTATIONS, OvnLimits, read_definition
from userspace_cni.pod import launcher

NETWORKS: Final = "k8s.v1.cni.cncf.io/networks"
DEFAULT_NETWORK: Final = "v1.multus-cni.io/default-network"
NETWORK_STATUS: Final = "k8s.v1.cni.cncf.io/network-status"
_MIRROR: Final = "kubernetes.io/config.mirror"
_VMI_UID: Final = "kubevirt.io/created-by"
_CHASSIS: Final = ("userspace-cni.io/chassis", "ovn.kubernetes.io/chassis", "k8s.ovn.org/node-chassis-id")
_KEPT: Final = (NETWORKS, DEFAULT_NETWORK, NETWORK_STATUS, OVN, POD_NETWORKS)
_TEXT_MAX: Final = 16 << 10
_DEFINITION_MAX: Final = 64 << 10
_UID_MAX: Final = 253
_PORTS_MAX: Final = 256
LABELS_MAX: Final = 512
"""A pod with more gets no logical port: policies would not know all of them."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,254}")
"""A network's name, as CNI has it. It is part of names of ports and of keys of annotations, of each of its interfaces."""
_ENDED: Final = ("Succeeded", "Failed")
_TYPES: Final = ("userspace", "userspace-cni", former_network.TYPE)


@dataclass(frozen=True, slots=True)
class ClusterPod:
    """A pod. `owner`, `owner_uid`: who has its logical ports: the pod itself or, of a launcher, its VM. `ended`: its containers
    do not run any more, and never will. `has_network`: it has a network of its own. `notes`: the annotations that count. `ports`:
    the numbers of its containers' ports that have names, by protocol in small letters and name."""

    namespace: str
    name: str
    uid: str
    owner: str
    owner_uid: str
    created: str
    node: str
    ended: bool
    has_network: bool
    notes: Mapping[str, str]
    labels: Mapping[str, str] = field(default_factory=dict)
    ports: Mapping[tuple[str, str], int] = field(default_factory=dict)

    @property
    def is_connected(self) -> bool:
        """Whether it has logical ports where its networks have: it is on a node, with a network of its own, and lives."""
        return bool(self.node) and self.has_network and not self.ended


@dataclass(frozen=True, slots=True)
class PodNode:
    """A node. `chassis`: how OVN calls it; that may be its host's name, which is the node's mostly."""

    name: str
    chassis: str


@dataclass(frozen=True, slots=True)
class LogicalNetwork:
    """A network of ours. `name`: its name as a network; `source`: where the addresses of its logical ports are from.

    `switch`: "" where it has no `ovn`: then its interfaces are logical ports only if their pods name them, and others make these.
    `without_security`: the key, with its value, by which it asks for ports that can send from any address, "" for none. `port`:
    the logical port that it names, "" for the pod's own. `limits`: those that are rows of OVN, None where the node sets them.
    """

    name: str
    switch: str = NODE_SWITCH
    source: str = ANNOTATIONS
    port_security: bool = True
    requested_chassis: bool = True
    without_security: str = ""
    port: str = ""
    limits: OvnLimits | None = None


def keep_pod(thing: Mapping[str, Any]) -> ClusterPod:
    """What is kept of a Pod. Raises KeyError, TypeError or AttributeError for what is no object."""
    metadata, spec = thing["metadata"], thing.get("spec") or {}
    annotations = metadata.get("annotations") or {}
    notes = {key: value for key, value in annotations.items() if (key in _KEPT or is_of_limits(key)) and _is_bounded(value)}
    namespace, name, uid = metadata["namespace"], metadata["name"], metadata["uid"]
    machine = launcher.machine_name(name, str(annotations.get(launcher.DOMAIN) or ""))
    machine_uid = str((metadata.get("labels") or {}).get(_VMI_UID) or "")
    is_machine = bool(machine and machine_uid)
    return ClusterPod(
        namespace=namespace,
        name=name,
        uid=uid,
        owner=machine if is_machine else name,
        owner_uid=machine_uid if is_machine else str(annotations.get(_MIRROR) or uid)[:_UID_MAX],
        created=str(metadata.get("creationTimestamp") or ""),
        node=str(spec.get("nodeName") or ""),
        ended=(thing.get("status") or {}).get("phase") in _ENDED,
        has_network=spec.get("hostNetwork") is not True,
        notes=notes,
        labels=_read_labels(metadata.get("labels") or {}),
        ports=_read_ports(spec),
    )


def _read_labels(said: Mapping[str, Any]) -> Mapping[str, str]:
    """They count up to a bound, and one more shows that there are others."""
    return {intern(str(key)): intern(str(value)) for key, value in islice(said.items(), LABELS_MAX + 1)}


def _read_ports(spec: Mapping[str, Any]) -> Mapping[tuple[str, str], int]:
    """The ports with names, of containers that run as long as the pod does."""
    resident = [each for each in spec.get("initContainers") or () if each.get("restartPolicy") == "Always"]
    found: dict[tuple[str, str], int] = {}
    for container in (*(spec.get("containers") or ()), *resident):
        for each in container.get("ports") or ():
            name, number = each.get("name"), each.get("containerPort")
            if isinstance(name, str) and name and isinstance(number, int) and len(found) < _PORTS_MAX:
                found.setdefault((intern(str(each.get("protocol") or "TCP").lower()), intern(name)), number)
    return found


def keep_node(thing: Mapping[str, Any]) -> PodNode:
    """What is kept of a Node. Raises KeyError, TypeError or AttributeError for what is no object."""
    metadata = thing["metadata"]
    annotations = metadata.get("annotations") or {}
    said = [str(annotations[name]) for name in _CHASSIS if annotations.get(name)]
    return PodNode(metadata["name"], said[0] if said else metadata["name"])


def keep_network(thing: Mapping[str, Any]) -> LogicalNetwork | None:
    """What a NetworkAttachmentDefinition says of logical ports; None where its interfaces are none, or it cannot be read.

    Raises KeyError, TypeError or AttributeError for what is no object.
    """
    name = thing["metadata"]["name"]
    text = (thing.get("spec") or {}).get("config")
    if not isinstance(text, str) or len(text) > _DEFINITION_MAX:
        return None
    try:
        config = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(config, dict):
        return None
    plugins = config.get("plugins")
    chain = plugins if isinstance(plugins, list) else [config]
    called = config.get("name") or name
    if not (isinstance(called, str) and _NAME.fullmatch(called)):
        return None  # the plugin refuses it, too
    return next(filter(None, (_read(each, called) for each in chain)), None)


def _read(config: object, name: str) -> LogicalNetwork | None:
    """What the plugin would read; None for what it would refuse, too, and for other plugins."""
    if not (isinstance(config, dict) and config.get("type") in _TYPES):
        return None
    try:
        said = read_definition(former_network.translate(config) if former_network.is_former(config) else config)
    except (BadRequest, RecursionError):
        return None
    if said is None:
        return LogicalNetwork(name, "")
    asked = (said.source, said.port_security, said.requested_chassis, said.without_security)
    return LogicalNetwork(name, said.switch, *asked, said.port, said.limits)


def _is_bounded(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _TEXT_MAX
