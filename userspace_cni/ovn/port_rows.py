"""A pod's logical port as a row: what it is to be, what it is, and the difference. Pure.

A row is ours when its marks say so; only such rows are changed or deleted. Keys of maps that others have written stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from ipaddress import ip_address
from typing import Final, Literal

from userspace_cni.attachment.steps import OWNER
from userspace_cni.base.subnets import Address
from userspace_cni.ovn.address_book import Interface
from userspace_cni.ovn.desired_rows import SCOPE
from userspace_cni.ovsdb.columns import Columns, find_changed_columns, make_columns
from userspace_cni.pod.mac import six_octets

PODS: Final = "pods"
"""The scope of the rows that follow from pods."""
UNKNOWN: Final = "unknown"
CLOSED: Final = ("02:00:00:00:00:00 192.0.0.8",)
"""The port security of a port that is to send nothing: no port has this MAC, and the address is a dummy (RFC 7600)."""
VERSION: Final = "iface-id-ver"
CHASSIS: Final = "requested-chassis"
ACTIVATION: Final = "activation-strategy"
ADOPTED: Final = "adopted-for"
"""The mark of a row that was made for this pod (its UID) by another controller. The pod's interface may have no iface-id-ver, and
another name of its chassis: OVN would let it go if the row asked for them."""
_OF_A_POD: Final = "pod"
"""The key by which ovn-kubernetes' tools and kube-ovn mark rows of pods, as we do."""
_MARKS: Final = {"owner": OWNER, SCOPE: PODS}
NETWORK: Final = "network"
"""The key of external_ids with the network's definition, as "namespace/name"; the cluster's default network has none."""
_SWITCH: Final = "switch"
_LINK_LOCAL: Final = "fe80::/64"
"""A pod chooses its address of the link by itself."""


@dataclass(frozen=True, slots=True)
class FoundLogicalPort:
    """A logical port as the database has it. `dynamic`: the addresses that OVN gave it, "" for none."""

    name: str
    addresses: tuple[str, ...] = ()
    port_security: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    external_ids: Mapping[str, str] = field(default_factory=dict)
    dynamic: str = ""

    @property
    def is_ours(self) -> bool:
        return self.external_ids.get("owner") == OWNER and self.external_ids.get(SCOPE) == PODS

    @property
    def may_be_adopted(self) -> bool:
        """Whether another controller marked it as a pod's: so it is neither a router's port, nor a node's own."""
        return _OF_A_POD in self.external_ids and self.external_ids.get("owner") != OWNER

    @property
    def version(self) -> str:
        """The UID of the pod or VM whose port it is; "" where no one said it."""
        return self.options.get(VERSION) or self.external_ids.get(ADOPTED, "")

    def is_as_adopted(self, uid: str) -> bool:
        """Whether the row is, for the pod of this UID, still as another controller has made it."""
        return VERSION not in self.options and (self.external_ids.get(ADOPTED) == uid or not self.is_ours)

    @property
    def switch(self) -> str:
        """The logical switch of a port of ours."""
        return self.external_ids.get(_SWITCH, "")


@dataclass(frozen=True)
class DesiredLogicalPort:
    """A logical port as it is to be. Of `options` and `external_ids`, None removes one."""

    name: str
    switch: str
    addresses: tuple[str, ...]
    port_security: tuple[str, ...]
    options: Mapping[str, str | None]
    external_ids: Mapping[str, str | None]

    @cached_property
    def columns(self) -> Columns:
        """All that is ours of the row, but its name."""
        return {
            "addresses": sorted(self.addresses),
            "port_security": sorted(self.port_security),
            "options": dict(self.options),
            "external_ids": {**self.external_ids, **_MARKS, _SWITCH: self.switch},
        }


@dataclass(frozen=True, slots=True)
class PortChange:
    """One row that is to be made, changed or removed. `switch`: has it afterwards, or had it; `left`: loses it, "" for none."""

    kind: Literal["insert", "update", "delete"]
    name: str
    switch: str
    columns: Columns = field(default_factory=dict)
    left: str = ""


def find_change(desired: DesiredLogicalPort | None, found: FoundLogicalPort | None) -> PortChange | None:
    """What has to be written; None for nothing. Without `desired`, a found row of ours is removed."""
    if desired is None:
        return PortChange("delete", found.name, found.switch) if found is not None and found.is_ours else None
    if found is None:
        return PortChange("insert", desired.name, desired.switch, {"name": desired.name, **make_columns(desired.columns)})
    there: Columns = {
        "addresses": sorted(found.addresses),
        "port_security": sorted(found.port_security),
        "options": found.options,
        "external_ids": found.external_ids,
    }
    changed = find_changed_columns(desired.columns, there)
    return PortChange("update", desired.name, desired.switch, changed, _left(desired, found)) if changed else None


def make_addresses(mac: str, ips: Sequence[Interface]) -> tuple[str, ...]:
    """The value of `addresses`."""
    return (" ".join((mac, *(str(each.ip) for each in ips))),)


def make_security(mac: str, ips: Sequence[Interface]) -> tuple[str, ...]:
    """The value of `port_security`: what the port may send from."""
    own = [_LINK_LOCAL] if any(each.version != 4 for each in ips) else []
    return (" ".join((mac, *(str(each.ip) for each in ips), *own)),)


def read_row_addresses(found: FoundLogicalPort) -> Iterator[Address]:
    """The IP addresses that a logical port has, ours or not."""
    for text in (*found.addresses, found.dynamic):
        yield from read_addresses(text)


def read_addresses(text: str) -> Iterator[Address]:
    """The IP addresses among the words of a text. One with a zone is none: a zone can be any text, and OVN has no zones."""
    for word in text.split():
        try:
            address = ip_address(word)
        except ValueError:
            continue
        if "%" not in word:
            yield address


def read_row_macs(found: FoundLogicalPort) -> Iterator[str]:
    """The MACs that a logical port has, ours or not."""
    for text in (*found.addresses, found.dynamic):
        for word in text.split():
            if mac := six_octets(word):
                yield mac


def _left(desired: DesiredLogicalPort, found: FoundLogicalPort) -> str:
    return found.switch if found.switch != desired.switch else ""
