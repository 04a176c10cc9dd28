"""What a pod's annotations ask for a living attachment, against what it has: refused, or not applied. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from userspace_cni.attachment.amend import steps_now
from userspace_cni.attachment.listing import limits_of
from userspace_cni.base.errors import BadRequest
from userspace_cni.node.gathering import read_changeable_options

if TYPE_CHECKING:
    from userspace_cni.attachment.facts import Pod
    from userspace_cni.attachment.records import Record
    from userspace_cni.base.limits import Limits
    from userspace_cni.base.settings import Settings


@dataclass(frozen=True)
class SeenAnnotations:
    """`refused`: why what the pod asks for cannot be, "" where it can; `annotation`: the one that says it, with its `value`, ""
    where that is not known. `pending`: what it asks for and the attachment does not have yet, in words."""

    refused: str = ""
    pending: tuple[str, ...] = ()
    annotation: str = ""
    value: str = ""


def see_annotations(pod: Pod, record: Record, settings: Settings) -> SeenAnnotations | None:
    """None where the attachment has no port, or one that annotations do not change, as a claim's; or the pod is another one of
    this name."""
    if record.port is None or record.owner != "pod" or (record.pod_uid and pod.uid != record.pod_uid):
        return None
    try:
        asked = read_changeable_options(record.port, pod, record, settings)
        wanted = replace(record, steps=steps_now(record, asked))
    except BadRequest as error:
        named = max((each for each in pod.annotations if each in str(error)), key=len, default="")
        return SeenAnnotations(str(error), annotation=named, value=pod.annotations.get(named, ""))
    pending = []
    if not record.port.terms.by_ovn and (limits := limits_of(wanted)) != (had := limits_of(record)):
        pending.append(f"the limit {say_limits(limits)}, where it has {say_limits(had)}")
    if asked.mirrors != record.port.mirrors:
        pending.append(f"the mirrors {', '.join(each.name for each in asked.mirrors) or 'none'}")
    return SeenAnnotations(pending=tuple(pending))


def say_limits(limits: Limits) -> str:
    """Limits in words, for comparing them by eye."""
    directions = (("to the pod", limits.to_pod), ("from the pod", limits.from_pod))
    rates = [f"{way} {rate.rate} bit/s (burst {rate.burst} bits)" for way, rate in directions if rate]
    return ", ".join([*rates, *(["netem"] if limits.netem else [])]) or "none"
