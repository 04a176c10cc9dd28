"""IP objects: who has which address of a Subnet, for people and for counting. Made from the records. Pure.

They are bookkeeping: nothing is allocated by them, and no verb waits for them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from ipaddress import ip_interface
from typing import Any, Final

from userspace_cni.attachment.records import Record

SUBNET_LABEL: Final = "userspace-cni.io/subnet"
NODE_LABEL: Final = "userspace-cni.io/node"
_DEFAULT_INTERFACE: Final = "eth0"
_LABEL_MAX: Final = 63
_NAME_MAX: Final = 253
_DIGEST: Final = 16
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")


def subnet_of(record: Record) -> str:
    """The Subnet whose addresses the attachment has; "" for none."""
    return record.lease.subnet if record.lease else ""


def ip_objects(records: Iterable[Record], node: str) -> dict[str, dict[str, Any] | None]:
    """The objects of the attachments, by name; None for one whose result was lost with the run directory.

    A pod has one object of a name: its newest sandbox's. What is no pod's, and what is not complete, has none.
    """
    found: dict[str, dict[str, Any] | None] = {}
    ready = [each for each in records if each.state == "ready" and each.pod_name and subnet_of(each)]
    first: dict[tuple[str, ...], str] = {}
    for record in sorted(ready, key=lambda each: (each.boottime_ns, each.ifname)):
        name = _name_of(record, first.setdefault(_place(record), record.ifname))
        found[name] = _object(record, record.result, node) if record.result else None
    return found


def label(value: str) -> str:
    """The value as a label can have it: a long one is cut, and told apart by a digest."""
    return value if len(value) <= _LABEL_MAX else f"{value[: _LABEL_MAX - _DIGEST - 1].rstrip('-.')}-{_digest(value)}"


def _object(record: Record, result: Mapping[str, Any], node: str) -> dict[str, Any]:
    last = len(result.get("interfaces") or ()) - 1
    own = [ip_interface(each["address"]).ip for each in result.get("ips") or () if each.get("interface") == last]
    first = [next((str(ip) for ip in own if ip.version == version), "") for version in (4, 6)]
    spec = {
        "podName": record.pod_name,
        "namespace": record.pod_namespace,
        "nodeName": node,
        "subnet": subnet_of(record),
        "network": record.network,
        "interface": record.ifname,
        "ipAddress": ",".join(filter(None, first)),
        "v4IpAddress": first[0],
        "v6IpAddress": first[1],
        "macAddress": (result.get("interfaces") or [{}])[-1].get("mac", ""),
        "containerID": record.container_id,
    }
    labels = {SUBNET_LABEL: label(subnet_of(record)), NODE_LABEL: label(node)}
    return {"metadata": {"labels": labels}, "spec": {key: value for key, value in spec.items() if value}}


def _name_of(record: Record, first: str) -> str:
    """`<pod>.<namespace>`, for other interfaces than eth0 `<pod>.<namespace>.<network>`. `first`: the sandbox's first in it.

    Where that could be another's, or is no name, a digest of all that it is made of tells it apart.
    """
    network = "" if record.ifname == _DEFAULT_INTERFACE else record.network
    parts = [record.pod_name, record.pod_namespace, *([network] if network else [])]
    name = ".".join(parts)
    unlike = "." in record.pod_name or (network and record.ifname != first)
    if not unlike and len(name) <= _NAME_MAX and _NAME.fullmatch(name):
        return name
    digest = _digest(" ".join([*parts, record.ifname if network else ""]))
    plain = re.sub(r"[^-a-z0-9.]+", "-", name.lower()).strip("-.")[: _NAME_MAX - _DIGEST - 1].rstrip("-.")
    return f"{plain}-{digest}"


def _place(record: Record) -> tuple[str, ...]:
    """What attachments share that would have one name."""
    network = "" if record.ifname == _DEFAULT_INTERFACE else record.network
    return record.container_id, record.pod_namespace, record.pod_name, network


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST]
