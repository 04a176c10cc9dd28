"""Which interfaces of a pod are logical ports, and how these are called. Pure.

The plugin derives the same names on the node (`base.logical_ports`): of a pod's logical ports the first is called after the pod,
the others after the interface, too. Node and controller do not speak to each other. So what decides is what both can see: that
`eth0` is the first; else the annotation in which the controller notes further interfaces; else that the name is free.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final

from userspace_cni.base.errors import BadRequest
from userspace_cni.base.limits import UNLIMITED, Limits
from userspace_cni.base.logical_ports import is_further_name, logical_port_name, may_name
from userspace_cni.cni.annotations import DEFAULT_INTERFACE, list_noted_further
from userspace_cni.cni.bandwidth import read_bandwidth
from userspace_cni.cni.ovn_keys import asked_port
from userspace_cni.ovn.cluster_pods import DEFAULT_NETWORK, NETWORK_STATUS, NETWORKS, ClusterPod, LogicalNetwork
from userspace_cni.pod.mac import is_unicast, six_octets

_NETWORKS_MAX: Final = 64
_SELECTION: Final = re.compile(r"\s*(?:([a-z0-9][-a-z0-9.]{0,252})/)?([a-z0-9][-a-z0-9.]{0,252})(?:@([\w.-]{1,15}))?\s*")
_IFNAME: Final = re.compile(r"[\w.-]{1,15}")
_KUBE_OVN: Final = "kube-ovn"
_LIMITS: Final = "bandwidth"
"""The key of a selection by which Multus asks for limits, and that of runtimeConfig, as which it passes them."""


@dataclass(frozen=True, slots=True)
class LogicalInterface:
    """An interface of a pod that is a logical port. `port`: the logical port's name; `is_first`: of the pod's logical ports;
    `mac`: the one that the pod asks for, "" for any; `number`: of the pod's logical ports, from 1; `is_asked`: the pod or its
    network names the port; `limits`: those that the pod asks for where it selects the network; `definition`: of its network, ""
    for the cluster's default network."""

    port: str
    ifname: str
    network: LogicalNetwork
    is_first: bool
    mac: str = ""
    number: int = 1
    is_asked: bool = False
    limits: Limits = UNLIMITED
    definition: str = ""


@dataclass(frozen=True, slots=True)
class KnownOrder:
    """What is known of a pod's interfaces from before: which was the first, "" for none, and which were further ones."""

    first: str = ""
    further: frozenset[str] = frozenset()

    def first_is(self, ifname: str) -> KnownOrder:
        return replace(self, first=ifname)

    def further_is(self, ifname: str) -> KnownOrder:
        return replace(self, further=self.further | {ifname})


UNKNOWN_ORDER: Final = KnownOrder()


def list_interfaces(
    pod: ClusterPod,
    networks: Mapping[str, LogicalNetwork | None],
    default: LogicalNetwork | None,
    naming: str,
    known: KnownOrder = UNKNOWN_ORDER,
) -> tuple[LogicalInterface, ...]:
    """The interfaces of the pod that are logical ports, in the order in which they are attached.

    `networks`: the definitions by "namespace/name"; `default`: the cluster's default network, None where it is none of OVN's. An
    interface keeps its name while others come and go: the first is the one that was, else the first that was no further one.
    A logical port that the pod names is left to others where the network has no `ovn`, or where its name is not the pod's to
    choose.
    """
    named = pod.notes.get(DEFAULT_NETWORK)
    if named:
        default = next((networks.get(each.definition) for each in _selected(named, pod.namespace)), None)
    chosen = [_Selected("", DEFAULT_INTERFACE, "")] if default is not None else []
    logical = []
    for each in (*chosen, *_selected(pod.notes.get(NETWORKS, ""), pod.namespace)):
        network = networks.get(each.definition) if each.definition else default
        asked = each.port or (network.port if network is not None else "")
        if network is not None and (network.switch or asked):
            logical.append((each, network, asked))
    first = _first([each.ifname for each, _, asked in logical if not is_further_name(asked, each.ifname)], pod, naming, known)
    found: list[LogicalInterface] = []
    for each, network, asked in logical:
        is_first = each.ifname == first
        further = "" if is_first else _further(each, network, pod, naming)
        port = asked or logical_port_name(naming, pod.namespace, pod.owner, further)
        if not asked or (network.switch and may_name(asked, naming, pod.namespace)):
            asks = (each.mac, len(found) + 1, bool(asked), each.limits)
            found.append(LogicalInterface(port, each.ifname, network, is_first, *asks, each.definition))
    return tuple(found)


