"""What this node reports of itself to the API: its NodeState's status, and labels and annotations of its Node. Pure.

The same statuses give the same report: nothing in it is a time or a number that changes by itself, for every difference is a
write. An empty text is left out: Kubernetes 1.20 makes null of it in server-side apply, and refuses that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from userspace_cni.attachment.specs import SpecStatus
from userspace_cni.attachment.steps import Step
from userspace_cni.base.errors import on_one_line
from userspace_cni.base.findings import Finding
from userspace_cni.base.notices import NODE_NOT_READY, NODE_READY

CHASSIS: Final = "userspace-cni.io/chassis"
"""Annotation of a Node: the name of its switch (`switch.chassis`)."""
KUBEOVN_CHASSIS: Final = "ovn.kubernetes.io/chassis"
"""The same for programs that know kube-ovn."""
LABELS: Final = ".provider-network.userspace-cni.io/"
"""Labels of a Node: NAME.provider-network.userspace-cni.io/{ready,interface,mtu}."""
MESSAGE_MAX: Final = 1024
_PROVIDER_NETWORK: Final = "provider-network"
_LABEL_MAX: Final = 63
_NO_LABEL: Final = re.compile(r"[^-A-Za-z0-9_.]+")


@dataclass(frozen=True)
class SubnetUse:
    """A Subnet on this node: the range that its pods' addresses come from; "" where the controller's word for it is missing."""

    name: str
    range: str


@dataclass(frozen=True)
class RouteUse:
    """What this node has of a Route of `generation`: how many pods it selects; how many of these have a route of it, lack what it
    needs, or cannot have one; how many destinations another Route has. `failures`: pod and reason, of some. `message`: what of it
    cannot be anywhere. `uid`: the Route's, for another one may have its name later."""

    name: str
    generation: int
    matched: int
    applied: int
    skipped: int
    failed: int
    conflicts: int = 0
    failures: tuple[tuple[str, str], ...] = ()
    message: str = ""
    uid: str = ""


def status(
    statuses: Iterable[SpecStatus],
    subnets: Iterable[SubnetUse],
    addresses: Sequence[str],
    chassis: str,
    routes: Iterable[RouteUse] | None = None,
) -> dict[str, Any]:
    """The status of the NodeState. `addresses`: the node's InternalIPs; `chassis` "" where it is not known.

    `routes`: None where the node has no part in them.
    """
    by_name = sorted(subnets, key=lambda each: each.name)
    return {
        **({"chassis": chassis} if chassis else {}),
        "addresses": list(addresses),
        "specs": [_spec(each) for each in sorted(statuses, key=lambda each: (each.kind, each.name, each.source))],
        "subnets": [{"name": each.name, "range": each.range} for each in by_name if each.range],
        **({} if routes is None else {"routes": [_route(each) for each in routes]}),
    }


def news(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[Finding]:
    """What one status says of specs that another did not. What the node lost is no news."""
    former, found = _said(before), _said(now)
    told = [(key, message) for key, message in found.items() if former.get(key, "") != message]
    return [NODE_NOT_READY.finding(message, key) if message else NODE_READY.finding("as desired", key) for key, message in told]


def _said(status: Mapping[str, Any]) -> dict[str, str]:
    """By kind, name and source of a spec why it is not met; "" for one that is."""
    specs = (each for each in status.get("specs") or () if isinstance(each, dict))
    return {
        " ".join(str(each.get(key, "")) for key in ("kind", "name", "source")): (
            "" if each.get("ready") is True else str(each.get("message") or each.get("reason") or "not ready")
        )
        for each in specs
    }


def _route(use: RouteUse) -> dict[str, Any]:
    failures = [{"pod": pod, "message": on_one_line(text)} for pod, text in use.failures]
    counts = {name: getattr(use, name) for name in ("generation", "matched", "applied", "skipped", "failed", "conflicts")}
    said = {"message": on_one_line(use.message[:MESSAGE_MAX])} if use.message else {}
    return {"name": use.name, "uid": use.uid, **counts, **said, **({"failures": failures} if failures else {})}


def _spec(status: SpecStatus) -> dict[str, Any]:
    reason = "Ready" if status.holds else "CannotBeMet" if status.desired else "CannotBeUndone"
    about = {"kind": status.kind, "name": status.name, "source": status.source, "ready": status.holds}
    said = {"message": on_one_line(status.problem[:MESSAGE_MAX])} if status.problem else {}
    return {**about, "reason": reason, **said, **_facts(status.steps)}


def _facts(steps: Sequence[Step]) -> dict[str, Any]:
    """What the steps say of interface, bridge, MTU and VLANs, each from the first that says it; without what they do not say."""
    facts: dict[str, Any] = {}
    for step in steps:
        facts = {name: value for name, value in step.reported.items() if value} | facts
    return facts


def labels(statuses: Iterable[SpecStatus]) -> dict[str, str]:
    """The labels of the Node: of each provider network that is desired for it."""
    found: dict[str, str] = {}
    for each in statuses:
        if each.kind != _PROVIDER_NETWORK or not each.desired:
            continue
        facts = _facts(each.steps)
        values = {
            "ready": str(each.holds).lower(),
            "interface": _label(facts.get("interface", "")),
            "mtu": str(facts.get("mtu", "")),
        }
        found |= {f"{each.name}{LABELS}{name}": value for name, value in values.items() if value}
    return found


def _label(text: str) -> str:
    """The text as a label's value: with a hyphen for what that cannot have."""
    return _NO_LABEL.sub("-", text)[:_LABEL_MAX].strip("-_.")


def notes(chassis: str, *, kubeovn: bool) -> dict[str, str]:
    names = (CHASSIS, *((KUBEOVN_CHASSIS,) if kubeovn else ()))
    return dict.fromkeys(names, chassis) if chassis else {}
