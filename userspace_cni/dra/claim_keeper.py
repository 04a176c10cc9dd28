"""Looks after the devices of claims between the kubelet's calls: makes those of another boot anew, removes those of claims that
are gone, and tells of claims that get a second consumer.

The kubelet unprepares what it remembers. A claim that it has forgotten (its checkpoint was lost, or the claim was deleted by
force while the agent was away) is gone when two complete lists of the API server, some time apart, lack it or its UID, or have it
without a device of this node. While the server does not answer nothing is concluded.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from userspace_cni.attachment import claims
from userspace_cni.attachment.cleanup import is_unfinished
from userspace_cni.attachment.steps import CLAIM, owner_kind
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import UserspaceError
from userspace_cni.base.log import bind, say
from userspace_cni.base.loops import Loop
from userspace_cni.base.notices import CLAIM_IN_USE, Recipient
from userspace_cni.dra.claim_objects import SeenClaim, read_claim
from userspace_cni.dra.claim_status import device_statuses, find_shared, says_the_same, shared_text
from userspace_cni.dra.device_names import DRIVER
from userspace_cni.kube.resources import RESOURCE_CLAIMS

if TYPE_CHECKING:
    from userspace_cni.attachment.records import Record
    from userspace_cni.kube.object_requests import Objects
    from userspace_cni.node.claim_devices import ClaimDevices
    from userspace_cni.node.local_node import LocalNode

STOP_S: Final = 1.0
LOOK_S: Final = 300.0
"""Seconds after which a claim is read again."""
PROOF_S: Final = 10.0
"""Seconds between two lists that together prove that a claim is gone."""
SETTLE_S: Final = 0.5
"""Seconds from a claim's preparation to its status: claims that are prepared meanwhile are not held up by requests about it."""
AGAIN_S: Final = 30.0
"""Seconds after which a status that could not be written is tried again."""
MANAGER: Final = "userspace-cni-claims"
"""The field manager of claims' statuses."""


@dataclass(frozen=True)
class _WatchedClaim:
    """A claim of which the node has something: where its object is, and when it is looked for next, on the monotonic clock."""

    namespace: str
    name: str
    due: float = 0.0
    missed: float = 0.0
    """When it was missed first; 0 while it is there."""


