"""What of the API's objects can be the cause: the pod's annotations, and its network's definition since its ADD. Pure."""

from __future__ import annotations

import shlex
from typing import Final

from userspace_cni.base.errors import quote
from userspace_cni.diagnosis.why.attachment_sight import AttachmentSight, Findings, known

_RECREATE: Final = "the pod has what it said at its ADD; recreate the pod to have what it says now, or change the definition back"


def judge_definition(sight: AttachmentSight) -> Findings:
    """The network definition, as it is now."""
    seen = known(sight.definition)
    if seen is None:
        return
    show = f"`kubectl get network-attachment-definitions -n {shlex.join(seen.name.partition('/')[::2])} -o yaml`"
    if not seen.is_there:
        message = f"the network definition {seen.name}, by which the pod asked for this interface, was deleted"
        remedy = f"create it again before the pod is recreated: until then no new pod gets {sight.record.network}"
        yield sight.found(
            "definition-deleted", message, remedy, "this attachment goes on; a new sandbox of the pod fails", "warning"
        )
    elif not seen.is_ours:
        message = f"the network definition {seen.name} is no longer one of network {sight.record.network} of this plugin"
        yield sight.found("definition-replaced", message, f"{_RECREATE}: {show}", severity="warning")
    elif seen.refused:
        message = f"the network definition {seen.name} has changed since the pod's ADD, and is refused now: {seen.refused}"
        remedy = f"correct it ({show}); `userspace-cni lint` checks files"
        yield sight.found("definition-refused", message, remedy, "a new sandbox of the pod fails", "warning")
    elif seen.changed:
        said = "; ".join(f"{key} is {now} there, and {then} at the port" for key, (now, then) in seen.changed.items())
        message = f"the network definition {seen.name} has changed since the pod's ADD: {said}"
        yield sight.found(
            "definition-changed", message, f"{_RECREATE}: {show}", "pods made since then may be in another network", "warning"
        )
    else:
        yield sight.well("definition", f"network definition {seen.name}")


def judge_annotations(sight: AttachmentSight) -> Findings:
    """What the pod asks for while it lives: limits and mirrors."""
    seen, record, agent = known(sight.annotations), sight.record, known(sight.agent)
    if seen is None:
        return
    pod = shlex.join(["-n", record.pod_namespace, "pod", record.pod_name])
    if seen.refused:
        message = f"what the pod's annotations ask for is refused, and the port keeps what it had: {seen.refused}"
        if seen.annotation:
            message += f" (annotation {seen.annotation} is {quote(seen.value)})"
        assigned = f"{shlex.quote(seen.annotation)}=VALUE" if seen.annotation else "KEY=VALUE"
        correct = f"write the annotation again, with a value of yours: `kubectl annotate --overwrite {pod} {assigned}`"
        remedy = f"{correct}; `kubectl describe {pod}` has the events"
        yield sight.found("annotation-refused", message, remedy, "the limit or the mirror that was asked for is not in force")
    elif seen.pending:
        message = f"the pod's annotations ask for {'; '.join(seen.pending)}, and that is not applied"
        serves = agent is not None and agent.state == "ready"
        soon = "the agent applies it within moments; its log says why it does not"
        remedy = soon if serves else "start the agent, which applies it"
        yield sight.found("annotation-pending", message, remedy, "the former limits and mirrors are in force", "warning")
