"""The plan of an attachment, and what plans of all kinds of interfaces have in common. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from userspace_cni.attachment.consumer import Consumer
from userspace_cni.attachment.facts import Facts, SocketFacts
from userspace_cni.attachment.steps import LogicalPort, Parts, PortInterface, Step, owner_marks
from userspace_cni.base.errors import BadEnvironment
from userspace_cni.base.limits import Limits, Rate
from userspace_cni.cni.options import Options, Role
from userspace_cni.cni.request import Request
from userspace_cni.cni.result import ResultAddresses, ResultInterface

_SURROGATE: Final = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Attachment(Parts):
    """The steps to take, the interfaces that the result describes, and OVS's side of a vhost-user connection, None without.

    The last interface is the container's, which has the addresses.
    """

    steps: tuple[Step, ...]
    interfaces: tuple[ResultInterface, ...]
    ovs_role: Role | None = None


def mac_of(request: Request, options: Options, consumer: Consumer, facts: Facts) -> str:
    """The MAC of the pod's interface: that of the port that it joins; else the annotations', what is asked for, a derived one."""
    if isinstance(facts, SocketFacts) and facts.joined:
        return facts.joined.port.mac
    return facts.mac or options.asked.mac or consumer.derive_mac(request, facts.pod)


def marks_of(request: Request, facts: Facts, more: Mapping[str, str]) -> dict[str, str]:
    """The owner marks of the attachment's port; `more`: those of its consumer. Values that OVSDB cannot hold are left out."""
    marks = owner_marks(request.environment.container_id, request.network.name, request.environment.ifname)
    marks |= {
        "boot-id": facts.boot_id,
        "netns": request.environment.netns,
        "netns-inode": str(facts.netns_inode),
        "store": facts.store,
        "pod-namespace": facts.pod.namespace,
        "pod-name": facts.pod.name,
        "pod-uid": facts.pod.uid,
        **more,
    }
    return {key: value for key, value in marks.items() if value and _is_text(value)}


def logical_of(facts: Facts, addresses: ResultAddresses) -> LogicalPort | None:
    """The logical port, with the addresses where another control plane looks for them."""
    logical = facts.logical
    bare = ",".join(ip["address"].partition("/")[0] for ip in addresses.ips)
    return replace(logical, ids={**logical.ids, "ip": bare}) if logical and logical.ids and bare else logical


def divide_limits(limits: Limits, interface: PortInterface) -> tuple[Limits, Rate | None]:
    """The limits that the switch enforces at the port, and the one at the pod's own end of the link, None for none there."""
    return (limits, None) if interface.polices else (replace(limits, from_pod=None), limits.from_pod)


def require_text(ifname: str) -> None:
    """Raise BadEnvironment for a name that OVSDB cannot hold."""
    if not _is_text(ifname):
        raise BadEnvironment(f"CNI_IFNAME {ifname!a} is not UTF-8", "OVSDB takes no other names")


def _is_text(value: str) -> bool:
    """Whether OVSDB can hold the value: bytes of a variable that are not UTF-8 are lone surrogates here."""
    return not _SURROGATE.search(value)
