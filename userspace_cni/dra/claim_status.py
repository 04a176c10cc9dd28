"""What a claim's status says of its devices: the interface of each, and whether it is ready and its pod's alone. Pure.

Each driver owns its own devices in `status.devices`. A condition keeps its time while it says the same, so that a status which
says nothing new is not written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from userspace_cni.attachment.claims import number_in
from userspace_cni.dra.device_names import DRIVER

if TYPE_CHECKING:
    from userspace_cni.attachment.records import Record
    from userspace_cni.dra.claim_objects import ClaimConsumer, SeenClaim

READY: Final = "Ready"
EXCLUSIVE: Final = "Exclusive"
"""The type of the condition that is false while more than one pod may use the claim: a vhost-user socket has one peer."""
_MESSAGE_MAX: Final = 1000


@dataclass(frozen=True)
class Shared:
    """A claim that more than one pod may use: the pod that has its devices, and the others, which cannot."""

    pod: str
    others: tuple[ClaimConsumer, ...]


def find_shared(claim: SeenClaim, records: Sequence[Record]) -> Shared | None:
    """What is wrong with the claim's consumers; None where only the pod that it was prepared for may use it."""
    pod = next((each for each in records if each.pod_uid), None)
    if pod is None:
        return None
    others = tuple(each for each in claim.consumers if each.uid != pod.pod_uid)
    return Shared(pod.pod_name, others) if others else None


def device_statuses(claim: SeenClaim, records: Sequence[Record], now: str) -> list[dict[str, Any]]:
    """The claim's devices of ours as its status is to say them. `now`: the time of conditions that say something new.

    Nothing while one of them is being made, which is neither ready nor being removed: who makes it asks for the status then.
    """
    if any(each.state == "applying" for each in records):
        return []
    by_number = {number_in(each.ifname): each for each in records}
    shared = find_shared(claim, records)
    found, keys = [], list[dict[str, str]]()
    for device in claim.devices:
        record = by_number.get(device.number)
        if record is None or record.port is None:
            continue
        key = {"driver": DRIVER, "pool": device.pool, "device": device.device}
        key |= {"shareID": device.share} if device.share else {}
        if key in keys:
            continue  # the server takes one entry of that key: a device without a share is to be allocated once
        keys.append(key)
        before = next((each for each in claim.statuses if all(each.get(name) == value for name, value in key.items())), {})
        network = {"interfaceName": record.ifname, **({"hardwareAddress": record.port.mac} if record.port.mac else {})}
        conditions = [_ready(record), _exclusive(shared)]
        found.append({**key, "conditions": _timed(conditions, before, now), "networkData": network})
    return found


def says_the_same(claim: SeenClaim, wanted: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the claim's status says this already, in whatever order."""
    there = claim.statuses
    return len(there) == len(wanted) and all(any(_is_in(each, other) for other in there) for each in wanted)


def _is_in(wanted: Mapping[str, Any], there: Mapping[str, Any]) -> bool:
    return all(_plain(there.get(key)) == _plain(value) for key, value in wanted.items())


def _plain(value: object) -> object:
    """A value without what the server adds to it, as an empty list."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items() if item not in ([], None, "")}
    return [_plain(each) for each in value] if isinstance(value, list) else value


def _ready(record: Record) -> dict[str, str]:
    is_ready = record.state == "ready"
    port = record.port.name if record.port else ""
    bridge = record.port.bridge if record.port else ""
    return {
        "type": READY,
        "status": "True" if is_ready else "False",
        "reason": "Prepared" if is_ready else "Unprepared",
        "message": f"port {port} of bridge {bridge}" if is_ready else "the port is being removed",
    }


def _exclusive(shared: Shared | None) -> dict[str, str]:
    if shared is None:
        return {"type": EXCLUSIVE, "status": "True", "reason": "OneConsumer", "message": ""}
    return {"type": EXCLUSIVE, "status": "False", "reason": "SeveralConsumers", "message": shared_text(shared)}


def shared_text(shared: Shared) -> str:
    """What people are told of it."""
    names = ", ".join(each.name for each in shared.others[:5])
    text = (
        f"the devices of the claim are those of pod {shared.pod}, and {names} may use it, too: a vhost-user socket has one peer; "
        "use a ResourceClaimTemplate, which makes a claim for each pod"
    )
    return text[:_MESSAGE_MAX]


def _timed(conditions: Iterable[dict[str, str]], before: Mapping[str, Any], now: str) -> list[dict[str, str]]:
    """The conditions with the time since when each has its status."""
    listed = before.get("conditions")
    known = {each.get("type"): each for each in listed if isinstance(each, dict)} if isinstance(listed, list) else {}
    found = []
    for each in conditions:
        same = known.get(each["type"], {})
        since = same.get("lastTransitionTime") if same.get("status") == each["status"] else None
        found.append({**each, "lastTransitionTime": str(since or now)})
    return found