class ClaimKeeper(Loop):
    """The thread. `objects`: None without an account of the API server."""

    failing = "claims could not be looked at; they stay as they are: "
    end_s = STOP_S
    settle_s = SETTLE_S

    def __init__(self, node: LocalNode, devices: ClaimDevices, objects: Objects | None) -> None:
        super().__init__("claims", "looks after claims of devices")
        self._node = node
        self._devices = devices
        self._objects = objects
        self._known: dict[str, _WatchedClaim] = {}
        self._urgent: set[str] = set()
        self._named: set[tuple[str, str]] = set()
        self._listed: Sequence[dict[str, Any]] | None = None
        """All claims of the API server, as this round has listed them."""

    def note(self, uid: str) -> None:
        """Have this claim looked at soon. Never waits."""
        with self._wake:
            self._urgent.add(uid)
            self.ask()

    def note_named(self, namespace: str, names: Collection[str]) -> None:
        """Have the claims of these names looked at soon that are prepared here. Never waits."""
        with self._wake:
            self._named |= {(namespace, name) for name in names}
            self.ask()

    def renew(self, within_s: float = math.inf) -> None:
        """Make the devices of another boot anew, and begin none after `within_s` seconds. Raises UserspaceError for those that
        could not be read."""
        boot_id, end = self._node.store.boot_id(), time.monotonic() + within_s
        for record in self._records():
            if time.monotonic() >= end:
                return
            if record.boot_id != boot_id and not is_unfinished(record, boot_id):
                try:
                    claims.make_anew(record, self._node)
                except UserspaceError as error:
                    say("warning", "a device of a claim could not be made anew now", error=error, claim=record.subject["claim"])

    # -- the thread -------------------------------------------------------------------------------------------------------

    def _round(self) -> float | None:
        self.renew()
        if self._objects is None:
            return None
        with self._wake:
            urgent, self._urgent = self._urgent, set()
            named, self._named = self._named, set()
        by_uid = self._find()
        now = time.monotonic()
        self._known = {uid: self._known_at(uid, *place) for uid, place in by_uid.items()}
        for uid, known in list(self._known.items()):
            if uid in urgent or (known.namespace, known.name) in named or known.due <= now:
                self._known[uid] = self._look(uid, known, self._objects)
        self._listed = None
        waits = [each.due - time.monotonic() for each in self._known.values()]
        return max(0.1, min(waits, default=LOOK_S))

    def _known_at(self, uid: str, namespace: str, name: str) -> _WatchedClaim:
        known = self._known.get(uid)
        return known if known and (known.namespace, known.name) == (namespace, name) else _WatchedClaim(namespace, name)

    def _find(self) -> dict[str, tuple[str, str]]:
        """The claims of which records, ports or files of ours tell, by UID: namespace and name, "" where only files do."""
        named = self._devices.list_names()  # before the records: what is being made has its record first
        found = {each.claim_uid: (each.pod_namespace, each.network) for each in self._records()}
        identity = self._node.store.journal.identity()
        try:
            marks = list(self._node.switch.list_owned(Deadline.after(5.0)).values())
        except UserspaceError:
            marks = []
        for each in marks:
            if owner_kind(each) == "claim" and each.get("store") == identity:
                uid = each.get("container-id", "").removeprefix(CLAIM)
                found.setdefault(uid, (each.get("pod-namespace", ""), each.get("network", "")))
        return found | {uid: ("", "") for uid in named - found.keys() if self._devices.has_files(uid)}

    def _read(self, uid: str, known: _WatchedClaim, objects: Objects) -> SeenClaim | None:
        """The claim, if a complete list has it: of its name, or of all claims where its name is not known."""
        if known.name:
            listed = objects.list(RESOURCE_CLAIMS.within(known.namespace), fields=f"metadata.name={known.name}")
        else:
            if self._listed is None:
                self._listed = objects.list(RESOURCE_CLAIMS)
            listed = self._listed
        return next((read_claim(each, DRIVER) for each in listed if each["metadata"].get("uid") == uid), None)

    def _look(self, uid: str, known: _WatchedClaim, objects: Objects) -> _WatchedClaim:
        """Read one claim, and do what follows from that."""
        now = time.monotonic()
        with bind(self._node.service.log_level, claim=f"{known.namespace}/{known.name}"):
            try:
                claim = self._read(uid, known, objects)
                if claim is None or not claim.is_of(self._node.installation.name):
                    if known.missed and now - known.missed >= PROOF_S:
                        self._remove(uid)
                        return _WatchedClaim(known.namespace, known.name, now + LOOK_S)
                    return _WatchedClaim(known.namespace, known.name, now + PROOF_S, known.missed or now)
                self._write_status(claim, claims.read_devices(uid, self._node), objects)
            except UserspaceError as error:
                say("warning", "a claim could not be looked at, or its status written; it stays as it is", error=error)
                return _WatchedClaim(known.namespace, known.name, now + AGAIN_S)
        return _WatchedClaim(known.namespace, known.name, now + LOOK_S)

    def _write_status(self, claim: SeenClaim, records: Sequence[Record], objects: Objects) -> None:
        """Say in the claim's status what its devices are, unless it says so. Raises UserspaceError.

        The UID goes with it: a claim that was made anew under the name is refused. Others' devices and fields stay theirs.
        """
        wanted = device_statuses(claim, records, datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
        if not wanted or says_the_same(claim, wanted):
            return
        body = {"metadata": {"uid": claim.uid}, "status": {"devices": wanted}}
        resource = RESOURCE_CLAIMS.within(claim.namespace)
        objects.apply(resource, claim.name, body, manager=MANAGER, subresource="status")
        if shared := find_shared(claim, records):
            news = CLAIM_IN_USE.finding(f"claim {claim.name}: {shared_text(shared)}")
            for each in shared.others:
                if each.resource == "pods":
                    self._node.pods.tell(Recipient(claim.namespace, each.name, each.uid, ""), (news,))

    def _remove(self, uid: str) -> None:
        """Undo what there is of a claim that is gone. Raises UserspaceError."""
        say("info", "removing what a claim left that is gone", uid=uid)
        deadline = Deadline.after(self._node.service.deadline_s)
        claims.unprepare(uid, self._node, lambda known: self._devices.find_left(uid, known, deadline), deadline)

    def _records(self) -> list[Record]:
        return [each for each in self._node.store.journal.records() if each.owner == "claim"]