def _first(ifnames: Sequence[str], pod: ClusterPod, naming: str, known: KnownOrder) -> str:
    """The interface that is called after the pod alone, "" for none."""
    if DEFAULT_INTERFACE in ifnames or naming == _KUBE_OVN:
        return DEFAULT_INTERFACE
    if known.first in ifnames:
        return known.first
    further = {*known.further, *list_noted_further(pod.notes, pod.namespace)} if ifnames else ()
    return next((each for each in ifnames if each not in further), "")


def list_definitions(pod: ClusterPod) -> frozenset[str]:
    """The network definitions that the pod names, as "namespace/name", whether they are there or not."""
    named = (pod.notes.get(DEFAULT_NETWORK, ""), pod.notes.get(NETWORKS, ""))
    return frozenset(each for text in named if text for each in name_definitions(text, pod.namespace))


def name_definitions(networks: str, namespace: str) -> frozenset[str]:
    """The network definitions that the annotation `networks` of a pod names, as "namespace/name"."""
    return frozenset(each.definition for each in _selected(networks, namespace))


def find_definition(networks: str, namespace: str, ifname: str) -> str:
    """The network definition of an interface, as "namespace/name", by the annotation `networks` of a pod; "" for none."""
    return next((each.definition for each in _selected(networks, namespace) if each.ifname == ifname), "") if networks else ""


def read_lease(pod: ClusterPod, ifname: str) -> tuple[str, tuple[str, ...]]:
    """MAC and addresses of an interface, as Multus notes them after ADD; "" and () while it has noted none."""
    for each in _json_list(pod.notes.get(NETWORK_STATUS, "")):
        ips = each.get("ips")
        if each.get("interface") == ifname:
            mac = each.get("mac")
            texts = tuple(ip for ip in ips[:8] if isinstance(ip, str)) if isinstance(ips, list) else ()
            return (six_octets(mac) if isinstance(mac, str) else ""), texts
    return "", ()


@dataclass(frozen=True, slots=True)
class _Selected:
    """A network that a pod selects: its definition, "" for the cluster's default network, the interface, the MAC, the name of the
    logical port, and the limits, as far as the pod says them."""

    definition: str
    ifname: str
    mac: str
    port: str = ""
    limits: Limits = UNLIMITED


def _further(selected: _Selected, network: LogicalNetwork, pod: ClusterPod, naming: str) -> str:
    return f"{network.name}.{pod.namespace}.ovn" if naming == _KUBE_OVN else selected.ifname


def _selected(text: str, namespace: str) -> list[_Selected]:
    """The networks of Multus' annotation, in JSON or in its short form. What cannot be meant is left out, its number stays."""
    short = (_short(each) for each in islice(text.split(","), _NETWORKS_MAX))
    said = _json_list(text) if text.lstrip().startswith("[") else list(short)
    found = []
    for number, each in enumerate(said, 1):
        name, of, ifname, mac = (each.get(key) for key in ("name", "namespace", "interface", "mac"))
        if isinstance(name, str) and name:
            octets = six_octets(mac) if isinstance(mac, str) else ""
            place = of if isinstance(of, str) and of else namespace
            asked = ifname if isinstance(ifname, str) and _IFNAME.fullmatch(ifname) else f"net{number}"
            try:
                port = asked_port({}, {"args": {"cni": each.get("cni-args")}})
                limits = read_bandwidth({}, {_LIMITS: each.get(_LIMITS)}).runtime
            except BadRequest:
                continue  # the plugin refuses it, too
            found.append(_Selected(f"{place}/{name}", asked, octets if octets and is_unicast(octets) else "", port, limits))
    return found


def _short(text: str) -> Mapping[str, Any]:
    match = _SELECTION.fullmatch(text[:600])
    return {"namespace": match[1], "name": match[2], "interface": match[3]} if match else {}


def _json_list(text: str) -> list[Mapping[str, Any]]:
    try:
        said = json.loads(text) if text else []
    except (ValueError, RecursionError):
        return []
    return [each if isinstance(each, dict) else {} for each in said[:_NETWORKS_MAX]] if isinstance(said, list) else []
