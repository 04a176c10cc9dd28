"""Events on objects whose status says that something is wrong: what `kubectl describe` shows, beside the status.

Who writes the status tells of it: the one controller that acts, when the server took the status. So it is told once, and again
when the text is another one, whichever controller acts then; what the former status said is in the object. There is one Event for
each object and reason, with the number of nodes and one of them as an example, never one for each node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from userspace_cni.base.findings import Finding
from userspace_cni.base.notices import (
    NOT_ON_NODES,
    ON_NODES,
    ROUTE_REFUSED,
    SUBNET_FULL,
    SUBNET_INVALID,
    VLAN_CONFLICT,
    NoticeReason,
    Recipient,
)
from userspace_cni.controller.cluster import tables, text
from userspace_cni.controller.writes import Summary
from userspace_cni.kube.resources import PROVIDER_NETWORKS, ROUTES, SUBNETS, VLANS, ApiResource

COMPONENT: Final = "userspace-cni-controller"
"""Who makes these Events."""
_OF_SUBNETS: Final[Mapping[str, NoticeReason]] = {"Invalid": SUBNET_INVALID, "Full": SUBNET_FULL}
"""Of the reasons of a Subnet's condition; each other one is about nodes."""


def make_notifier(send: Callable[[Recipient, Sequence[Finding]], None]) -> Callable[[Summary], None]:
    """What tells of a status that was written, by `send`, which must not wait."""

    def tell(write: Summary) -> None:
        news = _news(write.resource, write.before, write.status)
        if news:
            resource = write.resource
            send(Recipient("", write.name, write.uid, "", resource.kind, resource.api_version), [news])

    return tell


def _news(resource: ApiResource, before: Mapping[str, Any], status: Mapping[str, Any]) -> Finding | None:
    """The Event that is due when one status follows another; None for none."""
    said, now = _fault(resource, before), _fault(resource, status)
    if now and now != said:
        return now
    if said and not now and resource != ROUTES:
        return ON_NODES.finding(_on_nodes(status))
    return None


def _fault(resource: ApiResource, status: Mapping[str, Any]) -> Finding | None:
    read = _FAULTS.get(resource)
    return read(status) if read else None


def _refused(status: Mapping[str, Any]) -> Finding | None:
    valid = next((each for each in tables(status, "conditions") if text(each, "type") == "Valid"), {})
    if text(valid, "status") != "False":
        return None
    whole = "nothing of it is applied: " if text(status, "status") == "Invalid" else ""
    return ROUTE_REFUSED.finding(f"{whole}{text(valid, 'message')}")


def _missing(status: Mapping[str, Any]) -> Finding | None:
    """On how many nodes a provider network is not as its object says."""
    conditions = sorted(tables(status, "conditions"), key=lambda each: text(each, "node"))
    lacking = [each for each in conditions if text(each, "status") == "False"]
    if not lacking:
        return None
    number = f"{len(lacking)} of {len(conditions)} nodes"
    return NOT_ON_NODES.finding(f"not on {number}, as on {text(lacking[0], 'node')}: {text(lacking[0], 'message')}")


def _conflicting(status: Mapping[str, Any]) -> Finding | None:
    """Why a Vlan cannot be used."""
    if status.get("conflict") is True:
        return VLAN_CONFLICT.finding("an earlier Vlan has its id in its provider network")
    return _unready(status)


def _unready(status: Mapping[str, Any]) -> Finding | None:
    """What the one condition of a Subnet or Vlan says."""
    said = next(iter(tables(status, "conditions")), {})
    if text(said, "status") != "False":
        return None
    return _OF_SUBNETS.get(text(said, "reason"), NOT_ON_NODES).finding(text(said, "message"))


def _on_nodes(status: Mapping[str, Any]) -> str:
    ready = status.get("readyNodes")
    return f"as its object says on all {len(ready)} nodes" if isinstance(ready, list) else "in order on all nodes"


_FAULTS: Final[Mapping[ApiResource, Callable[[Mapping[str, Any]], Finding | None]]] = {
    ROUTES: _refused,
    PROVIDER_NETWORKS: _missing,
    VLANS: _conflicting,
    SUBNETS: _unready,
}
