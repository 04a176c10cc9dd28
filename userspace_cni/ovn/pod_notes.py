"""The annotations in which a pod is told the addresses of its logical ports, and from which they are read again. Pure.

They are the ledger: after a loss of the northbound database, each living pod has its addresses from here. The plugin reads them
on the node. A pod's author can write them, too, so what they say counts only where the address is free.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from ipaddress import ip_interface

from userspace_cni.base.errors import InvalidConfig
from userspace_cni.base.subnets import Address
from userspace_cni.cni.addressing import read_addresses_noted, read_noted
from userspace_cni.cni.annotations import OVN, POD_NETWORKS, PodInterface, json_object
from userspace_cni.ovn.address_book import Interface
from userspace_cni.ovn.cluster_pods import ClusterPod
from userspace_cni.ovn.pod_interfaces import LogicalInterface


@dataclass(frozen=True)
class PortAddresses:
    """What an interface has. `gateways`: its routers, one of a family at most."""

    ips: tuple[Interface, ...]
    mac: str
    gateways: tuple[Address, ...] = ()

    @property
    def said(self) -> dict[str, object]:
        """In the form of OVN's own tools; of two families a list each."""
        ips, gateways = [str(each) for each in self.ips], [str(each) for each in self.gateways]
        return {"ip_address": _one_or_list(ips), "mac_address": self.mac, "gateway_ip": _one_or_list(gateways)}

    @cached_property
    def text(self) -> str:
        """The same as the annotation has it."""
        return json.dumps(self.said)


@dataclass(frozen=True)
class AddressNote:
    """Annotations that are to be written into a pod, of this UID alone. `ports`: the logical ports of which they speak."""

    namespace: str
    name: str
    uid: str
    annotations: Mapping[str, str]
    ports: tuple[str, ...]


def read_noted_addresses(pod: ClusterPod, interface: LogicalInterface) -> PortAddresses | None:
    """What the pod's annotations say of the interface; None for nothing. Raises InvalidConfig for what cannot be meant."""
    about = PodInterface(
        interface.network.name, pod.namespace, interface.ifname, logical="first" if interface.is_first else "further"
    )
    said = read_addresses_noted(pod.notes, about)
    if not said.ips:
        return None
    ips = tuple(ip_interface(str(each["address"])) for each in said.ips)
    gateways = tuple(ip_interface(str(each["gateway"])).ip for each in said.ips if each.get("gateway"))
    return PortAddresses(ips, read_noted(pod.notes, about).mac, gateways)


def make_note(pod: ClusterPod, ports: Sequence[tuple[LogicalInterface, PortAddresses]]) -> AddressNote | None:
    """The annotations that the pod lacks of what these interfaces have; None when they say all of it."""
    lacking = [(interface, has) for interface, has in ports if not _says(pod, interface, has)]
    annotations: dict[str, str] = {}
    further = {f"{pod.namespace}/{each.network.name}/{each.ifname}": has.said for each, has in lacking if not each.is_first}
    if further:
        annotations[POD_NETWORKS] = json.dumps({**_object(pod.notes.get(POD_NETWORKS, "")), **further})
    for each, has in lacking:
        if each.is_first:
            annotations[OVN] = has.text
    if not annotations:
        return None
    return AddressNote(pod.namespace, pod.name, pod.uid, annotations, tuple(each.port for each, _ in lacking))


def _says(pod: ClusterPod, interface: LogicalInterface, has: PortAddresses) -> bool:
    if interface.is_first and pod.notes.get(OVN) == has.text:
        return True
    try:
        said = read_noted_addresses(pod, interface)
    except InvalidConfig:
        return False
    return said is not None and (said.ips, said.mac, set(said.gateways)) == (has.ips, has.mac, set(has.gateways))


def _one_or_list(texts: list[str]) -> str | list[str]:
    return texts if len(texts) > 1 else "".join(texts)


def _object(text: str) -> dict[str, object]:
    """What the annotation says of networks; {} where the plugin would refuse it, which would not read what is added either."""
    try:
        return json_object(POD_NETWORKS, text, "") if text else {}
    except InvalidConfig:
        return {}
