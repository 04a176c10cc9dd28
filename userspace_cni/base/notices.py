"""Notices for the author of a pod, or of an object of the cluster: findings, each named by a reason.

Code that finds a fault which the author can correct gives a notice; a collector decides what becomes of it (an agent makes
Events of the API). This module must not know how notices are delivered, and giving one must never wait or fail. Without a
collector, as in a process of one call, a notice is a log line.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

from userspace_cni.base import errors
from userspace_cni.base.findings import Finding, Severity
from userspace_cni.base.log import say

_NOTICES_MAX: Final = 32


@dataclass(frozen=True)
class NoticeReason:
    """A kind of finding. `name` is an Event's reason: programs compare it, so it never changes its meaning."""

    name: str
    severity: Severity = "warning"

    def finding(self, text: str, subject: str = "") -> Finding:
        """A finding for this reason; `text` says what was tried, what happened, what to look at."""
        return Finding(self.name, self.severity, subject, text)


VOLUME_MISSING: Final = NoticeReason("VolumeMissing")
KEY_IGNORED: Final = NoticeReason("KeyIgnored")
HUGEPAGES_MISSING: Final = NoticeReason("HugepagesMissing", "note")
ANNOTATION_IGNORED: Final = NoticeReason("AnnotationIgnored", "note")
PORT_DEGRADED: Final = NoticeReason("PortDegraded")
PORT_RESTORED: Final = NoticeReason("PortRestored", "good")
PORT_CHANGED: Final = NoticeReason("PortChanged")
LIMIT_REFUSED: Final = NoticeReason("LimitRefused")
ROUTE_REFUSED: Final = NoticeReason("RouteRefused")
LOGICAL_PORT_MISSING: Final = NoticeReason("LogicalPortMissing")
SERVICE_DEGRADED: Final = NoticeReason("ServiceDegraded")
POLICY_REFUSED: Final = NoticeReason("PolicyRefused")
POLICY_FRAGMENTS: Final = NoticeReason("PolicyWithoutFragments", "note")
CLAIM_IN_USE: Final = NoticeReason("ClaimInUse")
UPLINK_DOWN: Final = NoticeReason("UplinkDown")
UPLINK_UP: Final = NoticeReason("UplinkUp", "good")
NODE_NOT_READY: Final = NoticeReason("NetworkNotReady")
NODE_READY: Final = NoticeReason("NetworkReady", "good")
NOT_ON_NODES: Final = NoticeReason("NotOnNodes")
ON_NODES: Final = NoticeReason("OnNodes", "good")
SUBNET_INVALID: Final = NoticeReason("SubnetInvalid")
SUBNET_FULL: Final = NoticeReason("SubnetFull")
VLAN_CONFLICT: Final = NoticeReason("VlanConflict")
ADDRESS_CONFLICT: Final = NoticeReason("AddressConflict")
ANNOTATIONS_REFUSED: Final = NoticeReason("AnnotationsRefused")

_OF_ERRORS: Final[tuple[tuple[type[errors.UserspaceError], NoticeReason], ...]] = (
    (errors.VolumeMissing, VOLUME_MISSING),
    (errors.DirectoryRefused, NoticeReason("DirectoryRefused")),
    (errors.BridgeRefused, NoticeReason("BridgeRefused")),
    (errors.MirrorRefused, NoticeReason("MirrorRefused")),
    (errors.LogicalPortRefused, NoticeReason("LogicalPortRefused")),
    (errors.BadRequest, NoticeReason("NetworkRefused")),
    (errors.SwitchRefused, NoticeReason("PortRefused")),
    (errors.NameTaken, NoticeReason("NameTaken")),
    (errors.NoteRefused, ANNOTATIONS_REFUSED),
    (errors.DelegateFailed, NoticeReason("AddressRefused")),
    (errors.DelegateBroken, NoticeReason("AddressRefused")),
)
"""The reason for a failed ADD, by its error: the first match counts. Other errors are not the pod's or the network's fault."""

REASONS: Final = (
    *dict.fromkeys(reason for _, reason in _OF_ERRORS),
    KEY_IGNORED,
    HUGEPAGES_MISSING,
    ANNOTATION_IGNORED,
    PORT_DEGRADED,
    PORT_RESTORED,
    PORT_CHANGED,
    LIMIT_REFUSED,
    ROUTE_REFUSED,
    LOGICAL_PORT_MISSING,
    SERVICE_DEGRADED,
    POLICY_REFUSED,
    POLICY_FRAGMENTS,
    CLAIM_IN_USE,
    UPLINK_DOWN,
    UPLINK_UP,
    NODE_NOT_READY,
    NODE_READY,
    NOT_ON_NODES,
    ON_NODES,
    SUBNET_INVALID,
    SUBNET_FULL,
    VLAN_CONFLICT,
    ADDRESS_CONFLICT,
)
"""All of them; docs/operations.md explains each."""


@dataclass(frozen=True)
class Recipient:
    """The pod that is told, by what the node knows (see `facts.Pod` of its `uid`), and which of its interfaces it is about.

    Or another object, of `kind` and `api_version`; `namespace` is "" for an object of the cluster. `interface` "": about none.
    """

    namespace: str
    name: str
    uid: str
    interface: str
    kind: str = "Pod"
    api_version: str = "v1"


_collector: ContextVar[list[Finding] | None] = ContextVar("notices", default=None)


@contextmanager
def collect() -> Iterator[list[Finding]]:
    """Within this block, notices are also put into the list that it gives, up to 32 of them."""
    notices: list[Finding] = []
    token = _collector.set(notices)
    try:
        yield notices
    finally:
        _collector.reset(token)


def give(reason: NoticeReason, text: str) -> None:
    say("warning" if reason.severity == "warning" else "info", text)
    _collect(reason.finding(text))


def give_failure(error: errors.UserspaceError) -> None:
    """Give the notice of a failed ADD, if it is one for the pod. Its error is in the log already."""
    reason = next((reason for kind, reason in _OF_ERRORS if isinstance(error, kind)), None)
    if reason is not None and error.code != errors.Unavailable.default_code:  # an IPAM plugin's "try again later"
        _collect(reason.finding(str(error)))


def _collect(notice: Finding) -> None:
    notices = _collector.get()
    if notices is not None and len(notices) < _NOTICES_MAX and notice not in notices:
        notices.append(notice)
