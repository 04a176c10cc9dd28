"""Brings a living attachment's limits and its part in mirrors to what its pod says now.

At ADD they are from runtime, annotations and network (`steps.PortTerms` keeps which said what). Afterwards an annotation that
differs from its value at ADD wins; where one has gone, the network's word holds. Nothing else of an attachment changes while it
lives.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from userspace_cni.attachment.apply import try_turn
from userspace_cni.attachment.cleanup import is_unfinished
from userspace_cni.attachment.facts import ChangeableOptions
from userspace_cni.attachment.planned import divide_limits
from userspace_cni.attachment.records import Record
from userspace_cni.attachment.steps import Step
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.limits import UNLIMITED
from userspace_cni.base.log import about, say
from userspace_cni.cni.bandwidth import Bandwidth, resolve

if TYPE_CHECKING:
    from userspace_cni.attachment.attachment_store import AttachmentStore
    from userspace_cni.attachment.node import DriverOf, Pods

AMEND_S = 5.0


def steps_now(record: Record, noted: ChangeableOptions) -> tuple[Step, ...]:
    """The steps that the attachment is to have; the recorded ones where nothing has changed."""
    port, link = record.port, record.link
    if port is None:
        return record.steps
    terms = port.terms
    asked = resolve(Bandwidth(terms.runtime, terms.network), noted.limits, before=terms.noted)
    limits, shaped = divide_limits(UNLIMITED if terms.by_ovn else asked, port.interface)
    limited = [link.limited(shaped)] if link and shaped else []
    steps = [step for step in record.steps if step != record.shaper]
    place = steps.index(port)
    return (*steps[:place], *limited, replace(port, limits=limits, mirrors=noted.mirrors), *steps[place + 1 :])


def amend(record: Record, store: AttachmentStore, driver: DriverOf, pods: Pods) -> bool | None:
    """Change the attachment if its pod says something else now; whether it did. None while another call works on it,
    which may have read before what the pod says. Raises BadRequest for what a pod cannot have, with nothing changed; after other
    errors the attachment is as it was as far as that can be had now, and the next call tries again.
    """
    if record.state == "ready" and _wanted(record, pods) is None:
        return False
    with about(record.subject), try_turn(record.container_id, record.ifname, store, driver) as turn:
        if turn is None:
            return None
        current = turn.read()
        if current is None or is_unfinished(current, store.boot_id()):
            return False
        steps = _wanted(current, pods)
        if steps is None:
            return False
        turn.amend(current, steps, Deadline.after(AMEND_S))
        changed = "; ".join(step.summary for step in steps if step not in current.steps)
        say("info", "the attachment has changed as the pod's annotations ask", changed=changed)
    return True


def _wanted(record: Record, pods: Pods) -> tuple[Step, ...] | None:
    """The steps that the attachment is to have; None where they are those it has, or what its pod says is not known."""
    noted = pods.read_changeable_options(record) if record.pod_name and record.owner == "pod" else None
    steps = steps_now(record, noted) if noted else record.steps
    return None if steps == record.steps else steps
